//! Checks the queue names in flows against the queues that the same file declares. With an unknown name, a flow waits
//! for a queue that may never exist, so a typo is found before the flow runs. A queue may also be created through the
//! API, which the file cannot know; the message then says what the flow waits for.

use std::collections::HashMap;

use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Pos, closest, is_slip};
use thalweg_queue::names::{DEAD_LETTER_PREFIX, NameKind};
use thalweg_queue::settings::{GroupMode, QueueSettings, QueuesSettings};

/// A queue that a flow reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueReference {
    /// The position of the name in the file.
    pub pos: Pos,
    pub name: String,
    /// `None` if the queue is written.
    pub reader: Option<GroupReference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupReference {
    pub group: Option<String>,
    pub mode: GroupMode,
    /// The position of the group's name, or of the queue's.
    pub pos: Pos,
}

/// Reports mistakes to the diagnostics.
pub(crate) fn check(used: &[QueueReference], section: &QueuesSettings, diagnostics: &Diagnostics) {
    let list: HashMap<&str, &QueueSettings> = section
        .list
        .iter()
        .map(|(name, queue)| (name.as_str(), queue))
        .collect();
    for used in used.iter().filter(|used| !used.name.is_empty()) {
        // A dead letter queue exists as soon as its queue does.
        let name = match NameKind::of(&used.name) {
            NameKind::Ordinary => used.name.as_str(),
            NameKind::DeadLetter => used.name.strip_prefix(DEAD_LETTER_PREFIX).unwrap_or_default(),
            // Buffers and lake queues are created by their users.
            NameKind::Lake | NameKind::Buffer => continue,
        };
        match (list.get(name), &used.reader) {
            (None, _) => check_undeclared(name, used, section, diagnostics),
            (Some(queue), Some(reader)) if name == used.name => check_group(name, queue, reader, diagnostics),
            (Some(_), _) => {}
        }
    }
}

fn check_undeclared(name: &str, used: &QueueReference, section: &QueuesSettings, diagnostics: &Diagnostics) {
    let names: Vec<&str> = section.list.iter().map(|(known, _)| known.as_str()).collect();
    let near = closest(name, &names);
    let meant = near
        .map(|near| format!(", did you mean \"{near}\"?"))
        .unwrap_or_default();
    let is_slip = names.iter().any(|known| is_slip(name, known));
    let text = format!("queue.name: there is no queue \"{name}\" in queues.list{meant}");
    match section.auto_create {
        true if near.is_some() => {
            let text = format!("{text} It is created when it is first used, because queues.auto_create is set");
            diagnostics.warn_at(used.pos, text);
        }
        true => {}
        false if is_slip => diagnostics.error_at(used.pos, format!("{text} Correct the name, or declare the queue")),
        false if names.is_empty() => diagnostics.note_at(
            used.pos,
            format!(
                "queue.name: no queue \"{name}\" is declared in queues.list; the flow waits until the API creates it"
            ),
        ),
        false => {
            let stop = if near.is_some() { "" } else { ";" };
            let text = format!("{text}{stop} The flow waits until it is declared there or created through the API");
            diagnostics.warn_at(used.pos, text);
        }
    }
}

/// A group with another mode than declared can never be joined; an undeclared group is created with its own position.
fn check_group(queue: &str, settings: &QueueSettings, reader: &GroupReference, diagnostics: &Diagnostics) {
    let default: SmolStr = settings.default_group.to_string().into();
    let name = reader.group.as_deref().unwrap_or(&default);
    if let Some(declared) = settings.groups.iter().find(|group| group.name == name) {
        if declared.mode != reader.mode {
            let (declared, wanted) = (declared.mode.name(), reader.mode.name());
            let text = format!(
                "queue.mode: group \"{name}\" of queue \"{queue}\" is declared with mode {declared}, and this input reads it with mode {wanted}; change one of them, or read as another group"
            );
            diagnostics.error_at(reader.pos, text);
        }
        return;
    }
    let names: Vec<&str> = settings.groups.iter().map(|group| group.name.as_str()).collect();
    if reader.group.is_some()
        && let Some(near) = closest(name, &names)
    {
        let text = format!(
            "queue.group: queue \"{queue}\" declares no group \"{name}\", did you mean \"{near}\"? The group is created when this input first reads, and begins at the position of the field start"
        );
        diagnostics.warn_at(reader.pos, text);
    }
}
