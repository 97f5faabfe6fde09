//! Broken connections and a killed database: what was answered is kept, and positions have no gaps.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_events::Store;

use crate::server::Server;
use crate::servers::{create, open, read, write};

type Answered = Arc<Mutex<HashMap<u64, String>>>;

/// Writes until it is stopped; records what was answered and retries what was not.
async fn writer(namespace: Arc<dyn thalweg_events::Namespace>, name: usize, answered: Answered, stop: Arc<AtomicBool>) {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let data = format!("[{name},{n}]");
        n += 1;
        match write(&namespace, &format!("a-{name}"), &data).await {
            Ok(global) => drop(answered.lock().insert(global, data)),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn beyond(answered: &Answered, count: usize) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while answered.lock().len() < count {
        assert!(std::time::Instant::now() < until, "writes are not answered any more");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn nothing_is_lost_by(harm: impl Fn(&mut Server)) {
    let mut server = Server::start();
    let store = open(&server).await;
    create(&store, "kept").await;
    let namespace = store.namespace("kept").await.unwrap();
    let (answered, stop) = (Answered::default(), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..4)
        .map(|name| tokio::spawn(writer(namespace.clone(), name, answered.clone(), stop.clone())))
        .collect();
    for _ in 0..3 {
        let now = answered.lock().len();
        beyond(&answered, now + 50).await;
        harm(&mut server);
        let now = answered.lock().len();
        beyond(&answered, now + 20).await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let found = read(&namespace, 1).await;
    let globals: Vec<u64> = found.iter().map(|(global, _)| *global).collect();
    assert_eq!(
        globals,
        (1..=found.len() as u64).collect::<Vec<_>>(),
        "positions have no gap"
    );
    for (global, data) in answered.lock().iter() {
        assert_eq!(&found[*global as usize - 1].1, data, "what was answered is at {global}");
    }
    assert_eq!(store.verify().await.unwrap().faults, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_answered_is_lost_when_connections_are_terminated() {
    nothing_is_lost_by(|server| {
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'thalweg'");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_answered_is_lost_when_the_database_is_killed() {
    nothing_is_lost_by(|server| {
        server.kill();
        server.run_postgres();
    })
    .await;
}
