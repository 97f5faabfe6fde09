//! Queries that are cancelled or fail while they refresh a table: the next query sees all commits.

use std::collections::HashSet;
use std::os::unix::fs::symlink;
use std::pin::pin;
use std::task::Poll;

use super::*;
use crate::catalog::{QueryTables, TableRegistry};

/// How often a test goes through all waits of a call, until it has dropped the call at enough of them.
const ROUNDS: usize = 100;

/// Polls a future until it was pending `waits` times. Returns `None` if it was dropped then.
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

/// The table as a query sees it, shown as its number of files.
async fn seen(tables: &Arc<TableRegistry>) -> String {
    let opened = QueryTables::new(tables.clone()).open("tags").await;
    format!("{:?}", opened.unwrap().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_dropped_at_any_await_hides_nothing_from_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path()).await;
    append(&writer, vec![sample("a", 0, Value::I64(0))]).await;
    let tables = || {
        let site = LakeStorage::folder(&thalweg_lake::folder(folder.path()), SyncedStore::new());
        Arc::new(TableRegistry::new(site, QueryMetrics::unregistered()))
    };
    let shared = tables();
    seen(&shared).await;
    // What an await waits for is done by another thread, and now and then it is done before the await is reached.
    let mut dropped = HashSet::new();
    for _ in 0..ROUNDS {
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
                break;
            }
            dropped.insert(waits);
        }
        if dropped.len() > 1 {
            return;
        }
    }
    panic!("in {ROUNDS} rounds there were only these waits to drop: {dropped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_fails_between_two_commits_hides_nothing_from_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let count = "SELECT count(*) AS n FROM tags";
    assert_eq!(text(&engine, count).await, "n\n3000\n");
    append(&writer, vec![sample("new", 0, Value::I64(1))]).await;
    // The next version cannot be read: its file is a symlink to itself.
    let log = thalweg_lake::folder(folder.path()).join("tags/_delta_log");
    let next_version = log.join(format!("{:020}.json", 5));
    assert!(log.join(format!("{:020}.json", 4)).exists() && !next_version.exists());
    symlink(&next_version, &next_version).unwrap();
    assert_eq!(error(&engine, count).await.status(), 503);
    std::fs::remove_file(&next_version).unwrap();
    assert_eq!(text(&engine, count).await, "n\n3001\n");
    let at_version = "SELECT count(*) AS n FROM at_version('tags', 4)";
    assert_eq!(text(&engine, at_version).await, "n\n3001\n");
}

/// A cancelled query releases what it used, and the next one sees everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_left_at_any_await_or_batch_gives_all_back() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let limits = QueryOptions {
        concurrency: 1,
        queue: 1,
        ..QueryOptions::default()
    };
    let engine = engine(folder.path(), limits);
    let queries = [
        "SELECT tag_id, value_int FROM tags ORDER BY value_int",
        "SELECT count(*) FROM at_version('tags', 2)",
        "SELECT tag_id, count(*) FROM tags GROUP BY tag_id",
    ];
    for sql in queries {
        let mut left = 0;
        for _ in 0..ROUNDS {
            for waits in 0.. {
                let asked = dropped_after(waits, async {
                    let answer = engine.execute(sql).await.unwrap();
                    answer.try_collect::<Vec<_>>().await.unwrap().len()
                });
                let done = asked.await;
                // The engine allows one query at a time: its permit is free again.
                assert_eq!(
                    text(&engine, "SELECT count(*) AS n FROM tags").await,
                    "n\n3000\n",
                    "{sql}: left after {waits} waits"
                );
                if done.is_some() {
                    break;
                }
                left += 1;
            }
            if left > 0 {
                break;
            }
        }
        assert!(left > 0, "there was nothing to leave in {ROUNDS} rounds");
        for batches in 0..3 {
            let answer = engine.execute(sql).await.unwrap();
            drop(answer.take(batches).collect::<Vec<_>>().await);
            assert_eq!(
                text(&engine, "SELECT count(*) AS n FROM tags").await,
                "n\n3000\n",
                "{sql}: left after {batches} batches"
            );
        }
    }
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while engine.memory_used() > 0 {
        assert!(
            std::time::Instant::now() < until,
            "{} bytes are kept",
            engine.memory_used()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
