//! Moves messages out of a group, to the queue's dead letters or away. The append there and the settlement here are one
//! submission to the log, so after a crash a message is in exactly one of the two. If they are on two disks, it is in
//! at least one, and the next start completes the move (`recover/interrupted_moves.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_kit::blocking;
use thalweg_kit::varint;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{Properties, RecordRef};
use thalweg_log::{LogError, Offset, Records, WriteBatch};

use crate::admission::AdmissionRequest;
use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::group_partition::{CHANGES, GroupState};
use crate::machine::{FinalState, PendingRemoval, RemovalReason, WorkMachine};
use crate::message::{Message, NewMessage, TARGET_GROUP, TOPIC};
use crate::message_times::instant_text;
use crate::produce::{DetachedFuture, record_of};
use crate::queue::Queue;
use crate::store::{MessageStore, NextMessage};

/// Messages moved together.
const BATCH: usize = 100;

/// Prefix of the properties that are added to a dead letter.
pub const PREFIX: &str = "x-dlq-";

impl RemovalReason {
    /// In the order of their numbers.
    pub const ALL: [RemovalReason; 5] = [
        RemovalReason::MaxRetries,
        RemovalReason::Timeout,
        RemovalReason::Rejected,
        RemovalReason::Expired,
        RemovalReason::Overflow,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RemovalReason::MaxRetries => "max_retries",
            RemovalReason::Timeout => "timeout",
            RemovalReason::Rejected => "rejected",
            RemovalReason::Expired => "expired",
            RemovalReason::Overflow => "overflow",
        }
    }

    /// What happened to the message, in one sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            RemovalReason::MaxRetries => "It failed more often than `retry.max_retries` allows.",
            RemovalReason::Timeout => "It failed, and `retry.total_timeout` had passed since its first delivery.",
            RemovalReason::Rejected => "A consumer rejected it.",
            RemovalReason::Expired => "Its lifetime ended before a consumer had settled it.",
            RemovalReason::Overflow => "The queue was full, and `overflow: drop-oldest` removed it for newer messages.",
        }
    }

    fn terminal(self, kept: bool) -> FinalState {
        match self {
            RemovalReason::Expired => FinalState::Expired,
            _ if kept => FinalState::Dead,
            _ => FinalState::Dropped,
        }
    }
}

impl Queue {
    /// Moves out everything that has to leave this group partition. It runs to its end even if the caller stops
    /// waiting, because the machine reports each removal only once.
    pub(crate) async fn move_out(self: &Arc<Queue>, group: &Arc<Group>, partition: u32) {
        let (queue, group) = (self.clone(), group.clone());
        DetachedFuture::new(async move { queue.move_all(&group, partition).await }).await;
    }

    async fn move_all(self: &Arc<Queue>, group: &Arc<Group>, partition: u32) {
        let Some(part) = group.part(partition) else {
            return;
        };
        let _moving = part.moving.lock().await;
        loop {
            let endings = match &mut part.inner.lock().state {
                GroupState::Work(machine) if machine.has_ending() => machine.take_ending(BATCH),
                _ => return,
            };
            for ending in endings {
                let offset = ending.offset;
                let moved = self.move_one(group, partition, &ending).await;
                let now = self.clock.now();
                let mut inner = part.inner.lock();
                if moved.is_ok() {
                    inner.details.remove(&offset);
                }
                if let GroupState::Work(machine) = &mut inner.state {
                    match &moved {
                        Ok(terminal) => {
                            machine.ended(offset, *terminal, now);
                            group.count_end(*terminal);
                            self.count_end(*terminal, ending.reason);
                        }
                        Err(_) => {
                            machine.move_failed(offset, now);
                        }
                    }
                }
                if let Err(error) = moved
                    .map(drop)
                    .and_then(|()| self.after(group, partition, part, &mut inner, now))
                {
                    let id = self.identity.message_id(partition, offset);
                    tracing::warn!(
                        message = %id, %error,
                        "a message cannot be moved to the dead letters; retrying in 5 s"
                    );
                    let _ = self.after(group, partition, part, &mut inner, now);
                }
            }
            self.settled(group);
        }
    }

    async fn move_one(self: &Arc<Queue>, group: &Group, partition: u32, ending: &PendingRemoval) -> Result<FinalState> {
        let settings = self.settings();
        let wanted = settings.dlq.enabled
            && match ending.reason {
                RemovalReason::Expired => settings.dlq.on_expire,
                RemovalReason::Overflow => settings.dlq.on_overflow,
                _ => true,
            };
        let dead = match wanted {
            true => self.dead_letters().await?,
            false => None,
        };
        let terminal = ending.reason.terminal(dead.is_some());
        let Some(dead) = dead else {
            return Ok(terminal);
        };
        // A message that retention or damage removed meanwhile cannot be kept.
        let Some(message) = self.find_stored(partition, ending.offset).await? else {
            return Ok(FinalState::Skipped);
        };
        let detail = group
            .part(partition)
            .and_then(|part| part.inner.lock().details.get(&ending.offset).cloned());
        let letter = self.letter(group, partition, &message, ending, detail.as_deref());
        let appended = self
            .append_letter(&dead, letter, group, partition, ending.offset, terminal)
            .await;
        match appended {
            Ok(letter) => self.tell_dead_letter(letter),
            // The dead letter is stored, on its own disk; a retry would store a second one. The missing record that the
            // message left the group is journaled with the removal, or added at the next start.
            Err(QueueError::Log(LogError::Partly { cause })) => {
                let id = self.identity.message_id(partition, ending.offset);
                tracing::warn!(
                    message = %id, error = %cause,
                    "the dead letter is stored, but the removal of its message is not stored yet"
                );
            }
            Err(error) => return Err(error),
        }
        Ok(terminal)
    }

    /// Builds the dead letter of a message.
    fn letter(
        &self,
        group: &Group,
        partition: u32,
        message: &Message,
        ending: &PendingRemoval,
        detail: Option<&str>,
    ) -> NewMessage {
        let given = message.properties.as_ref();
        let topic = given.get(TOPIC).unwrap_or_default().to_owned();
        let time = |at: i64| {
            let text = instant_text(self.clock.wall_at(at));
            text.map(|text| text.to_string()).unwrap_or_default()
        };
        let mut added = vec![
            ("queue", self.name().to_string()),
            ("topic", topic),
            ("group", group.name().to_string()),
            ("reason", ending.reason.name().to_owned()),
            ("detail", detail.unwrap_or_default().to_owned()),
            ("deliveries", ending.deliveries.to_string()),
            ("moved-at", time(self.clock.now())),
            (
                "message-id",
                self.identity.message_id(partition, ending.offset).to_string(),
            ),
        ];
        if ending.deliveries > 0 {
            added.push(("first-attempt", time(ending.first_attempt)));
            added.push(("last-attempt", time(ending.last_attempt)));
        }
        let kept = given
            .iter()
            .filter(|(name, _)| !name.starts_with(PREFIX) && *name != TARGET_GROUP)
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let added = added
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (format!("{PREFIX}{name}"), value));
        NewMessage {
            payload: message.payload.clone(),
            key: message.key.clone(),
            properties: kept.chain(added).collect::<Properties>(),
            ..NewMessage::default()
        }
    }

    /// Returns the offset of the dead letter.
    async fn append_letter(
        &self,
        dead: &Arc<Queue>,
        letter: NewMessage,
        group: &Group,
        partition: u32,
        offset: Offset,
        terminal: FinalState,
    ) -> Result<Offset> {
        let settings = dead.settings();
        let now = self.clock.now();
        // Encode it before reserving room: a message that cannot be stored must not take any.
        let mut stored = None;
        if !self.is_in_memory() {
            let mut letters = Records::with_capacity(letter.bytes() + 64);
            letters.push(&record_of(&letter, Duration::ZERO, now))?;
            stored = Some(letters);
        }
        let wanted = AdmissionRequest {
            count: 1,
            bytes: dead.size_of(&letter, Duration::ZERO),
        };
        dead.admission.admit_always(wanted).await;
        dead.lives(&letter, &settings, Duration::ZERO, now);
        let Some(letters) = stored else {
            let offset = dead.append_in_memory(letter, now);
            dead.stored(wanted, true);
            dead.groups.wake();
            return Ok(offset);
        };
        let mut state = Records::new();
        state.push(&RecordRef::of(now, &ended_record(group.id, offset, terminal)))?;
        let unit = WriteBatch::of(dead.identity.data_id(0), letters).and_of(
            FrameKind::State,
            self.identity.state_id(partition),
            state,
        );
        let appended = self.log.append(unit).await;
        dead.stored(wanted, appended.is_ok());
        Ok(appended?.offsets.first().copied().unwrap_or_default())
    }

    /// Finds the message at an offset in memory or on disk; `None` if it is gone.
    pub async fn find(self: &Arc<Queue>, partition: u32, offset: Offset) -> Result<Option<Message>> {
        self.remove_expired_retained().await;
        self.find_stored(partition, offset).await
    }

    async fn find_stored(&self, partition: u32, offset: Offset) -> Result<Option<Message>> {
        let store = self.store(partition).cloned();
        let Some(store) = store.filter(|_| !self.letters.contains(offset)) else {
            return Ok(None);
        };
        let found = blocking::spawn(move || find(&store, offset)).await;
        Ok(found.unwrap_or(Err(LogError::Closed))?)
    }
}

/// Encodes for the state partition that a message has left a group.
pub(crate) fn ended_record(group: u32, offset: Offset, terminal: FinalState) -> Vec<u8> {
    let mut value = Vec::new();
    varint::put(&mut value, group.into());
    value.push(CHANGES);
    WorkMachine::ended_record(offset, terminal, &mut value);
    value
}

/// Reads from disk if necessary.
pub(crate) fn find(store: &MessageStore, offset: Offset) -> std::result::Result<Option<Message>, LogError> {
    let mut cursor = crate::store::Cursor::default();
    let mut next = store.at(&mut cursor, offset)?;
    if matches!(next, NextMessage::Load) {
        cursor = store.load(offset)?;
        next = store.at(&mut cursor, offset)?;
    }
    Ok(match next {
        NextMessage::Message(message, _) if message.offset == offset => Some(message),
        _ => None,
    })
}

impl Queue {
    fn count_end(&self, terminal: FinalState, reason: RemovalReason) {
        let dlq = &self.settings().dlq;
        match terminal {
            FinalState::Dead => self.counters().dead.count(reason),
            FinalState::Expired if dlq.enabled && dlq.on_expire => self.counters().dead.count(reason),
            FinalState::Dropped => self.counters().dropped.count(reason),
            _ => {}
        }
    }
}

impl Group {
    fn count_end(&self, terminal: FinalState) {
        let counter = match terminal {
            FinalState::Dead => &self.counters.dead,
            FinalState::Expired => &self.counters.expired,
            _ => &self.counters.dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
