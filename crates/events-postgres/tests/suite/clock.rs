//! The database's clock is the clock of all its servers: retention follows it whatever a server's machine shows.

use std::sync::Arc;

use thalweg_events::{Namespace, Retention, RetentionTarget, Store as _};

use crate::server::Server;
use crate::servers::{create, open, read, write};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
const MICROS: i64 = 1_000_000;

async fn count(namespace: &Arc<dyn Namespace>) -> usize {
    read(namespace, 1).await.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_for_a_time_goes_by_the_clock_of_the_database() {
    // A week behind this machine's clock: by that clock every message would be too old at once.
    let server = Server::start_with_clock();
    server.set_clock(-7 * DAY);
    let store = open(&server).await;
    create(&store, "plant").await;
    let namespace = store.namespace("plant").await.unwrap();
    let kept = Retention {
        max_age: Some(DAY * MICROS),
        ..Retention::default()
    };
    namespace
        .set_retention(RetentionTarget::Category("a"), Some(kept))
        .await
        .unwrap();
    write(&namespace, "a-1", "{}").await.unwrap();
    assert_eq!(count(&namespace).await, 1);
    // After the clock is set, new stores use its new time.
    for (ahead, shown) in [(-7 * DAY + 20 * HOUR, 1), (-7 * DAY - 30 * HOUR, 1), (-5 * DAY, 0)] {
        server.set_clock(ahead);
        let other = open(&server).await;
        let there = other.namespace("plant").await.unwrap();
        assert_eq!(count(&there).await, shown, "{} h later", (ahead + 7 * DAY) / HOUR);
    }
}
