//! The metrics of the log: read from what it counts when somebody asks, of each disk.

use std::sync::Arc;

use thalweg_log::{EmbeddedLog, HistogramSnapshot};
use thalweg_telemetry::{Distribution, MetricFamilies, Metrics};

use crate::clock::WatchedClock;
use crate::queues::QueueService;

/// Has the metrics of an open store told, and of the queues in it.
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

/// The same for the log of each disk alone.
pub(crate) fn register_logs(metrics: &Metrics, logs: Vec<Arc<EmbeddedLog>>) {
    metrics.tell("thalweg_log_poisoned", move |to| {
        for one in &logs {
            // One disk needs no name.
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
            "From the moment a group of submissions was taken to their answers.",
            seconds(&counters.commit_us),
        ),
        (
            "thalweg_log_sync_seconds",
            "A sync, or a write and its sync where they are one call.",
            seconds(&counters.sync_us),
        ),
        (
            "thalweg_log_admission_wait_seconds",
            "Before a submission was taken by the writer.",
            seconds(&counters.admission_us),
        ),
        (
            "thalweg_log_recovery_seconds",
            "To find the end of the log at the start.",
            seconds(&counters.recovery_us),
        ),
        (
            "thalweg_log_commit_bytes",
            "Of a block, with its headers.",
            distribution(&counters.commit_bytes, 1.0),
        ),
        (
            "thalweg_log_commit_records",
            "In a block.",
            distribution(&counters.commit_records, 1.0),
        ),
    ] {
        to.histogram(name, help, labels, &distribution);
    }
    let poisoned = f64::from(u8::from(counters.is_poisoned));
    let degraded = f64::from(u8::from(counters.is_degraded));
    // With the one that is written.
    let files = (counters.full_files + 1) as f64;
    for (name, help, value) in [
        ("thalweg_log_poisoned", "1 when nothing more is taken.", poisoned),
        (
            "thalweg_log_degraded",
            "1 when something that is stored cannot be read.",
            degraded,
        ),
        (
            "thalweg_log_free_bytes",
            "Free on the disk.",
            counters.free_bytes as f64,
        ),
        (
            "thalweg_log_commit_files",
            "Commit files with something in them.",
            files,
        ),
    ] {
        to.gauge(name, help, labels, value);
    }
    for (name, help, value) in [
        (
            "thalweg_log_torn_bytes_total",
            "Of a write that was cut off before this start.",
            counters.torn_bytes,
        ),
        (
            "thalweg_log_corrupt_frames_total",
            "Frames that could not be read as they were written.",
            counters.corrupt_frames,
        ),
        (
            "thalweg_log_distributed_bytes_total",
            "Moved out of commit files.",
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
