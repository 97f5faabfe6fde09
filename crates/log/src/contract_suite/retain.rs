//! Retention: trims and rewrites.

use std::sync::Arc;
use std::time::Duration;

use super::{ContractSuite, append, lasting, number, of, read_all, read_from};
use crate::contract::{Log, ReadOptions};
use crate::error::LogError;
use crate::format::frame::FrameKind;
use crate::format::record::RecordRef;
use crate::records::Records;

/// Records that this much data follows are permanently stored.
const FOLLOWING: usize = 40 << 20;

pub async fn run(suite: &ContractSuite) {
    trims(suite).await;
    checkpoints(suite).await;
    rewrites(suite).await;
}

/// Records before a checkpoint are not needed, also when their file is reused at once.
async fn checkpoints(suite: &ContractSuite) {
    let mut log = suite.open().await;
    for durability in lasting(&log) {
        let (state, data) = (
            suite.partition(&log, durability).await,
            suite.partition(&log, durability).await,
        );
        let note = |log: &Arc<dyn Log>, kind, text: &'static str| {
            let mut push = |records: &mut Records| records.push(&RecordRef::of(1, text.as_bytes()));
            log.journal(state, kind, &mut push).unwrap();
        };
        // This record goes into a file that has nothing else.
        let filling = vec![0; 4 << 20];
        for n in 0..3 * FOLLOWING / filling.len() {
            if n == FOLLOWING / filling.len() {
                note(&log, FrameKind::State, "before");
                log.flush(&[state]).await.unwrap();
            }
            append(&log, data, of([&filling], 1)).await;
        }
        note(&log, FrameKind::Checkpoint, "all");
        note(&log, FrameKind::State, "after");
        log.flush(&[state]).await.unwrap();
        log.trim(data, log.bounds(data).unwrap().next).unwrap();
        // Gives the log time to reuse files, if it does so in the background.
        tokio::time::sleep(Duration::from_millis(300)).await;
        log = suite.again(log).await;
        let checkpoint = log.last_checkpoint(state).unwrap().unwrap();
        let left: Vec<Vec<u8>> = read_from(&log, state, checkpoint, false)
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        assert_eq!(left, [b"all".to_vec(), b"after".to_vec()]);
    }
}

/// Trimmed records cannot be read, the others can. The first offset never decreases.
async fn trims(suite: &ContractSuite) {
    let mut log = suite.open().await;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        for n in 0..30u64 {
            append(&log, id, of([number(n)], 1)).await;
        }
        let all = read_all(&log, id);
        let cut = all[12].0;
        let record = of([number(0)], 1).bytes() as u64;
        log.trim(id, cut).unwrap();
        log.trim(id, all[3].0).unwrap();
        log.flush(&[id]).await.unwrap();
        for round in 0..2 {
            let bounds = log.bounds(id).unwrap();
            // A clean shutdown preserves the trim.
            assert_eq!(bounds.first, cut, "round {round}");
            assert_eq!(read_all(&log, id), all[12..]);
            let want = ReadOptions {
                bytes: 1,
                synced: false,
            };
            let below = log.read(id, all[0].0, want);
            assert!(matches!(below, Err(LogError::Gap { to, .. }) if to == cut), "{below:?}");
            let stored = log.bytes(id, cut, bounds.next).unwrap();
            assert_eq!(stored, (all.len() as u64 - 12) * record, "round {round}");
            assert_eq!(log.bytes(id, all[20].0, all[25].0).unwrap(), 5 * record);
            log = suite.again(log).await;
        }
        log.trim(id, log.bounds(id).unwrap().next).unwrap();
        assert_eq!(read_all(&log, id), []);
        let next = append(&log, id, of(["x"], 1)).await;
        assert!(next > all[29].0, "L1: offsets go on where they were");
    }
}

/// L9: records that are kept stay at their offsets; the others may disappear.
async fn rewrites(suite: &ContractSuite) {
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
        for _ in 0..FOLLOWING / filling.len() {
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
