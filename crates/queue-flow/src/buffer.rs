//! `buffer: queue` puts a durable queue between the input and the processors of a flow. A batch is acknowledged to its
//! source when the log has committed it. Messages that the flow has not passed on survive a crash and are delivered
//! again.
//!
//! One record of the queue is a **parcel**: up to `claim_batch` messages of one write whose series belong to one
//! partition, under one header ([`thalweg_record::codec`]). One record per message would keep the same order, but each
//! would need its own frame entry, queue entry and ack; a parcel pays for these once for hundreds of messages, and
//! stores the metadata of a tag once. The price is that a parcel is redelivered as a whole.
//!
//! Messages of a series go to one partition, and messages without a series to the first, so both stay in order. The
//! stream group of a partition commits up to the highest parcel below which all are done. The properties of a parcel
//! state its number of messages and how many were stored in its partition before it. Two records per partition
//! therefore tell at the start how many messages are in the buffer, and a gap between two parcels (purged, damaged) can
//! be counted.

mod backing_queue;
mod reader;
mod writer;

use std::sync::Arc;

use thalweg_config::{Fields, FlowConfig, Node};
use thalweg_flow::{Buffer, BufferSpec, BuildContext, BuildError, ComponentRegistry, ParseContext};
use thalweg_log::Durability;
use thalweg_queue::names::{BUFFER_PREFIX, check_name};
use thalweg_queue::settings::PARTITIONS_MAX;

use crate::SharedQueues;
use backing_queue::BackingQueue;

/// A parcel is closed at about this size.
const PARCEL_BYTES: usize = 256 << 10;
/// Smaller buffers have no room for a few parcels.
const BYTES_MIN: u64 = 1 << 20;
const CLAIM_MAX: i64 = 10_000;

pub(super) fn register(registry: &mut ComponentRegistry, store: Arc<SharedQueues>) {
    registry.buffer(
        include_str!("../reference/buffer-queue.txt"),
        move |node, flow, context| parse(node, flow, context, &store),
    );
}

/// The fields of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct QueueBufferOptions {
    name: String,
    partitions: u32,
    durability: Option<Durability>,
    /// Messages; 0: unlimited.
    max_depth: u64,
    /// 0: limited by the disk only.
    max_bytes: u64,
    claim_batch: u32,
}

struct QueueBufferSpec {
    store: Arc<SharedQueues>,
    options: QueueBufferOptions,
}

fn parse(
    node: &Node,
    flow: &FlowConfig,
    context: &mut ParseContext<'_>,
    store: &Arc<SharedQueues>,
) -> Option<Arc<dyn BufferSpec>> {
    store.want();
    let mut fields = Fields::new(node, context.diagnostics);
    let name = fields.string("name", &format!("{BUFFER_PREFIX}{}", flow.name));
    if let Err(error) = check_name(&name) {
        fields.error("name", error);
    } else if name.len() <= BUFFER_PREFIX.len() || !name.starts_with(BUFFER_PREFIX) {
        let message =
            format!("a buffer's queue must be called {BUFFER_PREFIX}<something>, as only such queues belong to a flow");
        fields.error("name", message);
    } else if let Some(other) = store.claim_buffer(&name, &flow.name) {
        let message = format!("flow \"{other}\" has the buffer {name} already; give each its own");
        context.diagnostics.error(node, message);
    }
    let partitions = fields.int_in("partitions", 10, 1..=i64::from(PARTITIONS_MAX));
    let durability = ["fsync", "interval", "os", "memory"];
    // The empty default cannot be written in a file, so it means "not given".
    let durability = fields.one_of("durability", &durability, "").parse().ok();
    let max_depth = fields.int_in("max_depth", 0, 0..=i64::MAX).unsigned_abs();
    let max_bytes = fields.size("max_bytes", "10GiB");
    if (1..BYTES_MIN).contains(&max_bytes) {
        fields.error(
            "max_bytes",
            "a buffer needs at least 1MiB; 0 means that only the disk limits it",
        );
    }
    let claim_batch = fields.int_in("claim_batch", 1000, 1..=CLAIM_MAX);
    fields.finish();
    Some(Arc::new(QueueBufferSpec {
        store: store.clone(),
        options: QueueBufferOptions {
            name,
            partitions: u32::try_from(partitions).unwrap_or(1),
            durability,
            max_depth,
            max_bytes,
            claim_batch: u32::try_from(claim_batch).unwrap_or(1),
        },
    }))
}

impl BufferSpec for QueueBufferSpec {
    fn build(&self, context: &BuildContext, memory_bytes: usize) -> Result<Buffer, BuildError> {
        let place = Arc::new(BackingQueue::new(
            self.store.clone(),
            self.options.clone(),
            context.component.clone(),
        ));
        Ok(Buffer {
            store: Arc::new(writer::QueueBufferWriter::new(place.clone())),
            reader: Box::new(reader::QueueBufferReader::new(place, memory_bytes)),
        })
    }
}
