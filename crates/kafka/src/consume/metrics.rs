//! The metrics of a consumer.

use thalweg_flow::Component;
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, IntGauge, MetricDoc, MetricGroup, Timing};

/// The declarations of a consumer's metrics, in the order of [`ConsumerMetrics`].
pub type ConsumerMetricDocs = [MetricDoc; 11];

/// The metrics of one input under its names.
const fn consumer_metric_docs(names: [&'static str; 11]) -> ConsumerMetricDocs {
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
        lag,
    ] = names;
    [
        MetricDoc::gauge(connected, "1 while a broker answers and the topics exist."),
        MetricDoc::counter(
            connection_errors,
            "Times that no broker answered, or a topic was missing.",
        ),
        MetricDoc::timing(connection_time, "Time from the first attempt until a broker answers."),
        MetricDoc::counter(poll_errors, "Errors that the client met while it fetched."),
        MetricDoc::counter(
            offset_resets,
            "Times the input had to jump to another offset because the next one no longer existed.",
        ),
        MetricDoc::counter(
            topics_recreated,
            "Times that a topic was found to be another one of the same name, which is read from its beginning.",
        ),
        MetricDoc::counter(received, "Records fetched."),
        MetricDoc::counter(matching, "Records that passed the filter (not those removed)."),
        MetricDoc::timing(batch_time, "Time to make the messages of a batch."),
        MetricDoc::timing(commit_time, "Time from a commit to the answer of the broker."),
        MetricDoc::gauge(
            lag,
            "Offsets of a partition from the confirmed one to its end; 0 when all records that can be read are confirmed.",
        )
        .with_labels(&["topic", "partition"]),
    ]
}

pub const INPUT_KAFKA: ConsumerMetricDocs = consumer_metric_docs([
    "thalweg_kafka_input_connected",
    "thalweg_kafka_input_connection_errors_total",
    "thalweg_kafka_input_connect_ns",
    "thalweg_kafka_input_poll_errors_total",
    "thalweg_kafka_input_offset_resets_total",
    "thalweg_kafka_input_topics_recreated_total",
    "thalweg_kafka_input_records_received_total",
    "thalweg_kafka_input_records_matched_total",
    "thalweg_kafka_input_batch_ns",
    "thalweg_kafka_input_commit_ns",
    "thalweg_kafka_input_lag",
]);
/// Dashboards of the reference system ask for the names that do not begin with `thalweg_`.
pub const INPUT_UNS: ConsumerMetricDocs = consumer_metric_docs([
    "input_uns_connected",
    "input_uns_connection_errors",
    "input_uns_connection_time",
    "input_uns_poll_errors",
    "thalweg_uns_input_offset_resets_total",
    "thalweg_uns_input_topics_recreated_total",
    "input_uns_records_received",
    "input_uns_records_filtered",
    "input_uns_batch_processing_time",
    "input_uns_records_commit_time",
    "thalweg_uns_input_lag",
]);

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
    /// Records that pass the filter.
    pub matching: IntCounter,
    pub batch_time: Timing,
    pub commit_time: Timing,
    /// Exported for each partition that is read.
    pub lag: MetricDoc,
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
            lag,
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
            lag: *lag,
        }
    }
}
