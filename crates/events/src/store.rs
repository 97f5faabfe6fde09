//! The interface of an event store, independent of its backend.

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
use crate::limits::RETENTION_AGE_MAX;
use crate::names::GroupMember;
use crate::token::{Token, TokenDigest};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The version that a stream must have for an append to succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedVersion {
    #[default]
    Any,
    /// -1 for a stream without messages; smaller numbers never match.
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

/// A message to append.
#[derive(Clone, Debug)]
pub struct NewEvent<'a> {
    /// If absent, the server makes one.
    pub id: Option<MessageId>,
    pub kind: &'a str,
    /// JSON without whitespace between tokens, like the metadata.
    pub data: &'a str,
    pub metadata: Option<&'a str>,
}

impl NewEvent<'_> {
    /// The size of type, data and metadata.
    pub fn content_bytes(&self) -> usize {
        self.kind.len() + self.data.len() + self.metadata.map_or(0, str::len)
    }
}

/// Messages for one stream.
#[derive(Clone, Debug)]
pub struct Append<'a> {
    pub stream: &'a str,
    pub expected: ExpectedVersion,
    pub events: Vec<NewEvent<'a>>,
}

/// A message to import with its position.
#[derive(Clone, Debug)]
pub struct ImportRecord {
    /// If absent, the server makes one.
    pub id: Option<MessageId>,
    pub stream: String,
    pub kind: String,
    pub position: u64,
    pub global: u64,
    /// JSON without whitespace between tokens, like the metadata.
    pub data: String,
    pub metadata: Option<String>,
    pub time: Micros,
}

impl ImportRecord {
    /// The size of type, data and metadata.
    pub fn content_bytes(&self) -> usize {
        self.kind.len() + self.data.len() + self.metadata.as_ref().map_or(0, String::len)
    }
}

/// The positions of the messages of an [`Append`], which are consecutive in their stream and in the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendOutcome {
    pub count: u64,
    pub first_position: u64,
    pub first_global: u64,
    /// The messages already existed.
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

/// A range of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamRead<'a> {
    pub stream: &'a str,
    /// Inclusive. `None`: the start, or the end when reading backward.
    pub from: Option<StreamPosition>,
    pub direction: Direction,
    /// Maximum number of messages.
    pub max: usize,
    /// Only these types, if any are given.
    pub types: &'a [String],
}

/// A position in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPosition {
    Position(u64),
    Global(u64),
}

/// A range of a category, or of a whole namespace.
#[derive(Clone, Copy, Debug)]
pub struct CategoryRead<'a> {
    /// `None`: the whole namespace.
    pub category: Option<&'a str>,
    /// Inclusive global position. `None`: the start, or the end when reading backward.
    pub from: Option<u64>,
    pub direction: Direction,
    /// Maximum number of messages that pass all filters.
    pub max: usize,
    /// The category of `correlationStreamName` in the metadata.
    pub correlation: Option<&'a str>,
    pub member: Option<GroupMember>,
    pub types: &'a [String],
}

/// The messages that were read, and where to continue.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub events: Vec<StoredEvent>,
    /// The start of the next page, a global position for a category. `None` on the last page.
    pub next: Option<u64>,
}

/// An inclusive range whose messages existed and are gone: positions for a stream, otherwise global positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

/// A page and the gaps in its range.
#[derive(Clone, Debug, Default)]
pub struct PageWithGaps {
    pub page: Page,
    /// In order. For a category, messages of other categories may lie within a gap.
    pub gaps: Vec<Gap>,
    /// Everything before this position was covered, so that a reader who continues from here gets each gap once and
    /// misses none. `None`: this store does not report gaps.
    pub looked: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    pub name: String,
    pub description: String,
    /// A JSON object.
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

/// A namespace: messages in streams, with one global order.
pub trait Namespace: Send + Sync + 'static {
    fn name(&self) -> &str;

    /// The clock for leases and retention. It is the same on all servers of one store.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Stores everything or nothing; each stream may occur once. On return the messages have the durability of the
    /// store and are included in every read. The rules are those of [`limits`](crate::limits) and
    /// [`admission`](crate::admission).
    fn append<'a>(&'a self, appends: &'a [Append<'a>]) -> BoxFuture<'a, Result<Vec<AppendOutcome>>>;

    /// Stores messages at their given positions, all of them or none. Durable when it returns, and with the same rules,
    /// like `append`.
    fn import<'a>(&'a self, batch: &'a [ImportRecord]) -> BoxFuture<'a, Result<()>>;

    /// Removes all messages but no documents. The next message gets the first global position. Durable when it returns.
    fn clear(&self) -> BoxFuture<'_, Result<()>>;

    /// The version of the last message ever stored in the stream, hidden or not; -1 if there was none, or if the stream
    /// has a tombstone.
    fn version<'a>(&'a self, stream: &'a str) -> BoxFuture<'a, Result<i64>>;

    fn read_stream<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<Page>>;

    fn read_category<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<Page>>;

    /// The global positions of those messages that a read would still return. Stores override it if a single query is
    /// cheaper.
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

    /// Like `read_stream`, forward, with the gaps that retention, deletion or a recovery that skipped damage left in
    /// the range. In a namespace with imports, gaps that no rule explains count as left out by the import. Stores
    /// without this knowledge report no gaps.
    fn read_stream_with_gaps<'a>(&'a self, read: StreamRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        Box::pin(async move { Ok(self.read_stream(read).await?.into()) })
    }

    /// Like `read_stream_with_gaps`, for `read_category`. Messages of other categories are not gaps. Missing messages
    /// of unknown categories count for each category with hidden messages.
    fn read_category_with_gaps<'a>(&'a self, read: CategoryRead<'a>) -> BoxFuture<'a, Result<PageWithGaps>> {
        Box::pin(async move { Ok(self.read_category(read).await?.into()) })
    }

    /// Whether messages of a category can disappear before they are read, without any damage.
    fn may_lose(&self, _category: &str) -> bool {
        false
    }

    /// The newest message, optionally of one type.
    fn last<'a>(&'a self, stream: &'a str, kind: Option<&'a str>) -> BoxFuture<'a, Result<Option<StoredEvent>>>;

    fn by_id<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<StoredEvent>>>;

    fn info(&self) -> BoxFuture<'_, Result<NamespaceInfo>>;

    /// Streams with the prefix, after the cursor, in byte order.
    fn streams<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<StreamInfo>>>;

    /// In byte order.
    fn categories(&self) -> BoxFuture<'_, Result<Vec<CategoryInfo>>>;

    /// Hides all messages of a stream; its next message still follows the last one. `tombstone`: nothing can be stored
    /// in it again. Durable when it returns.
    fn delete_stream<'a>(
        &'a self,
        stream: &'a str,
        expected: ExpectedVersion,
        tombstone: bool,
    ) -> BoxFuture<'a, Result<()>>;

    /// Sets or removes a rule, which becomes [bounded](Retention::bounded). Durable when it returns; from then on every
    /// read and count applies it.
    fn set_retention<'a>(&'a self, of: RetentionTarget<'a>, rule: Option<Retention>) -> BoxFuture<'a, Result<()>>;

    fn retention<'a>(&'a self, of: RetentionTarget<'a>) -> BoxFuture<'a, Result<Option<Retention>>>;

    fn document<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Document>>>;

    /// Stores a document, or removes it with `None`, if its revision is the expected one; 0 means that it does not
    /// exist. Durable when it returns. Returns the new revision, or `None` if the revision did not match.
    fn put_document<'a>(
        &'a self,
        name: &'a str,
        content: Option<&'a [u8]>,
        expected: u64,
    ) -> BoxFuture<'a, Result<Option<u64>>>;

    /// Names of documents with the prefix, after the cursor, in byte order.
    fn documents<'a>(&'a self, prefix: &'a str, cursor: &'a str, max: usize) -> BoxFuture<'a, Result<Vec<String>>>;

    /// A watch on the high watermark. It ends when the namespace is deleted.
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

/// A small value that a namespace keeps beside its messages, such as a snapshot or the state of a subscription. The
/// prefix of its name identifies its kind: `snapshot/order-42`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub content: Bytes,
    /// Starts at 1 and increases with each change of the document.
    pub revision: u64,
}

/// How far a namespace can be read. Every change is published, including those that do not move the last position, such
/// as an import below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceWatermark {
    /// The last global position; 0 if there is none.
    pub last: u64,
    /// Increases with each change.
    pub change: u64,
    /// Increases each time all messages are removed, after which positions start again; 0 if that never happened. It
    /// survives restarts.
    pub cleared: u64,
    /// The newest change that was not an append. Messages that were read at this change or later are still visible,
    /// unless they have become too old for a rule.
    pub hidden_at: u64,
}

impl NamespaceWatermark {
    /// The next watermark. If changes were missed, one of them may have hidden something.
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

/// Which messages of a stream can be read. A message that any of the limits hides is hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Retention {
    /// Maximum age in microseconds.
    pub max_age: Option<Micros>,
    /// Maximum number of messages, the newest ones.
    pub max_count: Option<u64>,
    /// The first visible position.
    pub truncate_before: Option<u64>,
}

impl Retention {
    /// The rule as stores keep it. Larger numbers hide the same messages, but not every store can calculate with them.
    pub fn bounded(self) -> Retention {
        let signed = |number: u64| number.min(i64::MAX.unsigned_abs());
        Retention {
            max_age: self.max_age.map(|age| age.clamp(0, RETENTION_AGE_MAX)),
            max_count: self.max_count.map(signed),
            truncate_before: self.truncate_before.map(signed),
        }
    }
}

/// The target of a rule. A stream's rule replaces that of its category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionTarget<'a> {
    Stream(&'a str),
    /// Each stream of the category.
    Category(&'a str),
}

/// A namespace to create.
#[derive(Clone, Debug)]
pub struct NewNamespace {
    pub name: String,
    pub description: String,
    /// A JSON object.
    pub metadata: Option<String>,
    /// The digest of its first token.
    pub digest: TokenDigest,
    pub scopes: Scopes,
}

impl NewNamespace {
    /// The token that is created with the namespace.
    pub fn first_token(&self) -> NewToken {
        NewToken {
            digest: self.digest,
            scopes: self.scopes,
            description: "Made with the namespace".to_owned(),
            expires_at: None,
        }
    }
}

/// What a token permits.
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

/// The access that a valid token grants.
#[derive(Clone)]
pub struct Grant {
    pub namespace: Arc<dyn Namespace>,
    pub scopes: Scopes,
    pub expires_at: Option<Micros>,
    /// Closes when the token is revoked or its namespace deleted.
    pub valid: watch::Receiver<()>,
}

/// Whether writes are accepted and, if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy,
    ReadOnly(String),
}

/// All namespaces of a server.
pub trait Store: Send + Sync + 'static {
    /// `log`, `postgres` or `memory`.
    fn backend(&self) -> &'static str;

    /// The durability of an acknowledged write.
    fn durability(&self) -> &'static str;

    fn health(&self) -> Health;

    /// Creates a namespace. Durable when it returns.
    fn create(&self, new: NewNamespace) -> BoxFuture<'_, Result<NamespaceInfo>>;

    /// Deletes a namespace with all its messages and returns their number. Durable when it returns.
    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64>>;

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<dyn Namespace>>>;

    /// In no particular order.
    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Arc<dyn Namespace>>>>;

    /// The grant of a token; `None` if it is invalid. The duration does not depend on what is wrong with it.
    fn authorize<'a>(&'a self, token: &'a Token) -> BoxFuture<'a, Result<Option<Grant>>>;

    /// Adds a valid token or, if its digest exists, updates its scopes. Durable when it returns.
    fn create_token<'a>(&'a self, namespace: &'a str, token: NewToken) -> BoxFuture<'a, Result<TokenInfo>>;

    /// The valid tokens of a namespace, oldest first.
    fn tokens<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<TokenInfo>>>;

    /// Revokes a token. On return, its grants have ended. `false` if no token has this id.
    fn revoke_token<'a>(&'a self, namespace: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Frees the space of what no reader can see.
    fn scavenge(&self) -> BoxFuture<'_, Result<ScavengeReport>>;

    /// Scavenges, and returns when the bytes of all hidden, deleted and earlier scavenged records are in no file of the
    /// store. Takes as long as rewriting everything that is stored.
    fn erase(&self) -> BoxFuture<'_, Result<ScavengeReport>> {
        let what = "this store cannot tell when bytes leave the disk".to_owned();
        Box::pin(std::future::ready(Err(EventsError::Unsupported(what))))
    }

    /// Reads everything and verifies it against indexes and checksums.
    fn verify(&self) -> BoxFuture<'_, Result<VerifyReport>>;

    /// Index sizes and the duration of the start; `None` for a store without indexes of its own. Cheap.
    fn figures(&self) -> Option<StoreStats> {
        None
    }

    /// A backup of everything at one instant, including everything that was acknowledged before the call. Writers
    /// continue. Data that is cleared, deleted or scavenged meanwhile stays in the backup, and its space is freed when
    /// the backup has ended.
    fn backup(&self) -> BoxFuture<'_, Result<Box<dyn BackupPieces>>> {
        let what = format!("A store of kind {} has no backup of its own", self.backend());
        Box::pin(std::future::ready(Err(EventsError::Unsupported(what))))
    }
}

/// The bytes of a backup, produced on demand. If dropped before its end, the backup is incomplete.
pub trait BackupPieces: Send {
    /// The next bytes: some hundred KiB, or slightly more than the largest record; `None` after the end. A read error
    /// is first written into the backup and then returned.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>>>;
}

/// Internal metrics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreStats {
    /// Size of the index files and of the index memory.
    pub index_file_bytes: u64,
    pub index_memory_bytes: u64,
    /// Memory of retention rules and deletions of streams.
    pub rule_bytes: u64,
    /// Memory of the attributes and tokens of namespaces.
    pub namespace_bytes: u64,
    pub index_tables: u64,
    /// Size of the log that is in no index table and that a start must read.
    pub index_behind_bytes: u64,
    /// Duration of opening the store, without the recovery of the log.
    pub recovery: std::time::Duration,
    /// Bytes of the log that were indexed during the start.
    pub recovered_bytes: u64,
}

/// A token to add.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub digest: TokenDigest,
    pub scopes: Scopes,
    pub description: String,
    pub expires_at: Option<Micros>,
}

/// Information about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Identifies the token for revocation, without revealing its text.
    pub id: String,
    pub scopes: Scopes,
    pub description: String,
    pub created_at: Micros,
    pub expires_at: Option<Micros>,
}

/// What a scavenge freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScavengeReport {
    pub messages: u64,
    pub bytes: u64,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    pub messages: u64,
    pub bytes: u64,
    /// The first fault in each namespace.
    pub faults: Vec<Fault>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub namespace: String,
    /// The log offset, or the global position in stores without a log.
    pub offset: u64,
    pub what: String,
}
