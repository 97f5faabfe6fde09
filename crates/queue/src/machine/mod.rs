//! skeleton
mod types;
use thalweg_log::{Micros, Offset};
pub use types::*;

pub struct Machine;
pub struct Restoring;
pub struct StreamMachine;

#[allow(unused_variables, clippy::unimplemented)]
impl Machine {
    pub fn new(policy: Policy, start: Offset) -> Self {
        unimplemented!()
    }
    /// Without a journal (durability `memory`) nothing is encoded.
    pub fn without_journal(self) -> Self {
        unimplemented!()
    }
    pub fn policy(&self) -> &Policy {
        unimplemented!()
    }
    pub fn set_policy(&mut self, policy: Policy) {
        unimplemented!()
    }
    pub fn floor(&self) -> Offset {
        unimplemented!()
    }
    pub fn cursor(&self) -> Offset {
        unimplemented!()
    }
    pub fn counts(&self) -> Counts {
        unimplemented!()
    }
    /// Unsettled messages below `next`.
    pub fn backlog(&self, next: Offset) -> u64 {
        unimplemented!()
    }
    pub fn is_settled(&self, offset: Offset) -> bool {
        unimplemented!()
    }
    pub fn held(&self) -> impl Iterator<Item = Offset> + '_ {
        std::iter::empty()
    }
    pub fn next_due(&self) -> Option<Micros> {
        unimplemented!()
    }
    pub fn advance(&mut self, now: Micros) {
        unimplemented!()
    }
    /// Whether `next_ready` may have something for this consumer.
    pub fn has_ready(&self, consumer: u32) -> bool {
        unimplemented!()
    }
    pub fn next_ready(&mut self, consumer: u32, visibility: Micros, now: Micros) -> Option<Lease> {
        unimplemented!()
    }
    pub fn pass(&mut self, message: &Passing, consumer: u32, visibility: Micros, now: Micros) -> Passed {
        unimplemented!()
    }
    /// Without a consumer: true if the message was expired, delayed or to be skipped, and the cursor is past it.
    pub fn walk(&mut self, message: &Passing, now: Micros) -> bool {
        unimplemented!()
    }
    /// Passes offsets that do not exist, up to `to`; returns the cursor, which is lower if the window is full.
    pub fn pass_gap(&mut self, to: Offset, lost: bool, now: Micros) -> Offset {
        unimplemented!()
    }
    pub fn ack(&mut self, offset: Offset, delivery: u32, now: Micros) -> Result<AckOutcome, SettleError> {
        unimplemented!()
    }
    pub fn nack(
        &mut self,
        offset: Offset,
        delivery: u32,
        delay: Option<Micros>,
        now: Micros,
    ) -> Result<FailOutcome, SettleError> {
        unimplemented!()
    }
    pub fn reject(&mut self, offset: Offset, delivery: u32, now: Micros) -> Result<FailOutcome, SettleError> {
        unimplemented!()
    }
    /// Returns the new deadline.
    pub fn extend(
        &mut self,
        offset: Offset,
        delivery: u32,
        visibility: Micros,
        now: Micros,
    ) -> Result<Micros, SettleError> {
        unimplemented!()
    }
    /// The consumer is gone; false if the lease was over already.
    pub fn release(&mut self, offset: Offset, delivery: u32, unsent: bool) -> bool {
        unimplemented!()
    }
    pub fn take_ending(&mut self, max: usize) -> Vec<Ending> {
        unimplemented!()
    }
    pub fn ended(&mut self, offset: Offset, kind: Terminal, now: Micros) -> bool {
        unimplemented!()
    }
    /// The journal record that `ended` will write, for the submission that also appends to the dead-letter queue.
    pub fn ended_record(offset: Offset, kind: Terminal, out: &mut Vec<u8>) {
        unimplemented!()
    }
    pub fn move_failed(&mut self, offset: Offset, now: Micros) -> bool {
        unimplemented!()
    }
    /// Overflow `drop-oldest`; `to_dlq` makes it an `Ending` instead of dropping it at once.
    pub fn drop_oldest(&mut self, to_dlq: bool, now: Micros) -> Option<Offset> {
        unimplemented!()
    }
    /// The same for the message at the cursor.
    pub fn discard(&mut self, message: &Passing, to_dlq: bool, now: Micros) -> Passed {
        unimplemented!()
    }
    pub fn purge(&mut self, next: Offset) {
        unimplemented!()
    }
    /// Returns where the cursor is now: never ahead of where it was.
    pub fn seek(&mut self, to: Offset) -> Offset {
        unimplemented!()
    }
    pub fn take_journal(&mut self, out: &mut Vec<u8>) {
        unimplemented!()
    }
    pub fn journal_len(&self) -> usize {
        unimplemented!()
    }
    pub fn checkpoint(&self, out: &mut Vec<u8>) {
        unimplemented!()
    }
}

#[allow(unused_variables, clippy::unimplemented)]
impl Restoring {
    /// `start` is the offset of a group that has no checkpoint.
    pub fn new(start: Offset, checkpoint: Option<&[u8]>) -> Result<Self, Damaged> {
        unimplemented!()
    }
    /// Whole records in the order in which they were taken.
    pub fn apply(&mut self, records: &[u8]) -> Result<(), Damaged> {
        unimplemented!()
    }
    /// Offsets of messages that were handed out and whose facts are only in the log.
    pub fn unknown(&self) -> Vec<Offset> {
        unimplemented!()
    }
    pub fn fill(&mut self, message: &Passing) {
        unimplemented!()
    }
    pub fn finish(self, policy: Policy, now: Micros, can_return: impl Fn(u32) -> bool) -> Machine {
        unimplemented!()
    }
}
