//! Late rows: determines which existing windows must be made again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Resolution;
use super::super::pass::{SeriesTimeRanges, touch};
use super::{RollupBuilder, RollupError, overlaps};
use thalweg_delta::actions::Action;
use thalweg_delta::{DeltaLog, FileEntry, Snapshot, times_of};
use thalweg_kit::{clock, threads};

/// A file that was added to a table.
struct AddedFile {
    path: Arc<str>,
    bytes: u64,
    times: Option<(i64, i64)>,
}

impl AddedFile {
    fn of(file: &FileEntry) -> AddedFile {
        AddedFile {
            path: file.path.clone(),
            bytes: file.size,
            times: file.times,
        }
    }
}

impl RollupBuilder {
    /// Finds rows in newly added files whose windows exist already.
    pub(super) fn look_for_late_rows(&mut self, source: &Snapshot) -> Result<(), RollupError> {
        let mut late: [SeriesTimeRanges; 5] = Default::default();
        if let Some(until) = self.state(0).until {
            // A file may be merged already, so this reads the commits instead of the file list. After a start it begins
            // at the watermark.
            let since = self.looked_until.unwrap_or(self.state(0).late);
            let all = || source.files.values().map(|file| AddedFile::of(file)).collect();
            let added = self.added(&self.source, since, source.version)?.unwrap_or_else(all);
            self.touch(source, 0, &added, until, &mut late)?;
            if self.looked_until.is_none() {
                for at in 1..Resolution::ALL.len() {
                    self.look_for_revisions(at, &mut late)?;
                }
            }
        }
        // Not earlier: after an error they are looked for again.
        self.looked_until = Some(source.version);
        for (known, more) in self.late.iter_mut().zip(late) {
            join(known, more);
        }
        self.late_arrived();
        Ok(())
    }

    /// Finds revisions of the finer resolution that this one does not include.
    fn look_for_revisions(&self, at: usize, late: &mut [SeriesTimeRanges; 5]) -> Result<(), RollupError> {
        let state = self.state(at);
        let (Some(until), Some(own)) = (state.until, self.own()) else {
            return Ok(());
        };
        let before = at.checked_sub(1).and_then(|before| Resolution::ALL.get(before));
        let folder = before.map_or_else(String::new, |before| format!("resolution_s={}/", before.seconds()));
        let all = || own.files.values().map(|file| AddedFile::of(file)).collect();
        let mut added = self.added(&self.log, state.late, own.version)?.unwrap_or_else(all);
        added.retain(|added| added.path.starts_with(&folder));
        self.touch(own, at, &added, until, late)
    }

    /// Finds rows in the added files whose windows exist already.
    fn touch(
        &self,
        table: &Snapshot,
        at: usize,
        added: &[AddedFile],
        until: i64,
        late: &mut [SeriesTimeRanges; 5],
    ) -> Result<(), RollupError> {
        let (spec, log) = match at {
            0 => (self.source_spec, &self.source),
            _ => (self.spec, &self.log),
        };
        let Some(touched) = late.get_mut(at) else { return Ok(()) };
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for AddedFile { path, bytes, times } in added {
            let Some((first, last)) = times.filter(|(first, _)| *first < until) else {
                continue;
            };
            let is_gone = !table.files.contains_key(path)
                && threads::block_on(&self.runtime, log.missing(std::iter::once(path.clone())))? > 0;
            // A merged file is deleted at some time. Then all files with overlapping times are read in its place.
            let merged = table
                .files
                .values()
                .filter(|file| overlaps(file, first, last.saturating_add(1)));
            let files = match is_gone {
                true => merged.map(|file| (&*file.path, file.size)).collect(),
                false => vec![(&**path, *bytes)],
            };
            for (path, bytes) in files {
                if seen.insert(path) {
                    let file = threads::block_on(&self.runtime, log.local_file(path, bytes))?;
                    touch(spec, file.path(), until, touched)?;
                }
            }
        }
        Ok(())
    }

    /// The files with rows that were added after version `after`; `None` if a commit is missing.
    fn added(&self, log: &DeltaLog, after: i64, version: i64) -> Result<Option<Vec<AddedFile>>, RollupError> {
        let mut added = Vec::new();
        for version in after + 1..=version {
            let Some(actions) = threads::block_on(&self.runtime, log.read_commit(version))? else {
                return Ok(None);
            };
            for action in actions {
                if let Action::Add(add) = action
                    && add.data_change
                {
                    added.push(AddedFile {
                        times: times_of(&add),
                        bytes: add.size,
                        path: add.path.into(),
                    });
                }
            }
        }
        Ok(Some(added))
    }

    pub(super) fn late_arrived(&mut self) {
        if self.late_since.is_none() && self.late.iter().any(|touched| !touched.is_empty()) {
            self.late_since = Some(clock::now());
        }
    }
}

pub(super) fn join(late: &mut SeriesTimeRanges, more: SeriesTimeRanges) {
    for (series, (first, last)) in more {
        let span = late.entry(series).or_insert((first, last));
        *span = (span.0.min(first), span.1.max(last));
    }
}
