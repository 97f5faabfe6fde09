//! A write in progress: which of its records are to be sent, which wait, and which are rejected. The broker has all
//! others.

use std::collections::BTreeSet;
use std::sync::Arc;

use thalweg_flow::{Rejection, WriteError};
use thalweg_record::{DropReason, Message, Text};
use tokio::sync::oneshot;

use super::{RecordEncoder, RecordKey};

/// A write as called.
pub struct WriteRequest {
    pub messages: Arc<Vec<Message>>,
    pub done: oneshot::Sender<Result<(), WriteError>>,
}

pub struct WriteState {
    /// Its position in the order.
    pub place: u64,
    pub job: WriteRequest,
    /// Records to be sent, by index, in order.
    pub wanted: Vec<usize>,
    /// Records that wait for their topic.
    pub astray: Vec<usize>,
    pub refused: Vec<Rejection>,
    /// Records that the broker has and that are to be resent.
    repeated: BTreeSet<usize>,
    /// Topics of the records that were sent.
    pub topics: BTreeSet<Text>,
    /// Bytes that the client accepted.
    pub bytes: usize,
    /// A request with its records was too large: each is sent with nothing else in flight.
    pub is_split: bool,
}

/// Waiting records, by topic and key: records with the same key are in one partition. Without a key, all records of a
/// topic count as one.
pub type WaitingKeys = BTreeSet<(Text, Option<RecordKey>)>;

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

    /// The client accepted a record.
    pub fn sent(&mut self, index: usize, bytes: usize) {
        self.bytes += bytes;
        // The broker's earlier copy of it now precedes older records.
        self.repeated.remove(&index);
    }

    /// No record of its topic is sent any more, so the copies that the broker has stay in order.
    pub fn give_up(&mut self, index: usize, why: String) {
        if !self.repeated.contains(&index) {
            self.refuse(index, DropReason::OutputRejected, why);
        }
    }

    /// Makes all waiting records wanted.
    pub fn want_astray(&mut self) {
        self.wanted.append(&mut self.astray);
        self.wanted.sort_unstable();
        self.wanted.dedup();
    }

    /// Returns the records that the broker has although a waiting one should precede them, and adds the waiting records
    /// of this write. They must be resent, or the older value would be the last of its key.
    pub fn overtakers(&mut self, encode: &dyn RecordEncoder, late: &mut WaitingKeys) -> Vec<usize> {
        let waiting: BTreeSet<usize> = self.wanted.iter().chain(&self.astray).copied().collect();
        let refused: BTreeSet<usize> = self.refused.iter().map(|refused| refused.index).collect();
        let mut overtakers = Vec::new();
        for index in 0..self.job.messages.len() {
            let is_waiting = waiting.contains(&index);
            if !is_waiting && (late.is_empty() || refused.contains(&index)) {
                continue;
            }
            // A message that cannot be converted is rejected when it is sent.
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
