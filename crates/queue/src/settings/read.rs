//! Reads queue settings: every field with its default, then the rules between fields.
//!
//! A field that is not given keeps its base value: the default on creation, the current value on a change. So both
//! share this code.

use std::ops::RangeInclusive;
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Fields, Node};

use super::filter::check_filter;
use super::units::{duration_text, size_text};
use super::{
    CompactionSettings, DeadLetterSettings, GroupSettings, HOUR, MESSAGE_BYTES_MAX, Overflow, PARTITIONS_MAX,
    QueueOrdering, QueueSettings, RetentionMode, RetentionSettings, RetrySettings,
};
use crate::message_times::DELAY_MAX;
use crate::names::{check_name, dead_letter_name};

const TOPICS_MAX: usize = 1000;
const GROUPS_MAX: usize = 1000;
/// Including groups that consumers create: each change of one rewrites the entry with all of them.
pub(crate) const QUEUE_GROUPS_MAX: usize = 2 * GROUPS_MAX;
const RETRIES_MAX: u32 = 1_000_000;
const IN_FLIGHT_MAX: u32 = 1_000_000;
/// Maximum width of the dense window of a group's state machine.
const PENDING_MAX: u32 = 1 << 22;
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
/// Longer than any machine will run; keeps sums with clocks in range.
const EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl QueueSettings {
    /// Reads settings from a mapping; all fields are optional. Mistakes go to the diagnostics.
    pub fn read(node: &Node, diags: &Diagnostics) -> QueueSettings {
        QueueSettings::default().patch(node, diags)
    }

    /// Reads settings written by [`QueueSettings::to_json`], including those of internal queues.
    pub fn stored(node: &Node, diags: &Diagnostics) -> QueueSettings {
        let most = QueueSettings {
            max_message_size: thalweg_log::SUBMISSION_BYTES_MAX as u64,
            ..QueueSettings::default()
        };
        most.patch(node, diags)
    }

    /// The limit of `max_message_size`. A queue that already has more, such as those of the lake, may keep it.
    fn message_bytes_max(&self) -> u64 {
        self.max_message_size.max(MESSAGE_BYTES_MAX)
    }

    /// These settings with the fields of the mapping replaced. Nested mappings (`retry`, `dlq`, `retention`,
    /// `compaction`) are merged; a list replaces the list. Mistakes go to the diagnostics.
    pub fn patch(&self, node: &Node, diags: &Diagnostics) -> QueueSettings {
        let mut fields = Fields::new(node, diags);
        let settings = self.read_fields(&mut fields);
        fields.finish();
        settings
    }

    /// Like `read`, with the required field `name`; empty after a mistake.
    pub fn read_named(node: &Node, diags: &Diagnostics) -> (SmolStr, QueueSettings) {
        let mut fields = Fields::new(node, diags);
        let name = fields.required_string("name");
        // A missing name is reported already.
        if fields.has("name")
            && let Err(error) = check_name(&name)
        {
            fields.error("name", error);
        }
        let settings = QueueSettings::default().read_fields(&mut fields);
        if settings.dlq.enabled
            && let Err(error) = dead_letter_name(&name)
        {
            fields.error(
                "name",
                format!("{error}, because dlq.<name> is one too; shorten it or set dlq.enabled: false"),
            );
        }
        fields.finish();
        (SmolStr::from(name), settings)
    }

    fn read_fields(&self, f: &mut Fields<'_>) -> QueueSettings {
        let settings = QueueSettings {
            partitions: count(f, "partitions", self.partitions, 1..=PARTITIONS_MAX),
            ordering: word(f, "ordering", &QueueOrdering::ALL, self.ordering, QueueOrdering::name),
            lane_window: count(f, "lane_window", self.lane_window, 1..=1000),
            topics: topics(f, &self.topics),
            default_group: default_group(f, &self.default_group),
            durability: durability(f).or(self.durability),
            max_message_size: size(
                f,
                "max_message_size",
                self.max_message_size,
                1..=self.message_bytes_max(),
            ),
            max_depth: whole(f, "max_depth", self.max_depth),
            max_bytes: size(f, "max_bytes", self.max_bytes, 0..=u64::MAX),
            overflow: word(f, "overflow", &Overflow::ALL, self.overflow, Overflow::name),
            block_timeout: duration(f, "block_timeout", self.block_timeout, MILLISECOND..=HOUR),
            ttl: duration(f, "ttl", self.ttl, Duration::ZERO..=EVER),
            visibility_timeout: duration(f, "visibility_timeout", self.visibility_timeout, SECOND..=12 * HOUR),
            claim_batch: count(f, "claim_batch", self.claim_batch, 1..=10_000),
            max_in_flight: count(f, "max_in_flight", self.max_in_flight, 1..=IN_FLIGHT_MAX),
            max_pending: count(f, "max_pending", self.max_pending, 1..=PENDING_MAX),
            retry: self.retry.patch(f.fields("retry")),
            consumer_timeout: duration(f, "consumer_timeout", self.consumer_timeout, SECOND..=12 * HOUR),
            dedup_window: duration(f, "dedup_window", self.dedup_window, Duration::ZERO..=24 * HOUR),
            dlq: self.dlq.patch(f.fields("dlq")),
            group_expiry: duration(f, "group_expiry", self.group_expiry, Duration::ZERO..=EVER),
            retention: self.retention.patch(f.fields("retention")),
            compaction: self.compaction.patch(f.fields("compaction")),
            groups: groups(f, &self.groups),
        };
        settings.check(f);
        settings
    }

    /// Checks the rules between fields.
    fn check(&self, f: &Fields<'_>) {
        if self.ordering == QueueOrdering::Strict && self.partitions != 1 {
            let message = format!("strict needs partitions: 1, got {}", self.partitions);
            f.error("ordering", message);
        }
        if self.ordering == QueueOrdering::None && self.lane_window != 1 {
            f.error(
                "lane_window",
                "without ordering there are no lanes; set ordering: partition or leave it out",
            );
        }
        if self.dlq.on_overflow && self.overflow != Overflow::DropOldest {
            f.error(
                "dlq",
                "on_overflow needs overflow: drop-oldest, since otherwise nothing is dropped",
            );
        }
        if self.compaction.enabled && self.retention.mode != RetentionMode::Policy {
            f.error("compaction", "compaction needs retention.mode: policy");
        }
    }
}

impl RetrySettings {
    fn patch(self, mut f: Fields<'_>) -> RetrySettings {
        let retry = RetrySettings {
            max_retries: count(&mut f, "max_retries", self.max_retries, 0..=RETRIES_MAX),
            initial_backoff: duration(
                &mut f,
                "initial_backoff",
                self.initial_backoff,
                Duration::ZERO..=DELAY_MAX,
            ),
            max_backoff: duration(&mut f, "max_backoff", self.max_backoff, Duration::ZERO..=DELAY_MAX),
            multiplier: f.float("multiplier", self.multiplier),
            jitter: f.float("jitter", self.jitter),
            total_timeout: duration(&mut f, "total_timeout", self.total_timeout, Duration::ZERO..=EVER),
        };
        if retry.max_backoff < retry.initial_backoff {
            let (max, initial) = (duration_text(retry.max_backoff), duration_text(retry.initial_backoff));
            f.error(
                "max_backoff",
                format!("{max} is less than initial_backoff, {initial}; raise it"),
            );
        }
        if retry.multiplier < 1.0 {
            f.error("multiplier", "must be at least 1, so that waits do not shrink");
        }
        if !(0.0..=1.0).contains(&retry.jitter) {
            f.error("jitter", "must be from 0 to 1, a part of the backoff");
        }
        f.finish();
        retry
    }
}

impl DeadLetterSettings {
    fn patch(&self, mut f: Fields<'_>) -> DeadLetterSettings {
        let dlq = DeadLetterSettings {
            enabled: f.bool("enabled", self.enabled),
            on_expire: f.bool("on_expire", self.on_expire),
            on_overflow: f.bool("on_overflow", self.on_overflow),
            webhook: f
                .opt_string("webhook")
                .map(SmolStr::from)
                .or_else(|| self.webhook.clone()),
        };
        if let Some(Err(message)) = dlq.webhook.as_deref().map(check_webhook) {
            f.error("webhook", message);
        }
        if !dlq.enabled {
            let given = [
                ("on_expire", dlq.on_expire),
                ("on_overflow", dlq.on_overflow),
                ("webhook", dlq.webhook.is_some()),
            ];
            for (name, _) in given.into_iter().filter(|(_, given)| *given) {
                f.error(name, "needs enabled: true, since otherwise there are no dead letters");
            }
        }
        f.finish();
        dlq
    }
}

impl RetentionSettings {
    fn patch(self, mut f: Fields<'_>) -> RetentionSettings {
        let retention = RetentionSettings {
            mode: word(&mut f, "mode", &RetentionMode::ALL, self.mode, RetentionMode::name),
            max_age: duration(&mut f, "max_age", self.max_age, Duration::ZERO..=EVER),
            max_bytes: size(&mut f, "max_bytes", self.max_bytes, 0..=u64::MAX),
            max_messages: whole(&mut f, "max_messages", self.max_messages),
            protect_streams: f.bool("protect_streams", self.protect_streams),
        };
        if retention.mode == RetentionMode::Settled {
            let given = [
                ("max_age", !retention.max_age.is_zero()),
                ("max_bytes", retention.max_bytes > 0),
                ("max_messages", retention.max_messages > 0),
                ("protect_streams", retention.protect_streams),
            ];
            for (name, _) in given.into_iter().filter(|(_, given)| *given) {
                f.error(
                    name,
                    "needs mode: policy; with mode: settled a message is removed when every group has settled it",
                );
            }
        }
        f.finish();
        retention
    }
}

impl CompactionSettings {
    fn patch(self, mut f: Fields<'_>) -> CompactionSettings {
        let compaction = CompactionSettings {
            enabled: f.bool("enabled", self.enabled),
            lag: duration(&mut f, "lag", self.lag, Duration::ZERO..=EVER),
            interval: duration(&mut f, "interval", self.interval, SECOND..=EVER),
            tombstone_age: duration(&mut f, "tombstone_age", self.tombstone_age, Duration::ZERO..=EVER),
        };
        f.finish();
        compaction
    }
}

pub(super) fn count(f: &mut Fields<'_>, name: &str, default: u32, range: RangeInclusive<u32>) -> u32 {
    let range = i64::from(*range.start())..=i64::from(*range.end());
    // In the range of a u32, or the default, which was one.
    u32::try_from(f.int_in(name, default.into(), range)).unwrap_or(default)
}

/// A number of messages.
fn whole(f: &mut Fields<'_>, name: &str, default: u64) -> u64 {
    let base = i64::try_from(default).unwrap_or(i64::MAX);
    u64::try_from(f.int_in(name, base, 0..=i64::MAX)).unwrap_or(default)
}

pub(super) fn size(f: &mut Fields<'_>, name: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
    let value = f.size(name, &size_text(default));
    // A missing field is not a mistake of the user, even if it is out of range as in a queue of the lake.
    if !f.has(name) || range.contains(&value) {
        return value;
    }
    let (low, high) = (size_text(*range.start()), size_text(*range.end()));
    f.error(
        name,
        format!("expected a size from {low} to {high}, got {}", size_text(value)),
    );
    default
}

pub(super) fn duration(f: &mut Fields<'_>, name: &str, default: Duration, range: RangeInclusive<Duration>) -> Duration {
    let value = f.duration(name, &duration_text(default));
    if !f.has(name) || range.contains(&value) {
        return value;
    }
    let (low, high) = (duration_text(*range.start()), duration_text(*range.end()));
    f.error(
        name,
        format!("expected a duration from {low} to {high}, got {}", duration_text(value)),
    );
    default
}

/// An enum value by its name.
pub(super) fn word<T: Copy, const N: usize>(
    f: &mut Fields<'_>,
    field: &str,
    all: &[T; N],
    default: T,
    name: impl Fn(T) -> &'static str,
) -> T {
    let names = all.map(&name);
    let chosen = f.one_of(field, &names, name(default));
    all.iter()
        .copied()
        .find(|value| name(*value) == chosen)
        .unwrap_or(default)
}

pub(super) const DURABILITIES: [&str; 4] = ["fsync", "interval", "os", "memory"];

fn durability(f: &mut Fields<'_>) -> Option<thalweg_log::Durability> {
    // Users cannot write the empty word, so it means "not given".
    f.one_of("durability", &DURABILITIES, "").parse().ok()
}

fn default_group(f: &mut Fields<'_>, default: &SmolStr) -> SmolStr {
    let name = f.string("default_group", default);
    if let Err(error) = check_name(&name) {
        f.error("default_group", error);
    }
    SmolStr::from(name)
}

fn topics(f: &mut Fields<'_>, default: &[SmolStr]) -> Vec<SmolStr> {
    let given = f.has("topics");
    let topics: Vec<SmolStr> = f.string_list("topics").into_iter().map(SmolStr::from).collect();
    if !given {
        return default.to_vec();
    }
    if topics.len() > TOPICS_MAX {
        f.error(
            "topics",
            format!("a queue has at most {TOPICS_MAX} filters; use wildcards"),
        );
        return default.to_vec();
    }
    for (index, topic) in topics.iter().enumerate() {
        if let Err(message) = check_filter(topic) {
            f.error("topics", format!("{topic:?}: {message}"));
        } else if topics.iter().take(index).any(|other| other == topic) {
            f.error("topics", format!("{topic:?} is given twice"));
        }
    }
    topics
}

fn groups(f: &mut Fields<'_>, default: &[GroupSettings]) -> Vec<GroupSettings> {
    let given = f.has("groups");
    let nodes = f.list("groups");
    if nodes.len() > GROUPS_MAX {
        f.error("groups", format!("a queue declares at most {GROUPS_MAX} groups"));
        return default.to_vec();
    }
    let groups: Vec<GroupSettings> = nodes.iter().map(|node| GroupSettings::read(node, f.diags())).collect();
    if !given {
        return default.to_vec();
    }
    for (index, (group, node)) in groups.iter().zip(&nodes).enumerate() {
        if groups.iter().take(index).any(|other| other.is_same_group(group)) {
            f.diags().error(
                node,
                format!("group {:?} with this filter is declared twice", group.name),
            );
        }
    }
    groups
}

/// Checks only what needs no name resolution.
fn check_webhook(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else {
        return Err("must be an address beginning with https:// or http://");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || !url.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("must be an address such as https://ops.example/dead, in ASCII and without spaces");
    }
    if host.contains('@') {
        return Err("must have no user or password in it, since settings are shown to everyone who may read the queue");
    }
    // An IPv6 address has colons within brackets.
    let port = host.rsplit(']').next().and_then(|rest| rest.split_once(':'));
    let name = port.map_or(host, |(_, port)| {
        host.strip_suffix(port).unwrap_or(host).trim_end_matches(':')
    });
    if name.is_empty() || port.is_some_and(|(_, port)| !matches!(port.parse::<u16>(), Ok(1..))) {
        return Err("must be an address such as https://ops.example:8443/dead, whose port is a number up to 65535");
    }
    Ok(())
}
