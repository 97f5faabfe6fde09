//! A namespace is a partition of the log and an index of it.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::{Mutex, MutexGuard, RwLock};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Log, LogError, Micros, Offset, PartitionId, Records, Unit};
use tokio::sync::{Notify, watch};

use super::index::{Entry, InCategory, InStream, Index, correlation, hash};
use super::reader::fetch;
use super::sequencer::Sequencer;
use crate::error::{EventsError, Result};
use crate::event::{EventRef, IdRef, Stored};
use crate::id::MessageId;
use crate::store::{
    APPEND_BYTES_MAX, APPEND_MESSAGES_MAX, APPEND_STREAMS_MAX, Append, Appended, BoxFuture, CategoryInfo, CategoryRead,
    Direction, Document, Expected, From, Import, Namespace, NamespaceInfo, Page, Retention, RetentionOf, StreamInfo,
    StreamRead, Visible,
};

/// Messages looked up at once.
const PAGE: usize = 1000;

pub(crate) type Clock = Arc<dyn Fn() -> Micros + Send + Sync>;

/// What all namespaces share.
#[derive(Clone)]
pub(crate) struct Place {
    pub log: Arc<dyn Log>,
    /// The log is: no disk is ever waited for.
    pub in_memory: bool,
    pub clock: Clock,
}

/// What is known of a namespace beside its messages.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub name: String,
    pub description: String,
    pub metadata: Option<String>,
    pub created_at: Micros,
}

pub(crate) struct EmbeddedNamespace {
    about: About,
    pub(super) partition: PartitionId,
    pub(super) log: Arc<dyn Log>,
    /// The log is.
    in_memory: bool,
    pub(super) clock: Clock,
    pub(super) sequencer: Mutex<Sequencer>,
    /// Taken while the sequencer is held, never the other way round.
    pub(super) index: RwLock<Index>,
    /// It is known of another submission what became of it.
    pub(super) ended: Notify,
    /// Held by the one import that is done at a time.
    pub(super) importing: tokio::sync::Mutex<()>,
    pub(super) visible: watch::Sender<Visible>,
}

/// What came of looking whether an append may be done.
enum Looked {
    /// It is on its way.
    Submitted(Submitted, Vec<Appended>),
    /// It depends on what is on its way already.
    Wait,
    /// With ids that are there: what was asked for may have been done before.
    Known,
}

impl EmbeddedNamespace {
    /// With an index of all that is in the partition.
    pub fn new(about: About, partition: PartitionId, place: &Place, index: Index) -> Self {
        let (visible, _) = watch::channel(Visible {
            last: index.last_global,
            ..Visible::default()
        });
        EmbeddedNamespace {
            about,
            partition,
            log: place.log.clone(),
            in_memory: place.in_memory,
            clock: place.clock.clone(),
            sequencer: Mutex::new(Sequencer::new(&index)),
            index: RwLock::new(index),
            ended: Notify::new(),
            importing: tokio::sync::Mutex::default(),
            visible,
        }
    }

    pub fn about(&self) -> &About {
        &self.about
    }

    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    async fn append_all(self: &Arc<Self>, appends: &[Append<'_>]) -> Result<Vec<Appended>> {
        within_limits(appends)?;
        loop {
            // What ends from here on is heard.
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            match self.submit(appends)? {
                Looked::Wait => ended.await,
                Looked::Known => {
                    if let Some(known) = self.known(appends).await? {
                        return Ok(known);
                    }
                }
                Looked::Submitted(submitted, places) => match submitted.await {
                    Ok(()) => return Ok(places),
                    // Numbered behind something that was refused.
                    Err(LogError::OffsetTaken { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// Numbers the messages and hands them to the log, if the versions of their streams are as expected.
    fn submit(self: &Arc<Self>, appends: &[Append<'_>]) -> Result<Looked> {
        let mut sequencer = self.sequencer.lock();
        if !sequencer.is_open() {
            return Ok(Looked::Wait);
        }
        let index = self.index.read();
        let mut known = false;
        for id in given_ids(appends) {
            if sequencer.has_pending_id(id) {
                return Ok(Looked::Wait);
            }
            known |= index.id(id).is_some();
        }
        if known {
            return Ok(Looked::Known);
        }
        let mut versions = Vec::with_capacity(appends.len());
        for append in appends {
            let (version, is_pending) = sequencer.version(append.stream, &index);
            match append.expected.allows(version) {
                true => versions.push(version),
                // What is not stored yet is nothing to tell of.
                false if is_pending => return Ok(Looked::Wait),
                false => {
                    return Err(EventsError::VersionConflict {
                        stream: append.stream.to_owned(),
                        expected: append.expected,
                        actual: version,
                    });
                }
            }
        }
        let now = (self.clock)();
        let count = appends.iter().map(|append| append.events.len()).sum();
        let mut records = Records::with_capacity(bytes_of(appends) + 100 * count);
        let mut entries = Vec::with_capacity(count);
        let (mut streams, mut ids) = (Vec::with_capacity(appends.len()), Vec::new());
        let (mut places, mut value) = (Vec::with_capacity(appends.len()), Vec::new());
        let (first_offset, first_global) = (sequencer.next_offset, sequencer.next_global);
        for (append, version) in appends.iter().zip(versions) {
            let stream = sequencer.name(append.stream, &index);
            places.push(Appended {
                count: append.events.len() as u64,
                first_position: (version + 1) as u64,
                first_global: first_global + entries.len() as u64,
                duplicate: false,
            });
            for (event, position) in append.events.iter().zip((version + 1) as u64..) {
                let id = match &event.id {
                    Some(id) => {
                        ids.push(id.clone());
                        IdRef::from(id)
                    }
                    None => IdRef::Uuid(sequencer.new_id((now / 1000) as u64)?),
                };
                let event = EventRef {
                    id,
                    own_id: event.id.is_none(),
                    stream: append.stream,
                    position,
                    global: first_global + entries.len() as u64,
                    kind: event.kind,
                    data: event.data,
                    metadata: event.metadata,
                    time: now,
                };
                value.clear();
                event.encode(&mut value);
                records.push(&RecordRef::of(now, &value))?;
                entries.push(Entry::of(&event, stream.clone(), first_offset + entries.len() as u64));
            }
            streams.push((stream, version + append.events.len() as i64));
        }
        drop(index);
        let unit = Unit::of(self.partition, records.expecting(first_offset));
        sequencer.submitted(entries, streams, ids);
        Ok(Looked::Submitted(self.begin(sequencer, unit), places))
    }

    /// Hands to the log what was just numbered, before anything else is: what is submitted first is stored first.
    pub(super) fn begin(self: &Arc<Self>, sequencer: MutexGuard<'_, Sequencer>, unit: Unit) -> Submitted {
        let log = self.log.clone();
        let mut submitted = Submitted {
            namespace: Some(self.clone()),
            stored: Box::pin(async move { log.append(unit, None).await.map(drop) }),
        };
        let early = submitted.begin();
        drop(sequencer);
        if let Some(early) = early {
            self.ended(early.is_ok());
            submitted.namespace = None;
            submitted.stored = Box::pin(std::future::ready(early));
        }
        submitted
    }

    /// It is known what became of a submission.
    fn ended(&self, is_stored: bool) {
        let mut sequencer = self.sequencer.lock();
        let mut index = self.index.write();
        // A partition that is gone takes nothing more.
        let next = self
            .log
            .bounds(self.partition)
            .map_or(index.next_offset, |bounds| bounds.next);
        sequencer.ended(is_stored, next, &mut index);
        let last = index.last_global;
        drop((index, sequencer));
        self.visible
            .send_modify(|visible| (visible.last, visible.change) = (last, visible.change + 1));
        self.ended.notify_waiters();
    }

    /// Where messages are that were appended before, if they are those of this append; the first that is not is told.
    async fn known(&self, appends: &[Append<'_>]) -> Result<Option<Vec<Appended>>> {
        let mut places = Vec::with_capacity(appends.len());
        let (mut all, mut conflict) = (true, None);
        for append in appends {
            let mut first: Option<(u64, u64)> = None;
            for (event, n) in append.events.iter().zip(0..) {
                let offset = event.id.as_ref().and_then(|id| self.index.read().id(id));
                let Some(offset) = offset else {
                    all = false;
                    continue;
                };
                let found = fetch(&self.log, self.in_memory, self.partition, vec![offset]).await?;
                let Some(found) = found.first().map(Stored::event) else {
                    return Ok(None);
                };
                let (position, global) = *first.get_or_insert((found.position, found.global));
                let same = found.stream == append.stream
                    && (found.kind, found.data, found.metadata) == (event.kind, event.data, event.metadata)
                    && (found.position, found.global) == (position + n, global + n);
                if !same {
                    all = false;
                }
                conflict.get_or_insert_with(|| EventsError::IdConflict {
                    id: MessageId::from(found.id).to_string(),
                    stream: found.stream.to_owned(),
                    position: found.position,
                });
            }
            let (first_position, first_global) = first.unwrap_or_default();
            places.push(Appended {
                count: append.events.len() as u64,
                first_position,
                first_global,
                duplicate: true,
            });
        }
        match conflict {
            Some(conflict) if !all => Err(conflict),
            Some(_) => Ok(Some(places)),
            // They are gone by now.
            None => Ok(None),
        }
    }

    async fn page_of_stream(&self, read: StreamRead<'_>) -> Result<Page> {
        let types: Vec<u32> = read.types.iter().map(|kind| hash(kind)).collect();
        let wanted = |message: &InStream| {
            (types.is_empty() || types.contains(&message.kind))
                && match (read.from, read.direction) {
                    (Some(From::Global(from)), Direction::Forward) => message.global >= from,
                    (Some(From::Global(from)), Direction::Backward) => message.global <= from,
                    _ => true,
                }
        };
        let mut from = match read.from {
            Some(From::Position(position)) => Some(position),
            _ => None,
        };
        let mut page = Page::default();
        loop {
            let max = (read.max - page.events.len()).min(PAGE);
            let found = self.index.read().stream(read.stream, from, read.direction, wanted, max);
            let offsets = found.iter().map(|message| message.offset).collect();
            let events = fetch(&self.log, self.in_memory, self.partition, offsets).await?;
            let last = events.len().checked_sub(1).and_then(|last| found.get(last));
            page.next = last.and_then(|last| after(last.position, read.direction));
            // A page that is shorter than what was found was cut by its bytes.
            let over = found.len() < max && events.len() == found.len();
            let cut = events.len() < found.len();
            let of_type =
                |stored: &Stored| read.types.is_empty() || read.types.iter().any(|kind| kind == stored.event().kind);
            page.events.extend(events.into_iter().filter(of_type));
            if over || page.next.is_none() {
                page.next = None;
                return Ok(page);
            }
            if cut || page.events.len() >= read.max.min(PAGE) {
                return Ok(page);
            }
            from = page.next;
        }
    }

    async fn page_of_category(&self, read: CategoryRead<'_>) -> Result<Page> {
        let types: Vec<u32> = read.types.iter().map(|kind| hash(kind)).collect();
        let correlated = read.correlation.map(hash);
        let wanted = |message: &InCategory| {
            (types.is_empty() || types.contains(&message.kind))
                && correlated.is_none_or(|correlation| message.correlation == correlation)
                && read
                    .member
                    .is_none_or(|member| message.group.is_some_and(|group| member.owns_hash(group)))
        };
        let mut from = read.from;
        let mut page = Page::default();
        loop {
            let max = (read.max - page.events.len()).min(PAGE);
            let found = self
                .index
                .read()
                .category(read.category, from, read.direction, wanted, max);
            let Some(found) = found else {
                self.index.write().sort();
                continue;
            };
            let offsets = found.iter().map(|message| message.offset).collect();
            let events = fetch(&self.log, self.in_memory, self.partition, offsets).await?;
            let last = events.len().checked_sub(1).and_then(|last| found.get(last));
            page.next = last.and_then(|last| after(last.global, read.direction));
            let over = found.len() < max && events.len() == found.len();
            let cut = events.len() < found.len();
            let passes = |stored: &Stored| {
                let event = stored.event();
                (read.types.is_empty() || read.types.iter().any(|kind| kind == event.kind))
                    && read
                        .correlation
                        .is_none_or(|wanted| correlation(event.metadata).is_some_and(|found| found == wanted))
            };
            page.events.extend(events.into_iter().filter(passes));
            if over || page.next.is_none() {
                page.next = None;
                return Ok(page);
            }
            if cut || page.events.len() >= read.max.min(PAGE) {
                return Ok(page);
            }
            from = page.next;
        }
    }

    async fn stored_at(&self, offset: Option<Offset>) -> Result<Option<Stored>> {
        let Some(offset) = offset else { return Ok(None) };
        Ok(fetch(&self.log, self.in_memory, self.partition, vec![offset])
            .await?
            .pop())
    }
}

/// Where to go on behind a place; `None` before the first.
fn after(place: u64, direction: Direction) -> Option<u64> {
    match direction {
        Direction::Forward => Some(place + 1),
        Direction::Backward => place.checked_sub(1),
    }
}

fn given_ids<'a>(appends: &'a [Append<'_>]) -> impl Iterator<Item = &'a MessageId> {
    appends
        .iter()
        .flat_map(|append| append.events.iter().filter_map(|event| event.id.as_ref()))
}

fn bytes_of(appends: &[Append<'_>]) -> usize {
    let of = |append: &Append<'_>| -> usize {
        let events = append.events.iter();
        events
            .map(|event| append.stream.len() + event.kind.len() + event.data.len() + event.metadata.map_or(0, str::len))
            .sum()
    };
    appends.iter().map(of).sum()
}

fn within_limits(appends: &[Append<'_>]) -> Result<()> {
    if appends.len() > APPEND_STREAMS_MAX {
        return Err(EventsError::TooLarge("1000 streams"));
    }
    if appends.iter().map(|append| append.events.len()).sum::<usize>() > APPEND_MESSAGES_MAX {
        return Err(EventsError::TooLarge("10000 messages"));
    }
    if bytes_of(appends) > APPEND_BYTES_MAX {
        return Err(EventsError::TooLarge("24 MiB"));
    }
    let mut ids = HashSet::new();
    for append in appends {
        for (event, n) in append.events.iter().zip(0..) {
            if let Some(id) = &event.id
                && !ids.insert(id)
            {
                return Err(EventsError::IdConflict {
                    id: id.to_string(),
                    stream: append.stream.to_owned(),
                    position: n,
                });
            }
        }
    }
    Ok(())
}

/// On its way to the log. If nobody waits for it any more, it is brought to its end all the same.
pub(super) struct Submitted {
    /// `None` once its end is known.
    namespace: Option<Arc<EmbeddedNamespace>>,
    stored: Pin<Box<dyn Future<Output = std::result::Result<(), LogError>> + Send>>,
}

impl Submitted {
    /// Hands it to the log. Its answer, if that is known at once.
    fn begin(&mut self) -> Option<std::result::Result<(), LogError>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match self.stored.as_mut().poll(&mut context) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }
}

impl Future for Submitted {
    type Output = std::result::Result<(), LogError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.stored.as_mut().poll(context);
        if let Poll::Ready(answer) = &polled
            && let Some(namespace) = self.namespace.take()
        {
            namespace.ended(answer.is_ok());
        }
        polled
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if let Some(namespace) = self.namespace.take() {
            let stored = std::mem::replace(&mut self.stored, Box::pin(std::future::ready(Ok(()))));
            // Where no runtime is left, the process ends.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { namespace.ended(stored.await.is_ok()) });
            }
        }
    }
}

pub(crate) fn not_yet<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(EventsError::Unavailable("not yet".to_owned()))))
}

impl Namespace for Arc<EmbeddedNamespace> {
    fn name(&self) -> &str {
        &self.about.name
    }

    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<Appended>>> {
        Box::pin(self.append_all(appends))
    }

    fn import<'a>(&'a self, batch: &'a [Import]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.import_batch(batch))
    }

    fn clear(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.remove_all())
    }

    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>> {
        Box::pin(std::future::ready(Ok(self.index.read().version(stream))))
    }

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(self.page_of_stream(read))
    }

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(self.page_of_category(read))
    }

    fn last<'a>(&'a self, stream: &'a str, kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            let types: Vec<String> = kind.map(str::to_owned).into_iter().collect();
            let read = StreamRead {
                stream,
                from: None,
                direction: Direction::Backward,
                max: 1,
                types: &types,
            };
            Ok(self.page_of_stream(read).await?.events.pop())
        })
    }

    fn by_id<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<Stored>>> {
        let offset = self.index.read().id(id);
        Box::pin(self.stored_at(offset))
    }

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>> {
        let (messages, streams, last_activity) = self.index.read().counts();
        let about = self.about.clone();
        Box::pin(std::future::ready(Ok(NamespaceInfo {
            name: about.name,
            description: about.description,
            metadata: about.metadata,
            created_at: about.created_at,
            messages,
            streams,
            last_activity,
        })))
    }

    fn streams<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>> {
        let found = self.index.read().streams(prefix, cursor, max);
        Box::pin(std::future::ready(Ok(found)))
    }

    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>> {
        let found = self.index.read().categories();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn delete_stream<'a>(&'a self, _: &'a str, _: Expected, _: bool) -> BoxFuture<'a, Result<()>> {
        not_yet()
    }

    fn set_retention<'a>(&'a self, _: RetentionOf<'a>, _: Option<Retention>) -> BoxFuture<'a, Result<()>> {
        not_yet()
    }

    fn retention<'a>(&'a self, _: RetentionOf<'a>) -> BoxFuture<'a, Result<Option<Retention>>> {
        not_yet()
    }

    fn document<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        not_yet()
    }

    fn put_document<'a>(&'a self, _: &'a str, _: Option<&'a [u8]>, _: u64) -> BoxFuture<'a, Result<Option<u64>>> {
        not_yet()
    }

    fn documents<'a>(&'a self, _: &'a str, _: &'a str, _: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        not_yet()
    }

    fn watch(&self) -> watch::Receiver<Visible> {
        self.visible.subscribe()
    }
}
