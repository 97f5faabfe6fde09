//! Damage to whole files: one is missing, empty, zeroed, cut short, renamed or of another log, for each file of a log
//! and each way in which the log can end. A start finds everything that was acknowledged, or it fails, changes nothing
//! and names the file. What a repair gives up stays given up: no offset is assigned twice.

use std::collections::BTreeMap;

use super::damage::{Placed, each_seed, placed, read_what_can_be};
use super::*;
use crate::format::PAGE;
use crate::superblock;

/// The files of a disk by name.
pub(super) type Snapshot = BTreeMap<String, Vec<u8>>;

pub(super) fn snapshot(disk: &SimDisk) -> Snapshot {
    let names = disk.names().unwrap();
    names
        .into_iter()
        .map(|name| (name.clone(), bytes_of(disk, &name)))
        .collect()
}

pub(super) fn disk_of(files: &Snapshot, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed, 64 << 20);
    for (name, bytes) in files {
        let file = disk.create(name).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
    }
    disk.sync_names().unwrap();
    disk
}

/// How the process that wrote the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Closed,
    Killed,
    PowerCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Removed,
    Empty,
    Zeroed,
    HeadZeroed,
    TailZeroed,
    CutShort,
    CutWithinAPage,
    CutAndFilledUp,
    Swapped,
    OfAnotherLog,
}

const DAMAGES: [Damage; 10] = [
    Damage::Removed,
    Damage::Empty,
    Damage::Zeroed,
    Damage::HeadZeroed,
    Damage::TailZeroed,
    Damage::CutShort,
    Damage::CutWithinAPage,
    Damage::CutAndFilledUp,
    Damage::Swapped,
    Damage::OfAnotherLog,
];

impl Damage {
    /// `None` if the damage is not applicable.
    fn applied(self, files: &Snapshot, name: &str, other: &Snapshot, random: &mut Random) -> Option<Snapshot> {
        let mut damaged = files.clone();
        let bytes = damaged.get_mut(name)?;
        let page = |random: &mut Random, len: usize| random.below(len as u64 / PAGE as u64) as usize * PAGE;
        match self {
            Damage::Removed => drop(damaged.remove(name)),
            Damage::Empty => bytes.clear(),
            Damage::Zeroed => bytes.fill(0),
            Damage::HeadZeroed => bytes.get_mut(..PAGE)?.fill(0),
            Damage::TailZeroed => {
                let at = page(random, bytes.len());
                bytes.get_mut(at..)?.fill(0);
            }
            Damage::CutShort => bytes.truncate(page(random, bytes.len())),
            Damage::CutWithinAPage => bytes.truncate(page(random, bytes.len()) + 100),
            Damage::CutAndFilledUp => {
                let (at, len) = (page(random, bytes.len()), bytes.len());
                bytes.truncate(at);
                bytes.resize(len, 0);
            }
            Damage::Swapped => {
                let kind = name.split('-').next()?;
                let alike: Vec<&String> = files
                    .keys()
                    .filter(|one| one.starts_with(kind) && *one != name)
                    .collect();
                let with = alike.get(random.below(alike.len().max(1) as u64) as usize)?;
                damaged.insert(name.to_owned(), files.get(*with)?.clone());
                damaged.insert((*with).clone(), files.get(name)?.clone());
            }
            Damage::OfAnotherLog => *bytes = other.get(name)?.clone(),
        }
        (damaged != *files).then_some(damaged)
    }
}

/// A log that has ended, and the acknowledged records of each partition.
pub(super) fn ended(seed: u64, id: u64, ending: Ending) -> (Snapshot, Vec<Known>) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(seed, 64 << 20);
    let mut known = vec![Known::default(); MODES.len()];
    let mut driven = open_of(&disk, id).unwrap();
    driven.checkpoints = true;
    for _ in 0..3 + random.below(14) {
        assert!(work(&mut driven, &mut known, &mut random));
        if random.one_in(2) {
            assert!(keep_up(&mut driven, &mut known, &mut random));
        }
    }
    match ending {
        Ending::Closed => driven.core.close(9),
        Ending::Killed => disk.kill(),
        Ending::PowerCut => disk.power_cut(),
    }
    drop(driven);
    disk.kill();
    (snapshot(&disk), known)
}

/// Starts and reads the log: everything promised is there or reported where it is read, or the start fails.
///
/// If the end of a file is zeroed in place right after a power cut, the blocks that the superblock did not name yet are
/// lost unnoticed: `untold`.
pub(super) fn outcome(disk: &SimDisk, known: &[Known], ending: Ending, before: &Snapshot, untold: bool) -> Result<()> {
    let opened = open::open(Arc::new(disk.clone()), 42, &options());
    let opened =
        opened.inspect_err(|_| assert_eq!(snapshot(disk), *before, "a log that is refused is left as it is"))?;
    for (slot, known) in known.iter().enumerate() {
        let promised = MODES[slot] == Durability::Fsync || ending == Ending::Closed;
        let Some(partition) = opened.partitions.get(&PartitionId::new(1, slot as u32)) else {
            assert!(untold, "partition {slot} is gone");
            continue;
        };
        let found = read_what_can_be(partition);
        assert!(
            !promised || untold || found.next >= known.acknowledged,
            "partition {slot} ends at {}, {} were acknowledged",
            found.next,
            known.acknowledged
        );
        assert_eq!(found.gaps, 0, "partition {slot}");
        let mut wanted = (found.first..found.next).filter(|n| *n >= known.thinned || is_kept(*n));
        assert!(!found.errors.is_empty() || wanted.all(|n| found.offsets.binary_search(&n).is_ok()));
    }
    disk.kill();
    Ok(())
}

/// After a repair, everything in the other files is there, and no promised offset is assigned again.
fn check_repaired(disk: &SimDisk, promised: &[u64], all: &[Placed], hit: &[String], what: &str) {
    let opened = open::open(Arc::new(disk.clone()), 42, &options()).unwrap_or_else(|error| panic!("{error}"));
    let mut found = Vec::new();
    for (slot, mode) in MODES.into_iter().enumerate() {
        let partition = opened.partitions.get(&PartitionId::new(1, slot as u32));
        let readable = partition
            .map(|partition| read_what_can_be(partition))
            .unwrap_or_default();
        assert!(readable.errors.is_empty(), "{:?}", readable.errors);
        let least = promised.get(slot).copied().filter(|_| mode == Durability::Fsync);
        assert!(
            partition.is_none() || readable.next >= least.unwrap_or_default(),
            "{what}: partition {slot} goes on at {}, {least:?} were acknowledged",
            readable.next
        );
        found.push(readable);
    }
    for one in all.iter().filter(|one| !hit.contains(&one.file)) {
        let readable = &found[one.slot];
        let mut wanted = one.offsets.clone().filter(|n| is_kept(*n) && *n >= readable.first);
        assert!(
            wanted.all(|n| readable.offsets.binary_search(&n).is_ok()),
            "{what}: records {:?} of partition {} stood in {}",
            one.offsets,
            one.slot,
            one.file
        );
    }
    drop(opened);
    disk.kill();
}

/// A log that has ended, with undamaged files.
struct Whole {
    seed: u64,
    ending: Ending,
    files: Snapshot,
    known: Vec<Known>,
    placed: Vec<Placed>,
}

impl Whole {
    fn of(seed: u64, ending: Ending) -> Whole {
        let (files, known) = ended(seed, 42, ending);
        outcome(&disk_of(&files, seed), &known, ending, &files, false).unwrap();
        // After a power cut, this is what is left of it.
        let placed = placed(&disk_of(&files, seed));
        Whole {
            seed,
            ending,
            files,
            known,
            placed,
        }
    }

    /// Checks how a start, a check and a repair handle damaged files.
    fn is_told(&self, damaged: &Snapshot, hit: &Hit) -> &'static str {
        let disk = disk_of(damaged, self.seed);
        let Err(error) = outcome(&disk, &self.known, self.ending, damaged, hit.is_untold(self)) else {
            return "opens";
        };
        assert!(
            matches!(
                error,
                LogError::Corrupt { .. }
                    | LogError::Missing { .. }
                    | LogError::Foreign { .. }
                    | LogError::Misnamed { .. }
            ),
            "{error}"
        );
        let report = checked(&disk);
        assert!(!report.is_whole(), "{error} {report:?}");
        let repaired = match repair(&disk, true, &mut |_, _| {}) {
            Err(LogError::Foreign { .. } | LogError::Misnamed { .. }) => return "by hand",
            repaired => repaired.unwrap(),
        };
        let after = repaired.done.map_or(repaired.before, |done| done.after);
        assert!(after.is_whole(), "{error} {:?}", after.findings);
        // Restoring the names loses nothing; a repair may lose records, but the log continues.
        if hit.any(|_, damage| damage == Damage::Swapped) {
            for _ in 0..2 {
                let mut driven = open(&disk).unwrap_or_else(|again| panic!("{error}, repaired: {again}"));
                let mut known: Vec<Known> = Vec::new();
                for partition in &driven.partitions {
                    let next = partition.bounds().next;
                    known.push(Known {
                        submitted: next,
                        acknowledged: next,
                        ..Known::default()
                    });
                }
                assert!(work(&mut driven, &mut known, &mut Random::new(self.seed)));
                drop(driven);
                disk.kill();
            }
            return "repaired with swapped names";
        }
        // Two files of another log, one of them the superblock, may outnumber those of this one.
        if hit.any(|name, damage| name == superblock::NAME && damage == Damage::OfAnotherLog) {
            return "repaired";
        }
        let changed = |name: &&String| self.files.get(*name) != damaged.get(*name);
        let changed: Vec<String> = self.files.keys().filter(changed).cloned().collect();
        let known = if hit.is_untold(self) { &[] } else { &self.known[..] };
        let promised: Vec<u64> = known.iter().map(|known| known.acknowledged).collect();
        check_repaired(&disk, &promised, &self.placed, &changed, &format!("{error} {report:?}"));
        "repaired"
    }
}

/// The damage to each file.
struct Hit(Vec<(String, Damage)>);

impl Hit {
    fn any(&self, is: impl Fn(&str, Damage) -> bool) -> bool {
        self.0.iter().any(|(name, damage)| is(name, *damage))
    }

    /// See "What cannot be told" in docs/explanation/durability.md.
    fn is_untold(&self, whole: &Whole) -> bool {
        let in_place = |_: &str, damage| matches!(damage, Damage::TailZeroed | Damage::CutAndFilledUp);
        let superblock = self.any(|name, _| name == superblock::NAME);
        (whole.ending == Ending::PowerCut && self.any(in_place)) || (superblock && self.0.len() > 1)
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts of a long run are its result")]
fn a_log_with_a_file_that_is_not_as_it_was_has_all_that_was_acknowledged_or_does_not_open() {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    each_seed(8, |seed| {
        let mut random = Random::new(seed);
        let ending = [Ending::Closed, Ending::Killed, Ending::PowerCut][random.below(3) as usize];
        let whole = Whole::of(seed, ending);
        let (other, _) = ended(seed ^ 0x5555, 43, Ending::Closed);
        let mut is_told = |damaged: Snapshot, hit: Hit| {
            let kinds = hit.0.iter().map(|(name, damage)| {
                let kind = name.split('-').next().unwrap_or_default();
                format!("{kind} {damage:?}")
            });
            let kinds = kinds.collect::<Vec<_>>().join(" and ");
            let told = std::panic::AssertUnwindSafe(|| whole.is_told(&damaged, &hit));
            let Ok(how) = std::panic::catch_unwind(told) else {
                panic!("{ending:?}: {:?}", hit.0)
            };
            // There are too many pairs to count each of them.
            let kinds = if hit.0.len() > 1 { "two files" } else { &kinds };
            *counts.entry(format!("{kinds}: {how}")).or_default() += 1;
        };
        let mut single = Vec::new();
        for name in whole.files.keys() {
            for damage in DAMAGES {
                let Some(damaged) = damage.applied(&whole.files, name, &other, &mut random) else {
                    continue;
                };
                single.push((name.clone(), damage));
                is_told(damaged, Hit(vec![(name.clone(), damage)]));
            }
        }
        for _ in 0..single.len() {
            let mut pick = || single[random.below(single.len() as u64) as usize].clone();
            let pair = [pick(), pick()];
            let mut damaged = Some(whole.files.clone());
            for (name, damage) in &pair {
                damaged = damaged.and_then(|files| damage.applied(&files, name, &other, &mut random));
            }
            let [(one, _), (two, _)] = &pair;
            if let Some(damaged) = damaged.filter(|_| one != two) {
                is_told(damaged, Hit(pair.into()));
            }
        }
    });
    println!("{} cases: {counts:#?}", counts.values().sum::<u64>());
    assert!(counts.len() > 20, "{counts:?}");
}

/// Any damage to a slot: its version, its generation, or all of it.
#[test]
fn a_superblock_of_which_a_part_is_damaged_is_made_anew_and_nothing_is_refused_for_it() {
    each_seed(40, |seed| {
        let (mut files, known) = ended(seed, 42, Ending::Killed);
        let mut random = Random::new(seed);
        let slot = random.below(3) as usize * PAGE;
        let bytes = files.get_mut(superblock::NAME).unwrap();
        match random.below(4) {
            // Looks like a newer version.
            0 => bytes[slot + 4] ^= 2 << random.below(7),
            1 => {
                bytes[slot + 5] ^= 1 << random.below(8);
                bytes[slot + 20] ^= 1;
            }
            2 => bytes[slot + 30] ^= 1,
            _ => bytes[slot + 4..slot + 68].fill(random.number() as u8 | 2),
        }
        let disk = disk_of(&files, seed);
        let report = checked(&disk);
        let damaged = |one: &&crate::check::Finding| one.kind == FindingKind::BadSuperblock && !one.is_error;
        assert!(report.is_whole(), "{:?}", report.findings);
        assert_eq!(
            report.findings.iter().filter(damaged).count(),
            1,
            "{:?}",
            report.findings
        );
        // A repair has nothing to do and must not fail.
        repair(&disk, true, &mut |_, _| {}).unwrap();
        outcome(&disk, &known, Ending::Killed, &files, false).unwrap();
        assert!(
            checked(&disk)
                .findings
                .iter()
                .all(|one| one.kind == FindingKind::TornTail)
        );
    });
}

#[test]
fn a_repair_gets_over_a_superblock_of_garbled_versions() {
    each_seed(10, |seed| {
        let (mut files, _) = ended(seed, 42, Ending::Closed);
        let bytes = files.get_mut(superblock::NAME).unwrap();
        (0..3).for_each(|slot| bytes[slot * PAGE + 4] = 9);
        let disk = disk_of(&files, seed);
        let refused = open(&disk).err().unwrap();
        assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
        assert_eq!(snapshot(&disk), files);
        let done = repair(&disk, true, &mut |_, _| {}).unwrap().done;
        assert!(done.is_some_and(|done| done.after.is_whole()));
        open(&disk).unwrap();
    });
}

#[test]
fn a_log_of_a_program_that_wrote_no_superblock_opens_and_has_one_then() {
    let (mut files, known) = ended(3, 42, Ending::Closed);
    files.remove(superblock::NAME);
    let disk = disk_of(&files, 3);
    outcome(&disk, &known, Ending::Closed, &files, false).unwrap();
    let found = superblock::read(&disk, &disk.names().unwrap()).unwrap().unwrap();
    assert_eq!((found.newest.unwrap().log_id, found.damaged), (42, Vec::new()));
}

#[test]
fn a_superblock_of_a_newer_program_is_not_taken_for_damage() {
    let (mut files, ..) = ended(3, 42, Ending::Closed);
    let bytes = files.get_mut(superblock::NAME).unwrap();
    // One such slot suffices, because it may be the newest.
    let slot = bytes.get_mut(PAGE..PAGE + 68).unwrap();
    (slot[4], slot[20]) = (2, !slot[20]);
    let crc = crc32c::crc32c(&slot[..64]);
    slot[64..].copy_from_slice(&crc.to_le_bytes());
    let disk = disk_of(&files, 3);
    let refused = open(&disk).err().unwrap();
    assert!(matches!(refused, LogError::NewerFormat { .. }), "{refused}");
    assert!(checked(&disk).is_newer());
    assert!(matches!(
        repair(&disk, true, &mut |_, _| {}),
        Err(LogError::NewerFormat { .. })
    ));
    assert_eq!(snapshot(&disk), files);
}

#[test]
fn a_clean_stop_is_told_from_a_crash() {
    for (ending, was_closed) in [(Ending::Closed, true), (Ending::Killed, false)] {
        let (files, _) = ended(5, 42, ending);
        let disk = disk_of(&files, 5);
        let opened = open::open(Arc::new(disk.clone()), 42, &options()).unwrap();
        assert_eq!(opened.report.was_closed, was_closed);
        drop(opened);
        disk.kill();
        // The log was opened again and not closed.
        let opened = open::open(Arc::new(disk), 42, &options()).unwrap();
        assert!(!opened.report.was_closed);
    }
}

/// It is therefore enough to check that this file exists: later files have nothing acknowledged.
#[test]
fn whenever_the_power_goes_all_that_was_acknowledged_is_in_files_up_to_the_one_that_the_superblock_names() {
    let mut spared = 0;
    each_seed(300, |seed| {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed, 64 << 20);
        let mut known = vec![Known::default(); MODES.len()];
        let mut driven = open(&disk).unwrap();
        disk.cut_power_in(random.below(300));
        while work(&mut driven, &mut known, &mut random) {}
        disk.power_cut();
        let mut files = snapshot(&disk);
        let found = superblock::read(&disk, &disk.names().unwrap()).unwrap().unwrap();
        let named = crate::file::commit_name(found.newest.unwrap().file);
        let before = files.len();
        files.retain(|name, _| !name.starts_with("commit") || *name <= named);
        spared += before - files.len();
        outcome(&disk_of(&files, seed), &known, Ending::PowerCut, &files, false).unwrap();
    });
    // A few chosen seeds may not produce this case.
    assert!(
        spared > 20 || std::env::var_os("THALWEG_SIM_SEEDS").is_some(),
        "{spared}"
    );
}
