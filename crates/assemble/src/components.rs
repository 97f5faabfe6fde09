//! All components of all crates, registered under the names that a configuration uses.

use std::sync::Arc;

use thalweg_flow::Registry;

use crate::events::EventsStore;
use crate::ingest::Ingest;
use crate::lake::{self, Lake};
use crate::queues::{self, Store};

/// The registry and what its components share.
pub struct Components {
    pub registry: Registry,
    pub(crate) opcua: Arc<thalweg_opcua::Directory>,
    pub(crate) topics: Arc<thalweg_tags::TopicDirectory>,
    pub(crate) lake: Arc<Lake>,
    pub(crate) store: Arc<Store>,
    pub(crate) events: Arc<EventsStore>,
    pub(crate) ingest: Arc<Ingest>,
}

impl Components {
    #[allow(clippy::new_without_default, reason = "it is a start, not a value")]
    pub fn new() -> Components {
        let mut registry = Registry::new();
        let opcua = Arc::new(thalweg_opcua::Directory::default());
        let topics = Arc::new(thalweg_tags::TopicDirectory::default());
        let lake = Arc::new(Lake::default());
        let store = Arc::new(Store::default());
        let events = Arc::new(EventsStore::default());
        thalweg_opcua::register(&mut registry, opcua.clone());
        thalweg_tags::register(&mut registry, &topics);
        lake::register(&mut registry, lake.clone(), &store);
        queues::register(&mut registry, &store);
        thalweg_events_flow::register(&mut registry, &events.shared);
        thalweg_kafka::register(&mut registry);
        Components {
            registry,
            opcua,
            topics,
            lake,
            store,
            events,
            ingest: Arc::default(),
        }
    }
}
