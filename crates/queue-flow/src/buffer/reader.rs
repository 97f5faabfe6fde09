//! The reading end of a buffer: claims parcels, passes their messages to the processors, and acknowledges them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_flow::{BoxFuture, BufferContext, BufferReader, InputError, SinkClosed};
use thalweg_queue::members::MemberKind;
use thalweg_queue::{ClaimRequest, Delivery, QueueError};
use thalweg_record::codec::{CodecError, MessageDecoder};
use thalweg_record::{AckResult, Batch, DropReason, Message};

use super::backing_queue::{BackingQueue, ParcelLabel};

/// How long a claim waits before it is repeated.
const WAIT: Duration = Duration::from_secs(30);
/// Pause after an error.
const PAUSE: Duration = Duration::from_secs(1);
/// Stored bytes of one claim.
const CLAIM_BYTES: u64 = 1 << 20;
const CONSUMER: &str = "flow";

pub(super) struct QueueBufferReader {
    place: Arc<BackingQueue>,
    decoder: MessageDecoder,
    /// By partition: the messages stored before the next parcel, if none is missing.
    expected: Vec<u64>,
}

/// A record that was passed on.
#[derive(Clone, Copy)]
struct ParcelPosition {
    partition: u32,
    offset: u64,
}

/// Parcels that are passed on together.
#[derive(Default)]
struct ParcelBatch {
    messages: Vec<Message>,
    records: Vec<ParcelPosition>,
    /// Messages by the labels of the parcels.
    labelled: u64,
}

/// Why the reader stops.
enum ReadError {
    /// The flow accepts no more.
    Closed,
    Fault(InputError),
}

impl From<SinkClosed> for ReadError {
    fn from(_: SinkClosed) -> ReadError {
        ReadError::Closed
    }
}

impl QueueBufferReader {
    pub fn new(place: Arc<BackingQueue>, memory_bytes: usize) -> QueueBufferReader {
        QueueBufferReader {
            place,
            decoder: MessageDecoder::new(memory_bytes),
            expected: Vec::new(),
        }
    }
}

impl BufferReader for QueueBufferReader {
    fn run(mut self: Box<Self>, context: BufferContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            if !self.open(&context).await {
                return Ok(());
            }
            let ended = self.read(&context).await;
            if let Some(opened) = self.place.known() {
                opened.queue.leave(&opened.group, CONSUMER);
            }
            ended
        })
    }
}

impl QueueBufferReader {
    /// Waits for the queue; `false` if the flow stops first.
    async fn open(&mut self, context: &BufferContext) -> bool {
        loop {
            match self.place.opened().await {
                Ok(opened) => {
                    context.sink.found(opened.found);
                    self.expected = opened.ends.iter().map(|ends| ends.from).collect();
                    if opened.found > 0 {
                        let (name, messages) = (&self.place.options.name, opened.found);
                        tracing::info!(
                            component = context.component.title(),
                            "the buffer {name} continues with {messages} messages"
                        );
                    }
                    return true;
                }
                Err(why) => context.connection.failed(&why),
            }
            tokio::select! {
                () = context.stop.cancelled() => return false,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn read(&mut self, context: &BufferContext) -> Result<(), InputError> {
        let place = self.place.clone();
        let Some(opened) = place.known() else { return Ok(()) };
        // Whether all messages were settled since the last claim that found nothing.
        let mut settled = false;
        loop {
            let draining = context.drain.is_cancelled();
            let want = ClaimRequest {
                max: place.options.claim_batch,
                max_bytes: CLAIM_BYTES,
                wait: if draining { Duration::ZERO } else { WAIT },
                ..ClaimRequest::default()
            };
            let claim = async {
                context.sink.has_room().await;
                opened
                    .queue
                    .claim(&opened.group, CONSUMER, MemberKind::Pipeline, want)
                    .await
            };
            let claimed = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = context.drain.cancelled(), if !draining => continue,
                claimed = claim => claimed,
            };
            match claimed {
                Ok(deliveries) if !deliveries.is_empty() => {
                    context.connection.up();
                    settled = false;
                    match self.pass_on(context, deliveries).await {
                        Ok(()) => {}
                        Err(ReadError::Closed) => return Ok(()),
                        Err(ReadError::Fault(error)) => return Err(error),
                    }
                }
                Ok(_) if draining && settled => return Ok(()),
                // Either the limit of unacknowledged messages is reached, or the end of the queue.
                Ok(_) if draining => {
                    tokio::select! {
                        () = context.stop.cancelled() => return Ok(()),
                        () = context.sink.settled() => settled = true,
                    }
                }
                Ok(_) => {}
                // Missing messages are counted when the next parcel states how many were before it.
                Err(error @ QueueError::OffsetGap { .. }) => {
                    tracing::error!(component = context.component.title(), %error)
                }
                Err(error) => {
                    context.connection.failed(&error.to_string());
                    tokio::select! {
                        () = context.stop.cancelled() => return Ok(()),
                        () = tokio::time::sleep(PAUSE) => {}
                    }
                }
            }
        }
    }

    async fn pass_on(&mut self, context: &BufferContext, deliveries: Vec<Delivery>) -> Result<(), ReadError> {
        let enough = self.place.options.claim_batch as usize;
        let mut gathered = ParcelBatch::default();
        for delivery in deliveries {
            let messages = self.unpack(context, &delivery)?;
            let Some(mut messages) = messages else { continue };
            if gathered.messages.len() + messages.len() > enough && !gathered.messages.is_empty() {
                self.send(context, std::mem::take(&mut gathered)).await?;
            }
            gathered.labelled += messages.len() as u64;
            gathered.records.push(ParcelPosition {
                partition: delivery.partition,
                offset: delivery.message.offset,
            });
            match gathered.messages.is_empty() {
                true => gathered.messages = messages,
                false => gathered.messages.append(&mut messages),
            }
        }
        self.send(context, gathered).await
    }

    /// Decodes the messages of a record and counts them as in flight. Returns `None` for an unreadable record, which is
    /// counted as lost.
    fn unpack(&mut self, context: &BufferContext, delivery: &Delivery) -> Result<Option<Vec<Message>>, ReadError> {
        let label = ParcelLabel::of(&delivery.message);
        let wrong = match (label, self.decoder.decode(&delivery.message.payload)) {
            (Some(label), Ok(messages)) if label.messages == messages.len() as u64 => {
                self.account(context, delivery.partition, label);
                return Ok(Some(messages));
            }
            (Some(label), Ok(messages)) => format!("it has {} messages instead of {}", messages.len(), label.messages),
            (Some(_), Err(error @ CodecError::Version { .. })) => {
                let (name, partition, offset) = (&self.place.options.name, delivery.partition, delivery.message.offset);
                return Err(ReadError::Fault(InputError(format!(
                    "message {name}:{partition}:{offset}: {error}, or give the buffer another name and leave them"
                ))));
            }
            (Some(_), Err(error)) => error.to_string(),
            (None, _) => "it was not stored by a flow".to_owned(),
        };
        self.lose(context, delivery, label, &wrong);
        Ok(None)
    }

    /// Settles an unreadable record, so that it does not block those after it.
    fn lose(&mut self, context: &BufferContext, delivery: &Delivery, label: Option<ParcelLabel>, wrong: &str) {
        let (partition, offset) = (delivery.partition, delivery.message.offset);
        let messages = label.map_or(1, |label| label.messages);
        match label {
            Some(label) => self.account(context, partition, label),
            None => context.sink.found(1),
        }
        context.sink.lost(DropReason::InvalidPayload, messages);
        context.component.warn_limited("invalid_payload", messages, || {
            let name = &self.place.options.name;
            format!("{messages} messages are lost (invalid_payload), since {name}:{partition}:{offset} cannot be read: {wrong}")
        });
        let passed = ParcelPosition { partition, offset };
        acked(&self.place, &[passed], label.map_or(0, |label| label.messages));
    }

    /// Compares a parcel with those before it in its partition.
    fn account(&mut self, context: &BufferContext, partition: u32, label: ParcelLabel) {
        let Some(opened) = self.place.known() else { return };
        let at = partition as usize;
        let (Some(expected), Some(ends)) = (self.expected.get_mut(at), opened.ends.get(at)) else {
            return;
        };
        if label.before < *expected || label.after() > ends.to.load(Ordering::Acquire) {
            // Another program stored it, so it has not been counted.
            opened.stored(label.messages);
            context.sink.found(label.messages);
            return;
        }
        let missing = label.before - *expected;
        *expected = label.after();
        if missing > 0 {
            opened.done(missing);
            context.sink.lost(DropReason::Limit, missing);
            context.component.warn_limited("limit", missing, || {
                let name = &self.place.options.name;
                format!(
                    "{missing} messages are missing from the buffer {name} (limit): they were purged, or lost with damaged data of the log"
                )
            });
        }
    }

    async fn send(&self, context: &BufferContext, gathered: ParcelBatch) -> Result<(), ReadError> {
        let ParcelBatch {
            messages,
            records,
            labelled,
        } = gathered;
        if records.is_empty() {
            return Ok(());
        }
        let place = self.place.clone();
        let ack = context.sink.resume(messages.len(), move |outcome| {
            // Abandoned messages are read again at the next start.
            if outcome == AckResult::Acked {
                acked(&place, &records, labelled);
            }
        });
        Ok(context.sink.send(Batch::new(messages, ack)).await?)
    }
}

/// Acknowledges records, so that the queue can drop them.
fn acked(place: &BackingQueue, records: &[ParcelPosition], messages: u64) {
    let Some(opened) = place.known() else { return };
    for ParcelPosition { partition, offset } in records {
        if let Err(error) = opened.queue.ack(&opened.group, *partition, *offset, 1) {
            tracing::warn!(queue = %opened.queue.name(), %error, "messages cannot be settled; they are delivered again after a restart");
        }
    }
    opened.done(messages);
}
