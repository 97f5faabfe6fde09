//! The metrics of the log and of queues: read from what they count when somebody asks. There are as many as there are disks,
//! queues and groups; those of a queue or group that is gone are not told any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thalweg_log::{EmbeddedLog, HistogramSnapshot};
use thalweg_queue::{Group, GroupStats, Queue};
use thalweg_telemetry::{Distribution, MetricFamilies, Metrics};

use crate::clock::WatchedClock;
use crate::queues::QueueService;

/// Has the metrics of an open store told.
pub(crate) fn register(metrics: &Metrics, store: &Arc<QueueService>) {
    if store.queues().is_none() {
        return;
    }
    register_logs(metrics, store.logs().to_vec());
    if let Some(clock) = store.clock() {
        register_clock(metrics, clock);
    }
    let queues = store.clone();
    metrics.tell("mqtt_queue_depth", move |to| {
        for queue in queues.queues().iter().flat_map(thalweg_queue::Queues::all) {
            tell_queue(to, &queue);
        }
    });
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

fn tell_queue(to: &mut MetricFamilies, queue: &Arc<Queue>) {
    let (stats, counters) = (queue.stats(), queue.counters());
    let name = stats.name.as_str();
    let labels = &[("queue", name)];
    for (metric, help, value) in [
        (
            "mqtt_queue_depth",
            "Messages that limit the queue, as max_depth counts them.",
            stats.depth as f64,
        ),
        (
            "mqtt_queue_bytes",
            "Bytes of messages that are kept.",
            stats.bytes as f64,
        ),
        (
            "mqtt_queue_oldest_seconds",
            "Age of the oldest message that is kept.",
            stats.oldest_seconds,
        ),
    ] {
        to.gauge(metric, help, labels, value);
    }
    if let Some(dedup) = queue.dedup() {
        for (metric, help, value) in [
            (
                "mqtt_queue_dedup_ids",
                "Dedup-ids that are remembered.",
                dedup.ids as f64,
            ),
            (
                "mqtt_queue_dedup_bytes",
                "Memory that they take of queues.dedup_memory.",
                dedup.bytes as f64,
            ),
        ] {
            to.gauge(metric, help, labels, value);
        }
        to.counter(
            "mqtt_queue_dedup_forgotten_total",
            "Dedup-ids that were forgotten inside of dedup_window, for want of room: a repetition is stored again.",
            labels,
            dedup.forgotten_early,
        );
    }
    let help = "1 when producing or consuming is paused.";
    for (what, paused) in [("produce", stats.produce_paused), ("consume", stats.consume_paused)] {
        let labels = &[("queue", name), ("what", what)];
        to.gauge("mqtt_queue_paused", help, labels, f64::from(u8::from(paused)));
    }
    to.counter(
        "mqtt_queue_enqueue_total",
        "Messages that were stored.",
        labels,
        stats.enqueued,
    );
    for (code, count) in counters.refused() {
        let labels = &[("queue", name), ("code", code)];
        to.counter(
            "mqtt_queue_refused_total",
            "Messages that were not taken.",
            labels,
            count,
        );
    }
    for (reason, count) in counters.dead.all() {
        let labels = &[("queue", name), ("reason", reason)];
        to.counter(
            "mqtt_queue_dlq_total",
            "Messages that became dead letters.",
            labels,
            count,
        );
    }
    for (reason, count) in counters.dropped() {
        let labels = &[("queue", name), ("reason", reason)];
        let help = "Messages that were dropped and are no dead letters.";
        to.counter("mqtt_queue_dropped_total", help, labels, count);
    }
    let help = "From the append of a message, or the time it was due, to its first delivery.";
    let latency = seconds(&queue.latency());
    to.histogram("mqtt_queue_delivery_latency_seconds", help, labels, &latency);
    for group in queue.groups() {
        // In the order of their names.
        let at = stats.groups.binary_search_by(|stats| stats.name.cmp(group.name()));
        if let Some(stats) = at.ok().and_then(|at| stats.groups.get(at)) {
            tell_group(to, name, &group, stats);
        }
    }
}

fn tell_group(to: &mut MetricFamilies, queue: &str, group: &Group, stats: &GroupStats) {
    let labels = &[("queue", queue), ("group", stats.name.as_str())];
    let counters = group.counters();
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    for (metric, help, value) in [
        (
            "mqtt_queue_dequeue_total",
            "Messages that were handed out.",
            group.delivered(),
        ),
        (
            "mqtt_queue_ack_total",
            "Messages that were acknowledged.",
            group.acked(),
        ),
        (
            "mqtt_queue_nack_total",
            "Messages that were given back.",
            count(&counters.nacked),
        ),
        (
            "mqtt_queue_reject_total",
            "Messages that were rejected.",
            count(&counters.rejected),
        ),
        (
            "mqtt_queue_expired_total",
            "Messages whose time to live had passed.",
            count(&counters.expired),
        ),
        (
            "mqtt_queue_redelivered_total",
            "Deliveries that were not the first.",
            stats.counts.redelivered,
        ),
    ] {
        to.counter(metric, help, labels, value);
    }
    for (metric, help, value) in [
        (
            "mqtt_queue_state_bytes",
            "Memory that it takes of queues.state_memory: what it knows of messages that consumers have, that wait or are delayed.",
            stats.state_bytes,
        ),
        (
            "mqtt_queue_inflight",
            "Messages that a consumer has.",
            stats.counts.leased,
        ),
        (
            "mqtt_queue_waiting",
            "Messages that wait to be tried again.",
            stats.counts.waiting,
        ),
        (
            "mqtt_queue_delayed",
            "Messages that are not due yet.",
            stats.counts.delayed,
        ),
        (
            "mqtt_queue_lag",
            "Messages that are not settled, or not committed.",
            stats.backlog,
        ),
        (
            "mqtt_queue_active_consumers",
            "Consumers of the group.",
            stats.consumers.len() as u64,
        ),
    ] {
        to.gauge(metric, help, labels, value as f64);
    }
    let labels = &[("queue", queue), ("group", stats.name.as_str()), ("what", "group")];
    let help = "1 when producing or consuming is paused.";
    to.gauge("mqtt_queue_paused", help, labels, f64::from(u8::from(stats.paused)));
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
