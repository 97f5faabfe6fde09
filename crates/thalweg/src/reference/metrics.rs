//! The page of the metrics, made from the declarations from which the metrics themselves are made.

use std::fmt::Write as _;

use thalweg_assemble::METRIC_SECTIONS;
use thalweg_telemetry::{KEPT_NAMES, MetricGroup, PARTS};

use super::{MADE, cell};

const INTRODUCTION: &str = "\
A process exports these metrics at `/metrics` and `/stats`, in the text format of Prometheus. A metric appears once its
part of the process runs.

- A `timing` is a summary with the quantiles 0.5, 0.9 and 0.99, or a histogram if
  `metrics.prometheus.use_histogram_timing` is set.
- Without a unit, a metric counts what its sentence names.
- A label is absent where there is nothing to tell apart: `flow` if the file has one flow without a name, and of
  `dead_letter`; `dir` if the log is on one disk; `namespace` unless an event server counts by namespace; `group`
  when the queue itself, rather than one of its groups, is paused.

";

const SCHEME: &str = "\
A name is `thalweg_<part>_<what>`. A unit comes last: `_seconds` or `_bytes`, and `_ns` for a timing. A counter ends in
`_total`, after its unit.";

pub fn page() -> String {
    let mut text = format!("# Metrics\n\n{MADE}{INTRODUCTION}");
    names(&mut text);
    for section in METRIC_SECTIONS {
        let _ = write!(text, "## {}\n\n", section.title);
        for group in section.groups {
            describe(group, &mut text);
        }
    }
    text
}

/// The scheme of the names, and the names that do not have it.
fn names(text: &mut String) {
    let _ = write!(text, "## Names\n\n{SCHEME} The parts are {}.\n\n", quoted(&PARTS));
    text.push_str("These names have another form, because others ask for them:\n\n");
    for kept in KEPT_NAMES {
        let _ = writeln!(text, "- {}: {}", kept.used_by, quoted(kept.names));
    }
    text.push('\n');
}

fn describe(group: &MetricGroup, text: &mut String) {
    let _ = write!(text, "### {}\n\n", group.title);
    if !group.labels.is_empty() {
        let _ = write!(text, "Labels of each: {}\n\n", quoted(group.labels));
    }
    text.push_str("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
    for doc in group.metrics {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            doc.name,
            doc.kind.name(),
            quoted(doc.labels),
            doc.unit(),
            cell(doc.sentence())
        );
    }
    text.push('\n');
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
