//! All components of all crates, registered under the names that a configuration uses.

use std::sync::Arc;

use thalweg_flow::ComponentRegistry;
#[cfg(feature = "kafka")]
use thalweg_kafka::register as register_kafka;
use thalweg_lake_flow::LakeTables;

use crate::events::EventsService;
use crate::ingest::Ingest;
use crate::mqtt::MqttService;
use crate::queues::QueueService;

/// The registry, and the state that its components share.
pub struct Components {
    pub registry: ComponentRegistry,
    pub(crate) opcua: Arc<thalweg_opcua::InputDirectory>,
    pub(crate) topics: Arc<thalweg_tags::TopicDirectory>,
    pub(crate) lake: Arc<LakeTables>,
    pub(crate) store: Arc<QueueService>,
    pub(crate) events: Arc<EventsService>,
    pub(crate) ingest: Arc<Ingest>,
    pub(crate) mqtt: Arc<MqttService>,
}

impl Components {
    #[allow(clippy::new_without_default, reason = "it is a start, not a value")]
    pub fn new() -> Components {
        let mut registry = ComponentRegistry::new();
        let opcua = Arc::new(thalweg_opcua::InputDirectory::default());
        let topics = Arc::new(thalweg_tags::TopicDirectory::default());
        let lake = Arc::new(LakeTables::default());
        let store = Arc::new(QueueService::default());
        let events = Arc::new(EventsService::default());
        thalweg_opcua::register(&mut registry, opcua.clone());
        thalweg_tags::register(&mut registry, &topics);
        thalweg_lake_flow::register(&mut registry, &lake, &store.shared);
        thalweg_queue_flow::register(&mut registry, &store.shared);
        thalweg_events_flow::register(&mut registry, &events.shared);
        thalweg_mqtt_flow::register(&mut registry);
        register_kafka(&mut registry);
        Components {
            registry,
            opcua,
            topics,
            lake,
            store,
            events,
            ingest: Arc::default(),
            mqtt: Arc::default(),
        }
    }
}

#[cfg(not(feature = "kafka"))]
fn register_kafka(registry: &mut ComponentRegistry) {
    let cure = "build the program with the feature kafka, which is on by default";
    registry.leave_out(&["kafka", "kafka_franz", "uns"], cure);
}
