//! Metrics of the processor, updated once per batch.

use std::time::Duration;

use thalweg_flow::StageContext;
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, IntGauge, MetricDoc, Timing, metric_group};

use crate::metrics::{MESSAGES_DROPPED, MESSAGES_ERRORED, MESSAGES_PROCESSED};

metric_group! {
    pub(crate) STREAM_PROCESSOR_METRICS("Processor `stream_processor`", COMPONENT_LABELS) {
        PROCESSED = MESSAGES_PROCESSED.meaning("Messages of sources whose value was used.");
        ERRORED = MESSAGES_ERRORED.meaning(
            "Messages of sources without a value or a time, or whose value is too large.",
        );
        DROPPED = MESSAGES_DROPPED.meaning("Messages of no source, or that no expression could use yet.");
        JAVASCRIPT_ERRORS = MetricDoc::counter("javascript_errors", "Expressions that failed.");
        INVALID_DATA_TYPE = MetricDoc::counter(
            "invalid_data_type",
            "Results that are not values: NaN, infinities, functions.",
        );
        OUTPUTS = MetricDoc::counter("outputs_generated", "Results.");
        JAVASCRIPT_EXECUTION_TIME = MetricDoc::timing(
            "javascript_execution_time",
            "Mean time per expression in a batch, including its share of the overhead.",
        );
        BATCH_PROCESSING_TIME = MetricDoc::timing("batch_processing_time", "Time to process a batch.");
        MESSAGE_PROCESSING_TIME = MetricDoc::timing(
            "message_processing_time",
            "Mean time per message in a batch.",
        );
        ACTIVE_MAPPINGS = MetricDoc::gauge("active_mappings", "Expressions and constants of the mapping.");
        ACTIVE_VARIABLES = MetricDoc::gauge("active_variables", "Sources that have a value.");
    }
}

/// The processor's own metrics, shared by its instances.
pub(super) struct StreamProcessorMetrics {
    pub processed: IntCounter,
    pub errored: IntCounter,
    pub dropped: IntCounter,
    pub javascript_errors: IntCounter,
    pub invalid_data_type: IntCounter,
    pub outputs: IntCounter,
    pub javascript_execution_time: Timing,
    pub batch_processing_time: Timing,
    pub message_processing_time: Timing,
    pub active_mappings: IntGauge,
    pub active_variables: IntGauge,
}

impl StreamProcessorMetrics {
    pub fn new(context: &StageContext) -> StreamProcessorMetrics {
        let component = &context.component;
        StreamProcessorMetrics {
            processed: component.counter(&PROCESSED),
            errored: component.counter(&ERRORED),
            dropped: component.counter(&DROPPED),
            javascript_errors: component.counter(&JAVASCRIPT_ERRORS),
            invalid_data_type: component.counter(&INVALID_DATA_TYPE),
            outputs: component.counter(&OUTPUTS),
            javascript_execution_time: component.timing(&JAVASCRIPT_EXECUTION_TIME),
            batch_processing_time: component.timing(&BATCH_PROCESSING_TIME),
            message_processing_time: component.timing(&MESSAGE_PROCESSING_TIME),
            active_mappings: component.gauge(&ACTIVE_MAPPINGS),
            active_variables: component.gauge(&ACTIVE_VARIABLES),
        }
    }

    /// Records the duration of a batch with this many messages and script calls.
    pub fn took(&self, elapsed: Duration, messages: usize, calls: u64) {
        let each = |n: u64| u32::try_from(n).ok().and_then(|n| elapsed.checked_div(n));
        self.batch_processing_time.observe(elapsed);
        for (timing, n) in [
            (&self.message_processing_time, messages as u64),
            (&self.javascript_execution_time, calls),
        ] {
            if let Some(mean) = each(n) {
                timing.observe_many(mean, n);
            }
        }
    }
}
