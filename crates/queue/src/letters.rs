//! Dead letters: found, sent again, thrown away.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::{Properties, RecordRef};
use thalweg_log::{Micros, Offset, Records, Unit};

use crate::admin::read_from;
use crate::dead::PREFIX;
use crate::error::{QueueError, Result};
use crate::ids::MessageId;
use crate::message::{Message, NewMessage, TARGET_GROUP};
use crate::part::DROPPED;
use crate::produce::Fact;
use crate::queue::Queue;
use crate::ranges::Ranges;
use crate::times::micros;

/// Looked at in one go.
const LOOK: usize = 1000;

/// Which dead letters; what is not given matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    pub group: Option<SmolStr>,
    pub reason: Option<SmolStr>,
    pub key: Option<Box<[u8]>>,
    /// When they died.
    pub since: Option<Micros>,
    pub until: Option<Micros>,
    pub property: Option<(String, String)>,
}

/// Some dead letters, and where the next begin.
#[derive(Debug, Default)]
pub struct DeadPage {
    pub letters: Vec<Message>,
    pub next: Option<Offset>,
}

#[derive(Clone, Debug)]
pub enum DeadSelect {
    /// Of the dead letters, not of what they were.
    Ids(Vec<MessageId>),
    Filter(DeadFilter),
}

#[derive(Clone, Debug)]
pub enum ResendTo {
    /// The queue they come from, for the group in which they died alone.
    Source,
    Queue(SmolStr),
}

impl DeadFilter {
    fn matches(&self, letter: &Message) -> bool {
        let properties = letter.properties.as_ref();
        let is = |name: &str, wanted: &Option<SmolStr>| {
            wanted.as_ref().is_none_or(|wanted| {
                let found = properties
                    .iter()
                    .find(|(known, _)| known.strip_prefix(PREFIX) == Some(name));
                found.is_some_and(|(_, value)| value == wanted.as_str())
            })
        };
        is("group", &self.group)
            && is("reason", &self.reason)
            && self
                .key
                .as_ref()
                .is_none_or(|key| letter.key.as_deref() == Some(&**key))
            && self.since.is_none_or(|since| letter.time >= since)
            && self.until.is_none_or(|until| letter.time < until)
            && self
                .property
                .as_ref()
                .is_none_or(|(name, value)| properties.get(name) == Some(value.as_str()))
    }
}

impl Queue {
    /// Dead letters of this queue from `after` on, oldest first.
    pub async fn dead_page(&self, filter: &DeadFilter, after: Option<Offset>, limit: usize) -> Result<DeadPage> {
        let Some(dead) = self.known_dead_letters() else {
            return Ok(DeadPage::default());
        };
        let mut page = DeadPage::default();
        let mut from = after.map_or(0, |after| after + 1);
        loop {
            let letters = dead.settled_apart(from, LOOK).await?;
            let Some(last) = letters.last().map(|letter| letter.offset) else {
                return Ok(page);
            };
            for letter in letters {
                if page.letters.len() == limit {
                    page.next = page.letters.last().map(|letter| letter.offset);
                    return Ok(page);
                }
                if filter.matches(&letter) {
                    page.letters.push(letter);
                }
            }
            from = last + 1;
        }
    }

    /// One dead letter with the queue in which it is, unless it was sent again or thrown away.
    pub async fn dead_letter(&self, letter: Offset) -> Result<Option<(Arc<Queue>, Message)>> {
        let Some(dead) = self.known_dead_letters().filter(|dead| !dead.is_dropped(letter)) else {
            return Ok(None);
        };
        let found = dead.find(0, letter).await?;
        Ok(found.map(|found| (dead, found)))
    }

    /// Sends dead letters again; each is stored there and gone here in one commit. Returns how many.
    pub async fn resend(
        self: &Arc<Queue>,
        select: &DeadSelect,
        target: ResendTo,
        delay: Option<Duration>,
    ) -> Result<u64> {
        let Some(dead) = self.known_dead_letters() else {
            return Ok(0);
        };
        let to = match &target {
            ResendTo::Source => self.clone(),
            ResendTo::Queue(name) => self.neighbour(name)?,
        };
        let mut sent = 0;
        for letter in self.selected(&dead, select).await? {
            let not_before = delay.map(|delay| self.clock.now() + micros(delay));
            let message = revived(&letter, matches!(target, ResendTo::Source), not_before);
            let fact = dead.dropped_fact(letter.offset)?;
            to.produce_with(vec![message], fact.into_iter().collect()).await?;
            dead.is_gone(letter.offset);
            sent += 1;
        }
        Ok(sent)
    }

    /// Throws dead letters away. Returns how many.
    pub async fn purge_dead(self: &Arc<Queue>, select: &DeadSelect) -> Result<u64> {
        let Some(dead) = self.known_dead_letters() else {
            return Ok(0);
        };
        let letters = self.selected(&dead, select).await?;
        for letter in &letters {
            if let Some((id, records)) = dead.dropped_fact(letter.offset)? {
                dead.log
                    .append(Unit::default().and_of(Kind::State, id, records), None)
                    .await?;
            }
            dead.is_gone(letter.offset);
        }
        Ok(letters.len() as u64)
    }

    async fn selected(&self, dead: &Arc<Queue>, select: &DeadSelect) -> Result<Vec<Message>> {
        match select {
            DeadSelect::Filter(filter) => Ok(self.dead_page(filter, None, usize::MAX).await?.letters),
            DeadSelect::Ids(ids) => {
                let mut letters = Vec::with_capacity(ids.len());
                for id in ids {
                    let own = id.queue == *dead.name();
                    let found = if own && !dead.is_dropped(id.offset) {
                        dead.find(id.partition, id.offset).await?
                    } else {
                        None
                    };
                    letters.push(found.ok_or_else(|| QueueError::MessageNotFound { id: id.clone() })?);
                }
                Ok(letters)
            }
        }
    }

    /// Those that were not sent again or thrown away.
    async fn settled_apart(&self, from: Offset, limit: usize) -> Result<Vec<Message>> {
        let Some(store) = self.store(0).cloned() else {
            return Ok(Vec::new());
        };
        let from = from.max(store.first()?);
        let read = tokio::task::spawn_blocking(move || read_from(&store, from, limit)).await;
        let mut letters = read.unwrap_or(Err(thalweg_log::LogError::Closed))?;
        letters.retain(|letter| !self.is_dropped(letter.offset));
        Ok(letters)
    }
}

impl Queue {
    /// Whether a letter was sent again or thrown away.
    pub(crate) fn is_dropped(&self, offset: Offset) -> bool {
        self.dropped.lock().contains(offset)
    }

    /// The record that says so, for the log; none in memory.
    fn dropped_fact(&self, offset: Offset) -> Result<Option<Fact>> {
        if self.is_in_memory() {
            return Ok(None);
        }
        let mut one = Ranges::default();
        one.insert(offset);
        let mut records = Records::new();
        records.push(&RecordRef::of(self.clock.now(), &record_of(&one)))?;
        Ok(Some((self.state_id(0), records)))
    }

    /// All of them, for a checkpoint.
    pub(crate) fn dropped_record(&self) -> Option<Vec<u8>> {
        let dropped = self.dropped.lock();
        (*dropped != Ranges::default()).then(|| record_of(&dropped))
    }

    /// A letter is gone. Those at the beginning are let go.
    fn is_gone(&self, offset: Offset) {
        let Some(store) = self.store(0).cloned() else {
            return;
        };
        let Ok(first) = store.first() else {
            return;
        };
        let mut dropped = self.dropped.lock();
        if !dropped.insert(offset) {
            return;
        }
        let below = dropped.end_from(first);
        dropped.trim(below);
        drop(dropped);
        self.admission.lock().retained_less(1);
        if below > first
            && let Err(error) = store.trim(below)
        {
            tracing::warn!(queue = %self.name(), %error, "dead letters that are gone cannot be let go");
        }
    }
}

fn record_of(ranges: &Ranges) -> Vec<u8> {
    // Of no group.
    let mut value = vec![0, DROPPED];
    ranges.encode(&mut value);
    value
}

/// A dead letter as the message that it was.
fn revived(letter: &Message, to_source: bool, not_before: Option<Micros>) -> NewMessage {
    let properties = letter.properties.as_ref();
    let group = properties
        .iter()
        .find(|(name, _)| name.strip_prefix(PREFIX) == Some("group"));
    let target = group.filter(|_| to_source).map(|(_, group)| (TARGET_GROUP, group));
    let kept = properties
        .iter()
        .filter(|(name, _)| !name.starts_with(PREFIX) && *name != TARGET_GROUP);
    NewMessage {
        payload: letter.payload.clone(),
        key: letter.key.clone(),
        properties: kept.chain(target).collect::<Properties>(),
        not_before,
        ..NewMessage::default()
    }
}
