//! Metrics of the processor, updated once per batch.

use std::time::Duration;

use thalweg_flow::StageContext;
use thalweg_telemetry::{IntCounter, IntGauge, Timing};

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
        let counter = |name: &str, help: &str| context.component.counter(name, help);
        let timing = |name: &str, help: &str| context.component.timing(name, help);
        let gauge = |name: &str, help: &str| context.component.gauge(name, help);
        StreamProcessorMetrics {
            processed: counter("messages_processed", "Messages of sources whose value was used."),
            errored: counter(
                "messages_errored",
                "Messages of sources without a value or a time, or whose value is too large.",
            ),
            dropped: counter(
                "messages_dropped",
                "Messages of no source, or that no expression could use yet.",
            ),
            javascript_errors: counter("javascript_errors", "Expressions that failed."),
            invalid_data_type: counter(
                "invalid_data_type",
                "Results that are not values: NaN, infinities, functions.",
            ),
            outputs: counter("outputs_generated", "Results."),
            javascript_execution_time: timing(
                "javascript_execution_time",
                "Nanoseconds for an expression, with its part of the work around it: the mean of a batch.",
            ),
            batch_processing_time: timing("batch_processing_time", "Nanoseconds for a batch."),
            message_processing_time: timing(
                "message_processing_time",
                "Nanoseconds for a message: the mean of its batch.",
            ),
            active_mappings: gauge("active_mappings", "Expressions and constants of the mapping."),
            active_variables: gauge("active_variables", "Sources that have a value."),
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
