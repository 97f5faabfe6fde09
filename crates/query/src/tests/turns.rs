//! Encoding rows as text must not block other tasks on the same thread.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::Poll;

use super::*;

/// How often other tasks ran while the work was polled.
async fn turns_within<T>(turns: &AtomicU64, work: impl Future<Output = T>) -> (T, u64) {
    let (mut work, mut within) = (pin!(work), 0);
    let done = std::future::poll_fn(|context| {
        let before = turns.load(SeqCst);
        let polled: Poll<T> = Pin::as_mut(&mut work).poll(context);
        within += turns.load(SeqCst) - before;
        polled
    });
    (done.await, within)
}

#[test]
fn others_have_their_turn_while_rows_become_text() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let asking = async move {
        filled(folder.path()).await;
        let engine = engine(folder.path(), QueryOptions::default());
        let turns: Arc<AtomicU64> = Arc::default();
        let counted = turns.clone();
        tokio::spawn(async move {
            loop {
                counted.fetch_add(1, SeqCst);
                tokio::task::yield_now().await;
            }
        });
        let columns: Vec<String> = (0..12).map(|n| format!("a.value+as+column_number_{n}")).collect();
        let sql = format!("select+{}+from+tags+a,tags+b+limit+200000", columns.join(","));
        // On a busy machine the other task may not run in time; work that blocks it never lets it run.
        for _ in 0..5 {
            let request = get(&format!("/api/sql?format=json&q={sql}"));
            let ((status, _, text), within) = turns_within(&turns, ask(&engine, request)).await;
            assert_eq!(status, StatusCode::OK, "{text:.200}");
            assert!(text.len() > 40 << 20);
            if within > 0 {
                return;
            }
        }
        panic!("nobody else had a turn");
    };
    // On the only thread, beside the other task.
    runtime.block_on(async { tokio::spawn(asking).await }).unwrap();
}
