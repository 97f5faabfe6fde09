//! Rows of sorted files in the order of all, a run of one file at a time.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::input::{KeyedBatch, MergeInput, RowChecksum};
use super::keys::SortKeys;
use super::merge::MergeError;

/// Files that are read together. Rows with equal keys come in the order of the files.
pub(crate) struct MergeIterator<'a> {
    inputs: Vec<MergeInput<'a>>,
    pub keys: SortKeys,
    heads: MergeHeads,
    is_begun: bool,
    /// What was read so far.
    pub tally: RowChecksum,
}

/// Rows of one piece that lie behind each other.
#[derive(Clone)]
pub(crate) struct RowRun {
    pub piece: Arc<KeyedBatch>,
    pub begin: usize,
    pub len: usize,
}

/// Runs as parts of their pieces, those of a file behind each other, and the order in which their rows come.
pub(crate) fn laid_out(runs: &[RowRun]) -> (Vec<RowRun>, Vec<u32>) {
    let mut parts: Vec<RowRun> = Vec::new();
    // Of each file the last part. Its rows come in their order, but for those that are left out or belong elsewhere.
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

/// Rows of one file, of which the next one is known.
struct MergeHead {
    piece: Arc<KeyedBatch>,
    at: usize,
}

impl MergeHead {
    /// How one of its rows stands to the next one of another file.
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

    /// Of the rows of a file that come before all of the others, the end within its piece.
    fn end_of_run(&self, head: &MergeHead) -> usize {
        let rows = head.piece.rows.num_rows();
        let Some(other) = self.0.last() else { return rows };
        let is_before = |row: usize| head.compare(row, other).is_lt();
        if is_before(rows - 1) {
            return rows;
        }
        // Runs are short or very long: the step doubles until it is too far.
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

/// Leaves out rows of which there is a newer revision: one that differs in the last part of its key only.
#[derive(Default)]
pub(crate) struct RevisionFilter {
    /// The last row, of which the next one may be a revision.
    held: Option<RowRun>,
    /// What was left out.
    pub tally: RowChecksum,
}

impl RevisionFilter {
    /// Gives the rows that are known to have no newer revision.
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

    /// The last row.
    pub fn finish(&mut self) -> Option<RowRun> {
        self.held.take()
    }
}
