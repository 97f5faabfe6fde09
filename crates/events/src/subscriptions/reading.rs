//! Reads the messages of a subscription: candidates from its source, and the messages to deliver.

use std::collections::HashMap;

use thalweg_log::Micros;

use super::handle::{CachedSubscription, SubscriptionHandle};
use super::{DeliveredMessage, FetchRequest, FetchedMessages, ParkedMessage};
use crate::error::{EventsError, Result};
use crate::event::StoredEvent;
use crate::names;
use crate::store::{CategoryRead, Direction, Namespace, Page, StreamPosition, StreamRead};
use crate::subscription::{
    Candidate, Lease, LeaseRequest, LeasedMessage, SubscriptionSettings, SubscriptionSource, stream_key,
};

/// Number of messages in one read.
const PAGE_MIN: usize = 16;
const PAGE_MAX: usize = 256;
/// Maximum size of a reply, apart from its first message.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Maximum size of messages that were read ahead.
const BODIES_BYTES_MAX: usize = 16 << 20;
/// How long a message is kept after reading ahead. Before delivery it is checked that it still exists.
pub(super) const BODIES_AGE_MAX: Micros = 1_000_000;

/// Messages that were read ahead, so that they need not be read twice, and whether the end was reached.
#[derive(Default)]
pub(super) struct ReadAheadCache {
    by_global: HashMap<u64, StoredEvent>,
    bytes: usize,
    /// The clearing generation at that time.
    cleared: u64,
    /// The watermark change at which everything had been read.
    ended_at: Option<u64>,
    /// When the oldest message was read.
    read_at: Micros,
}

impl ReadAheadCache {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_global.len()
    }

    /// Clears the end marker after the filters changed.
    pub fn read_anew(&mut self) {
        self.ended_at = None;
    }

    /// Drops old messages. Returns whether none are left.
    pub fn forget_old(&mut self, now: Micros) -> bool {
        if now.saturating_sub(self.read_at) > BODIES_AGE_MAX {
            self.by_global = HashMap::new();
            self.bytes = 0;
        }
        self.by_global.is_empty()
    }

    fn keep(&mut self, global: u64, stored: StoredEvent, now: Micros) {
        if self.by_global.is_empty() {
            self.read_at = now;
        }
        if self.bytes + stored.bytes() > BODIES_BYTES_MAX {
            return;
        }
        self.bytes += stored.bytes();
        if let Some(before) = self.by_global.insert(global, stored) {
            self.bytes -= before.bytes();
        }
    }

    fn take(&mut self, global: u64) -> Option<StoredEvent> {
        let stored = self.by_global.remove(&global)?;
        self.bytes -= stored.bytes();
        Some(stored)
    }
}

impl SubscriptionHandle {
    /// Delivers available messages, reading ahead until there are enough.
    pub(super) async fn fetch(
        &self,
        cached: &mut CachedSubscription,
        namespace: &dyn Namespace,
        ask: &FetchRequest,
        now: Micros,
    ) -> Result<FetchedMessages> {
        cached.bodies.forget_old(now);
        let held: Vec<Lease> = ask
            .held
            .iter()
            .copied()
            .filter(|lease| cached.state.is_live(*lease, now))
            .collect();
        let max = ask.max.saturating_sub(held.len());
        let mut messages: Vec<DeliveredMessage> = Vec::new();
        let mut bytes = 0;
        while messages.len() < max {
            if cached.state.is_full() {
                if !messages.is_empty() {
                    break;
                }
                return Err(EventsError::SubscriptionFull {
                    name: self.name.clone(),
                    parked: cached.state.parked().len(),
                });
            }
            let fetch = LeaseRequest {
                consumer: ask.consumer.clone(),
                max: max - messages.len(),
                bytes_max: ANSWER_BYTES_MAX.saturating_sub(bytes),
                at_least_one: messages.is_empty(),
            };
            let handed = cached.state.fetch(&fetch, now);
            let (found, nothing) = (messages.len() + handed.len(), handed.is_empty());
            let mut bodies = bodies_of(&mut cached.bodies, namespace, &handed).await?;
            for handed in handed {
                let global = handed.lease.global;
                let Some(stored) = bodies.remove(&global) else {
                    // Deleted or too old, so nobody can process it.
                    cached.state.gone(global);
                    continue;
                };
                bytes += u64::from(handed.bytes);
                messages.push(DeliveredMessage {
                    lease: handed.lease,
                    attempt: handed.attempt,
                    stored,
                });
            }
            if messages.len() < found {
                continue;
            }
            // Fewer than requested are enough if the next one does not fit or is not available yet.
            let enough = !messages.is_empty() && nothing || messages.len() >= max || cached.state.is_busy(now);
            if enough || cached.state.room() == 0 || !read_on(cached, namespace, max, now).await? {
                break;
            }
        }
        let due = cached.state.due(now);
        Ok(FetchedMessages { messages, held, due })
    }

    pub(super) async fn parked(
        &self,
        cached: &mut CachedSubscription,
        namespace: &dyn Namespace,
        from: u64,
        max: usize,
    ) -> Result<Vec<ParkedMessage>> {
        let mut out: Vec<ParkedMessage> = Vec::new();
        let mut bytes = 0;
        for (global, parked) in cached.state.parked().range(from..).take(max) {
            let stored = at(namespace, *global).await?;
            bytes += stored.as_ref().map_or(0, |stored| stored.bytes() as u64);
            if bytes > ANSWER_BYTES_MAX && !out.is_empty() {
                break;
            }
            out.push(ParkedMessage {
                global: *global,
                reason: parked.reason.clone(),
                attempts: parked.attempts,
                at: self.clock.wall_at(parked.at),
                stored,
            });
        }
        Ok(out)
    }
}

/// The messages to deliver, without those that are gone. Messages that were read ahead may have been deleted since.
async fn bodies_of(
    bodies: &mut ReadAheadCache,
    namespace: &dyn Namespace,
    handed: &[LeasedMessage],
) -> Result<HashMap<u64, StoredEvent>> {
    let mut found = HashMap::with_capacity(handed.len());
    let mut ahead = Vec::with_capacity(handed.len());
    for handed in handed {
        let global = handed.lease.global;
        match bodies.take(global) {
            Some(stored) => ahead.push(stored),
            None => found.extend(at(namespace, global).await?.map(|stored| (global, stored))),
        }
    }
    if !ahead.is_empty() {
        let shown = namespace.still_shown(&ahead).await?;
        let ahead = ahead.into_iter().map(|stored| (stored.event().global, stored));
        found.extend(ahead.filter(|(global, _)| shown.contains(global)));
    }
    Ok(found)
}

/// The message at a global position.
async fn at(namespace: &dyn Namespace, global: u64) -> Result<Option<StoredEvent>> {
    let read = CategoryRead {
        category: None,
        from: Some(global),
        direction: Direction::Forward,
        max: 1,
        correlation: None,
        member: None,
        types: &[],
    };
    let page = namespace.read_category(read).await?;
    let mut found = page.events.into_iter();
    Ok(found.next().filter(|stored| stored.event().global == global))
}

/// Reads and offers the next candidates. `false` if there was nothing to read.
async fn read_on(cached: &mut CachedSubscription, namespace: &dyn Namespace, want: usize, now: Micros) -> Result<bool> {
    let seen = *namespace.watch().borrow();
    let bodies = &mut cached.bodies;
    if bodies.cleared != seen.cleared {
        // The positions belong to other messages now.
        *bodies = ReadAheadCache {
            cleared: seen.cleared,
            ..ReadAheadCache::default()
        };
    }
    if bodies.ended_at == Some(seen.change) {
        return Ok(false);
    }
    let from = cached.state.next();
    let max = want.clamp(PAGE_MIN, PAGE_MAX).min(cached.state.room());
    let settings = cached.state.settings();
    let page = page(namespace, settings, from, max).await?;
    let last = page.events.last().map_or(0, |last| last.event().global);
    // The page includes everything up to the watermark before the read.
    let next = page.next.unwrap_or_else(|| last.max(seen.last) + 1);
    bodies.ended_at = page.next.is_none().then_some(seen.change);
    let correlated = |stored: &StoredEvent| {
        let wanted = settings.correlation.as_deref();
        wanted.is_none_or(|wanted| is_correlated(stored, wanted))
    };
    let mut candidates = Vec::with_capacity(page.events.len());
    for stored in page.events.into_iter().filter(correlated) {
        let event = stored.event();
        candidates.push(Candidate {
            global: event.global,
            key: stream_key(event.stream),
            bytes: u32::try_from(stored.bytes()).unwrap_or(u32::MAX),
        });
        bodies.keep(event.global, stored, now);
    }
    cached.state.offer(&candidates, next);
    Ok(!candidates.is_empty() || page.next.is_some())
}

/// Reads from a global position; `next` is a global position too.
async fn page(namespace: &dyn Namespace, settings: &SubscriptionSettings, from: u64, max: usize) -> Result<Page> {
    let category = match &settings.source {
        SubscriptionSource::Stream(stream) => return page_of_stream(namespace, settings, stream, from, max).await,
        SubscriptionSource::All => None,
        SubscriptionSource::Category(category) if !names::is_category(category) => return Ok(Page::default()),
        SubscriptionSource::Category(category) => Some(category.as_str()),
    };
    let read = CategoryRead {
        category,
        from: Some(from),
        direction: Direction::Forward,
        max,
        correlation: settings.correlation.as_deref(),
        member: None,
        types: &settings.types,
    };
    namespace.read_category(read).await
}

async fn page_of_stream(
    namespace: &dyn Namespace,
    settings: &SubscriptionSettings,
    stream: &str,
    from: u64,
    max: usize,
) -> Result<Page> {
    let mut from = StreamPosition::Global(from);
    loop {
        let read = StreamRead {
            stream,
            from: Some(from),
            direction: Direction::Forward,
            max,
            types: &settings.types,
        };
        let mut page = namespace.read_stream(read).await?;
        match (page.next, page.events.last()) {
            (None, _) => return Ok(page),
            (Some(_), Some(last)) => {
                page.next = Some(last.event().global + 1);
                return Ok(page);
            }
            // None of the messages had a wanted type.
            (Some(position), None) => from = StreamPosition::Position(position),
        }
    }
}

fn is_correlated(stored: &StoredEvent, wanted: &str) -> bool {
    names::correlation(stored.event().metadata).is_some_and(|category| category == wanted)
}
