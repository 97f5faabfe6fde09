//! The broker's partitions of the log, and how they are read.

use bytes::Bytes;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, Frame, Log, LogError, Offset, PartitionId, ReadOptions};

/// Bodies of messages that sessions wait for.
pub const MESSAGES: PartitionId = PartitionId::new(PartitionId::MQTT, 0);
/// Changes of sessions.
pub const SESSIONS: PartitionId = PartitionId::new(PartitionId::MQTT + 1, 0);
/// The newest retained message of each topic, keyed by topic. An empty value removes one.
pub const RETAINED: PartitionId = PartitionId::new(PartitionId::MQTT + 2, 0);

/// All partitions with the names that people see.
pub const NAMES: [(PartitionId, &str); 3] = [
    (MESSAGES, "mqtt.messages"),
    (SESSIONS, "mqtt.sessions"),
    (RETAINED, "mqtt.retained"),
];

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// Creates what does not exist, and sets the durability of all of them.
pub(crate) async fn prepare(log: &dyn Log, durability: Durability) -> Result<(), LogError> {
    let existing = log.partitions();
    let missing: Vec<PartitionId> = NAMES
        .iter()
        .map(|(id, _)| *id)
        .filter(|id| !existing.contains(id))
        .collect();
    if !missing.is_empty() {
        log.create_all(&missing, durability).await?;
    }
    for (id, _) in NAMES {
        if log.durability(id)? != durability {
            log.set_durability(id, durability).await?;
        }
    }
    Ok(())
}

/// A record of a frame, with its offset and its value in the frame's buffer.
pub(crate) struct ReadRecord<'a> {
    pub offset: Offset,
    pub record: RecordRef<'a>,
    pub value: Bytes,
}

/// Calls `see` for each record of a frame.
pub(crate) fn each_record(frame: &Frame, mut see: impl FnMut(ReadRecord<'_>)) {
    if !matches!(frame.header.kind, FrameKind::Data | FrameKind::State) {
        return;
    }
    for (index, record) in thalweg_log::format::record::records(&frame.body).enumerate() {
        // Another program wrote what is no record.
        let Ok(record) = record else { return };
        let delta = record.delta.map_or(index as u64, u64::from);
        see(ReadRecord {
            offset: frame.header.base + delta,
            value: frame.body.slice_ref(record.value),
            record,
        });
    }
}

/// Calls `see` for each record of a partition from `from` on. Blocks.
pub(crate) fn read_all(
    log: &dyn Log,
    id: PartitionId,
    from: Offset,
    mut see: impl FnMut(ReadRecord<'_>),
) -> Result<Offset, LogError> {
    let bounds = log.bounds(id)?;
    let mut at = from.max(bounds.first);
    while at < bounds.next {
        let want = ReadOptions {
            bytes: READ_BYTES,
            synced: false,
        };
        let frames = log.read(id, at, want)?;
        let Some(last) = frames.last() else { break };
        let next = last.header.next();
        for frame in &frames {
            each_record(frame, |record| {
                if record.offset >= at {
                    see(record);
                }
            });
        }
        at = next.max(at + 1);
    }
    Ok(bounds.next)
}
