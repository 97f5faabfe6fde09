//! Findings that do not depend on the blocks of a file: a damaged superblock, and files that belong to another log,
//! have another name or are too short.

use super::{LogScanner, ScannedFile};
use crate::check::finding::{Finding, FindingKind};
use crate::check::layout::FileRole;
use crate::error::LogError;
use crate::recovery;
use crate::superblock::{self, StoredSuperblock, Superblock};

impl LogScanner<'_> {
    pub(super) fn superblock(&mut self, found: Option<&StoredSuperblock>) {
        let Some(found) = found else { return };
        let foreign = |error: &&LogError| matches!(error, LogError::Foreign { file, .. } if file == superblock::NAME);
        let foreign = self.misplaced.iter().find(foreign).map(ToString::to_string);
        let mut say = |position: u64, bytes: u64, kind: FindingKind, is_error: bool| {
            self.findings.push(Finding {
                file: superblock::NAME.to_owned(),
                position,
                bytes,
                kind,
                records: None,
                is_error,
            });
        };
        if let Some((at, newer)) = found.newer {
            return say(at, newer.bytes(), FindingKind::NewerFormat(newer), true);
        }
        if let Some(why) = foreign {
            say(
                0,
                crate::format::superblock::LEN as u64,
                FindingKind::Misplaced(why),
                true,
            );
        }
        for at in &found.damaged {
            let kind = FindingKind::BadSuperblock;
            say(*at, crate::format::superblock::LEN as u64, kind, found.newest.is_none());
        }
    }

    /// A file of another log is not read; a repair sets it aside.
    pub(super) fn foreign(&mut self, file: &mut ScannedFile) -> bool {
        let log_file = file.outline.file.clone();
        let own = |error: &&LogError| match error {
            LogError::Foreign { file, .. } | LogError::Misnamed { file, .. } => *file == log_file.name,
            _ => false,
        };
        let Some(why) = self.misplaced.iter().find(own) else {
            return false;
        };
        let (kind, is_foreign) = (
            FindingKind::Misplaced(why.to_string()),
            matches!(why, LogError::Foreign { .. }),
        );
        self.found(&log_file, (0, log_file.size), kind, true);
        if !is_foreign {
            return false;
        }
        file.obstacle = true;
        file.bad.push((0, log_file.size));
        true
    }

    /// Reports a file whose size is not a multiple of the page size or is below the size that the superblock names.
    pub(super) fn cut_short(&mut self, file: &mut ScannedFile, newest: Option<&Superblock>) {
        let log_file = file.outline.file.clone();
        let had = newest
            .filter(|newest| newest.file == log_file.number)
            .map(|newest| newest.file_bytes);
        let is_short = match (had, newest) {
            (Some(had), _) => log_file.size < had,
            // Without a superblock, a file beyond the end may have been the newest.
            (None, None) => file.role == FileRole::Spare && recovery::is_cut_short(&log_file),
            (None, Some(_)) => false,
        };
        if is_short {
            file.obstacle = true;
            self.found(&log_file, (log_file.size, 0), FindingKind::CutShort { had }, true);
        }
    }
}
