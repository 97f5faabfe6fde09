//! The inputs that depend only on this crate.

mod broker;
mod codec;
mod file;
mod generate;
mod resource;
mod stdin;

use crate::registry::ComponentRegistry;

pub(crate) fn register(registry: &mut ComponentRegistry) {
    registry.input("broker", broker::parse);
    registry.input("file", file::parse);
    registry.input("generate", generate::parse);
    registry.input("resource", resource::parse);
    registry.input("stdin", stdin::parse);
}
