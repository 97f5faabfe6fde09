//! The processors that depend only on this crate and the mapping language.

mod catch;
mod log;
mod mapping;
mod resource;
mod sleep;
mod split;
mod switch;

use crate::registry::ComponentRegistry;

pub(crate) fn register(registry: &mut ComponentRegistry) {
    registry.processor(
        "bloblang",
        include_str!("../../reference/processor-bloblang.txt"),
        mapping::parse,
    );
    registry.processor(
        "catch",
        include_str!("../../reference/processor-catch.txt"),
        catch::parse_catch,
    );
    registry.processor("log", include_str!("../../reference/processor-log.txt"), log::parse);
    registry.processor(
        "mapping",
        include_str!("../../reference/processor-mapping.txt"),
        mapping::parse,
    );
    registry.processor(
        "mutation",
        include_str!("../../reference/processor-mutation.txt"),
        mapping::parse_mutation,
    );
    registry.processor(
        "resource",
        include_str!("../../reference/processor-resource.txt"),
        resource::parse,
    );
    registry.processor(
        "sleep",
        include_str!("../../reference/processor-sleep.txt"),
        sleep::parse,
    );
    registry.processor(
        "split",
        include_str!("../../reference/processor-split.txt"),
        split::parse,
    );
    registry.processor(
        "switch",
        include_str!("../../reference/processor-switch.txt"),
        switch::parse,
    );
    registry.processor(
        "try",
        include_str!("../../reference/processor-try.txt"),
        catch::parse_try,
    );
}
