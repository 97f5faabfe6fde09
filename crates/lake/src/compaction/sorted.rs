//! Rows of sorted files in the order of all, a run of one file at a time.

use std::sync::Arc;

use super::input::{Input, Keys, Piece, Tally};
use super::merge::MergeError;

/// Files that are read together. Rows with equal keys come in the order of the files.
pub(crate) struct Sorted<'a> {
    inputs: Vec<Input<'a>>,
    pub keys: Keys,
    heads: Heads,
    is_begun: bool,
    /// What was read so far.
    pub tally: Tally,
}

/// Rows of one piece that lie behind each other.
#[derive(Clone)]
pub(crate) struct Run {
    pub piece: Arc<Piece>,
    pub begin: usize,
    pub len: usize,
}

impl<'a> Sorted<'a> {
    pub fn new(inputs: Vec<Input<'a>>, keys: Keys) -> Sorted<'a> {
        Sorted {
            inputs,
            keys,
            heads: Heads::default(),
            is_begun: false,
            tally: Tally::default(),
        }
    }

    pub fn next(&mut self) -> Result<Option<Run>, MergeError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            for number in 0..self.inputs.len() {
                self.open_piece(number)?;
            }
        }
        let Some(mut head) = self.heads.0.pop() else {
            return Ok(None);
        };
        let end = self.heads.end_of_run(&head);
        let run = Run {
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
            self.heads.add(Head {
                piece: Arc::new(piece),
                at: 0,
            });
        }
        Ok(())
    }
}

/// Rows of one file, of which the next one is known.
struct Head {
    piece: Arc<Piece>,
    at: usize,
}

impl Head {
    fn key(&self, row: usize) -> (&[u8], usize) {
        (self.piece.key(row), self.piece.input)
    }
}

/// The next rows of all files, the least one last.
#[derive(Default)]
struct Heads(Vec<Head>);

impl Heads {
    fn add(&mut self, head: Head) {
        let key = head.key(head.at);
        let place = self.0.partition_point(|other| other.key(other.at) > key);
        self.0.insert(place, head);
    }

    /// Of the rows of a file that come before all of the others, the end within its piece.
    fn end_of_run(&self, head: &Head) -> usize {
        let rows = head.piece.rows.num_rows();
        let Some(other) = self.0.last() else { return rows };
        let limit = other.key(other.at);
        let is_before = |row: usize| head.key(row) < limit;
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

/// Bytes of a revision at the end of a key: a mark, and a number.
const REVISION_BYTES: usize = 9;

/// Leaves out rows of which there is a newer revision: one that differs in the last part of its key only.
#[derive(Default)]
pub(crate) struct Newest {
    /// The last row, of which the next one may be a revision.
    held: Option<Run>,
    /// What was left out.
    pub tally: Tally,
}

impl Newest {
    /// Gives the rows that are known to have no newer revision.
    pub fn push<E>(&mut self, run: &Run, mut give: impl FnMut(&Run) -> Result<(), E>) -> Result<(), E> {
        let part = |begin: usize, end: usize| Run {
            piece: run.piece.clone(),
            begin,
            len: end - begin,
        };
        let end = run.begin + run.len;
        if let Some(held) = self.held.take() {
            match what(&held.piece, held.begin) == what(&run.piece, run.begin) {
                true => self.tally.add_row(&held.piece, held.begin),
                false => give(&held)?,
            }
        }
        let mut begin = run.begin;
        for row in run.begin + 1..end {
            if what(&run.piece, row - 1) == what(&run.piece, row) {
                self.tally.add_row(&run.piece, row - 1);
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
    pub fn finish(&mut self) -> Option<Run> {
        self.held.take()
    }
}

/// The key of a row without its revision.
fn what(piece: &Piece, row: usize) -> &[u8] {
    let key = piece.key(row);
    key.get(..key.len().saturating_sub(REVISION_BYTES)).unwrap_or_default()
}
