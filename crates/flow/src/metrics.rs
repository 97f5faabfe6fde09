//! The declarations of the metrics that flows and their components have, whatever the component.

use thalweg_telemetry::{COMPONENT_LABELS, MetricDoc, MetricGroup, metric_group};

metric_group! {
    pub(crate) FLOW_METRICS("Every flow", &["flow"]) {
        IN = MetricDoc::counter("thalweg_flow_in_total", "Messages that entered, with those that stages added.");
        OUT = MetricDoc::counter("thalweg_flow_out_total", "Messages written and confirmed.");
        EXPANDED = MetricDoc::counter("thalweg_flow_expanded_total", "Of the messages that entered: added by stages.");
        IN_FLIGHT = MetricDoc::gauge("thalweg_flow_in_flight", "Messages between entry and acknowledgement.");
        BUFFERED = MetricDoc::gauge(
            "thalweg_flow_buffered",
            "Of the messages in flight: stored in the flow's buffer and not being worked on.",
        );
        FILTERED = MetricDoc::counter("thalweg_flow_filtered_total", "Messages removed as intended.")
            .with_labels(&["reason"]);
        DROPPED = MetricDoc::counter("thalweg_flow_dropped_total", "Messages lost to a fault or a limit.")
            .with_labels(&["reason"]);
        FLOW_LATENCY = MetricDoc::timing(
            "thalweg_flow_latency_ns",
            "Time from a message's entry to its acknowledgement.",
        )
        .with_labels(&["label", "path"]);
    }
}

metric_group! {
    pub(crate) INPUT_METRICS("Every input", COMPONENT_LABELS) {
        INPUT_RECEIVED = MetricDoc::counter("input_received", "Messages received.");
        INPUT_LATENCY = MetricDoc::timing("input_latency_ns", "Time that a batch waits until the flow takes it.");
        INPUT_UP = MetricDoc::counter("input_connection_up", CONNECTIONS_MADE);
        INPUT_FAILED = MetricDoc::counter("input_connection_failed", CONNECTIONS_FAILED);
        INPUT_LOST = MetricDoc::counter("input_connection_lost", CONNECTIONS_LOST);
    }
}

metric_group! {
    pub(crate) BUFFER_METRICS("Every buffer", COMPONENT_LABELS) {
        BUFFER_RECEIVED = MetricDoc::counter("buffer_received", "Messages stored.");
        BUFFER_BATCH_RECEIVED = MetricDoc::counter("buffer_batch_received", "Batches stored.");
        BUFFER_ERROR = MetricDoc::counter(
            "thalweg_buffer_errors_total",
            "Messages that could not be stored at first, or at all.",
        );
        BUFFER_STORE_LATENCY = MetricDoc::timing(
            "thalweg_buffer_store_latency_ns",
            "Time from the write of a batch to its commit.",
        );
        BUFFER_SENT = MetricDoc::counter("buffer_sent", "Messages read from the buffer and passed on.");
        BUFFER_BATCH_SENT = MetricDoc::counter("buffer_batch_sent", "Batches read from the buffer and passed on.");
        BUFFER_LATENCY = MetricDoc::timing(
            "buffer_latency_ns",
            "Time from the reading of a batch to its acknowledgement.",
        );
        BUFFER_UP = MetricDoc::counter("thalweg_buffer_connections_made_total", CONNECTIONS_MADE);
        BUFFER_FAILED = MetricDoc::counter("thalweg_buffer_connections_failed_total", CONNECTIONS_FAILED);
        BUFFER_LOST = MetricDoc::counter("thalweg_buffer_connections_lost_total", CONNECTIONS_LOST);
    }
}

metric_group! {
    pub(crate) PROCESSOR_METRICS("Every processor", COMPONENT_LABELS) {
        PROCESSOR_RECEIVED = MetricDoc::counter("processor_received", "Messages received.");
        PROCESSOR_BATCH_RECEIVED = MetricDoc::counter("processor_batch_received", "Batches received.");
        PROCESSOR_SENT = MetricDoc::counter("processor_sent", "Messages passed on.");
        PROCESSOR_BATCH_SENT = MetricDoc::counter("processor_batch_sent", "Batches passed on.");
        PROCESSOR_ERROR = MetricDoc::counter("processor_error", "Messages that the stage failed on.");
        PROCESSOR_LATENCY = MetricDoc::timing("processor_latency_ns", "Time to process a batch.");
    }
}

metric_group! {
    pub(crate) OUTPUT_METRICS("Every output", COMPONENT_LABELS) {
        OUTPUT_SENT = MetricDoc::counter("output_sent", "Messages written and confirmed.");
        OUTPUT_BATCH_SENT = MetricDoc::counter("output_batch_sent", "Batches written and confirmed.");
        OUTPUT_ERROR = MetricDoc::counter("output_error", "Writes that failed or were refused, by message.");
        OUTPUT_LATENCY = MetricDoc::timing(
            "output_latency_ns",
            "Time from the write of a batch to its confirmation.",
        );
        OUTPUT_UP = MetricDoc::counter("output_connection_up", CONNECTIONS_MADE);
        OUTPUT_FAILED = MetricDoc::counter("output_connection_failed", CONNECTIONS_FAILED);
        OUTPUT_LOST = MetricDoc::counter("output_connection_lost", CONNECTIONS_LOST);
        BATCH_CREATED = MetricDoc::counter(
            "batch_created",
            "Batches collected as `batching` says, by the limit that ended them.",
        )
        .with_labels(&["mechanism"]);
    }
}

const CONNECTIONS_MADE: &str = "Connections made.";
const CONNECTIONS_FAILED: &str = "Attempts to connect that failed.";
const CONNECTIONS_LOST: &str = "Connections lost.";

/// The counters of a connection: made, failed and lost.
pub(crate) type ConnectionCounters = [MetricDoc; 3];

pub(crate) const INPUT_CONNECTION: ConnectionCounters = [INPUT_UP, INPUT_FAILED, INPUT_LOST];
pub(crate) const BUFFER_CONNECTION: ConnectionCounters = [BUFFER_UP, BUFFER_FAILED, BUFFER_LOST];
pub(crate) const OUTPUT_CONNECTION: ConnectionCounters = [OUTPUT_UP, OUTPUT_FAILED, OUTPUT_LOST];

/// What flows and their components export, whatever the component.
pub const METRICS: &[MetricGroup] = &[
    FLOW_METRICS,
    INPUT_METRICS,
    BUFFER_METRICS,
    PROCESSOR_METRICS,
    OUTPUT_METRICS,
];
