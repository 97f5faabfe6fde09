//! The metrics of the log, read from the counters of each disk at every scrape, and the list of all metrics of the process.

use std::sync::Arc;

use thalweg_kit::histogram::HistogramSnapshot;
use thalweg_log::EmbeddedLog;
use thalweg_telemetry::{Distribution, MetricDoc, MetricFamilies, MetricGroup, Metrics, metric_group};

use crate::clock::{CLOCK_JUMP_SECONDS, CLOCK_METRICS, WatchedClock};
use crate::queues::QueueService;

metric_group! {
    pub(crate) LOG_METRICS("Section `log`: each disk", &["dir"]) {
        COMMIT_SECONDS = MetricDoc::histogram(
            "thalweg_log_commit_seconds",
            "Time from taking a group of submissions to answering them.",
        );
        SYNC_SECONDS = MetricDoc::histogram(
            "thalweg_log_sync_seconds",
            "Time of a sync, or of a write and its sync if they are one call.",
        );
        ADMISSION_WAIT_SECONDS = MetricDoc::histogram(
            "thalweg_log_admission_wait_seconds",
            "Time that a submission waited for the writer.",
        );
        RECOVERY_SECONDS = MetricDoc::histogram(
            "thalweg_log_recovery_seconds",
            "Time to find the end of the log at the start.",
        );
        COMMIT_BYTES = MetricDoc::histogram("thalweg_log_commit_bytes", "Bytes of a block, with its headers.");
        COMMIT_RECORDS = MetricDoc::histogram("thalweg_log_commit_records", "Records in a block.");
        POISONED = MetricDoc::gauge("thalweg_log_poisoned", "1 if the log accepts no more writes.");
        DEGRADED = MetricDoc::gauge("thalweg_log_degraded", "1 if stored data cannot be read.");
        FREE_BYTES = MetricDoc::gauge("thalweg_log_free_bytes", "Free bytes on the disk.");
        COMMIT_FILES = MetricDoc::gauge("thalweg_log_commit_files", "Commit files that contain blocks.");
        TORN_BYTES = MetricDoc::counter(
            "thalweg_log_torn_bytes_total",
            "Bytes of a torn write that the start cut off.",
        );
        CORRUPT_FRAMES = MetricDoc::counter(
            "thalweg_log_corrupt_frames_total",
            "Frames that could not be read intact.",
        );
        DISTRIBUTED_BYTES = MetricDoc::counter(
            "thalweg_log_distributed_bytes_total",
            "Bytes moved out of commit files.",
        );
    }
}

/// The metrics that a part of the process exports.
#[derive(Clone, Copy, Debug)]
pub struct MetricSection {
    /// The part, as the heading of the reference.
    pub title: &'static str,
    pub groups: &'static [MetricGroup],
}

const LOG_GROUPS: &[MetricGroup] = &[LOG_METRICS, CLOCK_METRICS];

/// Every metric that a process can export.
pub const METRIC_SECTIONS: &[MetricSection] = &[
    section("Process", thalweg_telemetry::METRICS),
    section("HTTP listeners", thalweg_console::METRICS),
    section("Flows", thalweg_flow::METRICS),
    section("Tag processors", thalweg_tags::METRICS),
    section("OPC UA", thalweg_opcua::METRICS),
    #[cfg(feature = "kafka")]
    section("Kafka", thalweg_kafka::METRICS),
    section("Log", LOG_GROUPS),
    section("Queues", thalweg_queue_flow::METRICS),
    section("MQTT", thalweg_mqtt::metrics::METRICS),
    section("MQTT broker start", crate::mqtt::METRICS),
    section("Events", thalweg_events_api::METRICS),
    section("OpenTelemetry", thalweg_otlp::METRICS),
    section("Lake", thalweg_lake::metrics::METRICS),
    section("Queries", thalweg_query::METRICS),
];

const fn section(title: &'static str, groups: &'static [MetricGroup]) -> MetricSection {
    MetricSection { title, groups }
}

/// Registers the metrics of an open log and of the queues in it.
pub(crate) fn register(metrics: &Metrics, store: &QueueService) {
    let Some(queues) = store.queues() else { return };
    register_logs(metrics, store.logs().to_vec());
    if let Some(clock) = store.clock() {
        register_clock(metrics, clock);
    }
    thalweg_queue_flow::register_metrics(metrics, queues);
}

pub(crate) fn register_clock(metrics: &Metrics, clock: &Arc<WatchedClock>) {
    let clock = clock.clone();
    metrics.tell(&CLOCK_JUMP_SECONDS, move |to| clock.tell_metrics(to));
}

/// Registers the metrics of the log of each disk.
pub(crate) fn register_logs(metrics: &Metrics, logs: Vec<Arc<EmbeddedLog>>) {
    metrics.tell(&POISONED, move |to| {
        for one in &logs {
            // A single disk needs no label.
            let labels = [("dir", one.folder())];
            let labels = if logs.len() > 1 { &labels[..] } else { &[] };
            tell_log(to, one, labels);
        }
    });
}

fn tell_log(to: &mut MetricFamilies, log: &EmbeddedLog, labels: &[(&str, &str)]) {
    let counters = log.counters();
    for (doc, distribution) in [
        (&COMMIT_SECONDS, seconds(&counters.commit_us)),
        (&SYNC_SECONDS, seconds(&counters.sync_us)),
        (&ADMISSION_WAIT_SECONDS, seconds(&counters.admission_us)),
        (&RECOVERY_SECONDS, seconds(&counters.recovery_us)),
        (&COMMIT_BYTES, distribution(&counters.commit_bytes, 1.0)),
        (&COMMIT_RECORDS, distribution(&counters.commit_records, 1.0)),
    ] {
        to.histogram(doc, labels, &distribution);
    }
    to.gauge(&POISONED, labels, f64::from(u8::from(counters.is_poisoned)));
    to.gauge(&DEGRADED, labels, f64::from(u8::from(counters.is_degraded)));
    to.gauge(&FREE_BYTES, labels, counters.free_bytes as f64);
    // Including the one that is being written.
    to.gauge(&COMMIT_FILES, labels, (counters.full_files + 1) as f64);
    to.counter(&TORN_BYTES, labels, counters.torn_bytes);
    to.counter(&CORRUPT_FRAMES, labels, counters.corrupt_frames);
    to.counter(&DISTRIBUTED_BYTES, labels, counters.moved_bytes);
}

fn seconds(observed: &HistogramSnapshot) -> Distribution {
    distribution(observed, 1e-6)
}

fn distribution(observed: &HistogramSnapshot, unit: f64) -> Distribution {
    let bucket = |(bound, count): &(u64, u64)| (*bound as f64 * unit, *count);
    Distribution {
        buckets: observed.buckets.iter().map(bucket).collect(),
        beyond: observed.beyond,
        sum: observed.sum as f64 * unit,
    }
}

#[cfg(test)]
mod tests;
