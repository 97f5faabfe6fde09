//! Reading: committed records only, synced records, waiting, times, state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{ContractSuite, PATIENCE, append, eventually, lasting, number, of, offered, read_all, read_from, values};
use crate::contract::Log;
use crate::error::LogError;
use crate::format::frame::FrameKind;
use crate::format::record::RecordRef;
use crate::ids::{Offset, PartitionId};
use crate::partition::PartitionListener;

pub async fn run(suite: &ContractSuite) {
    committed(suite).await;
    synced(suite).await;
    waiting(suite).await;
    times(suite).await;
    state(suite).await;
}

/// L4: concurrent readers see each committed record whole, in order, and exactly once.
async fn committed(suite: &ContractSuite) {
    let log = suite.open().await;
    for durability in offered(&log) {
        let id = suite.partition(&log, durability).await;
        let writer = {
            let log = log.clone();
            tokio::spawn(async move {
                for n in 0..300u64 {
                    append(&log, id, of([[&number(n)[..], &[n as u8; 90]].concat()], 1)).await;
                }
            })
        };
        let (mut from, mut seen) = (0, 0u64);
        while seen < 300 {
            tokio::time::timeout(PATIENCE, log.wait_for(id, from))
                .await
                .unwrap()
                .unwrap();
            let next = log.bounds(id).unwrap().next;
            for (offset, value) in read_from(&log, id, from, false) {
                assert!(offset >= from, "L4: {offset} again");
                assert_eq!(
                    value,
                    [&number(seen)[..], &[seen as u8; 90]].concat(),
                    "L4: {durability:?}"
                );
                (from, seen) = (offset + 1, seen + 1);
            }
            assert!(from >= next, "L4: what `bounds` tells can be read");
        }
        writer.await.unwrap();
        assert!(read_from(&log, id, from, false).is_empty());
        let newest = log.newest(id, from, 1).unwrap();
        assert_eq!(
            newest.map(|frames| frames.len()),
            Some(0),
            "L4: nothing is in memory where nothing is"
        );
    }
}

/// L4: with `synced`, only records that survive a power cut are read, and eventually all of them.
async fn synced(suite: &ContractSuite) {
    let log = suite.open().await;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        for n in 0..50u64 {
            append(&log, id, of([number(n)], 1)).await;
            let synced = log.bounds(id).unwrap().synced;
            let found = read_from(&log, id, 0, true);
            let end = log.bounds(id).unwrap().synced;
            let read = found.last().map_or(0, |(offset, _)| offset + 1);
            assert!(
                read <= end && read >= synced.min(1),
                "L4: {durability:?}: {read} read, {synced} to {end} synced"
            );
        }
        let all = || read_from(&log, id, 0, true).len() == 50;
        eventually("L4: what a reader asks for with `synced` is synced", all).await;
        let bounds = log.bounds(id).unwrap();
        assert_eq!(bounds.synced, bounds.next);
    }
}

struct GrowthRecorder(AtomicU64);

impl PartitionListener for GrowthRecorder {
    fn grown(&self, next: Offset) {
        self.0.store(next, Ordering::SeqCst);
    }
}

/// Waiters and listeners are notified of readable records.
async fn waiting(suite: &ContractSuite) {
    let log = suite.open().await;
    for durability in offered(&log) {
        let id = suite.partition(&log, durability).await;
        let told = Arc::new(GrowthRecorder(AtomicU64::new(0)));
        log.listen(id, told.clone()).unwrap();
        let waiter = {
            let log = log.clone();
            tokio::spawn(async move {
                log.wait_for(id, 0).await.unwrap();
                values(&log, id)
            })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!waiter.is_finished(), "nothing is there yet");
        append(&log, id, of(["a"], 1)).await;
        let found = tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap();
        assert_eq!(found, [b"a"]);
        assert_eq!(told.0.load(Ordering::SeqCst), log.bounds(id).unwrap().next);
    }
}

/// No record of a time or later is before the offset that `offset_at` returns.
async fn times(suite: &ContractSuite) {
    let mut log = suite.open().await;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        let mut offsets = Vec::new();
        for time in 1..=20 {
            offsets.push((time * 100, append(&log, id, of(["a", "b"], time * 100)).await));
        }
        for _ in 0..2 {
            for (time, offset) in &offsets {
                for asked in [time - 50, *time] {
                    let found = log.offset_at(id, asked).unwrap();
                    assert!(found <= *offset, "{found} for {asked}, which is at {offset}");
                }
            }
            assert_eq!(log.offset_at(id, 0).unwrap(), offsets[0].1);
            for (time, offset) in &offsets {
                let frame = log.frame_at(id, *offset).unwrap().unwrap();
                assert!(frame.base <= *offset && *offset < frame.next());
                assert!(frame.base_time <= *time && *time <= frame.max_time);
            }
            assert_eq!(
                log.frame_at(id, offsets[0].1).unwrap().map(|frame| frame.base_time),
                Some(100)
            );
            assert_eq!(log.frame_at(id, log.bounds(id).unwrap().next).unwrap(), None);
            assert_eq!(log.offset_at(id, 2001).unwrap(), log.bounds(id).unwrap().next);
            log = suite.again(log).await;
        }
    }
}

fn note(log: &Arc<dyn Log>, id: PartitionId, kind: FrameKind, texts: &[&str]) {
    let noted = log.journal(id, kind, &mut |records| {
        texts
            .iter()
            .try_for_each(|text| records.push(&RecordRef::of(1, text.as_bytes())))
    });
    noted.unwrap();
}

/// L8: state is stored in frames like all other records: in order, before what is appended later, and the newest
/// checkpoint is found.
async fn state(suite: &ContractSuite) {
    let mut log = suite.open().await;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        assert_eq!(log.last_checkpoint(id).unwrap(), None);
        note(&log, id, FrameKind::State, &["a", "b"]);
        note(&log, id, FrameKind::State, &["c"]);
        append(&log, id, of(["d"], 1)).await;
        note(&log, id, FrameKind::State, &["e"]);
        log.flush(&[id]).await.unwrap();
        assert_eq!(values(&log, id), [b"a", b"b", b"c", b"d", b"e"], "L8: {durability:?}");
        // A checkpoint replaces the state before it.
        note(&log, id, FrameKind::Checkpoint, &["f"]);
        note(&log, id, FrameKind::State, &["g"]);
        log.flush(&[id]).await.unwrap();
        for _ in 0..2 {
            let checkpoint = log.last_checkpoint(id).unwrap().unwrap();
            let since: Vec<Vec<u8>> = read_from(&log, id, checkpoint, false)
                .into_iter()
                .map(|(_, value)| value)
                .collect();
            assert_eq!(since, [b"f", b"g"], "L8: {durability:?}");
            log = suite.again(log).await;
        }
        let failed = log.journal(id, FrameKind::State, &mut |_| {
            Err(LogError::TooLarge {
                what: "a record",
                size: 1,
                limit: 0,
            })
        });
        assert!(failed.is_err());
        log.flush(&[id]).await.unwrap();
        let last = read_all(&log, id).pop().map(|(_, value)| value);
        assert_eq!(last, Some(b"g".to_vec()), "what was not pushed is not stored");
    }
}
