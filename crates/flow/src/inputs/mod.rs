//! The inputs that depend only on this crate.

mod broker;
mod codec;
mod file;
mod generate;
mod resource;
mod stdin;

use crate::registry::ComponentRegistry;

pub(crate) fn register(registry: &mut ComponentRegistry) {
    registry.input(
        "broker",
        include_str!("../../reference/input-broker.txt"),
        broker::parse,
    );
    registry.input("file", include_str!("../../reference/input-file.txt"), file::parse);
    registry.input(
        "generate",
        include_str!("../../reference/input-generate.txt"),
        generate::parse,
    );
    registry.input(
        "resource",
        include_str!("../../reference/input-resource.txt"),
        resource::parse,
    );
    registry.input("stdin", include_str!("../../reference/input-stdin.txt"), stdin::parse);
}
