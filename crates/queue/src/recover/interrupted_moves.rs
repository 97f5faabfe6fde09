//! Completes moves to the dead letters that a crash interrupted. If queue and dead letters are on different disks, the
//! dead letter is stored first and the settlement of its message second; after a crash in between the message is in
//! both. This module reads from the dead letters which messages they were, so that recovery completes the move instead
//! of repeating it.
//!
//! The work is bounded: it reads only dead letters since the last checkpoint of the queue's groups, and of these the
//! newest. A move does not begin before the previous one in its partition and group has ended, so interrupted ones are
//! among the last.

use std::collections::HashMap;

use smol_str::SmolStr;
use thalweg_log::{LogError, Micros, Offset, PartitionId};

use crate::dead_letter_move::{PREFIX, find};
use crate::ids::MessageId;
use crate::machine::{FinalState, MachineRecovery, RemovalReason};
use crate::message::Message;
use crate::queue::Queue;
use crate::store::{Cursor, MessageStore, NextMessage};

/// Maximum number of dead letters to read.
const LETTERS_MAX: u64 = 10_000;
/// A move takes longer than this only if a disk stalls. A dead letter may be this much older than a checkpoint that
/// does not contain the removal of its message yet.
const UNDER_WAY: Micros = 60_000_000;

/// Messages of one queue that have left according to its dead letters, by group and partition.
#[derive(Default)]
pub(super) struct InterruptedMoves(HashMap<(SmolStr, u32), Vec<MovedMessage>>);

/// What a dead letter says about its message.
struct MovedMessage {
    offset: Offset,
    time: Micros,
    terminal: FinalState,
}

impl InterruptedMoves {
    /// Reads the dead letters of a queue whose groups all have a checkpoint at `since` or later. Unreadable ones are
    /// left out; at worst their messages are moved again.
    pub fn read(queue: &Queue, dead: PartitionId, since: Micros) -> InterruptedMoves {
        let store = MessageStore::Log {
            log: queue.log.clone(),
            id: dead,
            clock: queue.clock.clone(),
        };
        let mut letters = InterruptedMoves::default();
        if let Err(error) = letters.read_from(queue, &store, since.saturating_sub(UNDER_WAY)) {
            tracing::warn!(
                queue = %queue.name(), %error,
                "some dead letters cannot be read; a message may be among them twice"
            );
        }
        letters
    }

    fn read_from(&mut self, queue: &Queue, store: &MessageStore, since: Micros) -> Result<(), LogError> {
        let newest = store.next()?.saturating_sub(LETTERS_MAX);
        let (mut cursor, mut at) = (
            Cursor::default(),
            store.offset_at(since)?.max(store.first()?).max(newest),
        );
        loop {
            match store.at(&mut cursor, at)? {
                NextMessage::Message(letter, _) => {
                    at = letter.offset + 1;
                    self.add(queue, &letter);
                }
                NextMessage::Gap { to, .. } => at = to,
                NextMessage::Load => cursor = store.load(at)?,
                NextMessage::End => return Ok(()),
            }
        }
    }

    fn add(&mut self, queue: &Queue, letter: &Message) {
        let properties = letter.properties.as_ref();
        let of = |name: &str| {
            let mut all = properties.iter();
            all.find_map(|(known, value)| (known.strip_prefix(PREFIX) == Some(name)).then_some(value))
        };
        let id: Option<MessageId> = of("message-id").and_then(|id| id.parse().ok());
        let (Some(id), Some(group)) = (id.filter(|id| id.queue == *queue.name()), of("group")) else {
            return;
        };
        let expired = of("reason") == Some(RemovalReason::Expired.name());
        let letters = self.0.entry((SmolStr::new(group), id.partition)).or_default();
        letters.push(MovedMessage {
            offset: id.offset,
            time: letter.time,
            terminal: if expired { FinalState::Expired } else { FinalState::Dead },
        });
    }

    /// Settles and returns the messages of a group in a partition that have left, although the records since the
    /// checkpoint of that time do not say so.
    pub fn settle(
        &self,
        (group, partition): (&SmolStr, u32),
        store: &MessageStore,
        checkpoint: Option<Micros>,
        restoring: &mut MachineRecovery,
    ) -> Result<Vec<(Offset, FinalState)>, LogError> {
        let mut settled = Vec::new();
        for letter in self.0.get(&(group.clone(), partition)).into_iter().flatten() {
            let is_new = checkpoint.is_none_or(|at| letter.time >= at);
            if !restoring.has_left(letter.offset, letter.terminal, is_new) {
                continue;
            }
            // A message younger than the dead letter belongs to another queue of that name.
            let is_its = find(store, letter.offset)?.is_some_and(|message| message.time <= letter.time);
            if is_its && restoring.leave(letter.offset, letter.terminal) {
                settled.push((letter.offset, letter.terminal));
            }
        }
        Ok(settled)
    }
}
