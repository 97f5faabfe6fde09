//! A subscriber: its position in a namespace or in a stream, and what is being sent to the client. It is not a queue: a
//! slow subscriber reads later from the store and misses nothing.
//!
//! | state | action | leaves the state when |
//! |---|---|---|
//! | behind its topic | reads pages from the store | it has read everything that the topic lacks |
//! | at its topic | takes its messages, or sleeps until there is one | the topic has evicted a message that it needs |
//!
//! When the namespace is cleared, it starts again at the first position in either state.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use thalweg_events::{
    CategoryRead, Direction, EventsError, Namespace, NamespaceWatermark, PageWithGaps, Result, StoredEvent,
    StreamPosition, StreamRead,
};
use thalweg_kit::clock;
use tokio::time::{Instant, sleep_until};

use super::coalesce::PokeCoalescer;
use super::frame;
use super::gaps::PendingGaps;
use super::outbound::{OutboundQueue, PendingMessage, VisibilityCheck};
use super::request::{MessageFilter, SubscribeRequest, SubscribeTarget};
use super::tailer::{NamespaceTailer, TailedMessage, TopicKey, TopicLookup, TopicSubscription};
use crate::EventsApiServer;
use crate::memory::{MemoryBudget, ResponsePermit};
use crate::metrics::SubscriberMetrics;

/// Pokes taken or read at once: about as many bytes as a connection buffers.
const POKES: usize = 100;
/// With coalescing, more pokes are read at once.
const COALESCED: usize = 1000;
/// Whole messages read at once: at first, and at most while they are small.
const MESSAGES: usize = 1;
const MESSAGES_MAX: usize = 64;
const MESSAGES_BYTES: usize = 64 << 10;
/// A longer event is sent in several chunks.
const CHUNK_MAX: usize = 16 << 10;

pub(super) struct SubscriberCursor {
    feed: Arc<NamespaceTailer>,
    /// `None`: nothing can match the request.
    seat: Option<TopicSubscription>,
    of: SubscribeTarget,
    filter: MessageFilter,
    /// For whole messages: the gaps between them.
    data: Option<PendingGaps>,
    /// For coalesced pokes.
    newest: Option<PokeCoalescer>,
    /// The clearing generation that it has seen, as in [`NamespaceWatermark::cleared`].
    cleared: u64,
    /// Everything for this subscriber up to this global position has been taken.
    covered: u64,
    /// For a stream: the next position, among messages after the global position `after`.
    next: u64,
    after: u64,
    /// The messages of the next page.
    page: usize,
    ready: OutboundQueue,
    /// The unsent rest of an event that is sent in several chunks.
    rest: Bytes,
    memory: Arc<MemoryBudget>,
    /// For whole messages from the store.
    room: ResponsePermit,
    /// The number of bytes for which there was no room.
    lacks_room: Option<usize>,
    begun: bool,
    heartbeat: Duration,
    /// When a heartbeat is due.
    due: Instant,
    /// Resolves when the caller's token, the namespace or the server ends.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    listening: SubscriberMetrics,
}

impl SubscriberCursor {
    /// Whether the subscriber gets whole messages, not pokes.
    pub fn sends_messages(&self) -> bool {
        self.data.is_some()
    }

    pub fn begin(
        server: &EventsApiServer,
        namespace: &Arc<dyn Namespace>,
        wanted: SubscribeRequest,
        ended: impl Future<Output = ()> + Send + 'static,
    ) -> SubscriberCursor {
        let feed = server.feeds.of(namespace);
        let key = match &wanted.of {
            SubscribeTarget::Stream(stream) => Some(TopicKey::Stream(stream.clone())),
            SubscribeTarget::Category(category) => Some(TopicKey::Category(category.clone())),
            SubscribeTarget::All => Some(TopicKey::All),
            SubscribeTarget::Nothing => None,
        };
        let seat = key.map(|key| feed.join(key, wanted.data));
        let now = feed.visible();
        let is_stream = matches!(wanted.of, SubscribeTarget::Stream(_));
        let covered = match (&wanted.of, wanted.resumed) {
            (SubscribeTarget::Stream(_), _) => 0,
            (_, Some(resumed)) => resumed,
            // History is sent on request only: clients subscribe at any position and expect new messages.
            (SubscribeTarget::All, None) if !wanted.catchup => wanted.position.saturating_sub(1).max(now.last),
            (_, None) => wanted.position.saturating_sub(1),
        };
        let (stopping, gone) = (server.stopping.clone(), feed.ended().clone());
        let over = async move {
            tokio::select! {
                () = ended => {}
                () = stopping.cancelled() => {}
                () = gone.cancelled() => {}
            }
        };
        SubscriberCursor {
            seat,
            filter: wanted.filter,
            data: wanted.data.then(|| {
                let looked = match wanted.of {
                    SubscribeTarget::Stream(_) => 0,
                    _ => covered.saturating_add(1),
                };
                PendingGaps::new(looked, matches!(wanted.of, SubscribeTarget::Category(_)))
            }),
            newest: (wanted.coalesce && !wanted.data).then(PokeCoalescer::default),
            cleared: now.cleared,
            covered,
            next: if is_stream && wanted.resumed.is_none() {
                wanted.position
            } else {
                0
            },
            after: wanted.resumed.unwrap_or(0),
            of: wanted.of,
            page: match (wanted.data, wanted.coalesce) {
                (true, _) => MESSAGES,
                (false, true) => COALESCED,
                (false, false) => POKES,
            },
            ready: OutboundQueue::default(),
            rest: Bytes::new(),
            memory: server.memory.clone(),
            room: ResponsePermit::default(),
            lacks_room: None,
            begun: false,
            heartbeat: server.options.heartbeat,
            due: clock::tokio_now(),
            over: Box::pin(over),
            listening: server.meters.of(namespace.name()).listen(),
            feed,
        }
    }

    /// The next chunk; `None` at the end of the subscription.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        let chunk = self.next_chunk().await?;
        self.due = clock::tokio_now() + self.heartbeat;
        Some(chunk)
    }

    async fn next_chunk(&mut self) -> Option<Bytes> {
        if !self.begun {
            self.begun = true;
            return Some(Bytes::from_static(frame::READY));
        }
        loop {
            self.look_again().await?;
            if let Some(chunk) = self.take_ready() {
                return Some(chunk);
            }
            tokio::task::coop::consume_budget().await;
            // A subscriber that always has more to send must end as promptly as a waiting one.
            if (&mut self.over).now_or_never().is_some() {
                return None;
            }
            if clock::tokio_now() >= self.due {
                return Some(Bytes::from_static(frame::HEARTBEAT));
            }
            if let Some(bytes) = self.lacks_room {
                tokio::select! {
                    room = self.memory.room(bytes) => (self.room, self.lacks_room) = (room, None),
                    () = &mut self.over => return None,
                    () = sleep_until(self.due) => continue,
                }
            }
            // From here on no wake-up is lost.
            let wake = self.seat.as_ref().map(|seat| seat.wake.clone());
            let mut woken = std::pin::pin!(wake.as_ref().map(|wake| wake.notified()));
            if let Some(woken) = woken.as_mut().as_pin_mut() {
                woken.enable();
            }
            if self.look().await? {
                continue;
            }
            let woken = async {
                match woken.as_pin_mut() {
                    Some(woken) => woken.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = woken => {}
                () = &mut self.over => return None,
                () = sleep_until(self.due) => {}
            }
        }
    }

    /// Checks again whether the next messages are visible: they may have been deleted or hidden since they were read.
    /// `None` if the store cannot be read.
    async fn look_again(&mut self) -> Option<()> {
        if self.data.is_none() || !self.rest.is_empty() {
            return Some(());
        }
        loop {
            let seen = self.feed.visible();
            if seen.cleared != self.cleared {
                self.ready.forget_messages();
                return Some(());
            }
            let asked = self.ready.to_ask(seen.hidden_at);
            if asked.is_empty() {
                return Some(());
            }
            let when = VisibilityCheck::now(seen.hidden_at);
            match self.feed.namespace().still_shown(&asked).await {
                Ok(shown) => {
                    let tell_gaps = self.data.as_ref().is_some_and(|gaps| !gaps.unknown);
                    self.ready.answered(&asked, &shown, when, tell_gaps);
                    if self.ready.was_looked_at(when) {
                        return Some(());
                    }
                }
                Err(error) => {
                    self.ends(&error);
                    return None;
                }
            }
        }
    }

    fn ends(&self, error: &EventsError) {
        let namespace = self.feed.namespace().name();
        tracing::warn!(namespace, reason = %error, "a subscription ended");
    }

    fn take_ready(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            let event = self.ready.pop()?;
            self.listening.told();
            self.rest = event;
        }
        // Some clients lose half a poke between reads, so a poke is never split.
        let len = if self.data.is_some() {
            part_of(&self.rest)
        } else {
            self.rest.len()
        };
        Some(self.rest.split_to(len))
    }

    /// `true` if something is ready or the position advanced, `false` if there is nothing now, `None` if the store
    /// cannot be read.
    async fn look(&mut self) -> Option<bool> {
        let Some(seat) = &self.seat else { return Some(false) };
        let seen = self.feed.visible();
        if seen.cleared != self.cleared {
            (self.covered, self.next, self.after) = (0, 0, 0);
            self.cleared = seen.cleared;
            if let Some(newest) = &mut self.newest {
                let _ = newest.take();
            }
            if let Some(gaps) = &mut self.data {
                gaps.begin_anew();
            }
        }
        match seat.find(self.covered, self.cleared, self.page) {
            TopicLookup::Items(items) => {
                self.listening.is_behind(0);
                match items.get(..self.without_gap(&items)) {
                    Some(items) if !items.is_empty() => {
                        self.take(items, seen.last);
                        Some(true)
                    }
                    // The store knows what is missing, and has the rest.
                    _ => self.look_into_store(seen).await,
                }
            }
            TopicLookup::Nothing(passed) => {
                self.listening.is_behind(0);
                self.covered = self.covered.max(passed);
                if let Some(newest) = &mut self.newest {
                    self.ready.extend(newest.take());
                }
                Some(!self.ready.is_empty())
            }
            // The feed notices the clearing too and wakes every subscriber. If only this one has not noticed yet, it
            // looks again.
            TopicLookup::Other => Some(self.feed.visible().cleared != self.cleared),
            TopicLookup::Stored => {
                self.listening.is_behind(seen.last.saturating_sub(self.covered));
                self.look_into_store(seen).await
            }
        }
    }

    async fn look_into_store(&mut self, seen: NamespaceWatermark) -> Option<bool> {
        match self.read_on(seen).await {
            Ok(()) => Some(true),
            Err(error) => {
                self.ends(&error);
                None
            }
        }
    }

    /// How many of the topic's items follow each other without a message that may have been removed between them.
    fn without_gap(&self, items: &[Arc<TailedMessage>]) -> usize {
        let Some(gaps) = self.data.as_ref().filter(|gaps| !gaps.unknown) else {
            return items.len();
        };
        let mut next = match &self.of {
            SubscribeTarget::Category(category) if self.feed.namespace().may_lose(category) => return 0,
            SubscribeTarget::Category(_) | SubscribeTarget::Nothing => return items.len(),
            // The position in the stream is known only after a read.
            SubscribeTarget::Stream(_) if self.after > 0 => return 0,
            SubscribeTarget::Stream(_) => self.next,
            SubscribeTarget::All => gaps.looked,
        };
        let is_next = |item: &&Arc<TailedMessage>| {
            let place = match self.of {
                SubscribeTarget::Stream(_) => item.position,
                _ => item.global,
            };
            let follows = place <= next;
            next = next.max(place.saturating_add(1));
            follows
        };
        items.iter().take_while(is_next).count()
    }

    /// `last` is the end of what is stored.
    fn take(&mut self, items: &[Arc<TailedMessage>], last: u64) {
        let mut wanted = Vec::new();
        for item in items {
            self.covered = item.global;
            if matches!(self.of, SubscribeTarget::Stream(_)) {
                if item.position < self.next || item.global <= self.after {
                    continue;
                }
                (self.next, self.after) = (item.position.saturating_add(1), 0);
            }
            if self.filter.passes(&item.kind, item.correlation.as_deref(), item.group) {
                wanted.push(item);
            }
        }
        let is_stream = matches!(self.of, SubscribeTarget::Stream(_));
        for item in wanted {
            if let Some(newest) = &mut self.newest {
                newest.add(&item.stream, item.global, item.poke.clone(), last);
                continue;
            }
            let place = if is_stream { item.position } else { item.global };
            self.gaps_before(place);
            match (&item.message, &self.data) {
                (Some(message), Some(_)) => {
                    let waiting = PendingMessage {
                        message: message.asked.clone(),
                        place,
                        seen: message.seen,
                    };
                    self.ready.push_message(message.event.clone(), waiting);
                }
                _ => self.ready.push(item.poke.clone()),
            }
        }
        if let Some(gaps) = &mut self.data {
            gaps.looked = gaps.looked.max(self.covered.saturating_add(1));
        }
        self.let_go();
    }

    /// Sends the coalesced pokes if they are due.
    fn let_go(&mut self) {
        if let Some(newest) = self.newest.as_mut().filter(|newest| newest.are_due(self.covered)) {
            self.ready.extend(newest.take());
        }
    }

    fn gaps_before(&mut self, place: u64) {
        if let Some(gaps) = &mut self.data {
            self.ready.extend(gaps.before(place).map(frame::gap));
        }
    }

    /// Everything up to `seen` can be read.
    async fn read_on(&mut self, seen: NamespaceWatermark) -> Result<()> {
        let when = VisibilityCheck::now(seen.hidden_at);
        let PageWithGaps { page, gaps, looked } = self.read().await?;
        if self.data.is_some() && !self.has_room(&page.events) {
            return Ok(());
        }
        // What was read while the namespace was cleared may be from before or after.
        if self.feed.visible().cleared != self.cleared {
            return Ok(());
        }
        let last = page.events.last().map(StoredEvent::event);
        match (&self.of, page.next) {
            (SubscribeTarget::Stream(_), next) => {
                let next_position = last.map(|last| last.position.saturating_add(1));
                // Where gaps are known, the part after the page is read again.
                let next_position = looked.or(next_position.max(next)).unwrap_or(0);
                if last.is_some() || next_position > self.next {
                    (self.next, self.after) = (self.next.max(next_position), 0);
                }
                if next.is_none() {
                    self.covered = self.covered.max(seen.last);
                }
            }
            (_, Some(next)) => self.covered = self.covered.max(next.saturating_sub(1)),
            (_, None) => self.covered = self.covered.max(last.map_or(0, |last| last.global)).max(seen.last),
        }
        if let Some(known) = &mut self.data {
            known.unknown = looked.is_none();
            known.looked = known.looked.max(looked.unwrap_or(self.covered.saturating_add(1)));
            known.found(&gaps);
            let bytes: usize = page.events.iter().map(StoredEvent::bytes).sum();
            self.page = match bytes > MESSAGES_BYTES {
                true => 1,
                false => (2 * self.page).min(MESSAGES_MAX),
            };
        }
        self.tell(&page.events, seen, when);
        self.let_go();
        if let Some(known) = &mut self.data {
            self.ready.extend(known.surplus().map(frame::gap));
        }
        Ok(())
    }

    /// Whether there is room for the messages; if not, they are read again once there is.
    fn has_room(&mut self, events: &[StoredEvent]) -> bool {
        let bytes = events.iter().map(|stored| stored.bytes() + 256).sum();
        if self.room.is_for(bytes) {
            return true;
        }
        // The size has changed since the last read.
        drop(std::mem::take(&mut self.room));
        match self.memory.room_now(bytes) {
            Some(room) => self.room = room,
            None => self.lacks_room = Some(bytes),
        }
        self.lacks_room.is_none()
    }

    async fn read(&mut self) -> Result<PageWithGaps> {
        let namespace = self.feed.namespace();
        let direction = Direction::Forward;
        if let SubscribeTarget::Stream(stream) = &self.of {
            let from = match self.after {
                0 => StreamPosition::Position(self.next),
                after => StreamPosition::Global(after.saturating_add(1)),
            };
            let read = StreamRead {
                stream,
                from: Some(from),
                direction,
                max: self.page,
                types: &self.filter.types,
            };
            return match self.data {
                Some(_) => namespace.read_stream_with_gaps(read).await,
                None => namespace.read_stream(read).await.map(PageWithGaps::from),
            };
        }
        let from = self.covered.saturating_add(1);
        let read = CategoryRead {
            category: match &self.of {
                SubscribeTarget::Category(category) => Some(category),
                _ => None,
            },
            // Starts where the search for gaps ended: the empty range after it may still turn out to be a gap.
            from: Some(self.data.as_ref().map_or(from, |gaps| gaps.looked.clamp(1, from))),
            direction,
            max: self.page,
            correlation: self.filter.correlation.as_deref(),
            member: self.filter.member,
            types: &self.filter.types,
        };
        match self.data {
            Some(_) => namespace.read_category_with_gaps(read).await,
            None => namespace.read_category(read).await.map(PageWithGaps::from),
        }
    }

    /// Sends a page from the store, which cannot filter streams by correlation. Everything up to `seen` is stored.
    fn tell(&mut self, page: &[StoredEvent], seen: NamespaceWatermark, when: VisibilityCheck) {
        let correlated = |stored: &&StoredEvent| match &self.filter.correlation {
            Some(wanted) => frame::correlation(&stored.event()).as_ref() == Some(wanted),
            None => true,
        };
        let wanted: Vec<&StoredEvent> = page.iter().filter(correlated).collect();
        let is_stream = matches!(self.of, SubscribeTarget::Stream(_));
        let room = std::mem::take(&mut self.room);
        for stored in wanted {
            let event = stored.event();
            if let Some(newest) = &mut self.newest {
                newest.add(event.stream, event.global, frame::poke(&event), seen.last);
                continue;
            }
            let place = if is_stream { event.position } else { event.global };
            self.gaps_before(place);
            match self.data {
                Some(_) => {
                    let waiting = PendingMessage {
                        message: stored.without_data(),
                        place,
                        seen: when,
                    };
                    self.ready.push_message(room.hold(frame::message(stored)), waiting);
                }
                None => self.ready.push(frame::poke(&event)),
            }
        }
    }
}

/// The length of an event's next chunk. Characters are not split: some clients decode each chunk by itself.
fn part_of(event: &[u8]) -> usize {
    if event.len() <= CHUNK_MAX {
        return event.len();
    }
    let is_begin = |at: usize| event.get(at).is_none_or(|byte| byte & 0b1100_0000 != 0b1000_0000);
    (CHUNK_MAX - 3..=CHUNK_MAX)
        .rev()
        .find(|at| is_begin(*at))
        .unwrap_or(CHUNK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_divided_between_chunks() {
        for character in ["a", "é", "€", "😀"] {
            for before in 0..4 {
                let text = "x".repeat(before) + &character.repeat(CHUNK_MAX);
                let len = part_of(text.as_bytes());
                assert!(
                    len <= CHUNK_MAX && len > CHUNK_MAX - 4 && text.is_char_boundary(len),
                    "{len}"
                );
            }
        }
        assert_eq!(
            (part_of(b""), part_of(b"ab"), part_of(&[0x80; CHUNK_MAX + 1])),
            (0, 2, CHUNK_MAX)
        );
    }
}
