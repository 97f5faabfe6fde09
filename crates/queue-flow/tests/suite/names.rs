use thalweg_config::{ComponentKind, LoadOptions, SourceText, load};
use thalweg_flow::{FlowSpec, ParseContext};
use thalweg_queue::settings::QueuesSettings;

use crate::support::registry;

/// The diagnostics of a configuration, and whether it is refused.
fn check(text: &str) -> (String, bool) {
    let (registry, shared) = registry();
    let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    let (config, diagnostics) = (&loaded.config, &loaded.diagnostics);
    let mut context = ParseContext::new(diagnostics, &registry, config);
    for flow in &config.flows {
        drop(FlowSpec::parse(flow, &mut context));
    }
    if let Some(node) = &config.dead_letter {
        drop(context.output(node));
    }
    for node in config.resources.of(ComponentKind::Input) {
        context.check(node);
    }
    let declared = QueuesSettings::read(config.queues.as_ref(), diagnostics);
    shared.check_names(&declared, diagnostics);
    (diagnostics.to_string(), diagnostics.has_errors())
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
            "did you mean \"orders\"? It is created when",
        ),
        ("invoices", format!("auto_create: true, {LIST}"), ""),
        ("ordrs", "auto_create: true".to_owned(), ""),
        // This is a note, which is not part of the text.
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
