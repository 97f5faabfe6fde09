//! Records that were read and not passed on yet, with their offset ranges.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::message::{BorrowedMessage, Message as _};
use thalweg_flow::Batching;
use thalweg_kit::clock;
use thalweg_record::Message;

use super::tracker::{Jump, OffsetRange, TopicPartition};
use super::{ConsumerState, RecordDecoder};
use crate::headers::{self, RecordWithHeaders};

const BATCH_RECORDS: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;

/// A batch is no larger, whatever the configuration says.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// When a batch is passed on.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    records: usize,
    bytes: usize,
    /// Whether a batch waits until one of the limits is reached.
    waits: bool,
    period: Option<Duration>,
    /// Maximum offsets of a partition in the flow, with those of the batch.
    checkpoint: usize,
}

impl BatchLimits {
    /// Without `batching`, a batch is what is there.
    pub fn new(batching: Option<Batching>, checkpoint: Option<usize>) -> BatchLimits {
        let or_max = |limit: usize, max: usize| if limit == 0 { max } else { limit };
        BatchLimits {
            records: batching.map_or(BATCH_RECORDS, |batching| or_max(batching.count, usize::MAX)),
            bytes: batching.map_or(BATCH_BYTES, |batching| {
                or_max(batching.byte_size, BATCH_BYTES_MAX).min(BATCH_BYTES_MAX)
            }),
            waits: batching.is_some(),
            period: batching.and_then(|batching| batching.period),
            checkpoint: checkpoint.unwrap_or(usize::MAX),
        }
    }

    pub fn checkpoint(&self) -> usize {
        self.checkpoint
    }
}

#[derive(Default)]
pub struct BatchBuilder {
    pub messages: Vec<Message>,
    pub filtered: usize,
    pub spans: Vec<OffsetRange>,
    pub epoch: u64,
    bytes: usize,
    /// When the first record was added.
    begun: Option<Instant>,
    /// Offsets of each partition of `spans` that were in the flow when its first record was added.
    in_flight: Vec<usize>,
    is_at_checkpoint: bool,
}

impl BatchBuilder {
    pub fn len(&self) -> usize {
        self.messages.len() + self.filtered
    }

    /// Whether nothing more may be added.
    pub fn is_full(&self, limits: &BatchLimits) -> bool {
        self.is_at_checkpoint || self.len() >= limits.records || self.bytes >= limits.bytes
    }

    /// Whether it is to be passed on.
    pub fn is_ripe(&self, limits: &BatchLimits) -> bool {
        let is_over = || self.rest(limits).is_some_and(|rest| rest.is_zero());
        self.len() > 0 && (!limits.waits || self.is_full(limits) || is_over())
    }

    /// The time until it is passed on, if there is such a time.
    pub fn rest(&self, limits: &BatchLimits) -> Option<Duration> {
        Some(limits.period?.saturating_sub(self.begun?.elapsed()))
    }

    /// Adds a record if its partition is being read.
    pub fn add(
        &mut self,
        record: &BorrowedMessage<'_>,
        shared: &ConsumerState,
        convert: &mut impl RecordDecoder,
        limits: &BatchLimits,
    ) {
        if self.cover(record, shared, limits.checkpoint) {
            self.begun.get_or_insert_with(clock::now);
            self.bytes += bytes(record);
            match convert.message(record) {
                Some(message) => self.messages.push(message),
                None => self.filtered += 1,
            }
        }
    }

    /// Records the offset; returns `false` if the record must be skipped, because its partition will be read again from
    /// an earlier offset.
    fn cover(&mut self, record: &BorrowedMessage<'_>, shared: &ConsumerState, checkpoint: usize) -> bool {
        let (topic, number, offset) = (record.topic(), record.partition(), record.offset());
        // Records come in runs of a partition, so search from the end.
        let known = |span: &OffsetRange| span.partition.number == number && *span.partition.topic == *topic;
        if let Some(at) = self.spans.iter().rposition(known)
            && let Some(span) = self.spans.get_mut(at)
        {
            if offset < span.to || shared.was_reset.load(Ordering::Relaxed) {
                let before = span.to;
                tell_jump(shared, &span.partition, offset, Some(before));
                // The earlier records in the batch belong to a log that is gone: none of them may be committed.
                span.from = span.from.min(offset);
            }
            span.to = offset + 1;
            let before = self.in_flight.get(at).copied().unwrap_or_default();
            self.is_at_checkpoint |= before.saturating_add(offsets(span)) >= checkpoint;
            return true;
        }
        let partition = TopicPartition {
            topic: Arc::from(topic),
            number,
        };
        let mut tracker = shared.tracker.lock();
        if self.spans.is_empty() {
            self.epoch = tracker.epoch();
        }
        let (wanted, in_flight) = (tracker.wants(&partition), tracker.in_flight(&partition));
        if wanted {
            tracker.gathered(&partition);
        }
        drop(tracker);
        if wanted {
            tell_jump(shared, &partition, offset, None);
            self.in_flight.push(in_flight);
            self.is_at_checkpoint |= in_flight.saturating_add(1) >= checkpoint;
            self.spans.push(OffsetRange {
                partition,
                from: offset,
                to: offset + 1,
            });
        }
        wanted
    }
}

fn offsets(span: &OffsetRange) -> usize {
    usize::try_from(span.to - span.from).unwrap_or_default()
}

/// The size of a record, and thus roughly of its message.
fn bytes(record: &impl RecordWithHeaders) -> usize {
    let headers = headers::of(record).map(|header| header.name.len() + header.value.map_or(0, <[u8]>::len));
    record.payload().map_or(0, <[u8]>::len) + record.key().map_or(0, <[u8]>::len) + headers.sum::<usize>()
}

/// Logs if a record is not the next one. `read_to` is the position including records that are not passed on yet.
fn tell_jump(shared: &ConsumerState, partition: &TopicPartition, offset: i64, read_to: Option<i64>) {
    let mut tracker = shared.tracker.lock();
    let jump = tracker.jump(partition, offset);
    if !tracker.is_any_lost() {
        shared.was_reset.store(false, Ordering::Relaxed);
    }
    drop(tracker);
    let back = read_to.filter(|read_to| offset < *read_to).map(Jump::Back);
    let (TopicPartition { topic, number }, component) = (partition, &shared.link.component);
    match jump.or(back) {
        None => {}
        Some(Jump::From(old)) => component.warn_limited("jump", 1, || {
            format!("{topic}, partition {number}: offset {old} no longer exists; reading continues at offset {offset}")
        }),
        Some(Jump::Back(old)) => {
            shared.meters.offset_resets.inc();
            component.warn_limited("jump", 1, || {
                format!(
                    "{topic}, partition {number}: offset {old} is followed by offset {offset}: the topic was recreated or lost \
                     records; reading continues there"
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage, Timestamp};

    use super::*;

    fn batching(count: usize, byte_size: usize, period: Option<Duration>) -> Option<Batching> {
        Some(Batching {
            count,
            byte_size,
            period,
        })
    }

    #[test]
    fn a_batch_is_passed_on_when_a_limit_is_reached() {
        let builder = |filtered: usize, begun: Option<Instant>| BatchBuilder {
            filtered,
            begun,
            ..BatchBuilder::default()
        };
        let at_once = BatchLimits::new(None, None);
        assert!(!builder(0, None).is_ripe(&at_once) && builder(1, None).is_ripe(&at_once));
        assert!(builder(BATCH_RECORDS, None).is_full(&at_once));
        let count = BatchLimits::new(batching(3, 0, None), None);
        assert!(!builder(2, None).is_ripe(&count) && builder(3, None).is_ripe(&count));
        let period = BatchLimits::new(batching(0, 0, Some(Duration::from_secs(60))), None);
        let now = clock::now();
        assert!(!builder(5000, Some(now)).is_ripe(&period));
        let begun = now.checked_sub(Duration::from_secs(61)).unwrap();
        assert!(builder(1, Some(begun)).is_ripe(&period));
        let large = BatchBuilder {
            filtered: 1,
            bytes: BATCH_BYTES_MAX,
            ..BatchBuilder::default()
        };
        assert!(large.is_ripe(&period) && large.is_ripe(&count));
    }

    #[test]
    fn headers_count_for_a_batch_as_keys_and_values_do() {
        let record = |headers: Option<OwnedHeaders>| {
            let (value, key) = (Some(vec![0; 100]), Some(b"key".to_vec()));
            OwnedMessage::new(value, key, "t".to_owned(), Timestamp::NotAvailable, 0, 0, headers)
        };
        assert_eq!(bytes(&record(None)), 103);
        let value = "x".repeat(BATCH_BYTES);
        let headers = OwnedHeaders::new()
            .insert(Header {
                key: "trace",
                value: Some(&value),
            })
            .insert(Header {
                key: "none",
                value: None::<&str>,
            });
        assert_eq!(
            bytes(&record(Some(headers))),
            103 + "trace".len() + BATCH_BYTES + "none".len()
        );
    }
}
