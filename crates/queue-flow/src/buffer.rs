//! `buffer: queue`: a flow's messages in a durable queue between its input and its processors. The source hears that a
//! batch is done when the log's commit holds it; what the flow has not handed on is there after a crash, and comes again.
//!
//! One record of the queue is a **parcel**: those messages of one write whose series go to one partition, up to
//! `claim_batch` of them, with one head ([`thalweg_record::codec`]). One record per message would keep the same order and
//! cost a frame entry, a queue entry and an ack each; here these are paid once for hundreds of messages, and metadata of a
//! tag is written once. What it costs: a parcel comes again as a whole.
//!
//! Messages of a series go to one partition, those without one all to the first, so both keep their order. A partition's
//! stream group commits up to the highest parcel below which every one is done. Each parcel's properties say how many
//! messages it has and how many were stored in its partition before it: so the messages that are in a buffer are known at
//! the start from two records per partition, and what is missing between two parcels (purged, damaged) is counted.

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
/// With less there is no room for a few parcels.
const BYTES_MIN: u64 = 1 << 20;
const CLAIM_MAX: i64 = 10_000;

pub(super) fn register(registry: &mut ComponentRegistry, store: Arc<SharedQueues>) {
    registry.buffer(move |node, flow, context| parse(node, flow, context, &store));
}

/// The fields of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct QueueBufferOptions {
    name: String,
    partitions: u32,
    durability: Option<Durability>,
    /// Messages; 0: any number.
    max_depth: u64,
    /// 0: as much as the disk holds.
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
            format!("a buffer's queue is called {BUFFER_PREFIX}<something>, since only such queues are a flow's own");
        fields.error("name", message);
    } else if let Some(other) = store.claim_buffer(&name, &flow.name) {
        let message = format!("flow \"{other}\" has the buffer {name} already; give each its own");
        context.diagnostics.error(node, message);
    }
    let partitions = fields.int_in("partitions", 10, 1..=i64::from(PARTITIONS_MAX));
    let durability = ["fsync", "interval", "os", "memory"];
    // The empty word is what nobody can write and stands for "not given".
    let durability = fields.one_of("durability", &durability, "").parse().ok();
    let max_depth = fields.int_in("max_depth", 0, 0..=i64::MAX).unsigned_abs();
    let max_bytes = fields.size("max_bytes", "10GiB");
    if (1..BYTES_MIN).contains(&max_bytes) {
        fields.error(
            "max_bytes",
            "a buffer needs at least 1MiB; 0 is no limit but the disk's",
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
