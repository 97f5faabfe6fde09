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
pub(super) struct QueueReference {
    /// Where the file names it.
    pub pos: Pos,
    pub name: String,
    /// `None`: it is written.
    pub reader: Option<GroupReference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupReference {
    pub group: Option<String>,
    pub mode: GroupMode,
    /// Where the file names the group, or the queue.
    pub pos: Pos,
}

/// Mistakes go to the diagnostics.
pub(super) fn check(used: &[QueueReference], section: &QueuesSettings, diagnostics: &Diagnostics) {
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

#[cfg(test)]
mod tests {
    use thalweg_config::{LoadOptions, SourceText};

    use crate::checked_config::CheckedConfig;

    fn check(text: &str) -> (String, bool) {
        let checked = CheckedConfig::text(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
        (checked.diagnostics.to_string(), checked.diagnostics.has_errors())
    }

    const LIST: &str = "list: [{name: orders, groups: [{name: billing, mode: stream}]}, {name: line-1}]";

    #[test]
    fn a_slip_in_the_name_of_a_queue_is_an_error_at_its_place() {
        for (flow, place) in [
            ("input: {queue: {name: ordrs}}\noutput: {drop: {}}", "1:23"),
            ("input: {queue: {name: dlq.ordrs}}\noutput: {drop: {}}", "1:23"),
            ("input: {stdin: {}}\noutput: {queue: {name: ordrs}}", "2:24"),
            (
                "input: {stdin: {}}\noutput: {broker: {outputs: [{drop: {}}, {queue: {name: ordrs}}]}}",
                "2:56",
            ),
            (
                "input: {stdin: {}}\noutput: {drop: {}}\ndead_letter: {queue: {name: ordrs}}",
                "3:29",
            ),
            (
                "input: {stdin: {}}\noutput: {drop: {}}\ninput_resources: [{label: a, queue: {name: ordrs}}]",
                "3:44",
            ),
        ] {
            let (found, is_refused) = check(&format!("{flow}\nqueues: {{{LIST}}}\n"));
            let expected = format!(
                "f.yaml:{place}: queue.name: there is no queue \"ordrs\" in queues.list, did you mean \"orders\"? Correct the name, or declare the queue\n"
            );
            assert_eq!((found.as_str(), is_refused), (expected.as_str(), true), "for {flow}");
        }
    }

    #[test]
    fn what_may_be_made_elsewhere_is_no_error() {
        for (name, section, part) in [
            ("orders", LIST.to_owned(), ""),
            ("dlq.orders", LIST.to_owned(), ""),
            ("buffer.x", LIST.to_owned(), ""),
            (
                "line-2",
                LIST.to_owned(),
                "did you mean \"line-1\"? The flow waits until",
            ),
            ("invoices", LIST.to_owned(), "in queues.list; The flow waits until"),
            (
                "ordrs",
                format!("auto_create: true, {LIST}"),
                "did you mean \"orders\"? It is made when",
            ),
            ("invoices", format!("auto_create: true, {LIST}"), ""),
            ("ordrs", "auto_create: true".to_owned(), ""),
            // A note, which is no part of this text.
            ("ordrs", "list: []".to_owned(), ""),
        ] {
            let text = format!("input: {{queue: {{name: {name}}}}}\noutput: {{drop: {{}}}}\nqueues: {{{section}}}\n");
            let (found, is_refused) = check(&text);
            assert!(!is_refused && found.contains(part), "{text}: {found}");
            assert_eq!(found.is_empty(), part.is_empty(), "{text}: {found}");
        }
    }

    #[test]
    fn a_group_is_read_with_the_mode_that_it_is_declared_with() {
        for (input, part, is_error) in [
            ("{name: orders, group: billing, mode: stream}", "", false),
            (
                "{name: orders, group: billing}",
                "queue.mode: group \"billing\" of queue \"orders\" is declared with mode stream",
                true,
            ),
            (
                "{name: orders, group: biling, mode: stream}",
                "did you mean \"billing\"?",
                false,
            ),
            ("{name: orders, group: archive, mode: stream}", "", false),
            ("{name: orders}", "", false),
        ] {
            let text = format!("input: {{queue: {input}}}\noutput: {{drop: {{}}}}\nqueues: {{{LIST}}}\n");
            let (found, is_refused) = check(&text);
            assert!(found.contains(part), "{text}: {found}");
            assert_eq!(
                (found.is_empty(), is_refused),
                (part.is_empty(), is_error),
                "{text}: {found}"
            );
        }
    }
}
