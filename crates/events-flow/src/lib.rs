//! The event store as an end of flows: the output `events` appends messages to streams; the input `events` reads them
//! and stores in the namespace how far the flow has confirmed them.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod checkpoint;
mod cursor;
mod group;
mod input;
mod output;
mod prepare;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_config::{Diagnostics, Pos, is_slip};
use thalweg_events::Store;
use thalweg_flow::ComponentRegistry;

/// The store of the process, which is opened after the configuration was parsed.
#[derive(Default)]
pub struct SharedStore {
    wanted: AtomicBool,
    opened: OnceLock<OpenStore>,
}

#[derive(Clone)]
pub(crate) struct OpenStore {
    pub store: Arc<dyn Store>,
    /// The limit for type, data and metadata of a message together.
    pub message_bytes_max: usize,
}

impl SharedStore {
    /// Whether a component of the configuration uses the store.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// The components use this store from now on. Only the first call counts.
    pub fn open(&self, store: Arc<dyn Store>, message_bytes_max: usize) {
        let _ = self.opened.set(OpenStore {
            store,
            message_bytes_max,
        });
    }

    pub(crate) fn get(&self) -> Option<OpenStore> {
        self.opened.get().cloned()
    }

    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }
}

/// Registers the components.
pub fn register(registry: &mut ComponentRegistry, store: &Arc<SharedStore>) {
    input::register(registry, store.clone());
    output::register(registry, store.clone());
}

/// Warns of a misspelled default namespace: namespaces can be created at any time, but with the misspelled name the
/// flow would wait forever.
fn check_namespace(name: &str, pos: Pos, diagnostics: &Diagnostics) {
    let usual = thalweg_events::DEFAULT;
    if is_slip(name, usual) {
        let text = format!(
            "events.namespace: did you mean \"{usual}\"? The flow waits until a namespace \"{name}\" is created \
             through the API"
        );
        diagnostics.warn_at(pos, text);
    }
}
