//! The storing end of a buffer: packs messages into parcels, and appends all parcels of a write in one commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_flow::{BoxFuture, OpenError, Output, OutputContext, Rejection, WriteError, all_but};
use thalweg_queue::settings::MESSAGE_BYTES_MAX;
use thalweg_queue::{NewMessage, QueueError};
use thalweg_record::codec::MessageEncoder;
use thalweg_record::{DropReason, Message};
use thalweg_telemetry::StatusDetail;

use super::PARCEL_BYTES;
use super::backing_queue::{BackingQueue, OpenBackingQueue, ParcelLabel};

/// Batches that share one commit, which costs the same for one message as for many.
const BATCHES_JOINED: usize = 4096;
/// Approximate limit of one commit.
const COMMIT_BYTES: usize = 8 << 20;
/// Records of one commit; the log accepts 10,000.
const COMMIT_PARCELS: usize = 5_000;
/// What a record takes besides its value.
const RECORD_BYTES: u64 = 256;
/// After this time without room, a log message reports that the source waits.
const TELL: Duration = Duration::from_secs(1);

pub(super) struct QueueBufferWriter {
    place: Arc<BackingQueue>,
    /// One for each partition. Writes are sequential.
    encoders: Arc<Mutex<Vec<MessageEncoder>>>,
}

/// The content of one commit.
#[derive(Default)]
struct ParcelCommit {
    records: Vec<NewMessage>,
    messages: u64,
    bytes: usize,
    /// Messages by partition.
    added: Vec<u64>,
}

impl QueueBufferWriter {
    pub fn new(place: Arc<BackingQueue>) -> QueueBufferWriter {
        QueueBufferWriter {
            place,
            encoders: Arc::default(),
        }
    }
}

impl Output for QueueBufferWriter {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let opened = self.place.opened().await.map_err(OpenError::Temporary)?;
            self.encoders
                .lock()
                .resize_with(opened.keys.len(), MessageEncoder::default);
            let place = self.place.clone();
            context.connection.show(move || {
                let Some(opened) = place.known() else { return Vec::new() };
                let bytes = opened.queue.bytes();
                vec![
                    StatusDetail::new("messages", opened.depth()),
                    StatusDetail::new("bytes", bytes),
                ]
            });
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let (place, encoders) = (self.place.clone(), self.encoders.clone());
        Box::pin(async move {
            let Some(opened) = place.known() else {
                return Err(WriteError::Temporary("the buffer is not open yet".to_owned()));
            };
            let (mut refused, mut from) = (Vec::new(), 0);
            while from < messages.len() {
                let packing = ParcelBuilder {
                    place: &place,
                    opened,
                    messages: &messages,
                };
                let (commit, to) = packing.pack(&mut encoders.lock(), from, &mut refused);
                if let Err(error) = store(&place, opened, commit).await {
                    // Earlier messages are stored and do not come again.
                    refused.retain(|refusal: &Rejection| refusal.index < from);
                    let again = |index| Rejection::temporary(index, error.to_string());
                    refused.extend((from..messages.len()).map(again));
                    return all_but(refused);
                }
                from = to;
            }
            all_but(refused)
        })
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }
}

/// Packs messages into parcels.
struct ParcelBuilder<'a> {
    place: &'a BackingQueue,
    opened: &'a OpenBackingQueue,
    messages: &'a [Message],
}

impl ParcelBuilder<'_> {
    /// Packs messages from `from` on until a commit is full. Returns where the next commit begins.
    fn pack(
        &self,
        encoders: &mut [MessageEncoder],
        from: usize,
        refused: &mut Vec<Rejection>,
    ) -> (ParcelCommit, usize) {
        let options = &self.place.options;
        let bytes_max = match options.max_bytes {
            0 => COMMIT_BYTES,
            bytes => COMMIT_BYTES.min(usize::try_from(bytes / 4).unwrap_or(usize::MAX)),
        };
        let messages_max = if options.max_depth > 0 {
            (options.max_depth / 4).max(1)
        } else {
            u64::MAX
        };
        let mut commit = ParcelCommit {
            added: vec![0; encoders.len()],
            ..ParcelCommit::default()
        };
        let (mut packed, mut waiting_bytes, mut to) = (0, 0, from);
        for (index, message) in (from..).zip(self.messages.get(from..).unwrap_or_default()) {
            if packed >= messages_max
                || commit.bytes + waiting_bytes >= bytes_max
                || commit.records.len() + encoders.len() >= COMMIT_PARCELS
            {
                break;
            }
            to = index + 1;
            let partition = message
                .series()
                .map_or(0, |series| (series % encoders.len().max(1) as u64) as usize);
            let Some(encoder) = encoders.get_mut(partition) else {
                continue;
            };
            if encoder.count() > 0 && message.memory_bytes() > PARCEL_BYTES {
                waiting_bytes -= encoder.bytes();
                self.close(encoder, partition, &mut commit);
            }
            let before = encoder.bytes();
            if let Err(error) = encoder.push(message) {
                refused.push(Rejection::permanent(index, DropReason::Limit, error.to_string()));
                continue;
            }
            let limit = MESSAGE_BYTES_MAX.min(if options.max_bytes > 0 {
                options.max_bytes
            } else {
                u64::MAX
            });
            if encoder.count() == 1 && encoder.bytes() as u64 + RECORD_BYTES > limit {
                let error = format!(
                    "{} bytes exceed the limit of the buffer {} ({limit})",
                    encoder.bytes(),
                    options.name
                );
                refused.push(Rejection::permanent(index, DropReason::TooLarge, error));
                encoder.clear();
                continue;
            }
            packed += 1;
            waiting_bytes += encoder.bytes() - before;
            if encoder.bytes() >= PARCEL_BYTES.min(bytes_max) || encoder.count() >= options.claim_batch as usize {
                waiting_bytes -= encoder.bytes();
                self.close(encoder, partition, &mut commit);
            }
        }
        for (partition, encoder) in encoders
            .iter_mut()
            .enumerate()
            .filter(|(_, encoder)| encoder.count() > 0)
        {
            self.close(encoder, partition, &mut commit);
        }
        (commit, to)
    }

    /// Turns the messages of an encoder into a record.
    fn close(&self, encoder: &mut MessageEncoder, partition: usize, commit: &mut ParcelCommit) {
        let messages = encoder.count() as u64;
        let stored = self
            .opened
            .ends
            .get(partition)
            .map_or(0, |ends| ends.to.load(Ordering::Acquire));
        let added = commit.added.get_mut(partition);
        let before = stored + added.as_ref().map_or(0, |added| **added);
        if let Some(added) = added {
            *added += messages;
        }
        let payload = encoder.finish();
        commit.bytes += payload.len();
        commit.messages += messages;
        commit.records.push(NewMessage {
            key: self.opened.keys.get(partition).cloned(),
            properties: ParcelLabel { messages, before }.properties(),
            ..NewMessage::of(payload)
        });
    }
}

/// Returns when the commit is as durable as the queue promises. Waits while there is no room.
async fn store(place: &BackingQueue, opened: &OpenBackingQueue, commit: ParcelCommit) -> Result<(), QueueError> {
    if commit.records.is_empty() {
        return Ok(());
    }
    let stored = async {
        room(place, opened, commit.messages).await;
        // Counted before the reader can see them.
        for (ends, added) in opened.ends.iter().zip(&commit.added) {
            ends.to.fetch_add(*added, Ordering::AcqRel);
        }
        opened.stored(commit.messages);
        let stored = loop {
            match opened.queue.produce_all(commit.records.clone()).await {
                Err(QueueError::QueueFull { .. }) => {}
                done => break done,
            }
        };
        if stored.is_err() {
            opened.done(commit.messages);
            for (ends, added) in opened.ends.iter().zip(&commit.added) {
                ends.to.fetch_sub(*added, Ordering::AcqRel);
            }
        }
        stored.map(drop)
    };
    tokio::pin!(stored);
    tokio::select! {
        done = &mut stored => done,
        () = tokio::time::sleep(TELL) => {
            place.component.warn_limited("buffer_full", 1, || {
                let (name, depth, bytes) = (&place.options.name, opened.depth(), opened.queue.bytes());
                format!("the buffer {name} is full and its source waits: {depth} messages, {bytes} bytes")
            });
            stored.await
        }
    }
}

/// Waits until `messages` more fit into `max_depth`.
async fn room(place: &BackingQueue, opened: &OpenBackingQueue, messages: u64) {
    let limit = place.options.max_depth;
    loop {
        let room = opened.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        if limit == 0 || opened.depth() + messages <= limit {
            return;
        }
        room.await;
    }
}
