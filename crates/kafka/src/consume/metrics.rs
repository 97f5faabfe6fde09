//! The metrics of a consumer, under the names that dashboards of the reference system use for its `uns` input.

use thalweg_flow::Component;
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, IntGauge, MetricDoc, MetricGroup, Timing};

/// The declarations of a consumer's metrics, in the order of [`ConsumerMetrics`].
pub type ConsumerMetricDocs = [MetricDoc; 10];

/// The metrics of one input; their names start with `$prefix`.
macro_rules! consumer_metric_docs {
    ($prefix:literal) => {
        [
            MetricDoc::gauge(
                concat!($prefix, "_connected"),
                "1 while a broker answers and the topics exist.",
            ),
            MetricDoc::counter(
                concat!($prefix, "_connection_errors"),
                "Times that no broker answered, or a topic was missing.",
            ),
            MetricDoc::timing(
                concat!($prefix, "_connection_time"),
                "Time from the first attempt until a broker answers.",
            ),
            MetricDoc::counter(
                concat!($prefix, "_poll_errors"),
                "Errors that the client met while it fetched.",
            ),
            MetricDoc::counter(
                concat!($prefix, "_offset_resets"),
                "Times the input had to jump to another offset because the next one no longer existed.",
            ),
            MetricDoc::counter(
                concat!($prefix, "_topics_recreated"),
                "Times that a topic was found to be another one of the same name, which is read from its beginning.",
            ),
            MetricDoc::counter(concat!($prefix, "_records_received"), "Records fetched."),
            MetricDoc::counter(
                concat!($prefix, "_records_filtered"),
                "Records that passed the filter (not those removed).",
            ),
            MetricDoc::timing(
                concat!($prefix, "_batch_processing_time"),
                "Time to make the messages of a batch.",
            ),
            MetricDoc::timing(
                concat!($prefix, "_records_commit_time"),
                "Time from a commit to the answer of the broker.",
            ),
        ]
    };
}

pub const INPUT_KAFKA: ConsumerMetricDocs = consumer_metric_docs!("input_kafka");
pub const INPUT_UNS: ConsumerMetricDocs = consumer_metric_docs!("input_uns");

pub const INPUT_KAFKA_METRICS: MetricGroup = MetricGroup {
    title: "Inputs `kafka` and `kafka_franz`",
    labels: COMPONENT_LABELS,
    metrics: &INPUT_KAFKA,
};
pub const INPUT_UNS_METRICS: MetricGroup = MetricGroup {
    title: "Input `uns`",
    labels: COMPONENT_LABELS,
    metrics: &INPUT_UNS,
};

pub struct ConsumerMetrics {
    pub connected: IntGauge,
    pub connection_errors: IntCounter,
    pub connection_time: Timing,
    pub poll_errors: IntCounter,
    pub offset_resets: IntCounter,
    pub topics_recreated: IntCounter,
    pub received: IntCounter,
    /// Records that pass the filter; the name is the reference system's.
    pub matching: IntCounter,
    pub batch_time: Timing,
    pub commit_time: Timing,
}

impl ConsumerMetrics {
    pub fn new(component: &Component, docs: &ConsumerMetricDocs) -> ConsumerMetrics {
        let [
            connected,
            connection_errors,
            connection_time,
            poll_errors,
            offset_resets,
            topics_recreated,
            received,
            matching,
            batch_time,
            commit_time,
        ] = docs;
        ConsumerMetrics {
            connected: component.gauge(connected),
            connection_errors: component.counter(connection_errors),
            connection_time: component.timing(connection_time),
            poll_errors: component.counter(poll_errors),
            offset_resets: component.counter(offset_resets),
            topics_recreated: component.counter(topics_recreated),
            received: component.counter(received),
            matching: component.counter(matching),
            batch_time: component.timing(batch_time),
            commit_time: component.timing(commit_time),
        }
    }
}
