//! Names of queues that the flows of a file use, against those that the same file declares. A name that is nowhere makes a flow
//! wait for a queue that may never come, so a slip is found before it runs. A queue may also be made through the API, which the
//! file cannot know; then the flow says what it waits for.

use std::collections::HashMap;

use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Pos, closest, is_slip};
use thalweg_queue::names::{DEAD_LETTER_PREFIX, NameKind};
use thalweg_queue::settings::{GroupMode, QueueSettings, QueuesSettings};

/// A flow reads or writes a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueReference {
    /// Where the file names it.
    pub pos: Pos,
    pub name: String,
    /// `None`: it is written.
    pub reader: Option<GroupReference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupReference {
    pub group: Option<String>,
    pub mode: GroupMode,
    /// Where the file names the group, or the queue.
    pub pos: Pos,
}

/// Mistakes go to the diagnostics.
pub(crate) fn check(used: &[QueueReference], section: &QueuesSettings, diagnostics: &Diagnostics) {
    let list: HashMap<&str, &QueueSettings> = section
        .list
        .iter()
        .map(|(name, queue)| (name.as_str(), queue))
        .collect();
    for used in used.iter().filter(|used| !used.name.is_empty()) {
        // Dead letters are there as soon as their queue is.
        let name = match NameKind::of(&used.name) {
            NameKind::Ordinary => used.name.as_str(),
            NameKind::DeadLetter => used.name.strip_prefix(DEAD_LETTER_PREFIX).unwrap_or_default(),
            // Buffers and what feeds the lake come with what has them.
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
            let text = format!("{text} It is made when it is first used, since queues.auto_create is set");
            diagnostics.warn_at(used.pos, text);
        }
        true => {}
        false if is_slip => diagnostics.error_at(used.pos, format!("{text} Correct the name, or declare the queue")),
        false if names.is_empty() => diagnostics.note_at(
            used.pos,
            format!(
                "queue.name: no queue \"{name}\" is declared in queues.list; the flow waits until it is made through the API"
            ),
        ),
        false => {
            let stop = if near.is_some() { "" } else { ";" };
            let text = format!("{text}{stop} The flow waits until it is declared there or made through the API");
            diagnostics.warn_at(used.pos, text);
        }
    }
}

/// A group of another mode than it is declared with is never joined; one that is not declared is made, and begins anew.
fn check_group(queue: &str, settings: &QueueSettings, reader: &GroupReference, diagnostics: &Diagnostics) {
    let default: SmolStr = settings.default_group.to_string().into();
    let name = reader.group.as_deref().unwrap_or(&default);
    if let Some(declared) = settings.groups.iter().find(|group| group.name == name) {
        if declared.mode != reader.mode {
            let (declared, wanted) = (declared.mode.name(), reader.mode.name());
            let text = format!(
                "queue.mode: group \"{name}\" of queue \"{queue}\" is declared with mode {declared}, and this reads it with mode {wanted}; change one of them, or read as another group"
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
            "queue.group: queue \"{queue}\" declares no group \"{name}\", did you mean \"{near}\"? It is made when this reads for the first time, and begins where start says"
        );
        diagnostics.warn_at(reader.pos, text);
    }
}
