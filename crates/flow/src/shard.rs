//! Spreads batches over the worker threads by series, so that all messages of a series take the same way in order.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_record::{Batch, Message};

use crate::input::SinkClosed;
use crate::queue;

/// The entrances of all workers; none after [`Shards::close`].
pub(crate) struct Shards {
    workers: RwLock<Arc<[queue::Sender<Batch>]>>,
}

impl Shards {
    pub fn new(workers: Vec<queue::Sender<Batch>>) -> Shards {
        Shards {
            workers: RwLock::new(workers.into()),
        }
    }

    /// No more batches: the workers end when they have emptied their queues, whoever still holds a sink.
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
        let mut result = Ok(());
        for (worker, part) in workers.iter().zip(split(batch, workers.len())) {
            // All parts are sent even if one worker is gone: their acknowledgements settle the batch together.
            if !part.is_empty() && worker.send(part).await.is_err() {
                result = Err(SinkClosed);
            }
        }
        result
    }

    pub async fn has_room(&self) {
        let workers = self.workers.read().clone();
        for worker in workers.iter() {
            worker.has_room().await;
        }
    }
}

/// One part per worker, possibly empty. Messages without a series stay together on the first worker: nothing tells
/// which of them belong together, so all of them keep their order.
fn split(batch: Batch, workers: usize) -> Vec<Batch> {
    let Batch { mut messages, mut ack } = batch;
    let mut parts: Vec<Vec<Message>> = (1..workers)
        .map(|_| Vec::with_capacity(messages.len() / workers + 1))
        .collect();
    let worker_of = |message: &Message| message.series().map_or(0, |series| (series % workers as u64) as usize);
    // Those of the first worker stay where they are.
    let worker = Cell::new(0);
    let others = messages.extract_if(.., |message| {
        worker.set(worker_of(message));
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
    use thalweg_record::{Ack, Balance};

    proptest! {
        #[test]
        fn a_series_keeps_its_worker_and_its_order(topics in prop::collection::vec(0u8..12, 0..60), workers in 1usize..6) {
            let balance = Arc::new(Balance::default());
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
