//! Which messages belong to which write, and what has become of them: a write is answered when each of its messages has ended.

use std::collections::HashMap;

use thalweg_flow::{Rejection, WriteError, all_but};
use tokio::sync::oneshot;

use super::WriteRequest;
use crate::outgoing::OutgoingPublish;

/// A message: its place in the order of all, its write, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageKey {
    pub order: u64,
    write: u64,
    index: usize,
}

/// A message that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPublish {
    pub key: MessageKey,
    pub publish: OutgoingPublish,
}

struct OpenWrite {
    left: usize,
    rejections: Vec<Rejection>,
    reply: oneshot::Sender<Result<(), WriteError>>,
}

/// The writes that are not answered.
#[derive(Default)]
pub struct WriteAccounts {
    open: HashMap<u64, OpenWrite>,
    next_write: u64,
    next_order: u64,
}

impl WriteAccounts {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Begins a write; returns its messages in order.
    pub fn begin(&mut self, request: WriteRequest) -> Vec<QueuedPublish> {
        let write = self.next_write;
        self.next_write += 1;
        let (mut queued, mut rejections) = (Vec::with_capacity(request.publishes.len()), Vec::new());
        for (index, publish) in request.publishes.into_iter().enumerate() {
            match publish {
                Err(rejection) => rejections.push(rejection),
                Ok(publish) => {
                    let order = self.next_order;
                    self.next_order += 1;
                    let key = MessageKey { order, write, index };
                    queued.push(QueuedPublish { key, publish });
                }
            }
        }
        let open = OpenWrite {
            left: queued.len(),
            rejections,
            reply: request.reply,
        };
        match open.left {
            0 => open.answer(),
            _ => drop(self.open.insert(write, open)),
        }
        queued
    }

    /// A message has ended; `rejection` is made of its index.
    pub fn end(&mut self, key: MessageKey, rejection: Option<impl FnOnce(usize) -> Rejection>) {
        let Some(open) = self.open.get_mut(&key.write) else {
            return;
        };
        open.rejections.extend(rejection.map(|rejection| rejection(key.index)));
        open.left -= 1;
        if open.left == 0
            && let Some(done) = self.open.remove(&key.write)
        {
            done.answer();
        }
    }
}

impl OpenWrite {
    fn answer(self) {
        // The flow may have given the write up.
        let _ = self.reply.send(all_but(self.rejections));
    }
}
