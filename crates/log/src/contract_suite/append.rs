//! Creating partitions and appending to them: offsets, order, durability, units.

use std::sync::Arc;

use super::{ALL, ContractSuite, append, lasting, number, of, offered, read_all, values};
use crate::contract::Log;
use crate::durability::Durability;
use crate::error::LogError;
use crate::format::frame::FrameKind;
use crate::format::record::RecordRef;
use crate::ids::PartitionId;
use crate::records::{Records, WriteBatch};

pub async fn run(suite: &ContractSuite) {
    durabilities(suite).await;
    offsets(suite).await;
    order(suite).await;
    units(suite).await;
    sizes(suite).await;
    expectations(suite).await;
    names(suite).await;
    promises(suite).await;
}

/// The durability of a partition can change for all later appends, also across a restart.
async fn promises(suite: &ContractSuite) {
    let mut log = suite.open().await;
    let modes = lasting(&log);
    for (from, to) in modes.iter().flat_map(|from| modes.iter().map(|to| (*from, *to))) {
        let id = suite.partition(&log, from).await;
        append(&log, id, of(["a"], 1)).await;
        log.set_durability(id, to).await.unwrap();
        let appended = log.append(WriteBatch::of(id, of(["b"], 1))).await.unwrap();
        assert_eq!(
            appended.durability.stronger(to),
            appended.durability,
            "{from:?} to {to:?}"
        );
        assert_eq!(log.durability(id).unwrap(), to);
        if to == Durability::Fsync {
            let bounds = log.bounds(id).unwrap();
            assert_eq!(bounds.synced, bounds.next, "{from:?} to {to:?}");
        }
        log = suite.again(log).await;
        assert_eq!(log.durability(id).unwrap(), to);
        append(&log, id, of(["c"], 1)).await;
        assert_eq!(values(&log, id), [b"a", b"b", b"c"], "{from:?} to {to:?}");
    }
    let id = suite.partition(&log, Durability::Fsync).await;
    for missing in ALL.into_iter().filter(|mode| !offered(&log).contains(mode)) {
        let refused = log.set_durability(id, missing).await;
        assert!(
            matches!(refused, Err(LogError::DurabilityUnavailable { .. })),
            "{missing:?}: {refused:?}"
        );
    }
    let nobody = suite.new_id();
    assert!(matches!(
        log.set_durability(nobody, Durability::Fsync).await,
        Err(LogError::NoPartition(_))
    ));
}

/// L2, L3: a durability is provided or refused, and reported.
async fn durabilities(suite: &ContractSuite) {
    let log = suite.open().await;
    for durability in ALL {
        let id = suite.new_id();
        let created = log.create(id, durability).await;
        if !offered(&log).contains(&durability) {
            let refused = matches!(created, Err(LogError::DurabilityUnavailable { .. }));
            assert!(refused, "L3: {durability:?} is not offered, but {created:?}");
            continue;
        }
        created.unwrap();
        let appended = log.append(WriteBatch::of(id, of(["a"], 1))).await.unwrap();
        let named = appended.durability.stronger(durability);
        assert_eq!(named, appended.durability, "L2: less than {durability:?} holds");
    }
}

/// L1: offsets strictly increase, also across a restart.
async fn offsets(suite: &ContractSuite) {
    let mut log = suite.open().await;
    let contiguous = log.caps().contiguous;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        let mut last = None;
        for round in 0..3 {
            for n in 0..20u64 {
                let first = append(&log, id, of((0..=n).map(number), 1)).await;
                assert!(last < Some(first), "L1: {first} after {last:?}");
                let gapless = last.is_none_or(|last: u64| last + 1 == first);
                assert!(!contiguous || gapless, "L1: caps say that there are no gaps");
                last = Some(first + n);
            }
            let bounds = log.bounds(id).unwrap();
            assert!(Some(bounds.next) > last, "L1: the next offset is after the last");
            if round < 2 {
                log = suite.again(log).await;
            }
        }
        let found = read_all(&log, id);
        assert_eq!(
            found.len(),
            3 * (1..=20).sum::<usize>(),
            "{durability:?}: all that was acknowledged is there"
        );
        assert!(found.is_sorted_by(|one, other| one.0 < other.0), "L1");
    }
}

/// L5: appends that one caller starts one after the other keep their order in each partition.
async fn order(suite: &ContractSuite) {
    let log = suite.open().await;
    for durability in offered(&log) {
        let id = suite.partition(&log, durability).await;
        let appends: Vec<_> = (0..200u64)
            .map(|n| log.append(WriteBatch::of(id, of([number(n)], 1))))
            .collect();
        for appended in crate::multi_disk::all(appends).await {
            appended.unwrap();
        }
        let wanted: Vec<Vec<u8>> = (0..200u64).map(|n| number(n).to_vec()).collect();
        assert_eq!(values(&log, id), wanted, "L5: {durability:?}");
    }
}

/// A unit is stored as a whole, each part at the reported offset.
async fn units(suite: &ContractSuite) {
    let log = suite.open().await;
    let mut ids = Vec::new();
    for durability in offered(&log) {
        ids.push(suite.partition(&log, durability).await);
    }
    let unit = ids
        .iter()
        .fold(WriteBatch::default(), |unit, id| unit.and(*id, of(["x", "y"], 1)));
    let appended = log.append(unit.clone()).await.unwrap();
    assert_eq!(appended.offsets.len(), ids.len(), "L2: one offset for each part");
    for (id, offset) in ids.iter().zip(&appended.offsets) {
        assert_eq!(read_all(&log, *id).first(), Some(&(*offset, b"x".to_vec())), "L2");
    }
    let missing = log.append(unit.and(suite.new_id(), of(["z"], 1))).await;
    assert!(matches!(missing, Err(LogError::NoPartition(_))), "{missing:?}");
    for id in &ids {
        assert_eq!(
            values(&log, *id).len(),
            2,
            "a unit with a wrong part was stored in part"
        );
    }
}

/// A unit above the size limit is refused before anything is stored.
async fn sizes(suite: &ContractSuite) {
    let log = suite.open().await;
    let id = suite.partition(&log, offered(&log)[0]).await;
    let limit = log.caps().unit_bytes_max;
    let half = || {
        let mut records = Records::new();
        records.push(&RecordRef::of(1, &vec![0; limit / 2 + 1])).unwrap();
        records
    };
    let refused = log.append(WriteBatch::of(id, half()).and(id, half())).await;
    assert!(matches!(refused, Err(LogError::TooLarge { .. })), "{refused:?}");
    assert_eq!(values(&log, id).len(), 0);
    append(&log, id, half()).await;
    assert_eq!(values(&log, id)[0].len(), limit / 2 + 1);
}

/// Records that expect an offset are stored there or refused, with all of their unit where units are atomic, also when
/// several units are submitted at once.
async fn expectations(suite: &ContractSuite) {
    let log = suite.open().await;
    for durability in lasting(&log) {
        let id = suite.partition(&log, durability).await;
        let other = suite.partition(&log, durability).await;
        let first = log.bounds(id).unwrap().next;
        let expecting = |text: &'static str, n| WriteBatch::of(id, of([text], 1).expecting(first + n));
        let late = match log.caps().atomic_units {
            true => expecting("late", 0).and(other, of(["beside"], 1)),
            false => expecting("late", 0),
        };
        let (a, late, b) = tokio::join!(
            log.append(expecting("a", 0)),
            log.append(late),
            log.append(expecting("b", 1)),
        );
        assert_eq!(a.unwrap().offsets[..], [first]);
        assert_eq!(b.unwrap().offsets[..], [first + 1]);
        let told = (first, first + 1);
        let refused = matches!(late, Err(LogError::OffsetTaken { expected, next, .. }) if (expected, next) == told);
        assert!(refused, "{late:?}");
        let early = log.append(expecting("early", 3)).await;
        assert!(matches!(early, Err(LogError::OffsetTaken { .. })), "{early:?}");
        assert_eq!(values(&log, id), [b"a", b"b"], "{durability:?}");
        assert_eq!(values(&log, other).len(), 0, "nothing of the unit");
    }
}

/// Partitions exist from their creation until their removal.
async fn names(suite: &ContractSuite) {
    let mut log = suite.open().await;
    let (kept, gone) = (suite.new_id(), suite.new_id());
    for id in [kept, gone] {
        log.create(id, Durability::Fsync).await.unwrap();
        append(&log, id, of(["a"], 1)).await;
    }
    let twice = log.create(kept, Durability::Fsync).await;
    assert!(matches!(twice, Err(LogError::PartitionExists(_))), "{twice:?}");
    log.remove(gone).await.unwrap();
    for _ in 0..2 {
        let known = log.partitions();
        assert!(known.contains(&kept) && !known.contains(&gone));
        missing(&log, gone).await;
        log = suite.again(log).await;
    }
}

async fn missing(log: &Arc<dyn Log>, id: PartitionId) {
    let none = |error: Option<LogError>| matches!(error, Some(LogError::NoPartition(_)));
    assert!(none(log.bounds(id).err()));
    assert!(none(log.newest(id, 0, 1).err()));
    assert!(none(log.append(WriteBatch::of(id, of(["a"], 1))).await.err()));
    assert!(none(log.trim(id, 1).err()) && none(log.remove(id).await.err()));
    let pushed = log.journal(id, FrameKind::State, &mut |records| {
        records.push(&RecordRef::of(1, b"x"))
    });
    assert!(none(pushed.err()));
}
