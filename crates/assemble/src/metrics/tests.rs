use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn all() -> impl Iterator<Item = (&'static MetricGroup, &'static MetricDoc)> {
    let groups = METRIC_SECTIONS.iter().flat_map(|section| section.groups.iter());
    groups.flat_map(|group| group.metrics.iter().map(move |doc| (group, doc)))
}

#[test]
fn every_metric_has_a_sentence() {
    for (_, doc) in all() {
        for sentence in [doc.help, doc.sentence()] {
            let begins_well = sentence.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit());
            assert!(begins_well && sentence.ends_with('.'), "{}: {sentence:?}", doc.name);
        }
    }
}

/// Prometheus knows one help text and one type of a name.
#[test]
fn a_name_means_the_same_wherever_it_is_exported() {
    let mut known: BTreeMap<&str, &MetricDoc> = BTreeMap::new();
    for (_, doc) in all() {
        let first = *known.entry(doc.name).or_insert(doc);
        assert_eq!((first.help, first.kind), (doc.help, doc.kind), "{}", doc.name);
    }
}

#[test]
fn a_group_names_each_metric_and_each_label_once() {
    for section in METRIC_SECTIONS {
        for group in section.groups {
            let names: BTreeSet<&str> = group.metrics.iter().map(|doc| doc.name).collect();
            assert_eq!(names.len(), group.metrics.len(), "{}", group.title);
        }
    }
    for (group, doc) in all() {
        let labels: BTreeSet<&str> = group.labels.iter().chain(doc.labels).copied().collect();
        assert_eq!(labels.len(), group.labels.len() + doc.labels.len(), "{}", doc.name);
    }
}

/// Dashboards of the reference system ask for these.
#[test]
fn the_names_that_every_component_has_are_listed() {
    let names: BTreeSet<&str> = all().map(|(_, doc)| doc.name).collect();
    for name in [
        "input_received",
        "input_latency_ns",
        "input_connection_up",
        "input_connection_failed",
        "input_connection_lost",
        "buffer_received",
        "buffer_batch_received",
        "buffer_sent",
        "buffer_batch_sent",
        "buffer_latency_ns",
        "processor_received",
        "processor_batch_received",
        "processor_sent",
        "processor_batch_sent",
        "processor_error",
        "processor_latency_ns",
        "output_sent",
        "output_batch_sent",
        "output_error",
        "output_latency_ns",
        "output_connection_up",
        "output_connection_failed",
        "output_connection_lost",
        "batch_created",
    ] {
        assert!(names.contains(name), "{name} is in no group");
    }
}
