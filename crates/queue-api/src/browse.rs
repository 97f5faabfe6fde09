//! `GET …/messages`: browses a queue without changing leases or offsets.

use axum::http::StatusCode;
use axum::response::Response;
use thalweg_kit::blocking;
use thalweg_log::Offset;
use thalweg_queue::{Message, MessageId, Queue, QueueError};

use crate::payload;
use crate::problem::Result;
use crate::request::ApiRequest;
use crate::response;

const LIMIT: u64 = 100;
const LIMIT_MAX: u64 = 1000;
/// Bytes of payloads, keys and properties in one answer.
const ANSWER_BYTES_MAX: usize = 24 << 20;

pub async fn browse(call: ApiRequest) -> Result<Response> {
    let queue = call.queue()?;
    let partition = call.number("partition", 0..=u32::MAX.into())?;
    let partition = partition.and_then(|partition| u32::try_from(partition).ok());
    let from = call.number("from", 0..=Offset::MAX)?;
    let limit = call.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT) as usize;
    let mut page = MessagePage::new(&queue);
    let partitions = match partition {
        Some(partition) => partition..partition.saturating_add(1),
        None => 0..queue.partition_count(),
    };
    for partition in partitions {
        let mut at = from;
        while page.count < limit && page.bytes < ANSWER_BYTES_MAX {
            let (wanted, left) = (limit - page.count, ANSWER_BYTES_MAX - page.bytes);
            let browsed = queue.browse_within(Some(partition), at, wanted, left).await?;
            let Some((_, last)) = browsed.messages.last() else {
                break;
            };
            at = Some(last.offset + 1);
            page.add_all(&browsed.messages);
            if browsed.is_end {
                break;
            }
        }
    }
    Ok(page.done(partition.is_some(), limit))
}

/// Messages as JSON, and where the next page begins.
pub struct MessagePage<'q> {
    queue: &'q Queue,
    out: String,
    count: usize,
    bytes: usize,
    last: Option<Offset>,
}

impl<'q> MessagePage<'q> {
    pub fn new(queue: &'q Queue) -> MessagePage<'q> {
        MessagePage {
            queue,
            out: "{\"messages\":[".to_owned(),
            count: 0,
            bytes: 0,
            last: None,
        }
    }

    fn add(&mut self, partition: u32, message: &Message) {
        if self.count > 0 {
            self.out.push(',');
        }
        payload::stored(&mut self.out, self.queue, partition, message);
        self.count += 1;
        self.bytes += message.bytes();
        self.last = Some(message.offset);
    }

    /// Each with its partition. Other requests proceed meanwhile.
    pub fn add_all(&mut self, messages: &[(u32, Message)]) {
        let bytes = messages.iter().map(|(_, message)| message.bytes()).sum();
        blocking::work(bytes, || {
            messages
                .iter()
                .for_each(|(partition, message)| self.add(*partition, message));
        });
    }

    /// Only a page of one partition has a next page, because offsets continue only there.
    fn done(mut self, one_partition: bool, limit: usize) -> Response {
        self.out.push(']');
        let full = self.count == limit || self.bytes >= ANSWER_BYTES_MAX;
        if let Some(last) = self.last.filter(|_| one_partition && full) {
            self.out.push_str(&format!(",\"next\":{}", last + 1));
        }
        self.finish()
    }

    pub fn finish(mut self) -> Response {
        self.out.push('}');
        response::raw(StatusCode::OK, self.out.into())
    }

    pub fn push_raw(&mut self, text: &str) {
        self.out.push_str(text);
    }
}

pub async fn one(call: ApiRequest) -> Result<Response> {
    let queue = call.queue()?;
    let id: MessageId = call.name("id").parse()?;
    let known = id.queue == *queue.name() && id.partition < queue.partition_count();
    let found = if known {
        queue.find(id.partition, id.offset).await?
    } else {
        None
    };
    let Some(message) = found else {
        return Err(QueueError::MessageNotFound { id }.into());
    };
    let mut out = String::new();
    blocking::work(message.bytes(), || {
        payload::stored(&mut out, &queue, id.partition, &message);
    });
    Ok(response::raw(StatusCode::OK, out.into()))
}
