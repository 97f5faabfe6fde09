//! Which of the outlined files are the log, in which order, and where it ends: what is damaged up to the mark is part of it,
//! what is not whole behind the mark ends it.

use std::collections::BTreeSet;

use super::finding::{Finding, FindingKind};
use super::outline::{BlockRun, FileOutline, bytes};
use crate::file::commit_name;
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::ids::Sequence;
use crate::superblock::Superblock;

/// What a commit file is to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRole {
    Live,
    /// Behind the end: ready for use.
    Spare,
    /// Between others, without one block that can be read.
    Destroyed,
}

pub(crate) struct LogLayout {
    pub files: Vec<(FileOutline, FileRole)>,
    /// Files that a start cannot pass, by their place in `files`.
    pub obstacles: Vec<usize>,
    pub findings: Vec<Finding>,
    pub last: Sequence,
}

/// `newest` is what the superblock says.
pub(crate) fn settle(outlines: Vec<FileOutline>, mark: Sequence, newest: Option<&Superblock>) -> LogLayout {
    let last_live = outlines.iter().rposition(|outline| !outline.stretches.is_empty());
    let role = |n: usize, outline: &FileOutline| match last_live {
        Some(last) if n <= last && outline.stretches.is_empty() => FileRole::Destroyed,
        Some(last) if n <= last => FileRole::Live,
        _ => FileRole::Spare,
    };
    let files = outlines
        .into_iter()
        .enumerate()
        .map(|(n, outline)| (role(n, &outline), outline));
    let mut settled = LogLayout {
        files: files.map(|(role, outline)| (outline, role)).collect(),
        obstacles: Vec::new(),
        findings: Vec::new(),
        last: 0,
    };
    settled.join();
    settled.cut(mark);
    let live = settled.files.iter().filter(|(_, role)| *role == FileRole::Live);
    settled.last = live.filter_map(|(outline, _)| outline.last()).max().unwrap_or_default();
    if settled.last < mark {
        settled.miss(mark, newest);
    }
    settled.tear();
    settled
}

impl LogLayout {
    /// Where a file does not begin with the block behind the last of the file before it, the blocks between are lost.
    fn join(&mut self) {
        let live: Vec<usize> = (0..self.files.len())
            .filter(|n| self.files.get(*n).is_some_and(|(_, role)| *role == FileRole::Live))
            .collect();
        self.set_apart(&live);
        for pair in live.windows(2) {
            let &[before, after] = pair else { continue };
            let Some((expected, number)) = self
                .files
                .get(before)
                .and_then(|(outline, _)| Some((outline.last()? + 1, outline.file.number)))
            else {
                continue;
            };
            let Some((outline, _)) = self.files.get_mut(after) else {
                continue;
            };
            // The numbers between are of files that nobody needed any more, or of one that is destroyed.
            let adjacent = outline.file.number == number + 1;
            // The end of a file says which block it begins with.
            let is_unknown = adjacent && outline.footer.trailer().is_none();
            if let Some(head) = outline.stretches.first_mut().filter(|head| !head.sound && is_unknown) {
                head.first = expected.min(head.last + 1);
            }
            let Some(first) = outline.first().filter(|first| adjacent && *first > expected) else {
                continue;
            };
            self.lost_tail(before, expected, first - 1);
        }
    }

    /// Files whose blocks are in another order than their names, as when two have each other's: a start gets past as many as
    /// can be left in their place, and the others are obstacles.
    fn set_apart(&mut self, live: &[usize]) {
        let first = |n: &usize| self.files.get(*n).and_then(|(outline, _)| outline.first());
        let begins: Vec<(usize, Sequence)> = live.iter().filter_map(|n| Some((*n, first(n)?))).collect();
        let kept = longest_in_order(&begins);
        let others = begins.iter().enumerate().filter(|(place, _)| !kept.contains(place));
        self.obstacles.extend(others.map(|(_, (n, _))| *n));
    }

    fn lost_tail(&mut self, n: usize, first: Sequence, last: Sequence) {
        self.obstacles.push(n);
        let Some((outline, _)) = self.files.get_mut(n) else {
            return;
        };
        let at = outline.end();
        let end = tail_end(outline, at, first);
        outline.stretches.push(BlockRun {
            at,
            end,
            first,
            last,
            sound: false,
        });
    }

    /// Blocks up to the mark were synced, and nothing of the last ones is left: in the last file there is, or in the one that the
    /// superblock names.
    fn miss(&mut self, mark: Sequence, newest: Option<&Superblock>) {
        let next = self.last + 1;
        let Some(named) = newest.filter(|newest| newest.first >= next) else {
            let live = self.files.iter().rposition(|(_, role)| *role == FileRole::Live);
            return live.into_iter().for_each(|n| self.lost_tail(n, next, mark));
        };
        let live = self
            .files
            .iter()
            .rposition(|(_, role)| *role == FileRole::Live)
            .map_or(0, |n| n + 1);
        let mut is_there = false;
        for (outline, role) in self.files.iter_mut().skip(live) {
            if outline.file.number <= named.file {
                *role = FileRole::Destroyed;
            }
            is_there |= outline.file.number == named.file;
        }
        if is_there {
            return;
        }
        self.findings.push(Finding {
            file: commit_name(named.file),
            position: 0,
            bytes: named.file_bytes,
            kind: FindingKind::NewestMissing {
                first: next,
                last: mark,
            },
            records: None,
            is_error: true,
        });
    }

    /// The first block behind the mark that is not whole ends the log.
    fn cut(&mut self, mark: Sequence) {
        for n in 0..self.files.len() {
            let Some((outline, FileRole::Live)) = self.files.get_mut(n) else {
                continue;
            };
            let Some((at, sequence)) = outline.broken_behind(mark) else {
                continue;
            };
            let torn = outline.end().saturating_sub(at);
            outline.end_before(at, sequence, mark);
            self.findings.push(torn_tail(&outline.file.name, at, torn));
            // Where nothing of a file is left, what stands in it is to be cleared away like that of those behind it.
            let kept = usize::from(!outline.stretches.is_empty());
            for (outline, role) in self.files.iter_mut().skip(n + kept) {
                outline.stretches.clear();
                *role = FileRole::Spare;
            }
            return;
        }
    }

    /// The next block may have been begun, behind the last one or in the next file.
    fn tear(&mut self) {
        if !self.findings.is_empty() {
            return;
        }
        let live = self.files.iter().rposition(|(_, role)| *role == FileRole::Live);
        let open = live
            .and_then(|n| self.files.get(n))
            .filter(|(outline, _)| outline.footer.trailer().is_none());
        let spare = self.files.get(live.map_or(0, |n| n + 1));
        let ends = open.map(|(outline, _)| (outline, outline.end()));
        for (outline, at) in ends.into_iter().chain(spare.map(|(outline, _)| (outline, 0))) {
            let header = BlockHeader::decode(&bytes(&outline.file, at, block::LEN));
            if let Some(header) = header.filter(|header| header.sequence == self.last + 1) {
                self.findings
                    .push(torn_tail(&outline.file.name, at, header.block_len.into()));
                return;
            }
        }
    }
}

/// The places of as many as possible whose sequences rise.
fn longest_in_order(files: &[(usize, Sequence)]) -> BTreeSet<usize> {
    // For each length the place where a row of that length ends that can best be gone on with, and what comes before each place.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::with_capacity(files.len()));
    let sequence = |place: usize| files.get(place).map_or(0, |(_, sequence)| *sequence);
    for (place, (_, own)) in files.iter().enumerate() {
        let len = ends.partition_point(|end| sequence(*end) < *own);
        before.push(len.checked_sub(1).and_then(|shorter| ends.get(shorter).copied()));
        match ends.get_mut(len) {
            Some(end) => *end = place,
            None => ends.push(place),
        }
    }
    let mut next = ends.last().copied();
    let mut row = BTreeSet::new();
    while let Some(place) = next {
        row.insert(place);
        next = before.get(place).copied().flatten();
    }
    row
}

fn torn_tail(file: &str, position: u64, bytes: u64) -> Finding {
    Finding {
        file: file.to_owned(),
        position,
        bytes,
        kind: FindingKind::TornTail,
        records: None,
        is_error: false,
    }
}

/// About where the blocks that are lost behind the last one of a file end: what follows is zeros, or older.
fn tail_end(outline: &FileOutline, at: u64, expected: Sequence) -> u64 {
    let file = &outline.file;
    let header = BlockHeader::decode(&bytes(file, at, block::LEN)).filter(|header| header.sequence == expected);
    let mut end = at + header.map_or(PAGE as u64, |header| header.block_len.into());
    while end < outline.trailer_at() {
        let page = bytes(file, end, PAGE);
        let older = BlockHeader::decode(&page).is_some_and(|header| header.sequence < expected);
        if older || page.iter().all(|byte| *byte == 0) {
            break;
        }
        end += PAGE as u64;
    }
    end.min(file.size)
}

impl FileOutline {
    /// The first block behind the mark that is missing or has a damaged body.
    fn broken_behind(&self, mark: Sequence) -> Option<(u64, Sequence)> {
        for stretch in self.stretches.iter().filter(|stretch| stretch.last > mark) {
            if !stretch.sound {
                return Some((stretch.at, stretch.first.max(mark + 1)));
            }
            let mut broken = None;
            each_block(self, stretch, |at, header| {
                let entries = self.file.block_entries(at, header).unwrap_or_default();
                let whole = entries.len() == usize::from(header.frames)
                    && entries.iter().all(|entry| self.file.body(entry).is_ok());
                if header.sequence > mark && !whole {
                    broken = Some((at, header.sequence));
                }
                broken.is_none()
            });
            if broken.is_some() {
                return broken;
            }
        }
        None
    }

    /// Forgets what stands at or behind `at`, but for blocks up to the mark that should be there.
    fn end_before(&mut self, at: u64, sequence: Sequence, mark: Sequence) {
        self.stretches.retain(|stretch| stretch.at <= at);
        if let Some(last) = self.stretches.last_mut() {
            if last.sound {
                (last.end, last.last) = (at, sequence.saturating_sub(1));
            } else {
                last.last = mark;
            }
        }
        self.stretches
            .retain(|stretch| stretch.first <= stretch.last && stretch.at < stretch.end);
    }
}

/// Goes through the blocks of a sound stretch as long as `look` says so.
pub(crate) fn each_block(outline: &FileOutline, stretch: &BlockRun, mut look: impl FnMut(u64, &BlockHeader) -> bool) {
    let mut at = stretch.at;
    while at < stretch.end {
        let Some(header) = BlockHeader::decode(&bytes(&outline.file, at, block::LEN)) else {
            return;
        };
        if !look(at, &header) {
            return;
        }
        at += u64::from(header.block_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_stay_are_in_order_and_as_many_as_can_be() {
        for (firsts, kept) in [
            (vec![1, 5, 9], vec![0, 1, 2]),
            (vec![1, 9, 5, 12], vec![0, 2, 3]),
            (vec![30, 1, 5, 9], vec![1, 2, 3]),
            (vec![9, 5, 1], vec![2]),
            (vec![], vec![]),
        ] {
            let files: Vec<(usize, Sequence)> = firsts.into_iter().enumerate().collect();
            assert_eq!(longest_in_order(&files).into_iter().collect::<Vec<_>>(), kept);
        }
    }
}
