//! A write on its way through the lane: which of its records are to be sent, which wait, and which are refused. All others the
//! broker has.

use std::collections::BTreeSet;
use std::sync::Arc;

use thalweg_flow::{Rejection, WriteError};
use thalweg_record::{DropReason, Message, Text};
use tokio::sync::oneshot;

use super::RecordEncoder;

/// A write that was called.
pub struct WriteRequest {
    pub messages: Arc<Vec<Message>>,
    pub done: oneshot::Sender<Result<(), WriteError>>,
}

pub struct WriteState {
    /// In the order.
    pub place: u64,
    pub job: WriteRequest,
    /// What is to be sent, by index, in order.
    pub wanted: Vec<usize>,
    /// What waits for its topic.
    pub astray: Vec<usize>,
    pub refused: Vec<Rejection>,
    /// What the broker has, and is to be sent again all the same.
    repeated: BTreeSet<usize>,
    /// Of the records that were sent.
    pub topics: BTreeSet<Text>,
    /// That the client took.
    pub bytes: usize,
    /// Some request with its records was too large: each is sent with nothing else on its way.
    pub is_split: bool,
}

/// Records that wait, by topic and key: those of the same are in one partition. Without a key all of a topic are taken for that.
pub type WaitingKeys = BTreeSet<(Text, Option<Text>)>;

impl WriteState {
    pub fn new(place: u64, job: WriteRequest) -> WriteState {
        WriteState {
            place,
            wanted: (0..job.messages.len()).collect(),
            job,
            astray: Vec::new(),
            refused: Vec::new(),
            repeated: BTreeSet::new(),
            topics: BTreeSet::new(),
            bytes: 0,
            is_split: false,
        }
    }

    pub fn refuse(&mut self, index: usize, reason: DropReason, why: String) {
        self.refused.push(Rejection::permanent(index, reason, why));
    }

    /// The client took a record.
    pub fn sent(&mut self, index: usize, bytes: usize) {
        self.bytes += bytes;
        // What the broker has of it lies before older ones by now.
        self.repeated.remove(&index);
    }

    /// No record of its topic is sent any more, so that what the broker has of it stays in order.
    pub fn give_up(&mut self, index: usize, why: String) {
        if !self.repeated.contains(&index) {
            self.refuse(index, DropReason::OutputRejected, why);
        }
    }

    /// All that waits is to be sent.
    pub fn want_astray(&mut self) {
        self.wanted.append(&mut self.astray);
        self.wanted.sort_unstable();
        self.wanted.dedup();
    }

    /// Returns the records that the broker has although one that waits should lie before them, and adds those that wait here. They
    /// have to be sent again, or the older value would be the last of its key.
    pub fn overtakers(&mut self, encode: &dyn RecordEncoder, late: &mut WaitingKeys) -> Vec<usize> {
        let waiting: BTreeSet<usize> = self.wanted.iter().chain(&self.astray).copied().collect();
        let refused: BTreeSet<usize> = self.refused.iter().map(|refused| refused.index).collect();
        let mut overtakers = Vec::new();
        for index in 0..self.job.messages.len() {
            let is_waiting = waiting.contains(&index);
            if !is_waiting && (late.is_empty() || refused.contains(&index)) {
                continue;
            }
            // What is no record is refused when it is sent.
            let Ok(record) = encode.record(&self.job.messages, index) else {
                continue;
            };
            let key = (record.topic, record.key);
            if is_waiting {
                late.insert(key);
            } else if late.contains(&key) {
                overtakers.push(index);
            }
        }
        self.repeated.extend(&overtakers);
        overtakers
    }
}
