//! Dead letters are sent again or thrown away: page by page, each page in one commit with the record that its letters are gone.
//!
//! One call at a time takes letters of a queue. A page that was begun is stored and taken out together, also when the client
//! leaves; the next call waits for that and goes on behind it. So no letter is sent twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{Properties, RecordRef};
use thalweg_log::{LogError, Micros, Records, WriteBatch};
use tokio::sync::OwnedMutexGuard;

use super::{DeadLetterSelection, LetterRemovalGuard, ResendTo, ResentLetters};
use crate::dead_letter_move::PREFIX;
use crate::error::{QueueError, Result};
use crate::hash::partition_of;
use crate::message::{Message, NewMessage, RESENT, TARGET_GROUP};
use crate::offset_ranges::OffsetRanges;
use crate::produce::{CommitExtras, DetachedFuture};
use crate::queue::Queue;
use crate::times::micros;

/// Letters, and about their bytes, that are sent in one commit.
const COMMIT: usize = 1000;
const COMMIT_BYTES: usize = 4 << 20;

/// What a call of [`Queue::resend`] came to.
#[derive(Debug, Default)]
pub struct ResendResult {
    pub count: u64,
    /// Why it went no further, if it has not sent them all.
    pub stopped: Option<QueueError>,
}

/// Held by whoever takes letters of a queue, and by what is stored for it.
type LetterLock = Arc<OwnedMutexGuard<()>>;

/// How letters become messages.
struct ResendJob {
    to: Arc<Queue>,
    /// For the group in which they died.
    to_source: bool,
    delay: Option<Duration>,
    alone: LetterLock,
}

impl Queue {
    /// Sends dead letters again; a page of them is stored there and gone here in one commit. It ends at the first that cannot
    /// be sent, such as one for a group that is gone.
    pub async fn resend(
        self: &Arc<Queue>,
        select: &DeadLetterSelection,
        target: ResendTo,
        delay: Option<Duration>,
    ) -> Result<ResendResult> {
        let mut resent = ResendResult::default();
        let alone = self.take_letters_alone().await;
        let Some(mut chosen) = self.choose(select).await? else {
            return Ok(resent);
        };
        let to = match &target {
            ResendTo::Source => self.clone(),
            ResendTo::Queue(name) => self.neighbour(name)?,
        };
        if to.has_letters {
            // There it would be a message like any other, without what says where it died.
            let why = "keeps dead letters, which find no way home from there; name the queue that they shall go to";
            return Err(QueueError::invalid(format!("to: {} {why}", to.name())));
        }
        if self.is_far_from(&to) {
            self.all_take_part()?;
        }
        let sending = ResendJob {
            to,
            to_source: matches!(target, ResendTo::Source),
            delay,
            alone,
        };
        loop {
            let letters = chosen.next().await?;
            if letters.is_empty() {
                return Ok(resent);
            }
            if let Err(error) = chosen.dead.resend_page(&sending, &letters, &mut resent.count).await {
                let goes_on = chosen.dead.is_far_from(&sending.to) && is_of_a_disk(&error);
                resent.stopped.get_or_insert(error);
                if !goes_on {
                    return Ok(resent);
                }
            }
        }
    }

    async fn take_letters_alone(&self) -> LetterLock {
        Arc::new(self.taking_letters.clone().lock_owned().await)
    }

    /// As many at once as there is room for.
    async fn resend_page(self: &Arc<Queue>, sending: &ResendJob, letters: &[Message], count: &mut u64) -> Result<()> {
        let (sendable, stopped) = sending.sendable(letters);
        if !self.is_far_from(&sending.to) {
            self.resend_fitting(sending, sendable, count).await?;
            return stopped.map_or(Ok(()), Err);
        }
        let mut failed = None;
        for one in by_partition(&sending.to, sendable) {
            match self.resend_fitting(sending, &one, count).await {
                Err(error) if is_of_a_disk(&error) => drop(failed.get_or_insert(error)),
                sent => sent?,
            }
        }
        stopped.or(failed).map_or(Ok(()), Err)
    }

    /// Whether letters become messages there in another commit than they are gone from here.
    fn is_far_from(&self, to: &Queue) -> bool {
        !self.is_in_memory() && !to.is_in_memory() && !self.log.caps().atomic_units
    }

    /// A queue that is set aside may have letters of this one, which nobody knows of before it takes part.
    fn all_take_part(&self) -> Result<()> {
        let set_aside = self.home.upgrade().and_then(|home| home.first_set_aside());
        set_aside.map_or(Ok(()), |error| Err(QueueError::Log(error)))
    }

    async fn resend_fitting(
        self: &Arc<Queue>,
        sending: &ResendJob,
        letters: &[Message],
        count: &mut u64,
    ) -> Result<()> {
        let (mut left, mut most) = (letters, COMMIT);
        while !left.is_empty() {
            let size = at_once(left).min(most).min(sending.to.room_for(most)).max(1);
            let (some, others) = left.split_at_checked(size).unwrap_or((left, &[]));
            match self.resend_some(sending, some).await {
                Ok(()) => {
                    *count += some.len() as u64;
                    (left, most) = (others, (size * 2).min(COMMIT));
                }
                // Some of them may fit, and those before one that is too large.
                Err(error) if size > 1 && may_fit_in_part(&error) => most = size / 2,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn resend_some(self: &Arc<Queue>, sending: &ResendJob, letters: &[Message]) -> Result<()> {
        let not_before = sending.delay.map(|delay| self.clock.now() + micros(delay));
        let messages = letters
            .iter()
            .map(|letter| revived(letter, sending.group_of(letter), not_before))
            .collect();
        let gone = offsets_of(letters);
        let facts = self.dropped_fact(&gone).into_iter().collect();
        let far = self.is_far_from(&sending.to).then(|| ResentLetters {
            dead: self.id,
            at: self.clock.now(),
            letters: gone.clone(),
        });
        let (dead, alone) = (self.clone(), sending.alone.clone());
        let under_way = LetterRemovalGuard::begin(self);
        let along = CommitExtras {
            facts,
            sent: far,
            stored: Some(Box::pin(async move {
                dead.are_gone(&gone);
                dead.let_go_of_letters().await;
                drop((under_way, alone));
            })),
        };
        match sending.to.produce_with(messages, along).await {
            // They are stored, on a disk of their own, and taken out here: to send them once more would be twice.
            Err(QueueError::Log(LogError::Partly { cause })) => {
                tracing::warn!(queue = %self.name(), error = %cause, "letters were sent again; that they are gone here is not stored yet");
                Ok(())
            }
            sent => sent.map(drop),
        }
    }

    /// Throws dead letters away. Returns how many.
    pub async fn purge_dead(self: &Arc<Queue>, select: &DeadLetterSelection) -> Result<u64> {
        let mut purged = 0;
        let alone = self.take_letters_alone().await;
        let Some(mut chosen) = self.choose(select).await? else {
            return Ok(purged);
        };
        loop {
            let letters = chosen.next().await?;
            if letters.is_empty() {
                return Ok(purged);
            }
            let gone = offsets_of(&letters);
            let (dead, alone) = (chosen.dead.clone(), alone.clone());
            let thrown_away = DetachedFuture::new(async move {
                let under_way = LetterRemovalGuard::begin(&dead);
                if let Some((id, value)) = dead.dropped_fact(&gone) {
                    let mut records = Records::new();
                    records.push(&RecordRef::of(dead.clock.now(), &value))?;
                    let unit = WriteBatch::default().and_of(FrameKind::State, id, records).freeing();
                    dead.log.append(unit, None).await?;
                }
                dead.are_gone(&gone);
                dead.let_go_of_letters().await;
                drop((under_way, alone));
                Ok::<(), QueueError>(())
            });
            thrown_away.await?;
            purged += letters.len() as u64;
        }
    }
}

impl ResendJob {
    /// The letters before the first that cannot be sent, and why that cannot.
    fn sendable<'l>(&self, letters: &'l [Message]) -> (&'l [Message], Option<QueueError>) {
        for (at, letter) in letters.iter().enumerate() {
            let group = self.group_of(letter).map(|group| self.to.group(group));
            if let Some(Err(error)) = group {
                return (letters.get(..at).unwrap_or_default(), Some(error));
            }
        }
        (letters, None)
    }

    /// The group that alone gets the message.
    fn group_of<'l>(&self, letter: &'l Message) -> Option<&'l str> {
        died_in(letter).filter(|_| self.to_source)
    }
}

fn offsets_of(letters: &[Message]) -> OffsetRanges {
    let mut offsets = OffsetRanges::default();
    for letter in letters {
        offsets.insert(letter.offset);
    }
    offsets
}

/// Those of one partition together: a disk fails for itself, and what is stored on another stays.
fn by_partition(to: &Queue, letters: &[Message]) -> Vec<Vec<Message>> {
    let partitions = to.partition_count();
    let mut parts: BTreeMap<Option<u32>, Vec<Message>> = BTreeMap::new();
    for letter in letters {
        let partition = letter.key.as_ref().map(|key| partition_of(key, partitions));
        parts.entry(partition).or_default().push(letter.clone());
    }
    parts.into_values().collect()
}

/// How many letters go together, by their bytes.
fn at_once(letters: &[Message]) -> usize {
    let mut bytes = 0;
    let fits = |letter: &&Message| {
        bytes += letter.bytes();
        bytes <= COMMIT_BYTES
    };
    letters.iter().take_while(fits).count().max(1)
}

fn may_fit_in_part(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::QueueFull { .. }
            | QueueError::NeverFits { .. }
            | QueueError::MessageTooLarge { .. }
            | QueueError::Log(LogError::TooLarge { .. })
    )
}

/// What is on the others may be sent all the same.
fn is_of_a_disk(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::Log(LogError::DiskFull { .. } | LogError::Poisoned { .. } | LogError::Io { .. })
    )
}

/// The group in which a letter died.
fn died_in(letter: &Message) -> Option<&str> {
    let mut properties = letter.properties.as_ref().iter();
    let found = properties.find(|(name, _)| name.strip_prefix(PREFIX) == Some("group"));
    found.map(|(_, group)| group)
}

/// A dead letter as the message that it was, for one group if it is for one.
fn revived(letter: &Message, group: Option<&str>, not_before: Option<Micros>) -> NewMessage {
    let properties = letter.properties.as_ref();
    let target = group.map(|group| (TARGET_GROUP, group));
    let kept = properties
        .iter()
        .filter(|(name, _)| !name.starts_with(PREFIX) && ![TARGET_GROUP, RESENT].contains(name));
    NewMessage {
        payload: letter.payload.clone(),
        key: letter.key.clone(),
        properties: kept.chain(target).chain([(RESENT, "1")]).collect::<Properties>(),
        not_before,
        ..NewMessage::default()
    }
}
