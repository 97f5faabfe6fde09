//! The declarations of this crate's metrics, under their names in `/metrics`.

use thalweg_telemetry::{COMPONENT_LABELS, MetricDoc, MetricGroup, metric_group};

metric_group! {
    pub(crate) CONNECTION_METRICS("Input and output `opcua`", COMPONENT_LABELS) {
        CONNECTED = MetricDoc::gauge("thalweg_opcua_connected", "1 while values can flow.");
        RECONNECTS = MetricDoc::counter("thalweg_opcua_reconnects_total", "Connections that came back, by how.")
            .with_labels(&["how"]);
    }
}

metric_group! {
    pub(crate) OUTPUT_METRICS("Output `opcua`", COMPONENT_LABELS) {
        NODES_HELD_UP = MetricDoc::gauge(
            "thalweg_opcua_nodes_held_up",
            "Nodes whose next value failed for now and is written again.",
        );
        WRITES_REPEATED = MetricDoc::counter(
            "thalweg_opcua_writes_repeated_total",
            "Writes of a value that failed for now, by status; they are repeated.",
        )
        .with_labels(&["status"]);
    }
}

metric_group! {
    pub(crate) BROWSE_METRICS("Browsing of the input `opcua`", COMPONENT_LABELS) {
        BROWSE_NODES = MetricDoc::counter("thalweg_opcua_browse_nodes_total", "Nodes found by browsing.");
        BROWSE_VARIABLES = MetricDoc::gauge("thalweg_opcua_browse_variables", "Variables found by browsing.");
        BROWSE_FRONTIER = MetricDoc::gauge("thalweg_opcua_browse_frontier", "Nodes that are still to be browsed.");
        BROWSE_IN_FLIGHT = MetricDoc::gauge(
            "thalweg_opcua_browse_in_flight",
            "Browse and read calls in flight while browsing.",
        );
        BROWSE_SECONDS = MetricDoc::gauge("thalweg_opcua_browse_seconds", "How long the browse has taken or takes.");
        BROWSE_DONE = MetricDoc::gauge("thalweg_opcua_browse_done", "1 once the first browse is complete.");
        BROWSE_ERRORS = MetricDoc::counter(
            "thalweg_opcua_browse_errors_total",
            "Nodes that could not be browsed, by status.",
        )
        .with_labels(&["status"]);
    }
}

metric_group! {
    pub(crate) ITEM_METRICS("Nodes of the input `opcua`", COMPONENT_LABELS) {
        ITEMS_WANTED = MetricDoc::gauge(
            "thalweg_opcua_items_wanted",
            "Variables that are wanted: monitored, polled and failed ones.",
        );
        ITEMS_MONITORED = MetricDoc::gauge("thalweg_opcua_items_monitored", "Wanted nodes with a monitored item.");
        ITEMS_POLLED = MetricDoc::gauge("thalweg_opcua_items_polled", "Wanted nodes that are read periodically.");
        ITEMS_FAILED = MetricDoc::gauge(
            "thalweg_opcua_items_failed",
            "Wanted nodes that are neither monitored nor polled, by reason.",
        )
        .with_labels(&["reason"]);
        SUBSCRIPTION_FAILURES = MetricDoc::counter(
            "opcua_subscription_failures_total",
            "Monitored items that the server refused, by reason.",
        )
        .with_labels(&["reason"]);
    }
}

metric_group! {
    pub(crate) VALUE_METRICS("Values of the input `opcua`", COMPONENT_LABELS) {
        NOTIFICATIONS = MetricDoc::counter("thalweg_opcua_notifications_total", "Notification messages received.");
        VALUES = MetricDoc::counter("thalweg_opcua_values_total", "Values received.");
        VALUES_SUPPRESSED = MetricDoc::counter(
            "thalweg_opcua_values_suppressed_total",
            "Values within their deadband, filtered before they enter the flow.",
        );
        VALUES_DISCARDED = MetricDoc::counter(
            "thalweg_opcua_values_discarded_total",
            "Values that belong to no tag, came twice or found no room, by reason.",
        )
        .with_labels(&["reason"]);
        STATUS_ONLY = MetricDoc::counter(
            "thalweg_opcua_status_only_total",
            "Notifications without a value: filtered, or passed on as a status alone.",
        );
        OVERFLOWS = MetricDoc::counter(
            "thalweg_opcua_overflows_total",
            "Values marked by the server as following lost ones.",
        );
        PUBLISH_IN_FLIGHT = MetricDoc::gauge(
            "thalweg_opcua_publish_in_flight",
            "Publish requests that the server holds.",
        );
        PUBLISH_LATENCY = MetricDoc::timing(
            "thalweg_opcua_publish_latency_ns",
            "From a publish request to its answer.",
        );
        VALUE_AGE = MetricDoc::timing(
            "thalweg_opcua_value_age_ns",
            "From a batch's newest source timestamp to its arrival.",
        );
        SETTLED_AGE = MetricDoc::timing(
            "thalweg_opcua_settled_age_ns",
            "From each value's source timestamp to its acknowledgement by the output, at most an eighth too long.",
        );
        MESSAGES_MISSING = MetricDoc::counter(
            "thalweg_opcua_messages_missing_total",
            "Notification messages that were lost on the way: asked for again and fetched, or given up.",
        )
        .with_labels(&["outcome"]);
        GAPS = MetricDoc::counter(
            "thalweg_opcua_gaps_total",
            "Spans of time in which values may be missing, by reason.",
        )
        .with_labels(&["reason"]);
        GAP_SECONDS = MetricDoc::counter("thalweg_opcua_gap_seconds_total", "Length of all gaps together.");
        POLL_OVERRUNS = MetricDoc::counter(
            "thalweg_opcua_poll_overruns_total",
            "Poll cycles that were skipped, the one before still running.",
        );
    }
}

/// What the components of this crate export besides the metrics of every input and output.
pub const METRICS: &[MetricGroup] = &[
    CONNECTION_METRICS,
    BROWSE_METRICS,
    ITEM_METRICS,
    VALUE_METRICS,
    OUTPUT_METRICS,
];
