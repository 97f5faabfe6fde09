//! The contract of [`Store`] and [`Namespace`] as scenarios that every implementation must pass unchanged.
//!
//! 1. Positions of a stream begin at 0, global positions of a namespace at 1. Neither has gaps except those that an
//!    import makes.
//! 2. An append is stored as a whole or not at all, across all of its streams. A refused append uses no positions.
//! 3. Of several writers that expect the same version exactly one succeeds; the others get the current version.
//! 4. An append whose ids already exist, with equal content and in that order, stores nothing and returns the old
//!    positions. Any other reuse of an id is a conflict that names the existing message.
//! 5. Once an append has returned, every read and count includes it.
//! 6. Pages follow each other by [`Page::next`] without gaps or duplicates; only the last page has no `next`.
//! 7. Reading a category returns the messages of its streams in global order, filtered by member, correlation and type.
//! 8. An import keeps its positions, in any order. If a position is taken, the whole batch is refused and the error
//!    names the record.
//! 9. Counts are exact, lists are in byte order, prefixes are literal, cursors are exclusive.
//! 10. Namespaces share nothing, and a namespace that is created again is empty.
//! 11. A token allows what its scopes say until it expires, is revoked, or its namespace is deleted. Its grants end
//!     with it.
//! 12. Hidden messages disappear from all reads and counts at once. Positions are never reused, and a tombstone is
//!     permanent.
//! 13. A document changes only from the expected revision; of several writers one succeeds.
//! 14. A watch is notified of every change and ends with the namespace. After all messages were removed, it reports
//!     that permanently, and a persistent subscription begins at the first new message.
//! 15. All of this survives closing and opening the store, unless it is in memory.
//! 16. What is beyond one of the [limits](crate::limits) is refused with the text of that limit, and nothing of it is
//!     stored.
//!
//! ```ignore
//! let suite = Suite::new(|| Box::pin(async { Arc::new(open_my_store().await) as Arc<dyn Store> }));
//! suite.run().await;
//! ```
//!
//! A suite opens the same storage repeatedly; a store closes when its last `Arc` is dropped. It panics with the rule
//! that was violated. Its parts can be run separately.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a contract that does not hold ends the test"
)]

mod append;
mod import;
mod limits;
mod model;
mod namespaces;
mod read;
mod retention;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::event::StoredEvent;
use crate::store::{
    Append, AppendOutcome, BoxFuture, CategoryRead, Direction, ExpectedVersion, Namespace, NewEvent, NewNamespace,
    Scopes, Store, StreamRead,
};
use crate::token::new_token;

/// Longer than any wait in the suite takes.
const PATIENCE: Duration = Duration::from_secs(20);

type OpenStore = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>;

/// The contract tests for one implementation, on storage that is empty at first.
pub struct Suite {
    open: OpenStore,
    in_memory: bool,
    /// The next unused number for names of namespaces.
    number: AtomicU32,
}

impl Suite {
    /// `open` opens the store of this storage. The store is closed whenever it is called.
    pub fn new(open: impl Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync + 'static) -> Suite {
        Suite {
            open: Box::new(open),
            in_memory: false,
            number: AtomicU32::new(1),
        }
    }

    /// Declares that the store does not survive closing.
    pub fn in_memory(mut self) -> Suite {
        self.in_memory = true;
        self
    }

    /// Runs all scenarios one after the other.
    pub async fn run(&self) {
        self.appends().await;
        self.reads().await;
        self.imports().await;
        self.limits().await;
        self.namespaces().await;
        self.retention().await;
        self.documents().await;
        self.random().await;
    }

    /// Rules 1 to 5.
    pub async fn appends(&self) {
        append::run(self).await;
    }

    /// Rules 6, 7, 9 and 14.
    pub async fn reads(&self) {
        read::run(self).await;
    }

    /// Rule 8, and clearing.
    pub async fn imports(&self) {
        import::run(self).await;
    }

    /// Rule 16.
    pub async fn limits(&self) {
        limits::run(self).await;
    }

    /// Rules 10 and 11.
    pub async fn namespaces(&self) {
        namespaces::run(self).await;
    }

    /// Rule 12.
    pub async fn retention(&self) {
        retention::retention(self).await;
    }

    /// Rule 13.
    pub async fn documents(&self) {
        retention::documents(self).await;
    }

    /// Random work of several writers, compared with a model of the rules.
    pub async fn random(&self) {
        model::run(self).await;
    }

    async fn open(&self) -> Arc<dyn Store> {
        (self.open)().await
    }

    /// Closes the store and opens it again, unless that would lose everything.
    async fn again(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        if self.in_memory {
            return store;
        }
        drop(store);
        self.open().await
    }

    fn new_name(&self) -> String {
        format!("suite {}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    async fn namespace(&self, store: &Arc<dyn Store>) -> Arc<dyn Namespace> {
        let name = self.unused_name(store).await;
        create(store, &name).await;
        store.namespace(&name).await.unwrap()
    }

    /// Skips names that an earlier suite on the same storage has used.
    async fn unused_name(&self, store: &Arc<dyn Store>) -> String {
        loop {
            let name = self.new_name();
            if store.namespace(&name).await.is_err() {
                return name;
            }
        }
    }
}

/// Creates a namespace and returns its token.
async fn create(store: &Arc<dyn Store>, name: &str) -> String {
    let (token, text) = new_token(name).unwrap();
    let new = NewNamespace {
        name: name.to_owned(),
        description: format!("of {name}"),
        metadata: Some(r#"{"b":1,"a":2}"#.to_owned()),
        digest: *token.digest(),
        scopes: Scopes::READ_WRITE,
    };
    let info = store.create(new).await.unwrap();
    assert_eq!(
        (info.messages, info.streams, info.last_activity),
        (0, 0, None),
        "10: it is empty"
    );
    text
}

fn event<'a>(kind: &'a str, data: &'a str) -> NewEvent<'a> {
    NewEvent {
        id: None,
        kind,
        data,
        metadata: None,
    }
}

fn append<'a>(stream: &'a str, expected: ExpectedVersion, events: Vec<NewEvent<'a>>) -> Append<'a> {
    Append {
        stream,
        expected,
        events,
    }
}

async fn write(namespace: &Arc<dyn Namespace>, stream: &str, kind: &str, data: &str) -> AppendOutcome {
    let done = namespace
        .append(&[append(stream, ExpectedVersion::Any, vec![event(kind, data)])])
        .await;
    done.unwrap()[0]
}

fn of_stream(stream: &str) -> StreamRead<'_> {
    StreamRead {
        stream,
        from: None,
        direction: Direction::Forward,
        max: usize::MAX,
        types: &[],
    }
}

fn of_category(category: Option<&str>) -> CategoryRead<'_> {
    CategoryRead {
        category,
        from: None,
        direction: Direction::Forward,
        max: usize::MAX,
        correlation: None,
        member: None,
        types: &[],
    }
}

/// All pages of a read. Asserts that each has at most `max` messages.
async fn stream_pages(namespace: &Arc<dyn Namespace>, mut read: StreamRead<'_>) -> Vec<StoredEvent> {
    let mut found = Vec::new();
    loop {
        let page = namespace.read_stream(read).await.unwrap();
        assert!(page.events.len() <= read.max, "6: a page has more than was asked for");
        assert!(
            page.next.is_none() || !page.events.is_empty(),
            "6: a page that goes on has messages"
        );
        found.extend(page.events);
        let Some(next) = page.next else { return found };
        read.from = Some(crate::store::StreamPosition::Position(next));
    }
}

async fn category_pages(namespace: &Arc<dyn Namespace>, mut read: CategoryRead<'_>) -> Vec<StoredEvent> {
    let mut found = Vec::new();
    loop {
        let page = namespace.read_category(read).await.unwrap();
        assert!(page.events.len() <= read.max, "6: a page has more than was asked for");
        found.extend(page.events);
        let Some(next) = page.next else { return found };
        read.from = Some(next);
    }
}

async fn all(namespace: &Arc<dyn Namespace>) -> Vec<StoredEvent> {
    category_pages(namespace, of_category(None)).await
}

fn data(found: &[StoredEvent]) -> Vec<&str> {
    found.iter().map(|stored| stored.event().data).collect()
}

fn positions(found: &[StoredEvent]) -> Vec<u64> {
    found.iter().map(|stored| stored.event().position).collect()
}

fn globals(found: &[StoredEvent]) -> Vec<u64> {
    found.iter().map(|stored| stored.event().global).collect()
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}"),
    }
}

fn refused<T: std::fmt::Debug>(done: Result<T>) -> crate::error::EventsError {
    match done {
        Ok(done) => panic!("what has to be refused gave {done:?}"),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests;
