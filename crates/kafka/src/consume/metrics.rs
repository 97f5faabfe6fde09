//! The metrics of a consumer, under the names that dashboards of the reference system use for its `uns` input.

use thalweg_flow::Component;
use thalweg_telemetry::{IntCounter, IntGauge, Timing};

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
    /// `prefix` starts the names; it is `input_uns` for the input `uns`.
    pub fn new(component: &Component, prefix: &str) -> ConsumerMetrics {
        let name = |end: &str| format!("{prefix}_{end}");
        let counter = |end: &str, help: &str| component.counter(&name(end), help);
        let timing = |end: &str, help: &str| component.timing(&name(end), help);
        ConsumerMetrics {
            connected: component.gauge(&name("connected"), "1 while a broker answers and the topics exist."),
            connection_errors: counter(
                "connection_errors",
                "Times that no broker answered, or a topic was missing.",
            ),
            connection_time: timing("connection_time", "Time from the first attempt until a broker answers."),
            poll_errors: counter("poll_errors", "Errors that the client met while it fetched."),
            offset_resets: counter(
                "offset_resets",
                "Times that a partition had to be read on elsewhere, since what came next was not there.",
            ),
            topics_recreated: counter(
                "topics_recreated",
                "Times that a topic was found to be another one of the same name, which is read from its beginning.",
            ),
            received: counter("records_received", "Records fetched."),
            matching: counter("records_filtered", "Records that the filter lets through."),
            batch_time: timing("batch_processing_time", "Time to make the messages of a batch."),
            commit_time: timing("records_commit_time", "Time from a commit to the answer of the broker."),
        }
    }
}
