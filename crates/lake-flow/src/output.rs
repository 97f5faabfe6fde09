//! The `lake` output: messages become entries of the queue `lake.<table>`, and are acknowledged when the log has stored
//! them.
//!
//! All entries of one input go to one partition in the order of their writes, so rows of a tag stay in order. A batch
//! that is sent again because its source missed the answer becomes another entry.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_columns::tables::{TAGS, TableSpec};
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, OpenError, Output, OutputContext, OutputSpec, ParseContext,
    Rejection, WriteError, all_but,
};
use thalweg_lake::Signal;
use thalweg_lake::ingest::{Handoff, HandoffQueue};
use thalweg_lake::tags::{RefusedMessage, TagBatchWriter};
use thalweg_log::{SUBMISSION_BYTES_MAX, SUBMISSION_RECORDS_MAX};
use thalweg_queue::{NewMessage, Queue};
use thalweg_queue_flow::SharedQueues;
use thalweg_record::{Message, Ticks};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::OnceCell;

use crate::signal_batch::SignalBatchWriter;
use crate::tables::LakeTables;

/// Batches that share one commit of the log, which costs the same for one message as for many.
const BATCHES_JOINED: usize = 4096;
/// Bytes of messages that take about a millisecond to encode.
const LONG_BYTES: usize = 128 << 10;
/// Bytes of the input name that select the partition.
const KEY_BYTES_MAX: usize = 256;
/// The most that a record takes besides its value.
const RECORD_BYTES: usize = 256;

/// Tables that an output can feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputTable {
    Tags,
    Records(Signal),
}

impl OutputTable {
    const ALL: [OutputTable; 4] = [
        OutputTable::Tags,
        OutputTable::Records(Signal::Logs),
        OutputTable::Records(Signal::Metrics),
        OutputTable::Records(Signal::Traces),
    ];

    fn spec(self) -> &'static TableSpec {
        match self {
            OutputTable::Tags => &TAGS,
            OutputTable::Records(signal) => signal.table(),
        }
    }
}

/// Registers the output. Its tables need the queues of the process, and so the log.
pub fn register(registry: &mut ComponentRegistry, lake: &Arc<LakeTables>, store: &Arc<SharedQueues>) {
    let (lake, store) = (lake.clone(), store.clone());
    registry.output(
        "lake",
        include_str!("../reference/output-lake.txt"),
        move |node, context| parse(node, context, &lake, &store),
    );
}

fn parse(
    node: &ComponentNode,
    context: &mut ParseContext<'_>,
    lake: &Arc<LakeTables>,
    store: &SharedQueues,
) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let names = OutputTable::ALL.map(|fed| fed.spec().name);
    let name = fields.one_of("table", &names, TAGS.name);
    fields.finish();
    lake.want();
    store.want();
    let fed = OutputTable::ALL.into_iter().find(|fed| fed.spec().name == name);
    Some(Arc::new(LakeOutputSpec {
        lake: lake.clone(),
        fed: fed.unwrap_or(OutputTable::Tags),
    }))
}

struct LakeOutputSpec {
    lake: Arc<LakeTables>,
    fed: OutputTable,
}

impl OutputSpec for LakeOutputSpec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(LakeOutput {
            lake: self.lake.clone(),
            fed: self.fed,
            source: context.source.clone(),
            key: context.source.bytes().take(KEY_BYTES_MAX).collect(),
            opened: OnceCell::new(),
        }))
    }

    /// The table `tags` has a column for the status.
    fn stores_bad_values(&self) -> bool {
        self.fed == OutputTable::Tags
    }
}

struct LakeOutput {
    lake: Arc<LakeTables>,
    fed: OutputTable,
    /// The column `source` of messages that do not name their own.
    source: Arc<str>,
    /// Selects the partition.
    key: Bytes,
    opened: OnceCell<OpenLakeOutput>,
}

/// The queue of the table, and the encoder of its entries.
struct OpenLakeOutput {
    queue: Arc<Queue>,
    handoffs: Arc<HandoffQueue>,
    packing: Mutex<EntryWriter>,
}

enum EntryWriter {
    Tags(Box<TagBatchWriter>),
    Records(Box<SignalBatchWriter>),
}

/// A record of the log.
struct LogEntry {
    bytes: Bytes,
    handoff: Handoff,
    /// Every message before this index is in this or an earlier entry, or refused.
    until: usize,
}

impl LakeOutput {
    async fn opened(&self) -> Result<OpenLakeOutput, OpenError> {
        let (queue, handoffs, packing) = match self.fed {
            OutputTable::Tags => {
                let (queue, handoffs) = self.lake.tags().await?;
                (queue, handoffs, EntryWriter::Tags(Box::default()))
            }
            OutputTable::Records(signal) => {
                let (queue, handoffs) = self.lake.received(signal).await?;
                let limits = self.lake.records();
                let limits = limits.ok_or_else(|| OpenError::Temporary("the lake is not open".to_owned()))?;
                let batch_writer = SignalBatchWriter::new(signal, limits);
                (queue, handoffs, EntryWriter::Records(Box::new(batch_writer)))
            }
        };
        Ok(OpenLakeOutput {
            queue,
            handoffs,
            packing: Mutex::new(packing),
        })
    }

    fn pack(&self, packing: &mut EntryWriter, messages: &Arc<Vec<Message>>) -> EncodedEntries {
        let arrival = Ticks::now().unix_nanos().unwrap_or_default();
        match packing {
            EntryWriter::Tags(batch_writer) => {
                let packed = batch_writer.pack(&self.source, messages, arrival);
                let entries = packed.entries.iter().map(|entry| LogEntry {
                    bytes: entry.bytes.clone(),
                    handoff: Handoff::Messages(packed.handed(entry, messages, &self.source, arrival)),
                    until: entry.part.end,
                });
                EncodedEntries {
                    entries: entries.collect(),
                    refused: packed.refused,
                    rejected: Vec::new(),
                }
            }
            EntryWriter::Records(batch_writer) => {
                let mut pack = || batch_writer.pack(&self.source, messages, arrival);
                let packed = match is_long(messages) {
                    // The other connections of this thread move to another one.
                    true => tokio::task::block_in_place(pack),
                    false => pack(),
                };
                let entries = packed.entries.into_iter().map(|entry| LogEntry {
                    bytes: entry.bytes,
                    handoff: entry.handoff,
                    until: entry.until,
                });
                EncodedEntries {
                    entries: entries.collect(),
                    refused: packed.refused,
                    rejected: packed.rejected,
                }
            }
        }
    }
}

/// Encoded messages.
struct EncodedEntries {
    entries: Vec<LogEntry>,
    refused: Vec<RefusedMessage>,
    /// Rejected records within stored messages, by reason.
    rejected: Vec<(&'static str, u64)>,
}

/// Whether encoding takes more than about a millisecond, on a runtime with other threads for its connections.
fn is_long(messages: &[Message]) -> bool {
    let bytes: usize = messages.iter().map(Message::memory_bytes).sum();
    let runtime = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    bytes >= LONG_BYTES && runtime.is_ok_and(|flavor| flavor == RuntimeFlavor::MultiThread)
}

impl Output for LakeOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            self.opened.get_or_try_init(|| self.opened()).await?;
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let Some(opened) = self.opened.get() else {
            let table = self.fed.spec().name;
            return Box::pin(std::future::ready(Err(WriteError::Temporary(format!(
                "the table {table} is not open yet"
            )))));
        };
        let packed = self.pack(&mut opened.packing.lock(), &messages);
        let EncodedEntries {
            entries,
            refused,
            rejected,
        } = packed;
        let (lake, table) = (self.lake.clone(), self.fed.spec().name);
        let (queue, handoffs, key) = (opened.queue.clone(), opened.handoffs.clone(), self.key.clone());
        Box::pin(async move {
            let (mut stored, mut failed) = (0, None);
            let mut entries = entries.into_iter().peekable();
            while entries.peek().is_some() {
                let EntryAppend { records, handed, until } = piece(&mut entries, &key);
                let produced = match queue.produce_all(records).await {
                    Ok(produced) => produced,
                    Err(error) => {
                        failed = Some((stored, error.to_string()));
                        break;
                    }
                };
                for (at, handoff) in produced.iter().zip(handed) {
                    handoffs.report(at.partition, at.offset, handoff);
                }
                stored = until;
            }
            let (refused, again) = settle(messages.len(), refused, failed)?;
            let reasons = refused.iter().map(|refused| (refused.refusal.reason.as_str(), 1));
            // Messages that come again are counted then; which of them the rejected records belong to is unknown.
            let rejected = rejected.into_iter().filter(|_| again.is_empty());
            lake.count_refused(table, reasons.chain(rejected));
            all_but(refused.into_iter().map(rejection).chain(again).collect())
        })
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }
}

/// Splits `count` messages into those refused for good and those to retry. `failed` is the number of stored messages,
/// and why the next failed.
fn settle(
    count: usize,
    mut refused: Vec<RefusedMessage>,
    failed: Option<(usize, String)>,
) -> Result<(Vec<RefusedMessage>, Vec<Rejection>), WriteError> {
    match failed {
        None => Ok((refused, Vec::new())),
        Some((0, error)) => Err(WriteError::Temporary(format!("the lake cannot store: {error}"))),
        Some((stored, error)) => {
            // Earlier messages are stored and do not come again.
            refused.retain(|refused| refused.index < stored);
            let again = (stored..count).map(|index| Rejection::temporary(index, error.clone()));
            Ok((refused, again.collect()))
        }
    }
}

/// Entries of one append to the log.
struct EntryAppend {
    records: Vec<NewMessage>,
    /// One handoff for each record.
    handed: Vec<Handoff>,
    /// The index after their last message.
    until: usize,
}

/// Takes as many entries as fit into one append.
fn piece(entries: &mut std::iter::Peekable<impl Iterator<Item = LogEntry>>, key: &Bytes) -> EntryAppend {
    let (mut records, mut handed, mut bytes, mut until) = (Vec::new(), Vec::new(), 0, 0);
    while let Some(entry) = entries.next_if(|next| {
        let fits = bytes + next.bytes.len() + RECORD_BYTES <= SUBMISSION_BYTES_MAX;
        records.is_empty() || (fits && records.len() < SUBMISSION_RECORDS_MAX)
    }) {
        bytes += entry.bytes.len() + RECORD_BYTES;
        until = entry.until;
        handed.push(entry.handoff);
        records.push(NewMessage {
            key: Some(key.clone()),
            ..NewMessage::of(entry.bytes)
        });
    }
    EntryAppend { records, handed, until }
}

fn rejection(refused: RefusedMessage) -> Rejection {
    Rejection::permanent(refused.index, refused.refusal.reason, refused.refusal.error)
}

#[cfg(test)]
mod tests {
    use thalweg_lake::tags::MessageRefusal;
    use thalweg_record::DropReason;

    use super::*;

    fn refused(index: usize) -> RefusedMessage {
        let refusal = MessageRefusal {
            reason: DropReason::InvalidPayload,
            error: String::new(),
        };
        RefusedMessage { index, refusal }
    }

    fn places(rejections: &[Rejection]) -> Vec<usize> {
        rejections.iter().map(|rejection| rejection.index).collect()
    }

    #[test]
    fn what_is_stored_does_not_come_again_and_what_follows_it_does_refused_or_not() {
        let (kept, again) = settle(5, vec![refused(1), refused(4)], None).unwrap();
        assert_eq!((kept, again.len()), (vec![refused(1), refused(4)], 0));
        let full = || "the disk is full".to_owned();
        let (kept, again) = settle(5, vec![refused(1), refused(4)], Some((3, full()))).unwrap();
        assert_eq!(kept, [refused(1)]);
        assert_eq!(places(&again), [3, 4]);
        assert!(again.iter().all(|rejection| rejection.permanent.is_none()));
        let none = settle(5, vec![refused(1)], Some((0, full())));
        assert!(
            matches!(&none, Err(WriteError::Temporary(why)) if why == "the lake cannot store: the disk is full"),
            "{none:?}"
        );
    }

    #[test]
    fn entries_go_together_up_to_what_the_log_takes_at_once() {
        let handed = thalweg_lake::ingest::MessagesHandoff {
            all: Arc::default(),
            part: 0..0,
            refused: Vec::new(),
            own_maps_bytes: 0,
            source: "here".into(),
            arrival: 0,
        };
        let entry = |bytes: usize, until| LogEntry {
            bytes: vec![0; bytes].into(),
            handoff: Handoff::Messages(handed.clone()),
            until,
        };
        let quarter = SUBMISSION_BYTES_MAX / 4 - RECORD_BYTES;
        let sizes = [
            quarter,
            quarter,
            quarter,
            quarter,
            1,
            SUBMISSION_BYTES_MAX - RECORD_BYTES,
            1,
        ];
        let mut entries = sizes
            .into_iter()
            .zip(1..)
            .map(|(bytes, until)| entry(bytes, until))
            .peekable();
        let mut pieces = Vec::new();
        while entries.peek().is_some() {
            let piece = piece(&mut entries, &Bytes::new());
            pieces.push((piece.records.len(), piece.until));
        }
        assert_eq!(pieces, [(4, 4), (1, 5), (1, 6), (1, 7)]);
    }
}
