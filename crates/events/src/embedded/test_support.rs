//! Helpers for the tests of the engine: appending one message, reading everything, and random lives from seeds.

use std::future::Future;
use std::time::Duration;

use super::*;
use crate::event::StoredEvent;
use crate::id::MessageId;
use crate::store::{
    Append, AppendOutcome, CategoryRead, Direction, ExpectedVersion, NewEvent, Retention, RetentionTarget,
};

pub fn new(name: &str) -> NewNamespace {
    NewNamespace {
        name: name.to_owned(),
        description: String::new(),
        metadata: None,
        digest: TokenDigest::from_bytes([8; 32]),
        scopes: Scopes::ALL,
    }
}

pub async fn append_with(
    namespace: &Arc<dyn Namespace>,
    stream: &str,
    data: &str,
    id: Option<MessageId>,
) -> Result<AppendOutcome> {
    let event = NewEvent {
        id,
        kind: "T",
        data,
        metadata: None,
    };
    let append = Append {
        stream,
        expected: ExpectedVersion::Any,
        events: vec![event],
    };
    Ok(namespace.append(&[append]).await?.remove(0))
}

pub async fn append_one(namespace: &Arc<dyn Namespace>, stream: &str, data: &str) -> AppendOutcome {
    append_with(namespace, stream, data, None).await.unwrap()
}

pub async fn keep_newest(namespace: &Arc<dyn Namespace>, of: RetentionTarget<'_>, count: Option<u64>) {
    let rule = count.map(|count| Retention {
        max_count: Some(count),
        ..Retention::default()
    });
    namespace.set_retention(of, rule).await.unwrap();
}

/// Every visible message, by global position.
pub async fn all_of(namespace: &Arc<dyn Namespace>) -> Vec<StoredEvent> {
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let read = CategoryRead {
            category: None,
            from,
            direction: Direction::Forward,
            max: 1000,
            correlation: None,
            member: None,
            types: &[],
        };
        let page = namespace.read_category(read).await.unwrap();
        found.extend(page.events);
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

pub async fn data_of(namespace: &Arc<dyn Namespace>) -> Vec<String> {
    let all = all_of(namespace).await;
    all.iter().map(|stored| stored.event().data.to_owned()).collect()
}

/// Waits until all background work of the store has ended, as if its process had. Otherwise a table that is still being
/// written would conflict with the next store on the same folder.
pub async fn closed(store: EmbeddedStore) {
    let inner = Arc::downgrade(&store.inner);
    drop(store);
    while inner.strong_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub async fn is_healthy(store: &EmbeddedStore, what: &str) {
    assert_eq!(store.verify().await.unwrap().faults, [], "{what}");
}

/// Runs a life for each seed. `THALWEG_SIM_SEEDS` sets the number of seeds, `THALWEG_SIM_SEED` the first one.
pub fn lives<F: Future<Output = ()>>(seeds: u64, life: impl Fn(u64) -> F + Send + Sync + Copy + 'static) {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", seeds));
    for seed in first..first + count {
        // The thread name appears in a panic message.
        let lived = std::thread::Builder::new().name(format!("seed {seed}")).spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(life(seed));
            runtime.shutdown_timeout(Duration::from_secs(5));
        });
        assert!(lived.unwrap().join().is_ok(), "seed {seed}");
    }
}
