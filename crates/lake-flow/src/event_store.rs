//! Adapts the event store as the source of the table `events`.

use std::sync::Arc;

use thalweg_events::event::IdRef;
use thalweg_events::{EmbeddedStore, MessageId, event_in, names};
use thalweg_lake::ingest::{Event, EventPartition, EventStore};

/// The event store that keeps its messages in the log of this process.
pub(crate) struct LakeEventStore(pub Arc<EmbeddedStore>);

impl EventStore for LakeEventStore {
    fn partitions(&self) -> Vec<EventPartition> {
        let all = self.0.partitions().into_iter();
        all.map(|partition| EventPartition {
            number: partition.number,
            id: partition.id,
            namespace: partition.namespace,
            is_deleted: partition.is_deleted,
        })
        .collect()
    }

    fn let_go(&self, number: u32) {
        self.0.let_go(number);
    }

    fn event<'a>(&self, value: &'a [u8]) -> Result<Option<Event<'a>>, String> {
        let found = event_in(value, 0).map_err(|error| error.to_string())?;
        Ok(found.map(|event| Event {
            id: match event.id {
                IdRef::Text(text) => text.into(),
                uuid => MessageId::from(uuid).to_string().into(),
            },
            category: names::category(event.stream),
            stream: event.stream,
            kind: event.kind,
            position: event.position,
            global: event.global,
            data: event.data,
            metadata: event.metadata,
        }))
    }
}
