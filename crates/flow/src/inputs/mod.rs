//! The inputs that depend only on this crate.

mod broker;
mod codec;
mod cron;
mod file;
mod generate;
mod resource;
mod scanner;
mod stdin;

use thalweg_config::Fields;

use crate::registry::ComponentRegistry;

/// Reads `auto_replay_nacks`: outputs repeat what fails temporarily, whatever the input says.
fn read_auto_replay_nacks(fields: &mut Fields<'_>) {
    let name = "auto_replay_nacks";
    if !fields.bool(name, true)
        && let Some(node) = fields.mapping().get(name)
    {
        let effect = "has no effect: an output repeats what fails until it is delivered, or refused for good";
        fields.diags().warn(node, effect);
    }
}

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
