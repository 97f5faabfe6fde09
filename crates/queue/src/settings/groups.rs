//! The groups that a queue declares.
//!
//! Two groups with the same name are different if their filters differ, because the filter is part of the group.

use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Fields, Node};
use thalweg_log::{Micros, Offset};

use super::filter::check_filter;
use crate::message_times::{instant_text, parse_instant};
use crate::names::check_name;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupMode {
    /// One lease per message.
    Work,
    /// One offset per partition.
    Stream,
}

impl GroupMode {
    pub fn name(self) -> &'static str {
        match self {
            GroupMode::Work => "work",
            GroupMode::Stream => "stream",
        }
    }
}

/// Where a new group begins. It has no effect later; use seek instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStart {
    Earliest,
    Latest,
    /// In every partition.
    Offset(Offset),
    /// The first message of that time or later.
    Time(Micros),
}

impl std::str::FromStr for GroupStart {
    /// The end of a sentence that begins with "expected".
    type Err = &'static str;

    fn from_str(text: &str) -> Result<GroupStart, &'static str> {
        let form = "earliest, latest, offset:17 or time:2026-03-01T06:00:00Z";
        let start = match text {
            "earliest" => Some(GroupStart::Earliest),
            "latest" => Some(GroupStart::Latest),
            _ => match text.split_once(':') {
                // `str::parse` would accept a sign.
                Some(("offset", n)) if n.bytes().all(|b| b.is_ascii_digit()) => n.parse().ok().map(GroupStart::Offset),
                Some(("time", t)) => parse_instant(t).map(GroupStart::Time),
                _ => None,
            },
        };
        start.ok_or(form)
    }
}

impl std::fmt::Display for GroupStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GroupStart::Earliest => f.write_str("earliest"),
            GroupStart::Latest => f.write_str("latest"),
            GroupStart::Offset(offset) => write!(f, "offset:{offset}"),
            GroupStart::Time(at) => match instant_text(*at) {
                Some(text) => write!(f, "time:{text}"),
                None => write!(f, "time:{}", at / 1000),
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    pub name: SmolStr,
    pub mode: GroupMode,
    pub start: GroupStart,
    /// On the routing key; `None` accepts everything, as `#` does.
    pub filter: Option<SmolStr>,
}

impl GroupSettings {
    /// From the earliest message on, all messages.
    pub fn new(name: &str, mode: GroupMode) -> GroupSettings {
        GroupSettings {
            name: SmolStr::new(name),
            mode,
            start: GroupStart::Earliest,
            filter: None,
        }
    }

    /// Reads an entry of the list `groups`. Mistakes go to the diagnostics.
    pub fn read(node: &Node, diags: &Diagnostics) -> GroupSettings {
        let mut fields = Fields::new(node, diags);
        let name = fields.required_string("name");
        // A missing name is reported already.
        if fields.has("name")
            && let Err(error) = check_name(&name)
        {
            fields.error("name", error);
        }
        GroupSettings::read_unnamed(&name, fields)
    }

    /// Reads a request body without the name, which is in the path.
    pub fn read_unnamed(name: &str, mut fields: Fields<'_>) -> GroupSettings {
        let mode = match fields.one_of("mode", &["work", "stream"], "work") {
            "stream" => GroupMode::Stream,
            _ => GroupMode::Work,
        };
        let start = fields.string("start", "earliest").parse().unwrap_or_else(|form| {
            fields.error("start", format!("expected {form}"));
            GroupStart::Earliest
        });
        let filter = fields.opt_string("filter");
        if let Some(Err(message)) = filter.as_deref().map(check_filter) {
            fields.error("filter", message);
        }
        fields.finish();
        GroupSettings {
            name: SmolStr::new(name),
            mode,
            start,
            filter: filter.filter(|filter| filter != "#").map(SmolStr::from),
        }
    }

    /// Whether both mean the same group.
    pub fn is_same_group(&self, other: &GroupSettings) -> bool {
        self.name == other.name && self.filter == other.filter
    }
}
