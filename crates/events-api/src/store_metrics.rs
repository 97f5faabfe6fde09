//! Metrics of the store and of the persistent subscriptions, collected when the metrics are rendered.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use thalweg_events::{Store, SubscriptionStats, Subscriptions};
use thalweg_telemetry::{MetricDoc, MetricFamilies, Metrics, metric_group};

use crate::EventsApiServer;
use crate::metrics::ApiMetrics;

metric_group! {
    pub(crate) STORE_METRICS("Events: the store", &[]) {
        INFO = MetricDoc::gauge(
            "thalweg_events_info",
            "The storage backend, and the durability of acknowledged appends.",
        )
        .with_labels(&["backend", "durability"]);
        INDEX_FILE_BYTES = MetricDoc::gauge("thalweg_events_index_file_bytes", "Bytes of the indexes on the disk.");
        INDEX_MEMORY_BYTES = MetricDoc::gauge("thalweg_events_index_memory_bytes", "Bytes of the indexes in memory.");
        RULE_BYTES = MetricDoc::gauge("thalweg_events_rule_bytes", "Memory of retention rules and stream deletions.");
        NAMESPACE_BYTES = MetricDoc::gauge(
            "thalweg_events_namespace_bytes",
            "Memory of namespaces and their tokens, without their messages.",
        );
        INDEX_TABLES = MetricDoc::gauge("thalweg_events_index_tables", "Files of the indexes.");
        INDEX_LAG_BYTES = MetricDoc::gauge(
            "thalweg_events_index_lag_bytes",
            "Bytes of the log after the checkpoint of the indexes, which a start reads.",
        );
        RECOVERY_SECONDS = MetricDoc::gauge(
            "thalweg_events_recovery_seconds",
            "Time to open the store, after the recovery of the log.",
        );
        RECOVERY_BYTES = MetricDoc::gauge(
            "thalweg_events_recovery_bytes",
            "Bytes of the log that were indexed while the store opened.",
        );
    }
}

metric_group! {
    pub(crate) SUBSCRIPTION_METRICS("Events: persistent subscriptions", &["namespace", "subscription"]) {
        LAG = MetricDoc::gauge(
            "thalweg_events_subscription_lag",
            "Global positions that a persistent subscription is behind the last message.",
        );
        IN_FLIGHT = MetricDoc::gauge(
            "thalweg_events_subscription_in_flight",
            "Its messages that consumers have leased.",
        );
        WAITING = MetricDoc::gauge(
            "thalweg_events_subscription_waiting",
            "Its messages that were read and wait for delivery.",
        );
        PARKED = MetricDoc::gauge("thalweg_events_subscription_parked", "Its messages that are parked.");
        REDELIVERED = MetricDoc::counter(
            "thalweg_events_subscription_redelivered_total",
            "Its messages that this process has delivered again.",
        );
    }
}

/// The most subscriptions with metrics.
const SUBSCRIPTIONS_MAX: usize = 1000;
/// Subscriptions per page.
const PAGE: usize = 100;

/// Does not keep the store open.
pub(crate) fn register(server: &Arc<EventsApiServer>, store: &Arc<dyn Store>) {
    let metrics: &Metrics = &server.metrics;
    let weak = Arc::downgrade(store);
    metrics.tell(&INFO, move |to| {
        if let Some(store) = weak.upgrade() {
            of_store(store.as_ref(), to);
        }
    });
    let (subscriptions, meters) = (server.subscriptions.clone(), server.meters.clone());
    metrics.tell(&LAG, move |to| {
        of_subscriptions(subscriptions.figures(), &meters, to);
    });
    // Loads all subscriptions: the one that nobody fetches from matters most in the metrics.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(look_at_all(Arc::downgrade(store), server.subscriptions.clone()));
    }
}

fn of_store(store: &dyn Store, to: &mut MetricFamilies) {
    let labels = [("backend", store.backend()), ("durability", store.durability())];
    to.gauge(&INFO, &labels, 1.0);
    let Some(figures) = store.figures() else { return };
    for (doc, value) in [
        (&INDEX_FILE_BYTES, figures.index_file_bytes as f64),
        (&INDEX_MEMORY_BYTES, figures.index_memory_bytes as f64),
        (&RULE_BYTES, figures.rule_bytes as f64),
        (&NAMESPACE_BYTES, figures.namespace_bytes as f64),
        (&INDEX_TABLES, figures.index_tables as f64),
        (&INDEX_LAG_BYTES, figures.index_behind_bytes as f64),
        (&RECOVERY_SECONDS, figures.recovery.as_secs_f64()),
        (&RECOVERY_BYTES, figures.recovered_bytes as f64),
    ] {
        to.gauge(doc, &[], value);
    }
}

#[derive(Clone, Copy, Default)]
struct SubscriptionTotals {
    lag: u64,
    in_flight: usize,
    waiting: usize,
    parked: usize,
    redelivered: u64,
}

/// Without a namespace label, subscriptions of the same name are merged.
fn of_subscriptions(all: Vec<SubscriptionStats>, meters: &ApiMetrics, to: &mut MetricFamilies) {
    let mut sums: BTreeMap<(Option<String>, String), SubscriptionTotals> = BTreeMap::new();
    for one in all {
        let key = (meters.label(&one.namespace).map(str::to_owned), one.name);
        if sums.len() >= SUBSCRIPTIONS_MAX && !sums.contains_key(&key) {
            continue;
        }
        let sum = sums.entry(key).or_default();
        sum.lag = sum.lag.max(one.behind);
        sum.in_flight += one.in_flight;
        sum.waiting += one.waiting;
        sum.parked += one.parked;
        sum.redelivered += one.redelivered;
    }
    for ((namespace, name), sum) in &sums {
        let mut labels = vec![("subscription", name.as_str())];
        labels.extend(namespace.as_deref().map(|namespace| ("namespace", namespace)));
        for (doc, value) in [
            (&LAG, sum.lag as f64),
            (&IN_FLIGHT, sum.in_flight as f64),
            (&WAITING, sum.waiting as f64),
            (&PARKED, sum.parked as f64),
        ] {
            to.gauge(doc, &labels, value);
        }
        to.counter(&REDELIVERED, &labels, sum.redelivered);
    }
}

async fn look_at_all(store: Weak<dyn Store>, subscriptions: Arc<Subscriptions>) {
    let Some(namespaces) = store.upgrade().map(|store| async move { store.namespaces().await }) else {
        return;
    };
    let mut count = 0;
    for namespace in namespaces.await.unwrap_or_default() {
        let mut cursor = String::new();
        loop {
            // A subscription that cannot be read now appears in the metrics once it is used.
            let page = subscriptions
                .list(&namespace, "", &cursor, PAGE)
                .await
                .unwrap_or_default();
            count += page.len();
            match page.last() {
                Some((name, _)) if page.len() == PAGE && count < SUBSCRIPTIONS_MAX => cursor.clone_from(name),
                _ => break,
            }
        }
        if count >= SUBSCRIPTIONS_MAX {
            return;
        }
    }
}
