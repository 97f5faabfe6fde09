use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[cfg(feature = "kafka")]
use thalweg_telemetry::{KEPT_NAMES, PARTS};

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

#[test]
fn every_name_has_the_scheme_or_stays_for_others() {
    let faults: Vec<String> = all().filter_map(|(_, doc)| doc.name_fault()).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for label in all().flat_map(|(group, _)| group.labels) {
        assert!(label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{label}");
    }
}

/// Dashboards of other systems ask for these.
#[cfg(feature = "kafka")]
#[test]
fn every_name_that_stays_is_exported() {
    let names: BTreeSet<&str> = all().map(|(_, doc)| doc.name).collect();
    for name in KEPT_NAMES.iter().flat_map(|kept| kept.names) {
        assert!(names.contains(name), "{name} is in no group");
    }
}

#[cfg(feature = "kafka")]
#[test]
fn every_part_of_the_program_that_names_may_begin_with_has_a_metric() {
    for part in PARTS {
        let prefix = format!("thalweg_{part}_");
        assert!(all().any(|(_, doc)| doc.name.starts_with(&prefix)), "{part}");
    }
}

/// A word that begins so is the name of a metric, unless only a part of it is written.
const BEGINNINGS: [&str; 5] = ["thalweg_", "mqtt_queue_", "input_", "output_", "buffer_"];

/// The names of metrics in a text: `thalweg_log_files{dir="a"}` has one, `thalweg_log_*` and `thalweg_log::Log` none.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut rest = text;
    let words = std::iter::from_fn(move || {
        let start = rest.find(is_part)?;
        let from = &rest[start..];
        let (word, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
        rest = after;
        Some((word, after))
    });
    words.filter_map(move |(word, after)| {
        let begins = BEGINNINGS.iter().any(|beginning| word.starts_with(beginning));
        // A path in the code, or a table of a database.
        let goes_on = after.starts_with("::") || after.strip_prefix('.').is_some_and(|rest| rest.starts_with(is_part));
        let is_name = begins && !goes_on && !word.ends_with('_') && word.matches('_').count() > 1;
        is_name.then_some(word)
    })
}

/// The pages and examples that users read, and the console.
fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![
        root.join("docs"),
        root.join("examples"),
        root.join("crates/console/src"),
    ];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path)
                // The page that is made from the declarations.
                && !path.ends_with("reference/metrics.md")
            {
                texts.push((path, text));
            }
        }
    }
    texts
}

#[cfg(feature = "kafka")]
#[test]
fn pages_examples_and_the_console_name_only_metrics_that_exist() {
    let names: BTreeSet<&str> = all().map(|(_, doc)| doc.name).collect();
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (path, text) in texts() {
        for name in names_in(&text) {
            // Prometheus appends these to the names of histograms.
            let of_samples = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            match names.contains(name) || of_samples.is_some_and(|name| names.contains(name)) {
                true => found += 1,
                false => wrong.push(format!("{}: {name}", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 150, "{found}");
}

#[test]
fn names_are_found_among_words() {
    let text = "`thalweg_log_files{dir=\"a_b_c\"}`, thalweg_log_*, thalweg_log_file::Log, thalweg_events_of.messages, \
        thalweg_flow_in_total.";
    let found: Vec<&str> = names_in(text).collect();
    assert_eq!(found, ["thalweg_log_files", "thalweg_flow_in_total"]);
}
