//! Decides which of the outlined files form the log, in which order, and where the log ends. Damage up to the synced
//! mark is part of the log; the first incomplete block after the mark ends it.

use std::collections::BTreeSet;

use super::finding::{Finding, FindingKind};
use super::outline::{BlockRun, FileOutline, bytes};
use crate::file::commit_name;
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::ids::Sequence;
use crate::superblock::Superblock;

/// The role of a commit file in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRole {
    Live,
    /// Beyond the end of the log and ready for use.
    Spare,
    /// Between live files, but without any readable block.
    Destroyed,
}

pub(crate) struct LogLayout {
    pub files: Vec<(FileOutline, FileRole)>,
    /// Indexes into `files` of files that prevent a start.
    pub obstacles: Vec<usize>,
    pub findings: Vec<Finding>,
    pub last: Sequence,
}

/// `newest` is the content of the superblock.
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
    /// If a file does not begin with the block that follows the last block of the file before it, the blocks between
    /// are lost.
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
            // Missing numbers belong to files that were no longer needed, or to a destroyed file.
            let adjacent = outline.file.number == number + 1;
            // The trailer of a file names its first block.
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

    /// Handles files whose blocks are in another order than their names, for example after two files were swapped. As
    /// many files as possible keep their place; the others become obstacles.
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

    /// Blocks up to the mark were synced, but the last ones are gone. They belong to the last live file, or to the file
    /// that the superblock names.
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

    /// Ends the log at the first incomplete block after the mark.
    fn cut(&mut self, mark: Sequence) {
        for n in 0..self.files.len() {
            let Some((outline, FileRole::Live)) = self.files.get_mut(n) else {
                continue;
            };
            let Some((at, sequence)) = outline.broken_after(mark) else {
                continue;
            };
            let torn = outline.end().saturating_sub(at);
            outline.end_before(at, sequence, mark);
            self.findings.push(torn_tail(&outline.file.name, at, torn));
            // If nothing of the file is left, its content is cleared like that of the files after it.
            let kept = usize::from(!outline.stretches.is_empty());
            for (outline, role) in self.files.iter_mut().skip(n + kept) {
                outline.stretches.clear();
                *role = FileRole::Spare;
            }
            return;
        }
    }

    /// Reports a block whose write had started, after the last block or in the next file.
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

/// The indexes of a longest subsequence with rising sequences.
fn longest_in_order(files: &[(usize, Sequence)]) -> BTreeSet<usize> {
    // `ends` has the best last index for each length; `before` has the predecessor of each index.
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

/// The approximate end of the lost blocks after the last block of a file: where zeros or older blocks begin.
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
    /// The first block after the mark that is missing or has a damaged body.
    fn broken_after(&self, mark: Sequence) -> Option<(u64, Sequence)> {
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

    /// Drops everything at or after `at`, except for damaged stretches with blocks up to the mark.
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

/// Visits the blocks of a sound stretch until `look` returns false.
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
