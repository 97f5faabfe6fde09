//! The outputs that depend only on this crate.

mod broker;
mod codec;
mod drop;
mod file;
mod files;
mod resource;
mod stdout;
mod writer;

use crate::registry::ComponentRegistry;

pub(crate) fn register(registry: &mut ComponentRegistry) {
    registry.output("broker", broker::parse);
    registry.output("drop", drop::parse);
    registry.output("file", file::parse);
    registry.output("resource", resource::parse);
    registry.output("stdout", stdout::parse);
}
