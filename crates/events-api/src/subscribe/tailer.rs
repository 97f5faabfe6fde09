//! Reads the new messages of a namespace once for all its subscribers. One task follows the namespace and puts each
//! message, encoded, into the topics that have subscribers: a stream, a category, or everything.
//!
//! A topic caches its newest messages and knows up to which global position it may lack some: `evicted`. A subscriber
//! that has everything up to there continues from the topic; any other reads from the store first. So the tailer's
//! limits bound the memory whatever the subscribers do, and no subscriber misses anything.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_events::event::EventRef;
use thalweg_events::{CategoryRead, Direction, Namespace, NamespaceWatermark, Result, StoredEvent, names};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::frame;
use super::outbound::VisibilityCheck;
use crate::EventsApiOptions;

/// Messages read at once.
const PAGE: usize = 256;
/// A larger message is not cached: its subscribers read it from the store.
const KEPT_MESSAGE_MAX: usize = 64 << 10;
/// The overhead of a message beyond its texts.
const ITEM_BYTES: usize = 256;

/// A message as all subscribers get it, with the values that filters need.
pub(super) struct TailedMessage {
    pub global: u64,
    pub position: u64,
    pub stream: Box<str>,
    pub kind: Box<str>,
    pub correlation: Option<Box<str>>,
    /// The consumer group hash of its stream.
    pub group: Option<u64>,
    pub poke: Bytes,
    /// The whole message, if it is small and a subscriber wanted whole messages when it arrived.
    pub message: Option<WholeMessage>,
}

pub(super) struct WholeMessage {
    pub event: Bytes,
    /// The form in which the store is asked whether it is still visible.
    pub asked: StoredEvent,
    pub seen: VisibilityCheck,
}

impl TailedMessage {
    /// `event` is the decoded form of `stored`.
    pub fn new(stored: &StoredEvent, event: &EventRef<'_>, with_message: bool, seen: VisibilityCheck) -> TailedMessage {
        let small = with_message && stored.bytes() <= KEPT_MESSAGE_MAX;
        TailedMessage {
            global: event.global,
            position: event.position,
            stream: event.stream.into(),
            kind: event.kind.into(),
            correlation: frame::correlation(event),
            group: names::group_hash(event.stream),
            poke: frame::poke(event),
            message: small.then(|| WholeMessage {
                event: Bytes::from(frame::message(stored)),
                asked: stored.without_data(),
                seen,
            }),
        }
    }

    fn bytes(&self) -> usize {
        let whole = |message: &WholeMessage| message.event.len() + message.asked.bytes();
        ITEM_BYTES + self.stream.len() + self.poke.len() + self.message.as_ref().map_or(0, whole)
    }
}

/// The source of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopicKey {
    All,
    Category(Box<str>),
    Stream(Box<str>),
}

#[derive(Default)]
struct Topic {
    /// By global position.
    items: VecDeque<Arc<TailedMessage>>,
    /// Every message of the topic after this is cached, up to the tailer's position.
    evicted: u64,
    subscribers: usize,
    wake: Arc<Notify>,
    /// The last page with a message for this topic; each page wakes once.
    page: u64,
}

#[derive(Default)]
struct TailerState {
    /// The clearing generation of the cache, as in [`NamespaceWatermark::cleared`].
    cleared: u64,
    /// Everything up to this global position was processed.
    passed: u64,
    /// All items of all topics, by global position, and their bytes.
    recent: VecDeque<Arc<TailedMessage>>,
    bytes: usize,
    pages: u64,
    all: Option<Topic>,
    categories: HashMap<Box<str>, Topic>,
    streams: HashMap<Box<str>, Topic>,
}

impl TailerState {
    fn topic(&mut self, key: &TopicKey) -> Option<&mut Topic> {
        match key {
            TopicKey::All => self.all.as_mut(),
            TopicKey::Category(name) => self.categories.get_mut(name),
            TopicKey::Stream(name) => self.streams.get_mut(name),
        }
    }

    fn topic_or_new(&mut self, key: &TopicKey) -> &mut Topic {
        let new = Topic {
            evicted: self.passed,
            ..Topic::default()
        };
        match key {
            TopicKey::All => self.all.get_or_insert(new),
            TopicKey::Category(name) => self.categories.entry(name.clone()).or_insert(new),
            TopicKey::Stream(name) => self.streams.entry(name.clone()).or_insert(new),
        }
    }

    fn remove(&mut self, key: &TopicKey) {
        match key {
            TopicKey::All => self.all = None,
            TopicKey::Category(name) => drop(self.categories.remove(name)),
            TopicKey::Stream(name) => drop(self.streams.remove(name)),
        }
    }

    /// The topics that contain the messages of a stream.
    fn of_stream(&mut self, stream: &str) -> impl Iterator<Item = &mut Topic> {
        let own = self.streams.get_mut(stream);
        let category = self.categories.get_mut(names::category(stream));
        self.all.iter_mut().chain(category).chain(own)
    }

    fn every(&mut self) -> impl Iterator<Item = &mut Topic> {
        let named = self.categories.values_mut().chain(self.streams.values_mut());
        self.all.iter_mut().chain(named)
    }

    /// Removes the oldest message from every topic.
    fn evict(&mut self) {
        let Some(oldest) = self.recent.pop_front() else { return };
        self.bytes = self.bytes.saturating_sub(oldest.bytes());
        for topic in self.of_stream(&oldest.stream) {
            // A topic that is younger than the item never contained it.
            if topic.items.front().is_some_and(|front| Arc::ptr_eq(front, &oldest)) {
                topic.items.pop_front();
                topic.evicted = oldest.global;
            }
        }
    }
}

/// The result of a lookup in a topic.
pub(super) enum TopicLookup {
    /// By global position, the first ones after the subscriber's position.
    Items(Vec<Arc<TailedMessage>>),
    /// Nothing new; everything up to this global position was processed.
    Nothing(u64),
    /// Some missing messages are only in the store.
    Stored,
    /// The namespace was cleared, and either the tailer or the subscriber has not noticed yet.
    Other,
}

pub(super) struct NamespaceTailer {
    namespace: Arc<dyn Namespace>,
    visible: watch::Receiver<NamespaceWatermark>,
    state: Mutex<TailerState>,
    recent_messages: usize,
    recent_bytes: usize,
    /// The number of subscribers that want whole messages.
    whole: AtomicUsize,
    /// Cancelled when the namespace is deleted or cannot be read.
    ended: CancellationToken,
    /// Ends the task when dropped.
    _task: DropGuard,
}

impl NamespaceTailer {
    fn begin(
        namespace: Arc<dyn Namespace>,
        visible: watch::Receiver<NamespaceWatermark>,
        feeds: &NamespaceTailers,
    ) -> Arc<NamespaceTailer> {
        let gone = CancellationToken::new();
        let now = *visible.borrow();
        let feed = Arc::new(NamespaceTailer {
            namespace,
            visible: visible.clone(),
            state: Mutex::new(TailerState {
                cleared: now.cleared,
                passed: now.last,
                ..TailerState::default()
            }),
            recent_messages: feeds.recent_messages.max(1),
            recent_bytes: feeds.recent_bytes,
            whole: AtomicUsize::new(0),
            ended: CancellationToken::new(),
            _task: gone.clone().drop_guard(),
        });
        tokio::spawn(follow(Arc::downgrade(&feed), visible, gone));
        feed
    }

    pub fn namespace(&self) -> &dyn Namespace {
        self.namespace.as_ref()
    }

    pub fn visible(&self) -> NamespaceWatermark {
        *self.visible.borrow()
    }

    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub fn join(self: &Arc<NamespaceTailer>, key: TopicKey, whole: bool) -> TopicSubscription {
        let mut state = self.state.lock();
        let topic = state.topic_or_new(&key);
        topic.subscribers += 1;
        let wake = topic.wake.clone();
        drop(state);
        self.whole.fetch_add(usize::from(whole), Relaxed);
        TopicSubscription {
            feed: self.clone(),
            key,
            whole,
            wake,
        }
    }

    /// Processes everything that can be read.
    async fn catch_up(&self, visible: &mut watch::Receiver<NamespaceWatermark>) -> Result<()> {
        loop {
            let seen = *visible.borrow_and_update();
            let from = self.passed(seen);
            if from > seen.last {
                return Ok(());
            }
            let read = CategoryRead {
                category: None,
                from: Some(from),
                direction: Direction::Forward,
                max: PAGE,
                correlation: None,
                member: None,
                types: &[],
            };
            let when = VisibilityCheck::now(seen.hidden_at);
            let page = self.namespace.read_category(read).await?;
            // What was read while the namespace was cleared may be from before or after.
            if self.visible().cleared != seen.cleared {
                continue;
            }
            let last = page.events.last().map_or(0, |last| last.event().global);
            let passed = match page.next {
                Some(next) => last.max(next.saturating_sub(1)),
                None => last.max(seen.last),
            };
            self.pass(&page.events, passed, when);
        }
    }

    /// Returns where to read on. After a clearing the tailer and all subscribers start again.
    fn passed(&self, seen: NamespaceWatermark) -> u64 {
        let mut state = self.state.lock();
        if state.cleared != seen.cleared {
            (state.cleared, state.passed, state.bytes) = (seen.cleared, 0, 0);
            state.recent.clear();
            let woken: Vec<_> = state
                .every()
                .map(|topic| {
                    topic.items.clear();
                    topic.evicted = 0;
                    topic.wake.clone()
                })
                .collect();
            drop(state);
            woken.iter().for_each(|wake| wake.notify_waiters());
            return 1;
        }
        state.passed.saturating_add(1)
    }

    fn pass(&self, events: &[StoredEvent], passed: u64, when: VisibilityCheck) {
        let whole = self.whole.load(Relaxed) > 0;
        let mut woken: Vec<Arc<Notify>> = Vec::new();
        let mut state = self.state.lock();
        state.pages += 1;
        let page = state.pages;
        for stored in events {
            let (event, mut item) = (stored.event(), None);
            for topic in state.of_stream(event.stream) {
                let item = item.get_or_insert_with(|| Arc::new(TailedMessage::new(stored, &event, whole, when)));
                topic.items.push_back(item.clone());
                if topic.page != page {
                    topic.page = page;
                    woken.push(topic.wake.clone());
                }
            }
            if let Some(item) = item {
                state.bytes += item.bytes();
                state.recent.push_back(item);
            }
            while state.recent.len() > self.recent_messages || state.bytes > self.recent_bytes {
                state.evict();
            }
        }
        state.passed = passed.max(state.passed);
        drop(state);
        woken.iter().for_each(|wake| wake.notify_waiters());
    }
}

/// Keeps the tailer up to date while a subscriber uses it.
async fn follow(
    feed: Weak<NamespaceTailer>,
    mut visible: watch::Receiver<NamespaceWatermark>,
    gone: CancellationToken,
) {
    loop {
        let Some(feed) = feed.upgrade() else { return };
        if let Err(error) = feed.catch_up(&mut visible).await {
            // Clients reconnect by themselves and then get the reason.
            tracing::warn!(namespace = feed.namespace.name(), reason = %error, "the subscriptions of a namespace end");
            feed.ended.cancel();
            return;
        }
        let ended = feed.ended.clone();
        drop(feed);
        tokio::select! {
            () = gone.cancelled() => return,
            changed = visible.changed() => if changed.is_err() {
                ended.cancel();
                return;
            },
        }
    }
}

/// A subscriber's handle to its topic.
pub(super) struct TopicSubscription {
    feed: Arc<NamespaceTailer>,
    key: TopicKey,
    whole: bool,
    /// Notified when there is something new.
    pub wake: Arc<Notify>,
}

impl TopicSubscription {
    /// At most `max` messages after the global position `covered`. `cleared` is the clearing generation that the
    /// subscriber has seen.
    pub fn find(&self, covered: u64, cleared: u64, max: usize) -> TopicLookup {
        let mut state = self.feed.state.lock();
        let (passed, own) = (state.passed, state.cleared);
        let Some(topic) = state.topic(&self.key).filter(|_| own == cleared) else {
            return TopicLookup::Other;
        };
        if covered < topic.evicted {
            return TopicLookup::Stored;
        }
        let first = topic.items.partition_point(|item| item.global <= covered);
        let (mut there, mut bytes) = (Vec::new(), 0);
        for item in topic.items.range(first..).take(max) {
            if self.whole {
                // If only part of a message is cached, the store has the whole. The size limit keeps what waits for a
                // slow client small, however much is cached.
                let Some(message) = &item.message else { break };
                bytes += message.event.len();
                if bytes > KEPT_MESSAGE_MAX && !there.is_empty() {
                    break;
                }
            }
            there.push(item.clone());
        }
        match (there.is_empty(), first < topic.items.len()) {
            (false, _) => TopicLookup::Items(there),
            (true, true) => TopicLookup::Stored,
            (true, false) => TopicLookup::Nothing(passed),
        }
    }
}

impl Drop for TopicSubscription {
    fn drop(&mut self) {
        self.feed.whole.fetch_sub(usize::from(self.whole), Relaxed);
        let mut state = self.feed.state.lock();
        let Some(topic) = state.topic(&self.key) else { return };
        topic.subscribers -= 1;
        if topic.subscribers == 0 {
            state.remove(&self.key);
        }
    }
}

/// The tailers of all namespaces with subscribers.
pub(crate) struct NamespaceTailers {
    recent_messages: usize,
    recent_bytes: usize,
    feeds: Mutex<HashMap<String, Weak<NamespaceTailer>>>,
}

impl NamespaceTailers {
    pub fn new(options: &EventsApiOptions) -> NamespaceTailers {
        NamespaceTailers {
            recent_messages: options.recent_messages,
            recent_bytes: options.recent_bytes,
            feeds: Mutex::default(),
        }
    }

    /// The tailer of a namespace. A namespace that was deleted and created again gets a new one.
    pub(super) fn of(&self, namespace: &Arc<dyn Namespace>) -> Arc<NamespaceTailer> {
        let visible = namespace.watch();
        let mut feeds = self.feeds.lock();
        let known = feeds.get(namespace.name()).and_then(Weak::upgrade);
        if let Some(known) = known
            && known.visible.same_channel(&visible)
            && !known.ended.is_cancelled()
        {
            return known;
        }
        feeds.retain(|_, feed| feed.strong_count() > 0);
        let feed = NamespaceTailer::begin(namespace.clone(), visible, self);
        feeds.insert(namespace.name().to_owned(), Arc::downgrade(&feed));
        feed
    }
}
