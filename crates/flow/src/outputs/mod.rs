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
    registry.output(
        "broker",
        include_str!("../../reference/output-broker.txt"),
        broker::parse,
    );
    registry.output("drop", include_str!("../../reference/output-drop.txt"), drop::parse);
    registry.output("file", include_str!("../../reference/output-file.txt"), file::parse);
    registry.output(
        "resource",
        include_str!("../../reference/output-resource.txt"),
        resource::parse,
    );
    registry.output(
        "stdout",
        include_str!("../../reference/output-stdout.txt"),
        stdout::parse,
    );
}
