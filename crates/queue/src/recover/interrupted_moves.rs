//! Moves to the dead letters that a crash has cut in two. Where queue and dead letters are on different disks, a letter is
//! stored first and that its message is settled after it: after a crash in between the message is in both. What a letter says of
//! its message is read here, so that recovery ends the move instead of making it once more.
//!
//! Bounded: only letters since the last checkpoint of the queue's groups are read, and of these the newest. A move is not begun
//! before the one before it in its partition and group has ended, so those that may be cut are among the last.

use std::collections::HashMap;

use smol_str::SmolStr;
use thalweg_log::{LogError, Micros, Offset, PartitionId};

use crate::dead_letter_move::{PREFIX, find};
use crate::ids::MessageId;
use crate::machine::{FinalState, MachineRecovery, RemovalReason};
use crate::message::Message;
use crate::queue::Queue;
use crate::store::{Cursor, MessageStore, NextMessage};

/// At most so many letters are read.
const LETTERS_MAX: u64 = 10_000;
/// A move is longer under way than that only if a disk stands still: a letter may be that much older than a checkpoint which
/// does not say yet that its message has left.
const UNDER_WAY: Micros = 60_000_000;

/// Messages of one queue that have left, as the dead letters say, by group and partition.
#[derive(Default)]
pub(super) struct InterruptedMoves(HashMap<(SmolStr, u32), Vec<MovedMessage>>);

/// What a letter says of its message.
struct MovedMessage {
    offset: Offset,
    time: Micros,
    terminal: FinalState,
}

impl InterruptedMoves {
    /// Of a queue whose groups have all been checkpointed at `since` or later. Letters that cannot be read are left out: their
    /// messages are moved again at worst.
    pub fn read(queue: &Queue, dead: PartitionId, since: Micros) -> InterruptedMoves {
        let store = MessageStore::Log {
            log: queue.log.clone(),
            id: dead,
            clock: queue.clock.clone(),
        };
        let mut letters = InterruptedMoves::default();
        if let Err(error) = letters.read_from(queue, &store, since.saturating_sub(UNDER_WAY)) {
            tracing::warn!(queue = %queue.name(), %error, "not all dead letters can be read; a message may be among them twice");
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

    /// Settles the messages of a group in a partition that have left, though its records since the checkpoint of that time do
    /// not say so. Returns them.
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
            // A message that is younger than the letter belongs to another queue of that name.
            let is_its = find(store, letter.offset)?.is_some_and(|message| message.time <= letter.time);
            if is_its && restoring.leave(letter.offset, letter.terminal) {
                settled.push((letter.offset, letter.terminal));
            }
        }
        Ok(settled)
    }
}
