//! All components of all crates, registered under the names that a configuration uses.

use std::sync::Arc;

use thalweg_flow::Registry;

use crate::lake::{self, Lake};

/// The registry and what its components share.
pub struct Components {
    pub registry: Registry,
    pub(crate) opcua: Arc<thalweg_opcua::Directory>,
    pub(crate) lake: Arc<Lake>,
}

impl Components {
    #[allow(clippy::new_without_default, reason = "it is a start, not a value")]
    pub fn new() -> Components {
        let mut registry = Registry::new();
        let opcua = Arc::new(thalweg_opcua::Directory::default());
        let lake = Arc::new(Lake::default());
        thalweg_opcua::register(&mut registry, opcua.clone());
        thalweg_tags::register(&mut registry);
        lake::register(&mut registry, lake.clone());
        Components { registry, opcua, lake }
    }
}
