//! What is asked of an event store, whatever it keeps its messages in.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_log::Micros;
use thalweg_log::clock::Clock;
use tokio::sync::watch;

use crate::error::{EventsError, Result};
use crate::event::StoredEvent;
use crate::id::MessageId;
use crate::names::GroupMember;
use crate::token::{Token, TokenDigest};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Messages of one append, streams of one append, and bytes of both.
/// Of a message in its stream, and of all messages. Larger numbers are not exact with many clients.
pub const POSITION_MAX: u64 = (1 << 53) - 1;
pub const APPEND_MESSAGES_MAX: usize = 10_000;
pub const APPEND_STREAMS_MAX: usize = 1000;
pub const APPEND_BYTES_MAX: usize = 24 << 20;

/// Which version a stream must have for an append to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedVersion {
    #[default]
    Any,
    /// -1 for no message yet; less is never so.
    Version(i64),
    Exists,
    NoStream,
}

impl ExpectedVersion {
    /// `version` is -1 for a stream without messages.
    pub fn allows(self, version: i64) -> bool {
        match self {
            ExpectedVersion::Any => true,
            ExpectedVersion::Version(expected) => version == expected,
            ExpectedVersion::Exists => version >= 0,
            ExpectedVersion::NoStream => version < 0,
        }
    }
}

impl fmt::Display for ExpectedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedVersion::Any => f.write_str("any"),
            ExpectedVersion::Version(version) => version.fmt(f),
            ExpectedVersion::Exists => f.write_str("exists"),
            ExpectedVersion::NoStream => f.write_str("noStream"),
        }
    }
}

/// A message to be appended.
#[derive(Clone, Debug)]
pub struct NewEvent<'a> {
    /// The server makes one if there is none.
    pub id: Option<MessageId>,
    pub kind: &'a str,
    /// JSON, without white space between its parts, as is the metadata.
    pub data: &'a str,
    pub metadata: Option<&'a str>,
}

/// Messages for one stream.
#[derive(Clone, Debug)]
pub struct Append<'a> {
    pub stream: &'a str,
    pub expected: ExpectedVersion,
    pub events: Vec<NewEvent<'a>>,
}

/// A message that has its place already.
#[derive(Clone, Debug)]
pub struct ImportRecord {
    /// The server makes one if there is none.
    pub id: Option<MessageId>,
    pub stream: String,
    pub kind: String,
    pub position: u64,
    pub global: u64,
    /// JSON, without white space between its parts, as is the metadata.
    pub data: String,
    pub metadata: Option<String>,
    pub time: Micros,
}

/// Where the messages of an [`Append`] are: one behind the other, in their stream and in the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendOutcome {
    pub count: u64,
    pub first_position: u64,
    pub first_global: u64,
    /// They were there already.
    pub duplicate: bool,
}

impl AppendOutcome {
    pub fn last_position(&self) -> u64 {
        (self.first_position + self.count).saturating_sub(1)
    }

    pub fn last_global(&self) -> u64 {
        (self.first_global + self.count).saturating_sub(1)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    #[default]
    Forward,
    Backward,
}

/// A part of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamRead<'a> {
    pub stream: &'a str,
    /// Inclusive; `None`: the start, or the end for going backward.
    pub from: Option<StreamPosition>,
    pub direction: Direction,
    /// Messages.
    pub max: usize,
    /// Only these types, if any is named.
    pub types: &'a [String],
}

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPosition {
    Position(u64),
    Global(u64),
}

/// A part of a category, or of a whole namespace.
#[derive(Clone, Copy, Debug)]
pub struct CategoryRead<'a> {
    /// `None`: the whole namespace.
    pub category: Option<&'a str>,
    /// Global position, inclusive; `None`: the start, or the end for going backward.
    pub from: Option<u64>,
    pub direction: Direction,
    /// Messages that pass all filters.
    pub max: usize,
    /// The category of `correlationStreamName` in the metadata.
    pub correlation: Option<&'a str>,
    pub member: Option<GroupMember>,
    pub types: &'a [String],
}

/// What was read, and where to go on.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub events: Vec<StoredEvent>,
    /// Where the next page begins, for a category a global position; `None`: this was the last.
    pub next: Option<u64>,
}

/// Places whose messages were there and are not any more, both inclusive: positions of a stream, else global positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

/// A page, and what is missing from the part that it was read from.
#[derive(Clone, Debug, Default)]
pub struct PageWithGaps {
    pub page: Page,
    /// In order. Of a category, other categories' messages may lie within one.
    pub gaps: Vec<Gap>,
    /// All places before it were looked at: whoever reads on from there is told of each gap once, and misses none. `None`:
    /// this store knows of no gaps.
    pub looked: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    pub name: String,
    pub description: String,
    /// JSON, an object.
    pub metadata: Option<String>,
    pub created_at: Micros,
    pub messages: u64,
    pub streams: u64,
    pub last_activity: Option<Micros>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    pub stream: String,
    pub version: u64,
    pub last_activity: Micros,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CategoryInfo {
    pub category: String,
    pub messages: u64,
    pub streams: u64,
}

/// One namespace: its messages, in streams, and in one order over all of them.
pub trait Namespace: Send + Sync + 'static {
    fn name(&self) -> &str;

    /// Counts times that pass: of leases, and of what is kept for so long. All servers of one store have the same.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Stores all of it or nothing; each stream comes once. When it returns the messages are as durable as the store
    /// promises, and every read has them.
    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>>;

    /// Stores messages in the places that they say, all of them or none. Durable when it returns, as with `append`.
    fn import<'a>(&'a self, batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>>;

    /// Removes all messages, but no document; the next has the first global position. Durable when it returns.
    fn clear(&self) -> BoxFuture<'_, Result<()>>;

    /// Of the last message that was ever stored in it, hidden or not; -1 if there was none, or the stream is deleted for good.
    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>>;

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>>;

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>>;

    /// Of messages that were read from it, the global positions of those that a read would still show. One question, however
    /// many they are, where that matters.
    fn still_shown<'a>(&'a self, messages: &'a [StoredEvent]) -> BoxFuture<'a, Result<HashSet<u64>>> {
        Box::pin(async move {
            let mut shown = HashSet::with_capacity(messages.len());
            for stored in messages {
                let global = stored.event().global;
                let read = CategoryRead {
                    category: None,
                    from: Some(global),
                    direction: Direction::Forward,
                    max: 1,
                    types: &[],
                    correlation: None,
                    member: None,
                };
                let page = self.read_category(read).await?;
                shown.extend(
                    page.events
                        .first()
                        .map(|found| found.event().global)
                        .filter(|found| *found == global),
                );
            }
            Ok(shown)
        })
    }

    /// As `read_stream`, forward, with what retention, deletion or a recovery that skipped damage has taken from the part that
    /// was read. Where a namespace was imported into, what no rule explains counts as left out by the import. A store
    /// that does not know tells of no gap.
    fn read_stream_with_gaps<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        Box::pin(async move { Ok(self.read_stream(read).await?.into()) })
    }

    /// The same for `read_category`. Messages of other categories are no gap; where messages are gone of which nobody knows
    /// any more whose they were, they count for each category that a rule hides something of.
    fn read_category_with_gaps<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        Box::pin(async move { Ok(self.read_category(read).await?.into()) })
    }

    /// Whether messages of a category may go before they are read, although the store is whole.
    fn may_lose(&self, _category: &str) -> bool {
        false
    }

    /// The newest message, of a type if one is named.
    fn last<'a>(&'a self, stream: &'a str, kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<StoredEvent>>>;

    fn by_id<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<StoredEvent>>>;

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>>;

    /// In byte order, those with the prefix and behind the cursor.
    fn streams<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>>;

    /// In byte order.
    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>>;

    /// Hides all messages of a stream, whose next message follows the last one all the same. `tombstone`: no message is ever
    /// stored in it again. Durable when it returns.
    fn delete_stream<'a>(
        &'a self,
        stream: &'a str,
        expected: ExpectedVersion,
        tombstone: bool,
    ) -> BoxFuture<'a, Result<()>>;

    /// `None`: all is kept. Durable when it returns; from then on every read and count obeys it.
    fn set_retention<'a>(&'a self, of: RetentionTarget<'a>, rule: Option<Retention>) -> BoxFuture<'a, Result<()>>;

    fn retention<'a>(&'a self, of: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>>;

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>>;

    /// Stores a document, or with `None` removes it, if its revision is the expected one: 0 where there is none. Durable when
    /// it returns; returns the new revision, or `None` if somebody was faster.
    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>>;

    /// Names of documents in byte order, those with the prefix and behind the cursor.
    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>>;

    /// What can be read; ends when the namespace is deleted.
    fn watch(&self) -> watch::Receiver<NamespaceWatermark>;
}

impl std::convert::From<Page> for PageWithGaps {
    fn from(page: Page) -> PageWithGaps {
        PageWithGaps {
            page,
            ..PageWithGaps::default()
        }
    }
}

/// Something small that a namespace keeps beside its messages: a snapshot, how far a subscription is. Its name says whose it
/// is: `snapshot/order-42`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub content: Bytes,
    /// From 1, and larger with each change of this document.
    pub revision: u64,
}

/// Bytes of a document, and of its name.
pub const DOCUMENT_BYTES_MAX: usize = 24 << 20;
pub const DOCUMENT_NAME_BYTES_MAX: usize = 1100;

/// How far a namespace can be read. Every change of it is told, also one that leaves the last position where it is, as when a
/// message is imported below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceWatermark {
    /// The last global position, 0 at first.
    pub last: u64,
    /// Larger with each change.
    pub change: u64,
    /// Larger each time that all messages were removed, after which positions begin anew; 0 if they never were. The same
    /// after a restart.
    pub cleared: u64,
    /// The newest change that was something else than an append. What was read at it or later, and is not too old for a rule by
    /// now, is still shown.
    pub hidden_at: u64,
}

impl NamespaceWatermark {
    /// What comes next. Where changes were missed, one of them may have hidden something.
    pub fn then(self, last: u64, change: u64, cleared: u64) -> NamespaceWatermark {
        let is_append = change == self.change + 1 && last > self.last && cleared == self.cleared;
        NamespaceWatermark {
            last,
            change,
            cleared,
            hidden_at: if is_append { self.hidden_at } else { change },
        }
    }
}

/// Which messages of a stream can be read. What several parts of it would hide is hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Retention {
    /// Those that are older are hidden, in microseconds.
    pub max_age: Option<Micros>,
    /// The newest ones.
    pub max_count: Option<u64>,
    /// Those from this position on.
    pub truncate_before: Option<u64>,
}

/// What a rule is of. That of a stream stands in place of its category's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionTarget<'a> {
    Stream(&'a str),
    /// Of each stream of the category.
    Category(&'a str),
}

/// A namespace to be made.
#[derive(Clone, Debug)]
pub struct NewNamespace {
    pub name: String,
    pub description: String,
    /// JSON, an object.
    pub metadata: Option<String>,
    /// That of its first token.
    pub digest: TokenDigest,
    pub scopes: Scopes,
}

/// What a token allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Scopes {
    pub read: bool,
    pub write: bool,
    pub admin: bool,
}

impl Scopes {
    pub const ALL: Scopes = Scopes {
        read: true,
        write: true,
        admin: true,
    };
    pub const READ_WRITE: Scopes = Scopes {
        admin: false,
        ..Scopes::ALL
    };
}

/// What a client gets with a valid token.
#[derive(Clone)]
pub struct Grant {
    pub namespace: Arc<dyn Namespace>,
    pub scopes: Scopes,
    pub expires_at: Option<Micros>,
    /// Ends when the token is revoked, or its namespace deleted.
    pub valid: watch::Receiver<()>,
}

/// Whether writes are taken, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy,
    ReadOnly(String),
}

/// All namespaces of a server.
pub trait Store: Send + Sync + 'static {
    /// `log`, `postgres` or `memory`.
    fn backend(&self) -> &'static str;

    /// Of an answered write.
    fn durability(&self) -> &'static str;

    fn health(&self) -> Health;

    /// Durable when it returns.
    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>>;

    /// It goes with all its messages, whose number is returned; durable when it returns.
    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>>;

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>>;

    /// In no order.
    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>>;

    /// What the token allows; `None` if it is not valid. Takes as long whatever is wrong with it.
    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>>;

    /// Has one more token valid from now on, or, if its digest is known already, with these scopes. Durable when it returns.
    fn create_token<'a>(&'a self, namespace: &'a str, token: NewToken) -> BoxFuture<'a, Result<TokenInfo>>;

    /// The valid ones of a namespace, oldest first.
    fn tokens<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>>;

    /// From when it returns nothing is granted for the token. `false` if there is none with this id.
    fn revoke_token<'a>(&'a self, namespace: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Frees the space of what no reader sees any more.
    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>>;

    /// The same, and returns when the bytes of what is hidden, deleted or was scavenged before are in no file of the store any
    /// more. Takes as long as to write all that is stored anew.
    fn erase(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        let what = "this store cannot tell when bytes leave the disk".to_owned();
        Box::pin(std::future::ready(Err(EventsError::Unsupported(what))))
    }

    /// Reads everything and compares it with what its indexes and checksums say.
    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>>;

    /// What indexes take, and how long the start took; `None` for a store that has no indexes of its own. Cheap.
    fn figures(&self) -> Option<StoreStats> {
        None
    }

    /// Everything as of one instant, which has all that was acknowledged before it was asked for, as the bytes of a backup.
    /// Writers go on; what is cleared, deleted or scavenged meanwhile stays in the backup, and its space is freed when that
    /// has ended.
    fn backup(&self) -> BoxFuture<'_, Result<Box<dyn BackupPieces>>> {
        let what = format!("A store of kind {} has no backup of its own", self.backend());
        Box::pin(std::future::ready(Err(EventsError::Unsupported(what))))
    }
}

/// A backup on its way out, made as it is asked for. Dropped before its end, it is none.
pub trait BackupPieces: Send {
    /// The next bytes, some hundred KiB, or a little more than the largest record; `None` behind the end. What cannot be
    /// read is said in the bytes before it is returned as an error.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>>>;
}

/// What is told of the inside of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreStats {
    /// Bytes of indexes in files and in memory.
    pub index_file_bytes: u64,
    pub index_memory_bytes: u64,
    /// Of rules of retention and deletions of streams.
    pub rule_bytes: u64,
    /// Of what is known of namespaces and their tokens.
    pub namespace_bytes: u64,
    pub index_tables: u64,
    /// Bytes of the log that are in no table of the indexes: a start reads them.
    pub index_behind_bytes: u64,
    /// From when the store was asked to open until it could be used; without the recovery of the log.
    pub recovery: std::time::Duration,
    /// Bytes of the log that were indexed meanwhile.
    pub recovered_bytes: u64,
}

/// A token to be made valid.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub digest: TokenDigest,
    pub scopes: Scopes,
    pub description: String,
    pub expires_at: Option<Micros>,
}

/// What is told of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// By which it is revoked; says nothing of its text.
    pub id: String,
    pub scopes: Scopes,
    pub description: String,
    pub created_at: Micros,
    pub expires_at: Option<Micros>,
}

/// What was freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScavengeReport {
    pub messages: u64,
    pub bytes: u64,
}

/// What was found when everything was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    pub messages: u64,
    pub bytes: u64,
    /// The first of each kind in each namespace.
    pub faults: Vec<Fault>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub namespace: String,
    /// Of the log, or the global position where there is none.
    pub offset: u64,
    pub what: String,
}
