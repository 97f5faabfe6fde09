//! The metrics of this crate's processors: the names that several of them share, and the list of all. A processor
//! declares its own metrics beside its code.

use thalweg_telemetry::{MetricDoc, MetricGroup};

use crate::classic_to_core::CLASSIC_TO_CORE_METRICS;
use crate::downsampler::DOWNSAMPLER_METRICS;
use crate::nodered::NODERED_METRICS;
use crate::scripting::SCRIPT_METRICS;
use crate::stream_processor::STREAM_PROCESSOR_METRICS;
use crate::tag_processor::TAG_PROCESSOR_METRICS;
use crate::topic_browser::TOPIC_BROWSER_METRICS;

pub(crate) const MESSAGES_PROCESSED: MetricDoc =
    MetricDoc::counter("messages_processed", "Messages that the processor used.");
pub(crate) const MESSAGES_ERRORED: MetricDoc =
    MetricDoc::counter("messages_errored", "Messages that the processor could not use.");
pub(crate) const MESSAGES_DROPPED: MetricDoc =
    MetricDoc::counter("messages_dropped", "Messages of which the processor made nothing.");

/// What the processors of this crate export besides the metrics of every processor.
pub const METRICS: &[MetricGroup] = &[
    SCRIPT_METRICS,
    TAG_PROCESSOR_METRICS,
    NODERED_METRICS,
    DOWNSAMPLER_METRICS,
    STREAM_PROCESSOR_METRICS,
    CLASSIC_TO_CORE_METRICS,
    TOPIC_BROWSER_METRICS,
];
