//! The metrics of queues, read from the queues' own counters at each scrape. Deleted queues and groups disappear from
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thalweg_kit::histogram::HistogramSnapshot;
use thalweg_queue::{Group, GroupStats, Queue, Queues};
use thalweg_telemetry::{Distribution, MetricFamilies, Metrics};

/// Registers the metrics of all queues.
pub fn register_metrics(metrics: &Metrics, queues: Queues) {
    metrics.tell("mqtt_queue_depth", move |to| {
        for queue in queues.all() {
            tell_queue(to, &queue);
        }
    });
}

fn tell_queue(to: &mut MetricFamilies, queue: &Arc<Queue>) {
    let stats = queue.stats();
    let name = stats.name.as_str();
    let labels = &[("queue", name)];
    for (metric, help, value) in [
        (
            "mqtt_queue_depth",
            "Messages in the queue, as counted against max_depth.",
            stats.depth as f64,
        ),
        ("mqtt_queue_bytes", "Bytes of retained messages.", stats.bytes as f64),
        (
            "mqtt_queue_oldest_seconds",
            "Age of the oldest retained message.",
            stats.oldest_seconds,
        ),
    ] {
        to.gauge(metric, help, labels, value);
    }
    tell_dedup(to, queue, labels);
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
    tell_refused_and_removed(to, queue, name);
    let help = "Time from the append of a message, or from its due time, to its first delivery.";
    let latency = seconds(&queue.latency());
    to.histogram("mqtt_queue_delivery_latency_seconds", help, labels, &latency);
    for group in queue.groups() {
        // Groups are sorted by name.
        let at = stats.groups.binary_search_by(|stats| stats.name.cmp(group.name()));
        if let Some(stats) = at.ok().and_then(|at| stats.groups.get(at)) {
            tell_group(to, name, &group, stats);
        }
    }
}

fn tell_dedup(to: &mut MetricFamilies, queue: &Queue, labels: &[(&str, &str)]) {
    let Some(dedup) = queue.dedup() else { return };
    for (metric, help, value) in [
        ("mqtt_queue_dedup_ids", "Remembered dedup-ids.", dedup.ids as f64),
        (
            "mqtt_queue_dedup_bytes",
            "Memory that dedup-ids use of queues.dedup_memory.",
            dedup.bytes as f64,
        ),
    ] {
        to.gauge(metric, help, labels, value);
    }
    to.counter(
        "mqtt_queue_dedup_forgotten_total",
        "Dedup-ids forgotten within dedup_window for lack of memory; a repetition is stored again.",
        labels,
        dedup.forgotten_early,
    );
}

fn tell_refused_and_removed(to: &mut MetricFamilies, queue: &Queue, name: &str) {
    let counters = queue.counters();
    for (code, count) in counters.refused() {
        let labels = &[("queue", name), ("code", code)];
        to.counter("mqtt_queue_refused_total", "Messages that were refused.", labels, count);
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
        let help = "Messages that were dropped without becoming dead letters.";
        to.counter("mqtt_queue_dropped_total", help, labels, count);
    }
}

fn tell_group(to: &mut MetricFamilies, queue: &str, group: &Group, stats: &GroupStats) {
    let labels = &[("queue", queue), ("group", stats.name.as_str())];
    let counters = group.counters();
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    for (metric, help, value) in [
        (
            "mqtt_queue_dequeue_total",
            "Messages delivered to consumers.",
            group.delivered(),
        ),
        (
            "mqtt_queue_ack_total",
            "Messages that were acknowledged.",
            group.acked(),
        ),
        (
            "mqtt_queue_nack_total",
            "Messages that consumers returned.",
            count(&counters.nacked),
        ),
        (
            "mqtt_queue_reject_total",
            "Messages that were rejected.",
            count(&counters.rejected),
        ),
        (
            "mqtt_queue_expired_total",
            "Messages whose time to live expired.",
            count(&counters.expired),
        ),
        (
            "mqtt_queue_redelivered_total",
            "Deliveries after the first.",
            stats.counts.redelivered,
        ),
    ] {
        to.counter(metric, help, labels, value);
    }
    tell_messages_in_hand(to, stats, labels);
    let labels = &[("queue", queue), ("group", stats.name.as_str()), ("what", "group")];
    let help = "1 when producing or consuming is paused.";
    to.gauge("mqtt_queue_paused", help, labels, f64::from(u8::from(stats.paused)));
}

fn tell_messages_in_hand(to: &mut MetricFamilies, stats: &GroupStats, labels: &[(&str, &str)]) {
    for (metric, help, value) in [
        (
            "mqtt_queue_state_bytes",
            "Memory of the group's state, of queues.state_memory: leased, waiting and delayed messages.",
            stats.state_bytes,
        ),
        (
            "mqtt_queue_inflight",
            "Messages leased to consumers.",
            stats.counts.leased,
        ),
        (
            "mqtt_queue_waiting",
            "Messages waiting for a retry.",
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
}

fn seconds(observed: &HistogramSnapshot) -> Distribution {
    const MICROSECOND: f64 = 1e-6;
    let bucket = |(bound, count): &(u64, u64)| (*bound as f64 * MICROSECOND, *count);
    Distribution {
        buckets: observed.buckets.iter().map(bucket).collect(),
        beyond: observed.beyond,
        sum: observed.sum as f64 * MICROSECOND,
    }
}
