//! Metrics of the API: requests, refusals by code, the duration and size of appends, and subscribers. Counting is an
//! atomic addition; rendering happens on request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_telemetry::{Distribution, MetricDoc, MetricFamilies, Metrics, metric_group};

metric_group! {
    pub(crate) API_METRICS("Events: requests and subscriptions", &[]) {
        REQUESTS = MetricDoc::counter("thalweg_events_requests_total", "Calls of /rpc.");
        ERRORS = MetricDoc::counter("thalweg_events_errors_total", "Requests that were refused.")
            .with_labels(&["code"]);
        CONNECTIONS = MetricDoc::gauge("thalweg_events_connections", "Open connections.");
        APPEND_SECONDS = MetricDoc::histogram(
            "thalweg_events_append_seconds",
            "Time from a parsed append to its response.",
        );
        APPEND_MESSAGES = MetricDoc::histogram("thalweg_events_append_messages", "Messages of an append.");
        APPENDS = MetricDoc::counter("thalweg_events_appends_total", "Appends that were stored.")
            .with_labels(&["namespace"]);
        APPENDED_MESSAGES = MetricDoc::counter("thalweg_events_appended_messages_total", "Messages in those appends.")
            .with_labels(&["namespace"]);
        READS = MetricDoc::counter("thalweg_events_reads_total", "Pages of messages read for calls.")
            .with_labels(&["namespace"]);
        READ_MESSAGES = MetricDoc::counter("thalweg_events_read_messages_total", "Messages in those pages.")
            .with_labels(&["namespace"]);
        IMPORTED = MetricDoc::counter("thalweg_events_imported_total", "Messages stored by imports.")
            .with_labels(&["namespace"]);
        TOLD = MetricDoc::counter("thalweg_events_told_total", "Pokes, messages and gaps sent to subscribers.")
            .with_labels(&["namespace"]);
        SUBSCRIBERS = MetricDoc::gauge("thalweg_events_subscribers", "Open subscriptions.")
            .with_labels(&["namespace"]);
        SUBSCRIBERS_BEHIND = MetricDoc::gauge(
            "thalweg_events_subscribers_behind",
            "Open subscriptions that are not at the live end.",
        )
        .with_labels(&["namespace"]);
        SUBSCRIBER_LAG = MetricDoc::gauge(
            "thalweg_events_subscriber_lag",
            "Global positions that the slowest subscription is behind.",
        )
        .with_labels(&["namespace"]);
    }
}

/// Upper bounds in microseconds.
const SECONDS: [u64; 16] = [
    50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];
/// Upper bounds for the messages of an append.
const MESSAGES: [u64; 8] = [1, 2, 5, 10, 50, 100, 1000, 10_000];

/// The most namespaces with a label of their own; the rest share one.
const NAMESPACES_MAX: usize = 1000;
/// The label of the rest. No namespace has a `/` in its name.
const OTHERS: &str = "/others";

pub(crate) struct ApiMetrics {
    requests: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    append_seconds: Buckets<{ SECONDS.len() }>,
    append_messages: Buckets<{ MESSAGES.len() }>,
    /// The counts of all namespaces, or of those beyond [`NAMESPACES_MAX`].
    others: Arc<NamespaceMetrics>,
    /// `None`: namespaces have no label.
    namespaces: Option<Mutex<HashMap<Box<str>, Arc<NamespaceMetrics>>>>,
}

/// The counts of one namespace.
#[derive(Default)]
pub(crate) struct NamespaceMetrics {
    appends: AtomicU64,
    appended: AtomicU64,
    reads: AtomicU64,
    read_messages: AtomicU64,
    imported: AtomicU64,
    told: AtomicU64,
    cursors: Mutex<SubscriberLags>,
}

/// A histogram with fixed bounds.
struct Buckets<const N: usize> {
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Buckets {
            counts: [const { AtomicU64::new(0) }; N],
            beyond: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }
}

impl<const N: usize> Buckets<N> {
    fn add(&self, bounds: &[u64; N], value: u64) {
        let bucket = bounds.partition_point(|bound| *bound < value);
        self.counts.get(bucket).unwrap_or(&self.beyond).fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// `scale` converts the values to the unit of the result.
    fn distribution(&self, bounds: &[u64; N], scale: f64) -> Distribution {
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        Distribution {
            buckets: bounds.iter().map(|bound| *bound as f64 * scale).zip(counts).collect(),
            beyond: self.beyond.load(Relaxed),
            sum: self.sum.load(Relaxed) as f64 * scale,
        }
    }
}

/// The lags of all subscribers.
#[derive(Default)]
struct SubscriberLags {
    next: u64,
    all: BTreeMap<u64, Arc<Lag>>,
}

/// How many global positions a subscriber is behind: 0 at the live end.
pub(crate) type Lag = AtomicU64;

/// The metrics of one subscriber, until it disconnects.
pub(crate) struct SubscriberMetrics {
    counts: Arc<NamespaceMetrics>,
    number: u64,
    lag: Arc<Lag>,
}

impl SubscriberMetrics {
    pub fn is_behind(&self, positions: u64) {
        self.lag.store(positions, Relaxed);
    }

    pub fn told(&self) {
        self.counts.told.fetch_add(1, Relaxed);
    }
}

impl Drop for SubscriberMetrics {
    fn drop(&mut self) {
        self.counts.cursors.lock().all.remove(&self.number);
    }
}

impl NamespaceMetrics {
    pub fn read(&self, messages: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_messages.fetch_add(messages as u64, Relaxed);
    }

    pub fn imported(&self, messages: u64) {
        self.imported.fetch_add(messages, Relaxed);
    }

    pub fn listen(self: Arc<NamespaceMetrics>) -> SubscriberMetrics {
        let mut cursors = self.cursors.lock();
        cursors.next += 1;
        let (number, lag) = (cursors.next, Arc::new(Lag::default()));
        cursors.all.insert(number, lag.clone());
        drop(cursors);
        SubscriberMetrics {
            counts: self,
            number,
            lag,
        }
    }

    fn tell(&self, to: &mut MetricFamilies, labels: &[(&str, &str)]) {
        for (doc, value) in [
            (&APPENDS, &self.appends),
            (&APPENDED_MESSAGES, &self.appended),
            (&READS, &self.reads),
            (&READ_MESSAGES, &self.read_messages),
            (&IMPORTED, &self.imported),
            (&TOLD, &self.told),
        ] {
            to.counter(doc, labels, value.load(Relaxed));
        }
        let cursors = self.cursors.lock();
        let lags = cursors.all.values().map(|lag| lag.load(Relaxed));
        let (behind, farthest) = lags.fold((0, 0), |(behind, farthest), lag| {
            (behind + u64::from(lag > 0), farthest.max(lag))
        });
        let subscribers = cursors.all.len() as f64;
        drop(cursors);
        to.gauge(&SUBSCRIBERS, labels, subscribers);
        to.gauge(&SUBSCRIBERS_BEHIND, labels, behind as f64);
        to.gauge(&SUBSCRIBER_LAG, labels, farthest as f64);
    }
}

impl ApiMetrics {
    pub fn register(metrics: &Metrics, per_namespace: bool) -> Arc<ApiMetrics> {
        let meters = Arc::new(ApiMetrics {
            requests: AtomicU64::new(0),
            errors: Mutex::default(),
            append_seconds: Buckets::default(),
            append_messages: Buckets::default(),
            others: Arc::default(),
            namespaces: per_namespace.then(Mutex::default),
        });
        let told = meters.clone();
        metrics.tell(&REQUESTS, move |to| told.tell(to));
        meters
    }

    pub fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub fn refused(&self, code: &'static str) {
        *self.errors.lock().entry(code).or_default() += 1;
    }

    pub fn appended(&self, namespace: &str, appends: usize, messages: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.append_seconds.add(&SECONDS, micros);
        self.append_messages.add(&MESSAGES, messages);
        let counts = self.of(namespace);
        counts.appends.fetch_add(appends as u64, Relaxed);
        counts.appended.fetch_add(messages, Relaxed);
    }

    /// The counts of a namespace. Callers never pass names of namespaces that do not exist.
    pub fn of(&self, namespace: &str) -> Arc<NamespaceMetrics> {
        let Some(namespaces) = &self.namespaces else {
            return self.others.clone();
        };
        let mut namespaces = namespaces.lock();
        match namespaces.get(namespace) {
            Some(counts) => counts.clone(),
            None if namespaces.len() >= NAMESPACES_MAX => self.others.clone(),
            None => {
                let counts = Arc::<NamespaceMetrics>::default();
                namespaces.insert(namespace.into(), counts.clone());
                counts
            }
        }
    }

    /// Removes a deleted namespace, which makes room for another.
    pub fn forget(&self, namespace: &str) {
        if let Some(namespaces) = &self.namespaces {
            namespaces.lock().remove(namespace);
        }
    }

    /// The label of a namespace, if namespaces have labels.
    pub fn label<'a>(&self, namespace: &'a str) -> Option<&'a str> {
        let namespaces = self.namespaces.as_ref()?;
        self.of(namespace);
        let known = namespaces.lock().contains_key(namespace);
        Some(if known { namespace } else { OTHERS })
    }

    fn tell(&self, to: &mut MetricFamilies) {
        let requests = self.requests.load(Relaxed);
        to.counter(&REQUESTS, &[], requests);
        for (code, count) in self.errors.lock().iter() {
            to.counter(&ERRORS, &[("code", code)], *count);
        }
        match &self.namespaces {
            None => self.others.tell(to, &[]),
            Some(namespaces) => {
                let known: BTreeMap<Box<str>, Arc<NamespaceMetrics>> = namespaces.lock().clone().into_iter().collect();
                for (name, counts) in &known {
                    counts.tell(to, &[("namespace", name)]);
                }
                if known.len() >= NAMESPACES_MAX {
                    self.others.tell(to, &[("namespace", OTHERS)]);
                }
            }
        }
        let append = self.append_seconds.distribution(&SECONDS, 1e-6);
        to.histogram(&APPEND_SECONDS, &[], &append);
        let messages = self.append_messages.distribution(&MESSAGES, 1.0);
        to.histogram(&APPEND_MESSAGES, &[], &messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }

    #[test]
    fn what_happens_is_told() {
        let metrics = Metrics::default();
        let meters = ApiMetrics::register(&metrics, false);
        meters.request();
        meters.refused("NOT_FOUND");
        meters.refused("NOT_FOUND");
        meters.appended("a", 1, 3, Duration::from_micros(300));
        let (one, other) = (meters.of("a").listen(), meters.of("b").listen());
        one.is_behind(7);
        drop(other);
        contains(
            &metrics.text(),
            &[
                "thalweg_events_requests_total 1",
                "thalweg_events_errors_total{code=\"NOT_FOUND\"} 2",
                "thalweg_events_appends_total 1",
                "thalweg_events_appended_messages_total 3",
                "thalweg_events_append_seconds_bucket{le=\"0.00025\"} 0",
                "thalweg_events_append_seconds_bucket{le=\"0.0005\"} 1",
                "thalweg_events_append_messages_sum 3",
                "thalweg_events_subscribers 1",
                "thalweg_events_subscribers_behind 1",
                "thalweg_events_subscriber_lag 7",
            ],
        );
    }

    #[test]
    fn namespaces_are_told_apart_up_to_a_number_and_the_rest_together() {
        let metrics = Metrics::default();
        let meters = ApiMetrics::register(&metrics, true);
        for n in 0..NAMESPACES_MAX + 2 {
            meters.of(&n.to_string()).imported(1);
        }
        assert_eq!((meters.label("7"), meters.label("1001")), (Some("7"), Some(OTHERS)));
        let text = metrics.text();
        contains(
            &text,
            &[
                "thalweg_events_imported_total{namespace=\"7\"} 1",
                "thalweg_events_imported_total{namespace=\"/others\"} 2",
            ],
        );
        assert!(!text.contains("namespace=\"1001\""), "{text}");
        // A deleted namespace makes room.
        meters.forget("7");
        meters.of("1001").imported(1);
        contains(
            &metrics.text(),
            &["thalweg_events_imported_total{namespace=\"1001\"} 1"],
        );
        assert!(!metrics.text().contains("namespace=\"7\""));
    }
}
