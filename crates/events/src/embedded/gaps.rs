//! Finds the messages that are missing in a range that is read. Rows of hidden and unreadable messages identify
//! themselves. If there is no row, a message was scavenged or lost, or an import left the position out. The rules for
//! retention and deletion, and whether there ever was an import, distinguish these cases as far as possible.

use super::index::{IndexReadError, IndexReadResult, Io, ListId, ListKind};
use super::namespace::EmbeddedNamespace;
use crate::store::{Direction, Gap, Page, PageWithGaps};

/// A page ends at this number of gaps.
const GAPS_MAX: usize = 1000;
/// After this number of rows, the search continues on a blocking thread.
const ROWS_MAX: usize = 4096;

/// Collects gaps while a page is read.
#[derive(Default)]
pub(super) struct GapCollector {
    gaps: Vec<Gap>,
    /// The first position, and the position after the last row.
    first: u64,
    next: u64,
    /// Whether a position without a row counts as a missing message.
    holes: bool,
    /// The rows are of a category: positions in between belong to other categories.
    sparse: bool,
    /// Nothing visible has followed the last gap.
    open: bool,
}

impl GapCollector {
    pub fn new(namespace: &EmbeddedNamespace, of: &ListId) -> GapCollector {
        let state = namespace.index.read().state;
        let rules = namespace.rules();
        let (holes, sparse) = match of {
            ListId::Of(ListKind::Stream, stream) => (rules.concerns(stream) || !state.has_imports, false),
            ListId::All => (!rules.is_empty() || !state.has_imports, false),
            ListId::Of(ListKind::Category, category) => {
                let own = rules.concern_some_of(category);
                let nobodys = rules.is_empty() && !state.has_imports;
                // If no message is missing, there is nothing to find.
                ((own || nobodys) && state.messages < state.last_global, true)
            }
        };
        GapCollector {
            holes,
            sparse,
            ..GapCollector::default()
        }
    }

    pub fn begin(&mut self, from: u64) {
        (self.first, self.next) = (from, from);
    }

    pub fn is_full(&self) -> bool {
        self.gaps.len() >= GAPS_MAX
    }

    pub fn row(&mut self, place: u64) {
        if self.holes && !self.sparse && place > self.next {
            self.add(Gap {
                from: self.next,
                to: place - 1,
            });
        }
        self.next = self.next.max(place + 1);
    }

    pub fn gone(&mut self, place: u64) {
        self.add(Gap { from: place, to: place });
    }

    pub fn shown(&mut self) {
        self.open = false;
    }

    /// Drops the gaps so far, because they are before the requested range.
    pub fn forget(&mut self) {
        self.gaps.clear();
        self.open = false;
    }

    fn add(&mut self, gap: Gap) {
        let joins = |last: &Gap| last.to + 1 >= gap.from || self.sparse && self.open;
        match self.gaps.last_mut().filter(|last| joins(last)) {
            Some(last) => last.to = last.to.max(gap.to),
            None => self.gaps.push(gap),
        }
        self.open = true;
    }

    pub fn told_with(mut self, namespace: &EmbeddedNamespace, page: Page, io: Io) -> IndexReadResult<PageWithGaps> {
        if self.sparse && self.holes && self.next > self.first {
            self.find_holes(namespace, &page, io)?;
        }
        Ok(PageWithGaps {
            looked: Some(self.next),
            page,
            gaps: self.gaps,
        })
    }

    /// Finds global positions of a category's range without a row, between the first position and the last row. It
    /// reads no messages.
    fn find_holes(&mut self, namespace: &EmbeddedNamespace, page: &Page, io: Io) -> IndexReadResult<()> {
        let (first, end) = (self.first.max(1), self.next);
        let (mut holes, mut next, mut rows) = (Vec::<Gap>::new(), first, 0);
        let shown = || page.events.iter().map(|stored| stored.event().global).peekable();
        let mut passed = shown();
        namespace.walk(&ListId::All, Some(first), Direction::Forward, io, &mut |row| {
            rows += 1;
            if rows > ROWS_MAX && io == Io::MemoryOnly {
                return Err(IndexReadError::OnDisk);
            }
            let place = row.ordinal.min(end);
            if place > next {
                let hole = Gap {
                    from: next,
                    to: place - 1,
                };
                // Holes between two visible messages are merged, so that there are no more holes than messages in the
                // page.
                let mut is_divided = false;
                while passed.next_if(|global| *global < hole.from).is_some() {
                    is_divided = true;
                }
                match holes.last_mut().filter(|_| !is_divided) {
                    Some(last) => last.to = hole.to,
                    None => holes.push(hole),
                }
            }
            next = row.ordinal + 1;
            Ok(next < end)
        })?;
        let mut found = std::mem::take(&mut self.gaps);
        self.open = false;
        found.append(&mut holes);
        found.sort_by_key(|gap| gap.from);
        let mut shown = shown();
        for gap in found {
            while shown.next_if(|global| *global < gap.from).is_some() {
                self.open = false;
            }
            self.add(gap);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: u64, to: u64) -> Gap {
        Gap { from, to }
    }

    #[test]
    fn what_is_hidden_and_what_has_no_row_is_one_gap_where_nothing_is_shown_between() {
        let mut passed = GapCollector {
            holes: true,
            ..GapCollector::default()
        };
        passed.begin(2);
        for (place, gone) in [(5, true), (6, false), (8, false), (9, true)] {
            passed.row(place);
            if gone {
                passed.gone(place);
            } else {
                passed.shown();
            }
        }
        assert_eq!(passed.gaps, [gap(2, 5), gap(7, 7), gap(9, 9)]);
    }

    #[test]
    fn what_an_import_left_out_is_no_gap() {
        let mut passed = GapCollector::default();
        passed.begin(0);
        passed.row(5);
        passed.shown();
        passed.row(9);
        passed.gone(9);
        assert_eq!(passed.gaps, [gap(9, 9)]);
    }

    #[test]
    fn messages_of_others_do_not_divide_a_gap_of_a_category() {
        let mut passed = GapCollector {
            sparse: true,
            ..GapCollector::default()
        };
        passed.begin(1);
        for place in [3, 7] {
            passed.row(place);
            passed.gone(place);
        }
        passed.row(9);
        passed.shown();
        passed.row(12);
        passed.gone(12);
        assert_eq!(passed.gaps, [gap(3, 7), gap(12, 12)]);
    }
}
