//! Queries whose client leaves, or that fail, while they look for newer commits: the next one sees all that is committed.

use std::os::unix::fs::symlink;
use std::pin::pin;
use std::task::Poll;

use super::*;
use crate::catalog::{QueryTables, Tables};

/// Polls a future until it has waited so often; `None`: it was dropped then.
async fn dropped_after<F: Future>(waits: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut waited = 0;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if waited == waits => Poll::Ready(None),
        Poll::Pending => {
            waited += 1;
            Poll::Pending
        }
    })
    .await
}

/// What a query sees of the table: its number of files.
async fn seen(tables: &Arc<Tables>) -> String {
    let opened = QueryTables::new(tables.clone()).open("tags").await;
    format!("{:?}", opened.unwrap().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_dropped_at_any_await_hides_nothing_from_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path()).await;
    append(&writer, vec![sample("a", 0, Value::I64(0))]).await;
    let tables = || {
        let site = Site::folder(&thalweg_lake::folder(folder.path()), SyncedStore::new());
        Arc::new(Tables::new(site, QueryMetrics::new().unwrap()))
    };
    let shared = tables();
    seen(&shared).await;
    for waits in 0.. {
        for _ in 0..2 {
            append(&writer, vec![sample("a", 0, Value::I64(0))]).await;
        }
        let query = QueryTables::new(shared.clone());
        let done = dropped_after(waits, query.open("tags")).await;
        assert_eq!(
            seen(&shared).await,
            seen(&tables()).await,
            "dropped after {waits} waits"
        );
        if done.is_some() {
            assert!(waits > 1, "there was nothing to drop");
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_fails_between_two_commits_hides_nothing_from_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let count = "SELECT count(*) AS n FROM tags";
    assert_eq!(text(&engine, count).await, "n\n3000\n");
    append(&writer, vec![sample("new", 0, Value::I64(1))]).await;
    // The version behind the new one cannot be read: it refers to itself.
    let log = thalweg_lake::folder(folder.path()).join("tags/_delta_log");
    let behind = log.join(format!("{:020}.json", 5));
    assert!(log.join(format!("{:020}.json", 4)).exists() && !behind.exists());
    symlink(&behind, &behind).unwrap();
    assert_eq!(error(&engine, count).await.status, 503);
    std::fs::remove_file(&behind).unwrap();
    assert_eq!(text(&engine, count).await, "n\n3001\n");
    let at_version = "SELECT count(*) AS n FROM at_version('tags', 4)";
    assert_eq!(text(&engine, at_version).await, "n\n3001\n");
}
