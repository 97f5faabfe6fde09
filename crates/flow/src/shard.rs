//! Spreads batches over the worker threads by series, so that all messages of a series take the same path in order.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_record::{Ack, Batch, Message};

use crate::input::SinkClosed;
use crate::queue;

/// The queues of all workers; empty after [`Shards::close`].
pub(crate) struct Shards {
    workers: RwLock<Arc<[queue::QueueSender<Batch>]>>,
}

impl Shards {
    pub fn new(workers: Vec<queue::QueueSender<Batch>>) -> Shards {
        Shards {
            workers: RwLock::new(workers.into()),
        }
    }

    /// Accepts no more batches: the workers end when their queues are empty, even if sinks still exist.
    pub fn close(&self) {
        *self.workers.write() = Arc::new([]);
    }

    pub async fn send(&self, batch: Batch) -> Result<(), SinkClosed> {
        let workers = self.workers.read().clone();
        let [first, others @ ..] = &*workers else {
            return Err(SinkClosed);
        };
        if others.is_empty() {
            return first.send(batch).await.map_err(|_| SinkClosed);
        }
        send_each(&workers, split(batch, workers.len())).await
    }

    /// Allocates room for that many messages, per worker.
    pub fn parts(&self, messages: usize) -> ShardedMessages {
        ShardedMessages::new(self.workers.read().len(), messages)
    }

    /// As [`Shards::send`], for messages that are already sharded.
    pub async fn send_parts(&self, parts: ShardedMessages, mut ack: Ack) -> Result<(), SinkClosed> {
        let workers = self.workers.read().clone();
        if workers.len() != parts.0.len() {
            let messages = parts.0.into_iter().flatten().collect();
            return self.send(Batch::new(messages, ack)).await;
        }
        // The acknowledgement is split before the first part is sent, so that no part settles the whole.
        let divided = parts.0.into_iter().map(|part| {
            let ack = ack.split(part.len());
            Batch::new(part, ack)
        });
        let batches: Vec<Batch> = divided.collect();
        drop(ack);
        send_each(&workers, batches).await
    }

    pub async fn has_room(&self) {
        let workers = self.workers.read().clone();
        for worker in workers.iter() {
            worker.has_room().await;
        }
    }
}

/// Sends each part to its worker, even if one worker is gone, because their acknowledgements settle the whole together.
async fn send_each(workers: &[queue::QueueSender<Batch>], parts: Vec<Batch>) -> Result<(), SinkClosed> {
    let mut result = Ok(());
    for (worker, part) in workers.iter().zip(parts) {
        if !part.is_empty() && worker.send(part).await.is_err() {
            result = Err(SinkClosed);
        }
    }
    result
}

/// Messages grouped by their worker.
#[derive(Debug)]
pub struct ShardedMessages(Vec<Vec<Message>>);

impl ShardedMessages {
    /// Allocates for that many workers and messages.
    pub fn new(workers: usize, messages: usize) -> ShardedMessages {
        let workers = workers.max(1);
        // Series are spread about evenly.
        let room = messages / workers + messages / 16 + 1;
        ShardedMessages((0..workers).map(|_| Vec::with_capacity(room)).collect())
    }

    pub fn push(&mut self, message: Message) {
        let worker = worker_of(Some(&message), self.0.len());
        if let Some(part) = self.0.get_mut(worker) {
            part.push(message);
        }
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Message> {
        self.0.iter_mut().flatten()
    }
}

/// The worker of a message's series.
fn worker_of(message: Option<&Message>, workers: usize) -> usize {
    let series = message.and_then(Message::series);
    series.map_or(0, |series| (series % workers.max(1) as u64) as usize)
}

/// Returns one part per worker, possibly empty. Messages without a series stay together on the first worker: nothing
/// says which of them belong together, so all of them keep their order.
fn split(batch: Batch, workers: usize) -> Vec<Batch> {
    let Batch { mut messages, mut ack } = batch;
    let mut parts: Vec<Vec<Message>> = (1..workers)
        .map(|_| Vec::with_capacity(messages.len() / workers + 1))
        .collect();
    // Messages of the first worker are not moved.
    let worker = Cell::new(0);
    let others = messages.extract_if(.., |message| {
        worker.set(worker_of(Some(message), workers));
        worker.get() != 0
    });
    for message in others {
        if let Some(part) = parts.get_mut(worker.get() - 1) {
            part.push(message);
        }
    }
    let split = parts.into_iter().map(|part| {
        let ack = ack.split(part.len());
        Batch::new(part, ack)
    });
    let mut batches: Vec<Batch> = split.collect();
    batches.insert(0, Batch::new(messages, ack));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_record::{Ack, FlowBalance};

    proptest! {
        #[test]
        fn a_series_keeps_its_worker_and_its_order(topics in prop::collection::vec(0u8..12, 0..60), workers in 1usize..6) {
            let balance = Arc::new(FlowBalance::default());
            let messages: Vec<_> = topics.iter().enumerate().map(|(i, topic)| {
                let mut message = Message::raw(i.to_string());
                if *topic > 0 { message.meta.set("umh_topic", format!("t{topic}")); }
                message
            }).collect();
            let parts = split(Batch::new(messages, Ack::enter(&balance, topics.len(), |_| {})), workers);
            prop_assert_eq!(parts.len(), workers);
            prop_assert_eq!(balance.snapshot().in_flight, topics.len() as u64);
            let mut home = std::collections::HashMap::new();
            for (worker, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.len(), part.ack.count());
                let mut last = std::collections::HashMap::new();
                for message in &part.messages {
                    let topic = message.meta.get("umh_topic").map(|t| t.into_owned());
                    let number: usize = std::str::from_utf8(&message.bytes()).unwrap().parse().unwrap();
                    prop_assert_eq!(*home.entry(topic.clone()).or_insert(worker), worker);
                    prop_assert!(last.insert(topic, number).is_none_or(|before| before < number));
                }
            }
        }
    }
}
