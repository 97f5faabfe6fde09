//! The names of metrics. All have one scheme, except for those that dashboards of other systems ask for.
//!
//! A name is `thalweg_<part>_<what>`, in words of lower-case letters and digits. The part is one of [`PARTS`]. A unit comes
//! last: `_seconds` or `_bytes`, and `_ns` for a timing. A counter ends in `_total`, after its unit.

use crate::metric_doc::{MetricDoc, MetricKind};

const PREFIX: &str = "thalweg_";

/// The parts of the program that names begin with, after the prefix.
pub const PARTS: [&str; 14] = [
    "buffer", "clock", "events", "flow", "http", "kafka", "lake", "log", "opcua", "otlp", "process", "queue", "script",
    "uns",
];

/// Names outside the scheme that stay.
#[derive(Clone, Copy, Debug)]
pub struct KeptNames {
    /// Who asks for them.
    pub used_by: &'static str,
    pub names: &'static [&'static str],
}

pub const KEPT_NAMES: &[KeptNames] = &[
    KeptNames {
        used_by: "dashboards that fit every program with metrics for Prometheus",
        names: &[
            "process_cpu_seconds_total",
            "process_open_fds",
            "process_resident_memory_bytes",
        ],
    },
    KeptNames {
        used_by: "dashboards of the reference collector, about every component",
        names: &[
            "batch_created",
            "buffer_batch_received",
            "buffer_batch_sent",
            "buffer_latency_ns",
            "buffer_received",
            "buffer_sent",
            "input_connection_failed",
            "input_connection_lost",
            "input_connection_up",
            "input_latency_ns",
            "input_received",
            "output_batch_sent",
            "output_connection_failed",
            "output_connection_lost",
            "output_connection_up",
            "output_error",
            "output_latency_ns",
            "output_sent",
            "processor_batch_received",
            "processor_batch_sent",
            "processor_error",
            "processor_latency_ns",
            "processor_received",
            "processor_sent",
        ],
    },
    KeptNames {
        used_by: "dashboards of the reference collector, about its own components",
        names: &[
            "active_mappings",
            "active_variables",
            "batch_processing_time",
            "events_overwritten",
            "input_uns_batch_processing_time",
            "input_uns_connected",
            "input_uns_connection_errors",
            "input_uns_connection_time",
            "input_uns_poll_errors",
            "input_uns_records_commit_time",
            "input_uns_records_filtered",
            "input_uns_records_received",
            "invalid_data_type",
            "javascript_errors",
            "javascript_execution_time",
            "message_processing_time",
            "messages_dropped",
            "messages_errored",
            "messages_expanded",
            "messages_failed",
            "messages_filtered",
            "messages_ignored",
            "messages_not_emitted",
            "messages_passed_through",
            "messages_processed",
            "meta_override_recreations",
            "meta_overrides_applied",
            "meta_overrides_rejected",
            "opcua_subscription_failures_total",
            "outputs_generated",
            "recursion_limit_hit",
            "tag_limit_exceeded",
            "total_events_emitted",
            "vm_pool_hits",
            "vm_pool_misses",
        ],
    },
    KeptNames {
        used_by: "dashboards of the queues whose interface these queues have",
        names: &[
            "mqtt_queue_ack_total",
            "mqtt_queue_active_consumers",
            "mqtt_queue_bytes",
            "mqtt_queue_delayed",
            "mqtt_queue_delivery_latency_seconds",
            "mqtt_queue_depth",
            "mqtt_queue_dequeue_total",
            "mqtt_queue_dlq_total",
            "mqtt_queue_dropped_total",
            "mqtt_queue_enqueue_total",
            "mqtt_queue_expired_total",
            "mqtt_queue_inflight",
            "mqtt_queue_lag",
            "mqtt_queue_nack_total",
            "mqtt_queue_oldest_seconds",
            "mqtt_queue_paused",
            "mqtt_queue_redelivered_total",
            "mqtt_queue_refused_total",
            "mqtt_queue_reject_total",
            "mqtt_queue_waiting",
        ],
    },
    KeptNames {
        used_by: "dashboards of MQTT brokers, as the specification of this one names its metrics",
        names: &[
            "mqtt_auth_denied_total",
            "mqtt_bytes_total",
            "mqtt_connect_total",
            "mqtt_connections",
            "mqtt_disconnect_total",
            "mqtt_filter_bytes",
            "mqtt_filters",
            "mqtt_inflight",
            "mqtt_packets_total",
            "mqtt_publish_dropped_total",
            "mqtt_publish_total",
            "mqtt_recovery_seconds",
            "mqtt_retained_bytes",
            "mqtt_retained_messages",
            "mqtt_sessions",
            "mqtt_sessions_behind",
            "mqtt_store_bytes",
            "mqtt_store_messages",
            "mqtt_subscriptions",
            "mqtt_takeover_total",
            "mqtt_wills_total",
        ],
    },
];

/// Units and words for them that are written otherwise.
const OTHER_UNITS: [&str; 14] = [
    "duration",
    "hours",
    "kb",
    "kib",
    "latency",
    "mb",
    "mib",
    "microseconds",
    "milliseconds",
    "minutes",
    "ms",
    "nanoseconds",
    "time",
    "us",
];
/// Prometheus appends these to the names of histograms and summaries.
const SUFFIXES_OF_SAMPLES: [&str; 3] = ["bucket", "count", "sum"];

impl MetricDoc {
    /// Whether the name is one of [`KEPT_NAMES`].
    pub fn has_kept_name(&self) -> bool {
        KEPT_NAMES.iter().any(|kept| kept.names.contains(&self.name))
    }

    /// What is wrong with the name or with a label, and the cure; `None` if they have the scheme, or if the name stays.
    pub fn name_fault(&self) -> Option<String> {
        let fault = match self.has_kept_name() {
            true => None,
            false => fault_of(self.name, self.kind),
        };
        let fault = fault.or_else(|| {
            let label = self.labels.iter().find(|label| !are_words(label))?;
            Some(format!(
                "the label {label:?} has more than lower-case words joined by _"
            ))
        });
        fault.map(|fault| format!("{}: {fault}", self.name))
    }
}

fn fault_of(name: &str, kind: MetricKind) -> Option<String> {
    if !are_words(name) {
        return Some("begin with a letter, and use lower-case words joined by _".to_owned());
    }
    let Some((part, what)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')) else {
        return Some(format!("begin with {PREFIX}, a part of the program and _"));
    };
    if !PARTS.contains(&part) {
        return Some(format!(
            "{part:?} is no part of the program; use one of {}",
            PARTS.join(", ")
        ));
    }
    let counted = what.strip_suffix("_total");
    if counted.is_some() != (kind == MetricKind::Counter) {
        return Some("a counter ends in _total, and nothing else does".to_owned());
    }
    let words: Vec<&str> = counted.unwrap_or(what).split('_').collect();
    let (last, before) = words.split_last()?;
    if (*last == "ns") != (kind == MetricKind::Timing) {
        return Some("a timing ends in _ns, and nothing else does".to_owned());
    }
    if OTHER_UNITS.contains(last) {
        return Some(format!("{last:?} is no unit; use _seconds or _bytes"));
    }
    if SUFFIXES_OF_SAMPLES.contains(last) {
        return Some(format!("Prometheus appends _{last} to other names"));
    }
    let is_unit = |word: &&&str| ["bytes", "ns", "seconds"].contains(*word);
    before
        .iter()
        .find(is_unit)
        .map(|unit| format!("the unit _{unit} comes last"))
}

/// Lower-case words of letters and digits, joined by single underscores. The first begins with a letter.
fn are_words(name: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.split('_').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(doc: MetricDoc) -> String {
        doc.name_fault().unwrap_or_default()
    }

    #[test]
    fn a_name_has_the_scheme_or_is_refused_with_the_cure() {
        for doc in [
            MetricDoc::counter("thalweg_log_torn_bytes_total", "x"),
            MetricDoc::counter("thalweg_flow_in_total", "x"),
            MetricDoc::gauge("thalweg_opcua_connected", "x"),
            MetricDoc::gauge("thalweg_lake_commit_lag_seconds", "x"),
            MetricDoc::histogram("thalweg_log_commit_records", "x"),
            MetricDoc::timing("thalweg_flow_latency_ns", "x").with_labels(&["path"]),
        ] {
            assert_eq!(doc.name_fault(), None);
        }
        for (doc, expected) in [
            (MetricDoc::gauge("free_bytes", "x"), "begin with thalweg_"),
            (MetricDoc::gauge("thalweg_depth", "x"), "begin with thalweg_"),
            (MetricDoc::gauge("thalweg_tide_level", "x"), "\"tide\" is no part"),
            (MetricDoc::gauge("Thalweg_log_files", "x"), "lower-case words"),
            (MetricDoc::gauge("thalweg_log__files", "x"), "lower-case words"),
            (MetricDoc::gauge("thalweg_log_files_", "x"), "lower-case words"),
            (MetricDoc::counter("thalweg_log_files", "x"), "ends in _total"),
            (MetricDoc::gauge("thalweg_log_files_total", "x"), "ends in _total"),
            (
                MetricDoc::timing("thalweg_flow_latency_seconds", "x"),
                "a timing ends in _ns",
            ),
            (
                MetricDoc::histogram("thalweg_flow_latency_ns", "x"),
                "a timing ends in _ns",
            ),
            (
                MetricDoc::histogram("thalweg_flow_latency", "x"),
                "use _seconds or _bytes",
            ),
            (MetricDoc::gauge("thalweg_flow_wait_ms", "x"), "use _seconds or _bytes"),
            (
                MetricDoc::counter("thalweg_flow_wait_time_total", "x"),
                "use _seconds or _bytes",
            ),
            (MetricDoc::gauge("thalweg_flow_message_count", "x"), "appends _count"),
            (
                MetricDoc::gauge("thalweg_flow_bytes_waiting", "x"),
                "the unit _bytes comes last",
            ),
            (
                MetricDoc::gauge("thalweg_log_files", "x").with_labels(&["Dir"]),
                "the label \"Dir\"",
            ),
        ] {
            let fault = fault(doc);
            assert!(fault.starts_with(doc.name) && fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn a_kept_name_stays_outside_the_scheme_and_is_kept_for_one_reason() {
        assert_eq!(MetricDoc::counter("input_received", "x").name_fault(), None);
        let mut names: Vec<&str> = KEPT_NAMES.iter().flat_map(|kept| kept.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let in_the_scheme: Vec<_> = names.iter().filter(|name| name.starts_with(PREFIX)).collect();
        assert!(in_the_scheme.is_empty(), "{in_the_scheme:?}");
    }
}
