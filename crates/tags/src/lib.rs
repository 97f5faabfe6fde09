//! Tags: messages get their place in the unified namespace, by scripts that users write.
//!
//! `tag_processor` runs scripts on a batch and turns what they leave into samples with a topic; `nodered_js` runs one
//! script on plain messages; `downsampler` keeps of each tag the points that are worth it; `stream_processor` computes tags from
//! other tags; `classic_to_core` makes samples of messages with many values; `topic_browser` tells what topics there are, in
//! messages and over HTTP. Scripts read and write the typed message directly ([`thalweg_script`]), and messages of one tag leave
//! with one shared map of metadata again, as they came. Topics follow the rules in [`topic`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod classic_to_core;
mod computed;
mod datatype;
mod downsampler;
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

pub use scripting::STACK_MAX;
pub use topic_browser::TopicDirectory;

/// Adds the processors of this crate. The topics that they know are shown by `topics`.
pub fn register(registry: &mut ComponentRegistry, topics: &Arc<TopicDirectory>) {
    registry.processor("tag_processor", tag_processor::parse);
    registry.processor("nodered_js", nodered::parse);
    registry.processor("downsampler", downsampler::parse);
    registry.processor("stream_processor", stream_processor::parse);
    registry.processor("classic_to_core", classic_to_core::parse);
    topic_browser::register(registry, topics);
}
