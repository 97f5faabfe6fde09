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
    registry.processor("bloblang", mapping::parse);
    registry.processor("catch", catch::parse_catch);
    registry.processor("log", log::parse);
    registry.processor("mapping", mapping::parse);
    registry.processor("mutation", mapping::parse_mutation);
    registry.processor("resource", resource::parse);
    registry.processor("sleep", sleep::parse);
    registry.processor("split", split::parse);
    registry.processor("switch", switch::parse);
    registry.processor("try", catch::parse_try);
}
