//! Random lives of a log with all its threads: appends, rewrites, erasure, kills, power cuts and damage to whole files,
//! in any order. Nothing acknowledged is lost, nothing is there twice, and erased data is in no file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{append, bytes_of, options};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_log::format::record::records;
use thalweg_log::{Durability, EmbeddedLog, LogError, LogOptions, PartitionId, check};

const PARTITIONS: u32 = 3;
const FILE: u64 = 128 << 10;

fn small() -> LogOptions {
    LogOptions {
        spare: 1,
        io_bytes_per_second: 0,
        index_bytes_max: 10 << 10,
        tail_bytes_max: 20 << 10,
        ..options(FILE)
    }
}

fn open(disk: &SimDisk) -> Result<Arc<EmbeddedLog>, LogError> {
    EmbeddedLog::open(Arc::new(disk.clone()), 7, &small()).map(Arc::new)
}

/// The expected state: the value at each offset.
#[derive(Default)]
struct Model {
    ids: Vec<PartitionId>,
    kept: BTreeMap<PartitionId, BTreeMap<u64, Vec<u8>>>,
    /// Values that were removed, alone or with their partition. They may be in a file until they are erased.
    dropped: Vec<Vec<u8>>,
    /// The number of the next partition and of the next value.
    number: u64,
}

impl Model {
    fn value(&mut self, random: &mut Random) -> Vec<u8> {
        self.number += 1;
        let mut value = format!("<secret {:016x}>", self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
        let filler = if random.one_in(4) {
            random.below(30_000)
        } else {
            random.below(500)
        };
        value.resize(value.len() + filler as usize, b'.');
        value
    }

    async fn make(&mut self, log: &EmbeddedLog) {
        self.number += 1;
        let id = PartitionId::new(1, self.number as u32);
        log.create(id, Durability::Fsync).await.unwrap();
        self.ids.push(id);
        self.kept.insert(id, BTreeMap::new());
    }

    fn id(&self, random: &mut Random) -> PartitionId {
        self.ids[random.below(self.ids.len() as u64) as usize]
    }

    fn is_held(&self, log: &EmbeddedLog, what: &str) {
        for (id, kept) in &self.kept {
            let found = records_of(log, *id);
            let (there, wanted) = (found.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
            assert_eq!(there, wanted, "{what}: {id}");
            assert!(found == *kept, "{what}: {id}");
        }
    }
}

/// All stored records of a partition by offset. Asserts that none comes twice.
fn records_of(log: &EmbeddedLog, id: PartitionId) -> BTreeMap<u64, Vec<u8>> {
    let (mut found, first) = (BTreeMap::new(), log.bounds(id).unwrap().first);
    let mut from = first;
    loop {
        let frames = log.read(id, from, 100_000).unwrap();
        let Some(last) = frames.last() else { return found };
        for frame in &frames {
            let mut next = frame.header.base;
            for record in records(&frame.body) {
                let record = record.unwrap();
                let offset = record.delta.map_or(next, |delta| frame.header.base + u64::from(delta));
                next = offset + 1;
                // A frame may begin before the requested offset.
                if offset >= from {
                    assert!(
                        found.insert(offset, record.value.to_vec()).is_none(),
                        "{id}: {offset} twice"
                    );
                }
            }
        }
        from = last.header.next();
    }
}

/// Searches all files for the values, which the first 25 bytes identify.
fn is_somewhere(disk: &SimDisk, values: &[Vec<u8>]) -> Option<String> {
    for name in disk.names().unwrap() {
        // A file may be removed meanwhile.
        let Ok(file) = disk.open(&name) else { continue };
        let mut bytes = vec![0; file.len().unwrap_or_default() as usize];
        if file.read_at(&mut bytes, 0).is_err() {
            continue;
        }
        let found: std::collections::HashSet<&[u8]> =
            bytes.windows(25).filter(|w| w.starts_with(b"<secret ")).collect();
        if values.iter().any(|value| found.contains(&value[..25])) {
            return Some(name);
        }
    }
    None
}

/// Erases the dropped values, sometimes with a concurrent writer and reader.
async fn erase(log: &Arc<EmbeddedLog>, disk: &SimDisk, model: &mut Model, random: &mut Random, what: &str) {
    let id = model.id(random);
    let dropped: Vec<u64> = model.kept[&id].keys().copied().filter(|_| random.one_in(3)).collect();
    let busy = model.id(random);
    let more: Vec<Vec<u8>> = (0..random.below(20)).map(|_| model.value(random)).collect();
    let (writing, own) = (log.clone(), more.clone());
    let writer = tokio::spawn(async move {
        let mut stored = Vec::new();
        for value in own {
            stored.push((append(&writing, busy, &value).await, value));
            tokio::task::yield_now().await;
        }
        stored
    });
    log.roll().await.unwrap();
    let (erasing, gone) = (log.clone(), dropped.clone());
    let erased = tokio::task::spawn_blocking(move || {
        erasing.rewrite(id, &|offset, _| gone.binary_search(&offset).is_err())?;
        erasing.erase()
    });
    erased
        .await
        .unwrap()
        .unwrap_or_else(|error| panic!("{what}: {error} {:?}", log.counters()));
    for offset in dropped {
        model
            .dropped
            .extend(model.kept.get_mut(&id).and_then(|kept| kept.remove(&offset)));
    }
    assert_eq!(is_somewhere(disk, &model.dropped), None, "{what}");
    model.dropped.clear();
    model.kept.get_mut(&busy).unwrap().extend(writer.await.unwrap());
}

/// Damages a whole file of a copy: a start reports it, or nothing is missing.
fn bend(disk: &SimDisk, model: &Model, random: &mut Random, what: &str) {
    let names: Vec<String> = disk
        .names()
        .unwrap()
        .into_iter()
        .filter(|name| name.ends_with(".log"))
        .collect();
    let before: BTreeMap<String, Vec<u8>> = disk
        .names()
        .unwrap()
        .into_iter()
        .map(|name| (name.clone(), bytes_of(disk, &name)))
        .collect();
    let name = &names[random.below(names.len() as u64) as usize];
    let mut files = before.clone();
    let bytes = files.get_mut(name).unwrap();
    match random.below(4) {
        0 => drop(files.remove(name)),
        1 => bytes.fill(0),
        2 => bytes.truncate(random.below(bytes.len() as u64) as usize),
        _ => bytes.iter_mut().take(4096).for_each(|byte| *byte = 0),
    }
    let copy = SimDisk::new(1, 64 << 20);
    for (name, bytes) in &files {
        let file = copy.create(name).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
    }
    copy.sync_names().unwrap();
    let report = check(&copy, &mut |_, _| {}).unwrap();
    match open(&copy) {
        Ok(log) if report.is_whole() => model.is_held(&log, &format!("{what}: {name}")),
        // Unreadable data is reported when it is read.
        Ok(_) => {}
        Err(error) => {
            assert!(!report.is_whole(), "{what}: {name}: {error}");
            let after: BTreeMap<String, Vec<u8>> = copy
                .names()
                .unwrap()
                .into_iter()
                .map(|name| (name.clone(), bytes_of(&copy, &name)))
                .collect();
            assert!(after == files, "{what}: {name}: changed though {error}");
        }
    }
}

async fn life(seed: u64, steps: u64) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(seed, 64 << 20);
    let mut log = open(&disk).unwrap();
    let mut model = Model::default();
    for _ in 0..PARTITIONS {
        model.make(&log).await;
    }
    for step in 0..steps {
        let what = format!("THALWEG_SIM_SEED={seed} THALWEG_SIM_SEEDS=1, step {step}");
        match random.below(12) {
            0..5 => {
                for _ in 0..1 + random.below(10) {
                    let (id, value) = (model.id(&mut random), model.value(&mut random));
                    let offset = append(&log, id, &value).await;
                    assert!(
                        model.kept.get_mut(&id).unwrap().insert(offset, value).is_none(),
                        "{what}"
                    );
                }
            }
            5 => {
                let id = model.id(&mut random);
                let below = log.bounds(id).unwrap().next - random.below(3).min(log.bounds(id).unwrap().next);
                log.trim(id, below).unwrap();
                log.flush(&[id]).await.unwrap();
                log.sync().await.unwrap();
                model.kept.get_mut(&id).unwrap().retain(|offset, _| *offset >= below);
            }
            6 => {
                let id = model.ids.remove(random.below(model.ids.len() as u64) as usize);
                log.remove(id).await.unwrap();
                model.dropped.extend(model.kept.remove(&id).unwrap().into_values());
                model.make(&log).await;
            }
            7 | 8 => erase(&log, &disk, &mut model, &mut random, &what).await,
            9 => {
                log.close();
                bend(&disk, &model, &mut random, &what);
                log = open(&disk).unwrap();
            }
            10 => {
                disk.kill();
                drop(log);
                bend(&disk, &model, &mut random, &what);
                log = open(&disk).unwrap();
            }
            _ => {
                disk.power_cut();
                drop(log);
                log = open(&disk).unwrap();
            }
        }
        model.is_held(&log, &what);
    }
}

/// `THALWEG_SIM_SEEDS` sets the number of seeds, `THALWEG_SIM_SEED` the first one.
#[test]
fn nothing_acknowledged_is_lost_and_what_is_erased_is_gone_whatever_happens_in_any_order() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let first = number("THALWEG_SIM_SEED").unwrap_or(0);
    for seed in first..first + number("THALWEG_SIM_SEEDS").unwrap_or(8) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(life(seed, 40));
    }
}
