//! Reads messages by stream, by category and by id.

use std::collections::HashSet;
use std::sync::Arc;

use thalweg_log::{Micros, Offset};

use super::gaps::GapCollector;
use super::index::{IndexReadError, IndexReadResult, IndexRow, Io, ListId, ListKind, NO_GROUP, short_hash};
use super::namespace::EmbeddedNamespace;
use super::visibility::VisibilityFilter;
use crate::error::Result;
use crate::event::{EventRef, StoredEvent};
use crate::id::MessageId;
use crate::limits::{PAGE_BYTES_MAX, PAGE_MESSAGES_MAX};
use crate::names::{self, GroupMember};
use crate::store::{CategoryRead, Direction, Page, PageWithGaps, StreamPosition, StreamRead};

/// After this number of skipped rows, the read continues on a blocking thread.
pub(super) const PASSED_MAX: usize = 4096;

/// The parameters of a page.
pub(super) struct PageQuery {
    pub of: ListId,
    from: Option<u64>,
    direction: Direction,
    max: usize,
    types: Vec<String>,
    /// The hashes of `types`.
    kinds: Vec<u16>,
    /// For a stream: the lowest global position, or the highest when reading backward.
    global: Option<u64>,
    correlation: Option<String>,
    member: Option<GroupMember>,
}

impl PageQuery {
    fn types(types: &[String]) -> (Vec<String>, Vec<u16>) {
        (types.to_vec(), types.iter().map(|kind| short_hash(kind)).collect())
    }

    fn of_stream(read: StreamRead<'_>) -> PageQuery {
        let (types, kinds) = PageQuery::types(read.types);
        let (from, global) = match read.from {
            Some(StreamPosition::Position(position)) => (Some(position), None),
            Some(StreamPosition::Global(global)) => (None, Some(global)),
            None => (None, None),
        };
        PageQuery {
            of: ListId::Of(ListKind::Stream, read.stream.to_owned()),
            from,
            direction: read.direction,
            max: read.max.min(PAGE_MESSAGES_MAX),
            types,
            kinds,
            global,
            correlation: None,
            member: None,
        }
    }

    pub fn of_category(read: CategoryRead<'_>) -> PageQuery {
        let (types, kinds) = PageQuery::types(read.types);
        PageQuery {
            of: match read.category {
                Some(category) => ListId::Of(ListKind::Category, category.to_owned()),
                None => ListId::All,
            },
            from: read.from,
            direction: read.direction,
            max: read.max.min(PAGE_MESSAGES_MAX),
            types,
            kinds,
            global: None,
            correlation: read.correlation.map(str::to_owned),
            member: read.member,
        }
    }

    /// The row is before the requested global position. Imports can mix such rows with the others.
    fn is_before(&self, row: &IndexRow) -> bool {
        self.global.is_some_and(|global| row.global < global)
    }

    /// Whether the row can match, as far as it has the data.
    fn may_be(&self, row: &IndexRow) -> bool {
        if let Some(global) = self.global {
            let before = match self.direction {
                Direction::Forward => row.global < global,
                Direction::Backward => row.global > global,
            };
            if before {
                return false;
            }
        }
        // Rows of the list of all messages have no other fields.
        if matches!(self.of, ListId::All) {
            return true;
        }
        (self.kinds.is_empty() || self.kinds.contains(&row.kind))
            && self
                .correlation
                .as_ref()
                .is_none_or(|correlation| row.correlation == short_hash(correlation))
            && self
                .member
                .is_none_or(|member| row.group != NO_GROUP && member.owns_hash(row.group))
    }

    fn is(&self, event: &EventRef<'_>) -> bool {
        // Names can have the same hash.
        let is_of = match &self.of {
            ListId::Of(ListKind::Stream, name) => event.stream == name,
            ListId::Of(ListKind::Category, name) => names::category(event.stream) == name,
            ListId::All => self.member.is_none_or(|member| member.owns(event.stream)),
        };
        is_of
            && (self.types.is_empty() || self.types.iter().any(|kind| kind == event.kind))
            && self
                .correlation
                .as_ref()
                .is_none_or(|wanted| names::correlation(event.metadata).is_some_and(|found| found == *wanted))
    }
}

impl EmbeddedNamespace {
    pub(super) async fn page_of_stream(self: &Arc<Self>, read: StreamRead<'_>) -> Result<Page> {
        let wanted = PageQuery::of_stream(read);
        self.ask(move |namespace, io| namespace.page(&wanted, io, &mut None))
            .await
    }

    pub(super) async fn page_of_category(self: &Arc<Self>, read: CategoryRead<'_>) -> Result<Page> {
        let wanted = PageQuery::of_category(read);
        self.ask(move |namespace, io| namespace.page(&wanted, io, &mut None))
            .await
    }

    pub(super) async fn stream_with_gaps(self: &Arc<Self>, read: StreamRead<'_>) -> Result<PageWithGaps> {
        let direction = Direction::Forward;
        self.with_gaps(PageQuery::of_stream(StreamRead { direction, ..read }))
            .await
    }

    pub(super) async fn category_with_gaps(self: &Arc<Self>, read: CategoryRead<'_>) -> Result<PageWithGaps> {
        let direction = Direction::Forward;
        self.with_gaps(PageQuery::of_category(CategoryRead { direction, ..read }))
            .await
    }

    async fn with_gaps(self: &Arc<Self>, wanted: PageQuery) -> Result<PageWithGaps> {
        self.ask(move |namespace, io| {
            let mut passed = Some(GapCollector::new(namespace, &wanted.of));
            let page = namespace.page(&wanted, io, &mut passed)?;
            let passed = passed.unwrap_or_default();
            passed.told_with(namespace, page, io)
        })
        .await
    }

    /// `gaps` collects what is skipped, if requested.
    pub(super) fn page(&self, wanted: &PageQuery, io: Io, gaps: &mut Option<GapCollector>) -> IndexReadResult<Page> {
        let mut page = Page::default();
        if wanted.max == 0 {
            return Ok(page);
        }
        let mut hidden = self.hidden();
        let (from, expected) = self.start(wanted, &mut hidden, io)?;
        if let Some(gaps) = gaps {
            gaps.begin(expected.unwrap_or(0));
        }
        let mut reading = self.reading(io);
        let (mut bytes, mut passed) = (0, 0);
        self.walk(&wanted.of, from, wanted.direction, io, &mut |row| {
            let is_full = page.events.len() >= wanted.max || bytes > PAGE_BYTES_MAX;
            if is_full || gaps.as_ref().is_some_and(GapCollector::is_full) {
                page.next = Some(row.ordinal);
                return Ok(false);
            }
            if let Some(gaps) = gaps {
                gaps.row(row.ordinal);
            }
            passed += 1;
            if passed > PASSED_MAX && io == Io::MemoryOnly {
                return Err(IndexReadError::OnDisk);
            }
            if !wanted.may_be(&row) {
                if let Some(gaps) = gaps.as_mut().filter(|_| wanted.is_before(&row)) {
                    gaps.forget();
                }
                return Ok(true);
            }
            // Lost or just scavenged messages are skipped.
            let stored = reading.message(row.offset)?;
            let found = stored.as_ref().map(StoredEvent::event);
            let is_gone = match &found {
                Some(event) if !wanted.is(event) => return Ok(true),
                Some(event) => hidden.hides(self, event, io)?,
                None => true,
            };
            match stored {
                Some(stored) if !is_gone => {
                    if let Some(gaps) = gaps {
                        gaps.shown();
                    }
                    bytes += stored.bytes();
                    page.events.push(stored);
                }
                _ => {
                    if let Some(gaps) = gaps {
                        gaps.gone(row.ordinal);
                    }
                }
            }
            Ok(true)
        })?;
        Ok(page)
    }

    /// Where the page starts after skipping the hidden part of a stream and what is globally before, and where it would
    /// start with nothing hidden.
    fn start(
        &self,
        wanted: &PageQuery,
        hidden: &mut VisibilityFilter,
        io: Io,
    ) -> IndexReadResult<(Option<u64>, Option<u64>)> {
        let (ListId::Of(ListKind::Stream, stream), Direction::Forward) = (&wanted.of, wanted.direction) else {
            return Ok((wanted.from, wanted.from));
        };
        let floor = hidden.floor(self, stream, io)?;
        let from = match wanted.global {
            Some(global) => Some(self.first_after(stream, global, io)?),
            None => wanted.from,
        };
        Ok((from.max(Some(floor).filter(|floor| *floor > 0)), from))
    }

    /// The position from which a stream's messages are at or after a global position. Both increase together, which
    /// allows a binary search, unless an import has mixed them; then the search returns 0.
    fn first_after(&self, stream: &str, global: u64, io: Io) -> IndexReadResult<u64> {
        let version = self.version_stored(stream, io)?;
        let mixed = self.index.read().state.has_imports;
        if mixed || version < 0 {
            return Ok(0);
        }
        let list = ListId::Of(ListKind::Stream, stream.to_owned());
        let (mut low, mut high) = (0, version as u64 + 1);
        while low < high {
            let middle = low.midpoint(high);
            let mut found = None;
            self.walk(&list, Some(middle), Direction::Forward, io, &mut |row| {
                found = Some(row);
                Ok(false)
            })?;
            match found {
                Some(row) if row.global < global => low = row.ordinal + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The global positions of those messages that are neither hidden nor gone.
    pub(super) async fn shown_of(self: &Arc<Self>, messages: &[StoredEvent]) -> Result<HashSet<u64>> {
        let asked = self.ask_owned(messages.to_vec(), |namespace, messages, io| {
            let (mut hidden, mut shown) = (namespace.hidden(), HashSet::with_capacity(messages.len()));
            for stored in messages {
                let event = stored.event();
                if namespace.has_row(&ListId::All, event.global, io)? && !hidden.hides(namespace, &event, io)? {
                    shown.insert(event.global);
                }
            }
            Ok(shown)
        });
        Ok(asked.await?.0)
    }

    pub(super) async fn message_with_id(self: &Arc<Self>, id: &MessageId) -> Result<Option<StoredEvent>> {
        let id = id.clone();
        self.ask(move |namespace, io| namespace.stored_with_id(&id, io)).await
    }

    /// Finds a message that is not hidden.
    pub(super) fn stored_with_id(&self, id: &MessageId, io: Io) -> IndexReadResult<Option<StoredEvent>> {
        let (mut offsets, cleared_at, view) = {
            let index = self.index.read();
            let view = index.view();
            (index.id_here(&view, id), index.state.cleared_at, view)
        };
        offsets.extend(view.id_in_tables(id, io)?);
        let (mut reading, mut hidden) = (self.reading(io), self.hidden());
        for offset in offsets
            .into_iter()
            .filter(|offset| *offset >= cleared_at && !self.is_marked(*offset))
        {
            let found = reading.message(offset)?;
            let found = found.filter(|found| MessageId::from(found.event().id) == *id);
            if let Some(found) = found
                && !hidden.hides(self, &found.event(), io)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub(super) async fn version_of(self: &Arc<Self>, stream: &str) -> Result<i64> {
        if self.rules().is_tombstoned(stream) {
            return Ok(-1);
        }
        let stream = stream.to_owned();
        self.ask(move |namespace, io| namespace.version_stored(&stream, io))
            .await
    }

    /// When a message was stored.
    pub(super) fn time_at(&self, offset: Offset, io: Io) -> IndexReadResult<Option<Micros>> {
        Ok(self.reading(io).record(offset)?.map(|(_, time)| time))
    }
}
