//! The metrics of queues, read from the queues' own counters at each scrape. Deleted queues and groups disappear from
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thalweg_kit::histogram::HistogramSnapshot;
use thalweg_queue::{Group, GroupStats, Queue, Queues};
use thalweg_telemetry::{Distribution, MetricDoc, MetricFamilies, MetricGroup, Metrics, metric_group};

use crate::webhook::WEBHOOK_METRICS;

metric_group! {
    pub(crate) QUEUE_METRICS("Queues", &["queue"]) {
        DEPTH = MetricDoc::gauge("mqtt_queue_depth", "Messages in the queue, as counted against max_depth.");
        BYTES = MetricDoc::gauge("mqtt_queue_bytes", "Bytes of retained messages.");
        OLDEST_SECONDS = MetricDoc::gauge("mqtt_queue_oldest_seconds", "Age of the oldest retained message.");
        PAUSED = MetricDoc::gauge("mqtt_queue_paused", "1 when producing or consuming is paused.")
            .with_labels(&["what", "group"]);
        ENQUEUE = MetricDoc::counter("mqtt_queue_enqueue_total", "Messages that were stored.");
        REFUSED = MetricDoc::counter("mqtt_queue_refused_total", "Messages that were refused.")
            .with_labels(&["code"]);
        DLQ = MetricDoc::counter("mqtt_queue_dlq_total", "Messages that became dead letters.")
            .with_labels(&["reason"]);
        DROPPED = MetricDoc::counter(
            "mqtt_queue_dropped_total",
            "Messages that were dropped without becoming dead letters.",
        )
        .with_labels(&["reason"]);
        DELIVERY_LATENCY = MetricDoc::histogram(
            "mqtt_queue_delivery_latency_seconds",
            "Time from the append of a message, or from its due time, to its first delivery.",
        );
        DEDUP_IDS = MetricDoc::gauge("thalweg_queue_dedup_ids", "Remembered dedup-ids.");
        DEDUP_BYTES = MetricDoc::gauge(
            "thalweg_queue_dedup_bytes",
            "Memory that dedup-ids use of queues.dedup_memory.",
        );
        DEDUP_FORGOTTEN = MetricDoc::counter(
            "thalweg_queue_dedup_forgotten_total",
            "Dedup-ids forgotten within dedup_window for lack of memory; a repetition is stored again.",
        );
    }
}

metric_group! {
    pub(crate) GROUP_METRICS("Consumer groups of queues", &["queue", "group"]) {
        DEQUEUE = MetricDoc::counter("mqtt_queue_dequeue_total", "Messages delivered to consumers.");
        ACK = MetricDoc::counter("mqtt_queue_ack_total", "Messages that were acknowledged.");
        NACK = MetricDoc::counter("mqtt_queue_nack_total", "Messages that consumers returned.");
        REJECT = MetricDoc::counter("mqtt_queue_reject_total", "Messages that were rejected.");
        EXPIRED = MetricDoc::counter("mqtt_queue_expired_total", "Messages whose time to live expired.");
        REDELIVERED = MetricDoc::counter("mqtt_queue_redelivered_total", "Deliveries after the first.");
        STATE_BYTES = MetricDoc::gauge(
            "thalweg_queue_state_bytes",
            "Memory of the group's state, of queues.state_memory: leased, waiting and delayed messages.",
        );
        INFLIGHT = MetricDoc::gauge("mqtt_queue_inflight", "Messages leased to consumers.");
        WAITING = MetricDoc::gauge("mqtt_queue_waiting", "Messages waiting for a retry.");
        DELAYED = MetricDoc::gauge("mqtt_queue_delayed", "Messages that are not due yet.");
        LAG = MetricDoc::gauge("mqtt_queue_lag", "Messages that are not settled, or not committed.");
        ACTIVE_CONSUMERS = MetricDoc::gauge("mqtt_queue_active_consumers", "Consumers of the group.");
    }
}

/// What queues export.
pub const METRICS: &[MetricGroup] = &[QUEUE_METRICS, GROUP_METRICS, WEBHOOK_METRICS];

/// Registers the metrics of all queues.
pub fn register_metrics(metrics: &Metrics, queues: Queues) {
    metrics.tell(&DEPTH, move |to| {
        for queue in queues.all() {
            tell_queue(to, &queue);
        }
    });
}

fn tell_queue(to: &mut MetricFamilies, queue: &Arc<Queue>) {
    let stats = queue.stats();
    let name = stats.name.as_str();
    let labels = &[("queue", name)];
    to.gauge(&DEPTH, labels, stats.depth as f64);
    to.gauge(&BYTES, labels, stats.bytes as f64);
    to.gauge(&OLDEST_SECONDS, labels, stats.oldest_seconds);
    tell_dedup(to, queue, labels);
    for (what, paused) in [("produce", stats.produce_paused), ("consume", stats.consume_paused)] {
        let labels = &[("queue", name), ("what", what)];
        to.gauge(&PAUSED, labels, f64::from(u8::from(paused)));
    }
    to.counter(&ENQUEUE, labels, stats.enqueued);
    tell_refused_and_removed(to, queue, name);
    to.histogram(&DELIVERY_LATENCY, labels, &seconds(&queue.latency()));
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
    to.gauge(&DEDUP_IDS, labels, dedup.ids as f64);
    to.gauge(&DEDUP_BYTES, labels, dedup.bytes as f64);
    to.counter(&DEDUP_FORGOTTEN, labels, dedup.forgotten_early);
}

fn tell_refused_and_removed(to: &mut MetricFamilies, queue: &Queue, name: &str) {
    let counters = queue.counters();
    for (code, count) in counters.refused() {
        to.counter(&REFUSED, &[("queue", name), ("code", code)], count);
    }
    for (reason, count) in counters.dead.all() {
        to.counter(&DLQ, &[("queue", name), ("reason", reason)], count);
    }
    for (reason, count) in counters.dropped() {
        to.counter(&DROPPED, &[("queue", name), ("reason", reason)], count);
    }
}

fn tell_group(to: &mut MetricFamilies, queue: &str, group: &Group, stats: &GroupStats) {
    let labels = &[("queue", queue), ("group", stats.name.as_str())];
    let counters = group.counters();
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    for (doc, value) in [
        (&DEQUEUE, group.delivered()),
        (&ACK, group.acked()),
        (&NACK, count(&counters.nacked)),
        (&REJECT, count(&counters.rejected)),
        (&EXPIRED, count(&counters.expired)),
        (&REDELIVERED, stats.counts.redelivered),
    ] {
        to.counter(doc, labels, value);
    }
    for (doc, value) in [
        (&STATE_BYTES, stats.state_bytes),
        (&INFLIGHT, stats.counts.leased),
        (&WAITING, stats.counts.waiting),
        (&DELAYED, stats.counts.delayed),
        (&LAG, stats.backlog),
        (&ACTIVE_CONSUMERS, stats.consumers.len() as u64),
    ] {
        to.gauge(doc, labels, value as f64);
    }
    let labels = &[("queue", queue), ("group", stats.name.as_str()), ("what", "group")];
    to.gauge(&PAUSED, labels, f64::from(u8::from(stats.paused)));
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
