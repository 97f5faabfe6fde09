//! The metrics of the log, read from the counters of each disk at every scrape.

use std::sync::Arc;

use thalweg_kit::histogram::HistogramSnapshot;
use thalweg_log::EmbeddedLog;
use thalweg_telemetry::{Distribution, MetricFamilies, Metrics};

use crate::clock::WatchedClock;
use crate::queues::QueueService;

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
    metrics.tell("thalweg_clock_jump_seconds", move |to| clock.tell_metrics(to));
}

/// Registers the metrics of the log of each disk.
pub(crate) fn register_logs(metrics: &Metrics, logs: Vec<Arc<EmbeddedLog>>) {
    metrics.tell("thalweg_log_poisoned", move |to| {
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
    for (name, help, distribution) in [
        (
            "thalweg_log_commit_seconds",
            "Time from taking a group of submissions to answering them.",
            seconds(&counters.commit_us),
        ),
        (
            "thalweg_log_sync_seconds",
            "Time of a sync, or of a write and its sync if they are one call.",
            seconds(&counters.sync_us),
        ),
        (
            "thalweg_log_admission_wait_seconds",
            "Time that a submission waited for the writer.",
            seconds(&counters.admission_us),
        ),
        (
            "thalweg_log_recovery_seconds",
            "Time to find the end of the log at the start.",
            seconds(&counters.recovery_us),
        ),
        (
            "thalweg_log_commit_bytes",
            "Bytes of a block, with its headers.",
            distribution(&counters.commit_bytes, 1.0),
        ),
        (
            "thalweg_log_commit_records",
            "Records in a block.",
            distribution(&counters.commit_records, 1.0),
        ),
    ] {
        to.histogram(name, help, labels, &distribution);
    }
    let poisoned = f64::from(u8::from(counters.is_poisoned));
    let degraded = f64::from(u8::from(counters.is_degraded));
    // Including the one that is being written.
    let files = (counters.full_files + 1) as f64;
    for (name, help, value) in [
        ("thalweg_log_poisoned", "1 if the log accepts no more writes.", poisoned),
        ("thalweg_log_degraded", "1 if stored data cannot be read.", degraded),
        (
            "thalweg_log_free_bytes",
            "Free bytes on the disk.",
            counters.free_bytes as f64,
        ),
        ("thalweg_log_commit_files", "Commit files that contain blocks.", files),
    ] {
        to.gauge(name, help, labels, value);
    }
    for (name, help, value) in [
        (
            "thalweg_log_torn_bytes_total",
            "Bytes of a torn write that the start cut off.",
            counters.torn_bytes,
        ),
        (
            "thalweg_log_corrupt_frames_total",
            "Frames that could not be read intact.",
            counters.corrupt_frames,
        ),
        (
            "thalweg_log_distributed_bytes_total",
            "Bytes moved out of commit files.",
            counters.moved_bytes,
        ),
    ] {
        to.counter(name, help, labels, value);
    }
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
