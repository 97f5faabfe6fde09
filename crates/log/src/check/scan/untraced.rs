//! Estimates how many offsets damage may have taken without leaving a trace of their partitions.

use super::{LogScan, ScannedFile};
use crate::check::layout::FileRole;
use crate::format::record;
use crate::ids::Sequence;
use crate::superblock::Superblock;

impl LogScan {
    /// Estimates what damage at the end of the log may have taken without a trace. Earlier losses are known from the
    /// table snapshot at the start of the next file.
    pub(super) fn look_for_untraced(&mut self, newest: Option<&Superblock>) {
        let is_live = |file: &&ScannedFile| file.role == FileRole::Live && file.last_sound().is_some();
        let last = self.commits.iter().rposition(|file| is_live(&file));
        let number = |n: usize| self.commits.get(n).map(|file| file.outline.file.number);
        let named = newest.and_then(|newest| self.commits.iter().find(|file| file.outline.file.number == newest.file));
        let found = named.map_or(0, |file| file.holds.values().map(|held| held.next - held.first).sum());
        let last_sound = last.and_then(|n| self.commits.get(n)).and_then(ScannedFile::last_sound);
        // The snapshot of the last file covers everything before that file, if the snapshot is sound.
        let is_told = self
            .damaged_from
            .is_none_or(|from| last.and_then(number).is_some_and(|last| last <= from));
        let bytes = match (last, last_sound) {
            (Some(last), Some(sequence)) if sequence >= self.mark && is_told => {
                let open = self.commits.get(last).filter(|file| !file.outline.footer.is_whole());
                let size = named.map_or(u64::MAX, |file| file.outline.file.size);
                let cut_off = newest.map_or(0, |newest| newest.file_bytes.saturating_sub(size));
                open.map_or(0, ScannedFile::unsound_bytes) + cut_off
            }
            // From there on anything may have been stored, in files that may have become shorter since.
            _ => {
                let from = self
                    .damaged_from
                    .unwrap_or(u64::MAX)
                    .min(last.and_then(number).unwrap_or(0));
                let after = self.commits.iter().filter(|file| file.outline.file.number >= from);
                let had = newest.map_or(0, |newest| newest.file_bytes);
                let last = last.and_then(number);
                let is_gone = newest.filter(|newest| last.is_none_or(|last| last <= newest.file));
                let sizes = after
                    .filter(|file| file.role != FileRole::Spare)
                    .map(|file| file.outline.file.size.max(had));
                let gone = is_gone.map_or(0, |newest| {
                    let files = last.map_or(1, |last| newest.file.saturating_sub(last).max(1));
                    files.saturating_mul(newest.file_bytes)
                });
                sizes.sum::<u64>() + gone
            }
        };
        if bytes == 0 {
            return;
        }
        self.unaccounted = newest.map_or(0, |newest| newest.offsets.saturating_sub(found));
        // The superblock counts the offsets of one file.
        let is_counted = |newest: &&Superblock| {
            let own = self.damaged_from.is_none_or(|from| newest.file <= from);
            own && newest.closed && newest.first <= self.last + 1
        };
        self.skipped = match newest.is_some_and(|newest| is_counted(&newest)) {
            true => self.unaccounted,
            // More may have been stored than the superblock recorded, but never more than fits into the lost bytes.
            false => self.unaccounted.max(bytes / record::LEN_LEAST),
        };
    }
}

impl ScannedFile {
    /// The sequence of the last readable block.
    pub(super) fn last_sound(&self) -> Option<Sequence> {
        let sound = self.outline.stretches.iter().rfind(|stretch| stretch.sound);
        sound.map(|stretch| stretch.last)
    }

    /// The size of the stretches in which no block can be read.
    fn unsound_bytes(&self) -> u64 {
        let unsound = self.outline.stretches.iter().filter(|stretch| !stretch.sound);
        unsound.map(|stretch| stretch.end - stretch.at).sum()
    }
}
