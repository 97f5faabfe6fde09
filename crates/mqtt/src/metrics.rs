//! Metrics of the broker, collected when they are rendered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use thalweg_mqtt_wire::{PacketKind, ReasonCode};
use thalweg_telemetry::{MetricDoc, MetricFamilies, MetricGroup, Metrics, metric_group};

use crate::broker::Broker;
use crate::partitions::MESSAGES;
use crate::session::DropReason;

metric_group! {
    BROKER_METRICS("MQTT: the broker", &[]) {
        CONNECTIONS = MetricDoc::gauge("mqtt_connections", "Clients that are connected.").with_labels(&["version"]);
        SESSIONS = MetricDoc::gauge("mqtt_sessions", "Sessions, connected or not.").with_labels(&["state"]);
        SUBSCRIPTIONS = MetricDoc::gauge("mqtt_subscriptions", "Subscriptions of all sessions.").with_labels(&["kind"]);
        FILTERS = MetricDoc::gauge("mqtt_filters", "Different topic filters.");
        FILTER_BYTES = MetricDoc::gauge("mqtt_filter_bytes", "Memory of topic filters.");
        RETAINED_MESSAGES = MetricDoc::gauge("mqtt_retained_messages", "Retained messages.");
        RETAINED_BYTES = MetricDoc::gauge("mqtt_retained_bytes", "Bytes of retained messages.");
        STORE_MESSAGES = MetricDoc::gauge("mqtt_store_messages", "Messages in the log that sessions may wait for.");
        STORE_BYTES = MetricDoc::gauge("mqtt_store_bytes", "Bytes of messages in the log that sessions may wait for.");
        INFLIGHT = MetricDoc::gauge("mqtt_inflight", "Messages of QoS 1 and 2 that are not acknowledged.")
            .with_labels(&["direction"]);
        SESSIONS_BEHIND = MetricDoc::gauge("mqtt_sessions_behind", "Connected sessions that read their messages from the log.");
        PACKETS = MetricDoc::counter("mqtt_packets_total", "Packets from clients.").with_labels(&["type", "direction"]);
        BYTES = MetricDoc::counter("mqtt_bytes_total", "Bytes of packets from clients.").with_labels(&["direction"]);
        PUBLISHES = MetricDoc::counter("mqtt_publish_total", "Messages from clients and to clients.")
            .with_labels(&["qos", "direction"]);
        DROPPED = MetricDoc::counter("mqtt_publish_dropped_total", "Messages that did not reach a session.")
            .with_labels(&["reason"]);
        CONNECTS = MetricDoc::counter("mqtt_connect_total", "Answers to CONNECT.").with_labels(&["code"]);
        DISCONNECTS = MetricDoc::counter("mqtt_disconnect_total", "Connections that have ended, by who ended them.")
            .with_labels(&["code", "side"]);
        TAKEOVERS = MetricDoc::counter("mqtt_takeover_total", "Connections that ended because their client connected again.");
        AUTH_DENIED = MetricDoc::counter("mqtt_auth_denied_total", "Publishes and subscriptions that a client may not make.")
            .with_labels(&["action"]);
        WILLS = MetricDoc::counter("mqtt_wills_total", "Wills that were sent, or cancelled because their client came back.")
            .with_labels(&["what"]);
    }
}

/// All metrics of the broker.
pub const METRICS: &[MetricGroup] = &[BROKER_METRICS];

impl Broker {
    /// Reports the broker's metrics from now on. They do not keep it open.
    pub fn register(self: &Arc<Self>, metrics: &Metrics) {
        let broker = Arc::downgrade(self);
        metrics.tell(&CONNECTIONS, move |to| {
            if let Some(broker) = broker.upgrade() {
                broker.tell_sessions(to);
                broker.tell_store(to);
                broker.tell_counters(to);
            }
        });
    }

    fn tell_sessions(&self, to: &mut MetricFamilies) {
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        let mut totals = SessionTotals::default();
        for session in sessions {
            let state = session.lock();
            totals.outgoing += state.stored.outgoing.len();
            totals.incoming += state.stored.incoming.len();
            totals.shared += state.groups.len();
            totals.plain += state.filters.len();
            match &state.connection {
                Some(connection) => {
                    totals.connected += 1;
                    totals.behind += usize::from(state.is_behind);
                    *totals.versions.entry(connection.version.name()).or_default() += 1;
                }
                None => totals.away += 1,
            }
        }
        for (version, count) in &totals.versions {
            to.gauge(&CONNECTIONS, &[("version", version)], *count as f64);
        }
        for (state, count) in [("connected", totals.connected), ("disconnected", totals.away)] {
            to.gauge(&SESSIONS, &[("state", state)], count as f64);
        }
        for (kind, count) in [("plain", totals.plain), ("shared", totals.shared)] {
            to.gauge(&SUBSCRIPTIONS, &[("kind", kind)], count as f64);
        }
        for (direction, count) in [("in", totals.incoming), ("out", totals.outgoing)] {
            to.gauge(&INFLIGHT, &[("direction", direction)], count as f64);
        }
        to.gauge(&SESSIONS_BEHIND, &[], totals.behind as f64);
        let (filters, bytes) = self.routing.read(|inner| {
            let filters = inner.router.filters();
            (filters.len(), filters.bytes())
        });
        to.gauge(&FILTERS, &[], filters as f64);
        to.gauge(&FILTER_BYTES, &[], bytes as f64);
    }

    fn tell_store(&self, to: &mut MetricFamilies) {
        let (messages, bytes) = self.retained.size();
        to.gauge(&RETAINED_MESSAGES, &[], messages as f64);
        to.gauge(&RETAINED_BYTES, &[], bytes as f64);
        if let Ok(bounds) = self.log.bounds(MESSAGES) {
            to.gauge(&STORE_MESSAGES, &[], bounds.next.saturating_sub(bounds.first) as f64);
            if let Ok(bytes) = self.log.bytes(MESSAGES, bounds.first, bounds.next) {
                to.gauge(&STORE_BYTES, &[], bytes as f64);
            }
        }
    }

    fn tell_counters(&self, to: &mut MetricFamilies) {
        let counters = &self.counters;
        for (kind, name) in PacketKind::ALL {
            let count = counters.packets_received.get(kind as usize);
            if count > 0 {
                to.counter(&PACKETS, &[("type", name), ("direction", "in")], count);
            }
        }
        to.counter(&BYTES, &[("direction", "in")], counters.bytes_received.load(Relaxed));
        for (number, qos) in ["0", "1", "2"].into_iter().enumerate() {
            for (direction, counts) in [("in", &counters.publishes_received), ("out", &counters.publishes_sent)] {
                to.counter(
                    &PUBLISHES,
                    &[("qos", qos), ("direction", direction)],
                    counts.get(number),
                );
            }
        }
        for (reason, name) in DropReason::ALL {
            to.counter(&DROPPED, &[("reason", name)], counters.dropped.get(reason as usize));
        }
        for number in 0..=u8::MAX {
            let Some(code) = ReasonCode::of(number) else { continue };
            let text = format!("0x{number:02x}");
            for (doc, side, count) in [
                (&CONNECTS, None, counters.connects.get(number.into())),
                (&DISCONNECTS, Some("server"), counters.ended.get(number.into())),
                (&DISCONNECTS, Some("client"), counters.left.get(number.into())),
            ] {
                match side {
                    _ if count == 0 && code != ReasonCode::Success => {}
                    None => to.counter(doc, &[("code", &text)], count),
                    Some(side) => to.counter(doc, &[("code", &text), ("side", side)], count),
                }
            }
        }
        to.counter(&TAKEOVERS, &[], counters.takeovers.load(Relaxed));
        for (action, counter) in [
            ("publish", &counters.denied_publishes),
            ("subscribe", &counters.denied_subscriptions),
        ] {
            to.counter(&AUTH_DENIED, &[("action", action)], counter.load(Relaxed));
        }
        for (what, counter) in [("sent", &counters.wills_sent), ("cancelled", &counters.wills_cancelled)] {
            to.counter(&WILLS, &[("what", what)], counter.load(Relaxed));
        }
    }
}

#[derive(Default)]
struct SessionTotals {
    connected: usize,
    away: usize,
    behind: usize,
    plain: usize,
    shared: usize,
    incoming: usize,
    outgoing: usize,
    versions: std::collections::BTreeMap<&'static str, u64>,
}
