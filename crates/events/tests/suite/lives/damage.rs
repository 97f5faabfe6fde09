//! Damages a file after the process has ended. A check of the log names everything that is lost, and a start that may
//! not accept loss changes nothing.

use std::collections::{BTreeMap, HashMap};

use thalweg_events::{Store as _, event_in};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::format::record::records;
use thalweg_log::{CheckReport, Finding, FindingKind, LogError, Offset, PartitionId, check, repair};

use super::machine::{DISK_BYTES, Process};
use super::model::{Fate, text_in, text_of};
use super::steps::{Counts, World, everything};

type Files = BTreeMap<String, Vec<u8>>;

fn files_of(disk: &SimDisk) -> Files {
    let read = |name: String| {
        let file = disk.open(&name).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        (name, bytes)
    };
    disk.names().unwrap().into_iter().map(read).collect()
}

fn disk_of(files: &Files, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed, DISK_BYTES);
    for (name, bytes) in files {
        let file = disk.create(name).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
    }
    disk.sync_names().unwrap();
    disk
}

/// The log position of each message.
fn offsets_of(process: &Process) -> HashMap<String, (PartitionId, Offset)> {
    let mut found = HashMap::new();
    for partition in process.store.partitions() {
        let bounds = process.log.bounds(partition.id).unwrap();
        let mut at = bounds.first;
        while at < bounds.next {
            let frames = match process.log.read(partition.id, at, 1 << 20) {
                Err(LogError::Gap { to, .. }) => {
                    at = to.max(at + 1);
                    continue;
                }
                frames => frames.unwrap(),
            };
            for frame in &frames {
                let mut next = frame.header.base;
                for record in records(&frame.body) {
                    let record = record.unwrap();
                    let offset = record.delta.map_or(next, |delta| frame.header.base + u64::from(delta));
                    next = offset + 1;
                    if let Some(event) = event_in(record.value, record.time).unwrap() {
                        found.insert(text_in(event.data).to_owned(), (partition.id, offset));
                    }
                }
                at = frame.header.next();
            }
        }
    }
    found
}

/// Whether a report names the record at an offset.
fn names(report: &CheckReport, (id, offset): (PartitionId, Offset)) -> bool {
    let is_lost = report
        .lost
        .iter()
        .any(|lost| lost.partition == id && (lost.from..lost.to).contains(&offset));
    // Records beyond the end of the log are named as blocks, if there is any evidence of them.
    let known = report.partitions.iter().find(|known| known.id == id);
    is_lost || known.is_none_or(|known| offset >= known.next)
}

impl World {
    fn bend(&mut self, files: &mut Files) {
        let names: Vec<String> = files.keys().filter(|name| name.ends_with(".log")).cloned().collect();
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        let what = self.random.below(5);
        self.happened(("damage", &name, what));
        let bytes = files.get_mut(&name).unwrap();
        match what {
            0 => drop(files.remove(&name)),
            1 => bytes.fill(0),
            2 => bytes.truncate(self.random.below(bytes.len() as u64) as usize),
            3 => bytes.iter_mut().take(4096).for_each(|byte| *byte = 0),
            _ => {
                let at = self.random.below(bytes.len() as u64 / 2) as usize;
                bytes.iter_mut().skip(at).take(3000).for_each(|byte| *byte ^= 0x24);
            }
        }
    }

    pub async fn damage(mut self) -> Counts {
        self.check().await;
        let places = offsets_of(&self.process());
        self.machine.kill();
        self.is_gone().await;
        let mut files = files_of(&self.machine.log);
        self.bend(&mut files);
        self.machine.log = disk_of(&files, self.random.below(u64::MAX));
        let report = check(&self.machine.log, &mut |_, _| {}).unwrap();
        self.happened(("report", &report.findings, &report.lost));
        match self.machine.try_boot(false).await {
            Ok(process) if report.is_whole() => {
                self.process = Some(std::sync::Arc::new(process));
                self.check().await;
                self.is_gone().await;
                return self.counts;
            }
            // Unreadable data is reported when it is read.
            Ok(process) => process.gone().await,
            Err(refused) => {
                assert!(!report.is_whole(), "{}", refused.error);
                let is_as_it_was = || files_of(&self.machine.log) == files;
                assert!(!refused.by_log || is_as_it_was(), "changed though {}", refused.error);
            }
        }
        if self.random.one_in(3) {
            self.machine.lose_indexes();
        }
        let process = self.machine.try_boot(true).await.unwrap();
        self.holds_what_is_not_named(&process, &report, &places).await;
        process.gone().await;
        // After a repair, a start without permission succeeds with the same result.
        repair(&self.machine.log, true, &mut |_, _| {}).unwrap();
        let process = self.machine.try_boot(false).await.unwrap();
        self.holds_what_is_not_named(&process, &report, &places).await;
        process.store.scavenge().await.unwrap();
        let before = self.holds_what_is_not_named(&process, &report, &places).await;
        process.gone().await;
        self.machine.lose_indexes();
        let process = self.machine.try_boot(false).await.unwrap();
        let anew = self.holds_what_is_not_named(&process, &report, &places).await;
        process.gone().await;
        assert!(
            Self::is_untold(&report) || anew == before,
            "indexes that are made again show {anew:?} in the place of {before:?}"
        );
        self.counts
    }

    /// Blocks that are lost without a trace leave nothing in the log, not even a gap, but their rows are still in the
    /// indexes.
    fn is_untold(report: &CheckReport) -> bool {
        report.unaccounted > 0
    }

    /// Returns where each message is visible.
    async fn holds_what_is_not_named(
        &mut self,
        process: &Process,
        report: &CheckReport,
        places: &HashMap<String, (PartitionId, Offset)>,
    ) -> BTreeMap<String, Vec<(String, u64)>> {
        let mut shown: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        for namespace in process.store.namespaces().await.unwrap() {
            for stored in everything(namespace.as_ref(), None).await {
                let place = (namespace.name().to_owned(), stored.event().global);
                shown.entry(text_of(&stored)).or_default().push(place);
            }
        }
        for text in shown.keys() {
            assert!(self.model.messages.contains_key(text), "{text} was never asked for");
        }
        for (text, known) in &self.model.messages {
            let found = shown.get(text).map_or(&[][..], Vec::as_slice);
            let times = found.len();
            assert!(times <= 1, "{text} is there more than once: {found:?}");
            // The given-up data may include a deletion, so that a namespace comes back.
            let Some(place) = places.get(text).copied() else {
                continue;
            };
            let is_named = names(report, place);
            // The given-up data may include the record that removed the message.
            let is_touched = Self::is_untold(report) || report.lost.iter().any(|lost| lost.partition == place.0);
            assert!(
                known.fate != Fate::Gone || times == 0 || is_touched,
                "{text} was gone, and is back: {known:?}"
            );
            assert!(!is_named || times == 0, "{text} was named as lost, and is there");
            let may_be_hidden = known.was_ruled || (is_touched && self.model.was_ever_hidden(known));
            let must = known.fate == Fate::Live && !may_be_hidden && known.era == self.model.era(&known.namespace);
            assert!(
                !must || is_named || times == 1,
                "{text} at {place:?} is lost, and nothing names it: {known:?}"
            );
            self.counts.lost += u64::from(must && is_named);
        }
        let is_bad_body = |finding: &Finding| finding.kind == FindingKind::BadBody && finding.is_error;
        if !Self::is_untold(report) && !report.findings.iter().any(is_bad_body) {
            let faults = process.store.verify().await.unwrap().faults;
            assert_eq!(faults, [], "what was given up is no fault any more");
        }
        shown
    }
}
