//! Iterates over the rows of sorted files in merged order, one run of a single file at a time.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::input::{KeyedBatch, MergeInput, RowChecksum};
use super::keys::SortKeys;
use super::merge::MergeError;

/// The files of a merge. Rows with equal keys come in the order of the files.
pub struct MergeIterator<'a> {
    inputs: Vec<MergeInput<'a>>,
    pub keys: SortKeys,
    heads: MergeHeads,
    is_begun: bool,
    /// The checksum of all rows read so far.
    pub tally: RowChecksum,
}

/// Consecutive rows of one batch.
#[derive(Clone)]
pub struct RowRun {
    pub piece: Arc<KeyedBatch>,
    pub begin: usize,
    pub len: usize,
}

/// Groups runs into parts, those of one file together, and returns the merged order of their rows.
pub(crate) fn laid_out(runs: &[RowRun]) -> (Vec<RowRun>, Vec<u32>) {
    let mut parts: Vec<RowRun> = Vec::new();
    // The last part of each file. Its rows are in order, but with gaps where rows were dropped or belong to another
    // bucket.
    let mut last_of: HashMap<usize, usize> = HashMap::new();
    let mut places = Vec::with_capacity(runs.len());
    for run in runs {
        let known = last_of.get(&run.piece.input).copied();
        let open = known.and_then(|number| Some((number, parts.get_mut(number)?)));
        match open.filter(|(_, part)| Arc::ptr_eq(&part.piece, &run.piece) && part.begin + part.len == run.begin) {
            Some((number, part)) => {
                places.push((number, part.len));
                part.len += run.len;
            }
            None => {
                last_of.insert(run.piece.input, parts.len());
                places.push((parts.len(), 0));
                parts.push(run.clone());
            }
        }
    }
    let mut by_file: Vec<usize> = (0..parts.len()).collect();
    by_file.sort_by_key(|number| parts.get(*number).map(|part| part.piece.input));
    let (mut begins, mut end) = (vec![0; parts.len()], 0);
    let mut laid_out = Vec::with_capacity(parts.len());
    for number in by_file {
        if let Some((begin, part)) = begins.get_mut(number).zip(parts.get(number)) {
            *begin = end;
            end += part.len;
            laid_out.push(part.clone());
        }
    }
    let mut order = Vec::with_capacity(end);
    for (run, (number, within)) in runs.iter().zip(places) {
        let first = begins.get(number).copied().unwrap_or_default() + within;
        order.extend(first as u32..(first + run.len) as u32);
    }
    (laid_out, order)
}

impl<'a> MergeIterator<'a> {
    pub fn new(inputs: Vec<MergeInput<'a>>, keys: SortKeys) -> MergeIterator<'a> {
        MergeIterator {
            inputs,
            keys,
            heads: MergeHeads::default(),
            is_begun: false,
            tally: RowChecksum::default(),
        }
    }

    #[allow(clippy::should_implement_trait, reason = "an iterator cannot fail and end")]
    pub fn next(&mut self) -> Result<Option<RowRun>, MergeError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            for number in 0..self.inputs.len() {
                self.open_piece(number)?;
            }
        }
        let Some(mut head) = self.heads.0.pop() else {
            return Ok(None);
        };
        let end = self.heads.end_of_run(&head);
        let run = RowRun {
            piece: head.piece.clone(),
            begin: head.at,
            len: end - head.at,
        };
        head.at = end;
        match head.at < head.piece.rows.num_rows() {
            true => self.heads.add(head),
            false => self.open_piece(head.piece.input)?,
        }
        Ok(Some(run))
    }

    fn open_piece(&mut self, number: usize) -> Result<(), MergeError> {
        let input = self.inputs.get_mut(number).ok_or(MergeError::NoKey)?;
        if let Some(piece) = input.next(&self.keys, &mut self.tally)? {
            self.heads.add(MergeHead {
                piece: Arc::new(piece),
                at: 0,
            });
        }
        Ok(())
    }
}

/// The current batch of a file, and its next row.
struct MergeHead {
    piece: Arc<KeyedBatch>,
    at: usize,
}

impl MergeHead {
    /// Compares one of its rows with the next row of another file.
    fn compare(&self, row: usize, other: &MergeHead) -> Ordering {
        let by_key = self.piece.keys.compare(row, &other.piece.keys, other.at);
        by_key.then_with(|| self.piece.input.cmp(&other.piece.input))
    }
}

/// The next rows of all files, the least one last.
#[derive(Default)]
struct MergeHeads(Vec<MergeHead>);

impl MergeHeads {
    fn add(&mut self, head: MergeHead) {
        let place = self.0.partition_point(|other| head.compare(head.at, other).is_lt());
        self.0.insert(place, head);
    }

    /// The end, within the batch, of the rows that precede the next rows of all other files.
    fn end_of_run(&self, head: &MergeHead) -> usize {
        let rows = head.piece.rows.num_rows();
        let Some(other) = self.0.last() else { return rows };
        let is_before = |row: usize| head.compare(row, other).is_lt();
        if is_before(rows - 1) {
            return rows;
        }
        // Runs are either short or very long: gallop, then search binarily.
        let (mut from, mut step) = (head.at, 1);
        while from + step < rows && is_before(from + step) {
            from += step;
            step *= 2;
        }
        let (mut low, mut high) = (from + 1, rows.min(from + step));
        while low < high {
            let middle = low + (high - low) / 2;
            match is_before(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

/// Drops rows that have a newer revision, a row that differs only in the last part of the key.
#[derive(Default)]
pub struct RevisionFilter {
    /// The last row, of which the next one may be a revision.
    held: Option<RowRun>,
    /// The checksum of the dropped rows.
    pub tally: RowChecksum,
}

impl RevisionFilter {
    /// Passes on the rows that are known to have no newer revision.
    pub fn push(
        &mut self,
        run: &RowRun,
        mut give: impl FnMut(&RowRun) -> Result<(), MergeError>,
    ) -> Result<(), MergeError> {
        let part = |begin: usize, end: usize| RowRun {
            piece: run.piece.clone(),
            begin,
            len: end - begin,
        };
        let (keys, end) = (&run.piece.keys, run.begin + run.len);
        if let Some(held) = self.held.take() {
            match held.piece.keys.are_revisions(held.begin, keys, run.begin) {
                true => self.tally.add_row(&held.piece, held.begin)?,
                false => give(&held)?,
            }
        }
        let mut begin = run.begin;
        for row in run.begin + 1..end {
            if keys.are_revisions(row - 1, keys, row) {
                self.tally.add_row(&run.piece, row - 1)?;
                if begin < row - 1 {
                    give(&part(begin, row - 1))?;
                }
                begin = row;
            }
        }
        if begin < end - 1 {
            give(&part(begin, end - 1))?;
        }
        self.held = Some(part(end - 1, end));
        Ok(())
    }

    /// Returns the last row.
    pub fn finish(&mut self) -> Option<RowRun> {
        self.held.take()
    }
}
