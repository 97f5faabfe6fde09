//! Letting go: trims, and rewriting.

use super::{Suite, append, lasting, number, of, read_all};
use crate::contract::ReadWant;
use crate::error::LogError;

/// What is stored behind so many bytes is stored for good.
const BEHIND: usize = 40 << 20;

pub async fn run(suite: &Suite) {
    trims(suite).await;
    rewrites(suite).await;
}

/// What was let go cannot be read, the rest can; never goes back.
async fn trims(suite: &Suite) {
    let mut log = suite.open().await;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        for n in 0..30u64 {
            append(&log, id, of([number(n)], 1)).await;
        }
        let all = read_all(&log, id);
        let cut = all[12].0;
        log.trim(id, cut).unwrap();
        log.trim(id, all[3].0).unwrap();
        log.flush(&[id]).await.unwrap();
        for round in 0..2 {
            let bounds = log.bounds(id).unwrap();
            // A log that is closed in good order keeps it.
            assert_eq!(bounds.first, cut, "round {round}");
            assert_eq!(read_all(&log, id), all[12..]);
            let want = ReadWant {
                bytes: 1,
                synced: false,
            };
            let below = log.read(id, all[0].0, want);
            assert!(matches!(below, Err(LogError::Gap { to, .. }) if to == cut), "{below:?}");
            assert!(log.bytes(id).unwrap() > 0);
            log = suite.again(log).await;
        }
        log.trim(id, log.bounds(id).unwrap().next).unwrap();
        assert_eq!(read_all(&log, id), []);
        let next = append(&log, id, of(["x"], 1)).await;
        assert!(next > all[29].0, "L1: offsets go on where they were");
    }
}

/// L9: what is wanted stays where it is; what is not may go.
async fn rewrites(suite: &Suite) {
    let mut log = suite.open().await;
    if !log.caps().rewrite {
        return;
    }
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        for n in 0..400u64 {
            append(&log, id, of([[&number(n)[..], &[7; 300]].concat()], 1)).await;
        }
        let filling = vec![0; 4 << 20];
        for _ in 0..BEHIND / filling.len() {
            append(&log, id, of([&filling], 1)).await;
        }
        let before = read_all(&log, id);
        let bounds = log.bounds(id).unwrap();
        let rewriting = log.clone();
        let rewritten =
            tokio::task::spawn_blocking(move || rewriting.rewrite(id, &|offset, _| !offset.is_multiple_of(3)));
        rewritten.await.unwrap().unwrap();
        for _ in 0..2 {
            let after = read_all(&log, id);
            let kept = |found: &[(u64, Vec<u8>)]| -> Vec<(u64, Vec<u8>)> {
                let wanted = found.iter().filter(|(offset, _)| !offset.is_multiple_of(3));
                wanted.cloned().collect()
            };
            assert!(kept(&after) == kept(&before), "L9: what is kept keeps offset and value");
            assert!(
                after.len() < before.len(),
                "L9: of so much, something is stored for good"
            );
            assert!(after.iter().all(|record| before.binary_search(record).is_ok()), "L9");
            let now = log.bounds(id).unwrap();
            assert_eq!((now.first, now.next), (bounds.first, bounds.next), "L9: bounds stay");
            log = suite.again(log).await;
        }
        append(&log, id, of(["x"], 1)).await;
    }
}
