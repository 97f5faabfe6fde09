//! Records that were read and not passed on yet, with their offset ranges.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdkafka::message::{BorrowedMessage, Message as _};
use thalweg_record::Message;

use super::tracker::{Jump, OffsetRange, TopicPartition};
use super::{ConsumerState, RecordDecoder};
use crate::headers::{self, RecordWithHeaders};

const BATCH_RECORDS: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;

#[derive(Default)]
pub struct BatchBuilder {
    pub messages: Vec<Message>,
    pub filtered: usize,
    pub spans: Vec<OffsetRange>,
    pub epoch: u64,
    bytes: usize,
}

impl BatchBuilder {
    pub fn len(&self) -> usize {
        self.messages.len() + self.filtered
    }

    pub fn is_full(&self) -> bool {
        self.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }

    /// Adds a record if its partition is being read.
    pub fn add(&mut self, record: &BorrowedMessage<'_>, shared: &ConsumerState, convert: &mut impl RecordDecoder) {
        if self.cover(record, shared) {
            self.bytes += bytes(record);
            match convert.message(record) {
                Some(message) => self.messages.push(message),
                None => self.filtered += 1,
            }
        }
    }

    /// Records the offset; returns `false` if the record must be skipped, because its partition will be read again from
    /// an earlier offset.
    fn cover(&mut self, record: &BorrowedMessage<'_>, shared: &ConsumerState) -> bool {
        let (topic, number, offset) = (record.topic(), record.partition(), record.offset());
        // Records come in runs of a partition, so search from the end.
        let known = |span: &&mut OffsetRange| span.partition.number == number && *span.partition.topic == *topic;
        if let Some(span) = self.spans.iter_mut().rev().find(known) {
            if offset < span.to || shared.was_reset.load(Ordering::Relaxed) {
                let before = span.to;
                tell_jump(shared, &span.partition, offset, Some(before));
                // The earlier records in the batch belong to a log that is gone: none of them may be committed.
                span.from = span.from.min(offset);
            }
            span.to = offset + 1;
            return true;
        }
        let partition = TopicPartition {
            topic: Arc::from(topic),
            number,
        };
        let tracker = shared.tracker.lock();
        if self.spans.is_empty() {
            self.epoch = tracker.epoch();
        }
        let wanted = tracker.wants(&partition);
        drop(tracker);
        if wanted {
            tell_jump(shared, &partition, offset, None);
            self.spans.push(OffsetRange {
                partition,
                from: offset,
                to: offset + 1,
            });
        }
        wanted
    }
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
