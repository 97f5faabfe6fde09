//! Resends or discards dead letters page by page. Each page is one commit with the record that removes its dead
//! letters.
//!
//! Only one call at a time processes the dead letters of a queue. A page that was started is stored and removed
//! completely even if the client disconnects; the next call waits for it and continues after it. So no dead letter is
//! sent twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{Properties, RecordRef};
use thalweg_log::{LogError, Micros, Records, WriteBatch};
use tokio::sync::OwnedMutexGuard;

use super::removals::LetterRemovalGuard;
use super::{DeadLetterSelection, ResendTo, ResentLetters};
use crate::dead_letter_move::PREFIX;
use crate::error::{QueueError, Result};
use crate::hash::partition_of;
use crate::message::{Message, NewMessage, RESENT, TARGET_GROUP};
use crate::message_times::micros;
use crate::offset_ranges::OffsetRanges;
use crate::produce::{CommitExtras, DetachedFuture};
use crate::queue::Queue;

/// Maximum number and approximate bytes of dead letters per commit.
const COMMIT: usize = 1000;
const COMMIT_BYTES: usize = 4 << 20;

/// The result of [`Queue::resend`].
#[derive(Debug, Default)]
pub struct ResendResult {
    pub count: u64,
    /// Why not all were sent.
    pub stopped: Option<QueueError>,
}

/// Held by the call that processes the dead letters of a queue, and by its pending writes.
type LetterLock = Arc<OwnedMutexGuard<()>>;

/// The parameters of one resend.
struct ResendJob {
    to: Arc<Queue>,
    /// Send only to the group in which the message died.
    to_source: bool,
    delay: Option<Duration>,
    alone: LetterLock,
}

impl Queue {
    /// Resends dead letters. Each page is stored in the target and removed here in one commit. Stops at the first one
    /// that cannot be sent, for example because its group was deleted.
    pub async fn resend(
        self: &Arc<Queue>,
        select: &DeadLetterSelection,
        target: ResendTo,
        delay: Option<Duration>,
    ) -> Result<ResendResult> {
        let mut resent = ResendResult::default();
        let alone: LetterLock = Arc::new(self.letters.take_alone().await);
        let Some(mut chosen) = self.choose(select).await? else {
            return Ok(resent);
        };
        let to = match &target {
            ResendTo::Source => self.clone(),
            ResendTo::Queue(name) => self.neighbour(name)?,
        };
        if to.letters.has_letters() {
            // It would become an ordinary message there, without the record of where it died.
            let why = "contains dead letters, which cannot be resent from there to their source; name another queue";
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

    /// Sends as many at once as the target has room for.
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

    /// Whether storing them there and removing them here are two commits.
    fn is_far_from(&self, to: &Queue) -> bool {
        !self.is_in_memory() && !to.is_in_memory() && !self.log.caps().atomic_units
    }

    /// A queue that is set aside may contain dead letters of this one; nobody knows until it is back in service.
    fn all_take_part(&self) -> Result<()> {
        let set_aside = self.registry().and_then(|home| home.first_set_aside());
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
            let size = at_once(left).min(most).min(sending.to.admission.room_for(most)).max(1);
            let (some, others) = left.split_at_checked(size).unwrap_or((left, &[]));
            match self.resend_some(sending, some).await {
                Ok(()) => {
                    *count += some.len() as u64;
                    (left, most) = (others, (size * 2).min(COMMIT));
                }
                // Some of them may fit, for example those before a message that is too large.
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
            dead: self.identity.id,
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
            // They are stored on their own disk. Remove them here, because resending would store them twice.
            Err(QueueError::Log(LogError::Partly { cause })) => {
                tracing::warn!(
                    queue = %self.name(), error = %cause,
                    "dead letters were resent, but their removal here is not stored yet"
                );
                Ok(())
            }
            sent => sent.map(drop),
        }
    }

    /// Discards dead letters. Returns how many.
    pub async fn purge_dead(self: &Arc<Queue>, select: &DeadLetterSelection) -> Result<u64> {
        let mut purged = 0;
        let alone: LetterLock = Arc::new(self.letters.take_alone().await);
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
                    dead.log.append(unit).await?;
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
    /// The dead letters before the first that cannot be sent, and why that one cannot.
    fn sendable<'l>(&self, letters: &'l [Message]) -> (&'l [Message], Option<QueueError>) {
        for (at, letter) in letters.iter().enumerate() {
            let group = self.group_of(letter).map(|group| self.to.group(group));
            if let Some(Err(error)) = group {
                return (letters.get(..at).unwrap_or_default(), Some(error));
            }
        }
        (letters, None)
    }

    /// The only group that gets the message.
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

/// Groups them by partition: one disk may fail while the messages on another are stored.
fn by_partition(to: &Queue, letters: &[Message]) -> Vec<Vec<Message>> {
    let partitions = to.partition_count();
    let mut parts: BTreeMap<Option<u32>, Vec<Message>> = BTreeMap::new();
    for letter in letters {
        let partition = letter.key.as_ref().map(|key| partition_of(key, partitions));
        parts.entry(partition).or_default().push(letter.clone());
    }
    parts.into_values().collect()
}

/// How many dead letters to send together, limited by their bytes.
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

/// Dead letters on other disks may still be sent.
fn is_of_a_disk(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::Log(LogError::DiskFull { .. } | LogError::Poisoned { .. } | LogError::Io { .. })
    )
}

/// The group in which the message died.
fn died_in(letter: &Message) -> Option<&str> {
    let mut properties = letter.properties.as_ref().iter();
    let found = properties.find(|(name, _)| name.strip_prefix(PREFIX) == Some("group"));
    found.map(|(_, group)| group)
}

/// Rebuilds the original message, addressed to one group if `group` is set.
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
