//! Tags: user scripts assign messages their place in the unified namespace.
//!
//! - `tag_processor` runs scripts on a batch and turns the results into samples with a topic.
//! - `nodered_js` runs one script on plain messages.
//! - `downsampler` keeps the significant points of each tag.
//! - `stream_processor` computes tags from other tags.
//! - `classic_to_core` makes samples of messages with many values.
//! - `topic_browser` reports the existing topics, in messages and over HTTP.
//!
//! Scripts read and write the typed message directly ([`thalweg_script`]). Messages of one tag share one metadata map
//! at the input, and again at the output. Topics follow the rules in [`topic`].
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod classic_to_core;
mod computed;
mod datatype;
mod downsampler;
mod lost_value;
mod metrics;
mod nodered;
mod results;
mod scripting;
mod stream_processor;
mod tag_processor;
mod time;
pub mod topic;
mod topic_browser;

use std::sync::Arc;

use thalweg_flow::ComponentRegistry;

pub use metrics::METRICS;
pub use scripting::STACK_MAX;
pub use topic_browser::TopicDirectory;

/// Adds the processors of this crate. `topics` shows the topics that they know.
pub fn register(registry: &mut ComponentRegistry, topics: &Arc<TopicDirectory>) {
    registry.processor(
        "tag_processor",
        include_str!("../reference/processor-tag_processor.txt"),
        tag_processor::parse,
    );
    registry.processor(
        "nodered_js",
        include_str!("../reference/processor-nodered_js.txt"),
        nodered::parse,
    );
    registry.processor(
        "downsampler",
        include_str!("../reference/processor-downsampler.txt"),
        downsampler::parse,
    );
    registry.processor(
        "stream_processor",
        include_str!("../reference/processor-stream_processor.txt"),
        stream_processor::parse,
    );
    registry.processor(
        "classic_to_core",
        include_str!("../reference/processor-classic_to_core.txt"),
        classic_to_core::parse,
    );
    topic_browser::register(registry, topics);
}
