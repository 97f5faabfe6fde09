//! Quality details of values, built once for all equal ones.
//!
//! A server that falls behind overflows the queues of all its items at once, and then each value that it sends reports
//! a loss. Many values have the times of the same cycles, so few texts and spans serve a hundred thousand marks.

use hashbrown::HashMap;
use thalweg_record::{QualityDetails, Text};

use crate::gaps::Gap;
use crate::value::status;

/// Maximum cached statuses; servers use few.
const STATUSES_MAX: usize = 1024;

/// Cache slots for marks of gaps; a power of two.
const GAPS: usize = 64;

#[derive(Default)]
pub(super) struct MarksCache {
    by_status: HashMap<u32, QualityDetails>,
    /// By a hash of status and gap; the newest occupies the slot. Empty until there is a gap.
    by_gap: Vec<Option<(u32, Gap, QualityDetails)>>,
}

impl MarksCache {
    /// Returns `None` for a Good value without a gap.
    #[inline]
    pub fn of(&mut self, status: u32, gap: Option<Gap>) -> Option<QualityDetails> {
        match gap {
            None if status == 0 => None,
            None => Some(self.of_status(status)),
            Some(gap) => Some(self.of_gap(status, gap)),
        }
    }

    fn of_gap(&mut self, status: u32, gap: Gap) -> QualityDetails {
        let place = place(status, gap);
        if let Some(Some((of_status, of_gap, marks))) = self.by_gap.get(place)
            && (*of_status, *of_gap) == (status, gap)
        {
            return marks.clone();
        }
        let text = match status {
            0 => None,
            status => self.of_status(status).status().cloned(),
        };
        let marks = QualityDetails::new(text, Some((gap.from, gap.to)));
        self.by_gap.resize(GAPS, None);
        if let Some(kept) = self.by_gap.get_mut(place) {
            *kept = Some((status, gap, marks.clone()));
        }
        marks
    }

    fn of_status(&mut self, status: u32) -> QualityDetails {
        if let Some(marks) = self.by_status.get(&status) {
            return marks.clone();
        }
        let marks = QualityDetails::new(Some(Text::new(status::text(status))), None);
        if self.by_status.len() < STATUSES_MAX {
            self.by_status.insert(status, marks.clone());
        }
        marks
    }
}

fn place(status: u32, gap: Gap) -> usize {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = gap.from.0.rotate_left(32) ^ gap.to.0 ^ i64::from(status);
    let hash = mixed.cast_unsigned().wrapping_mul(STEP);
    (hash >> (64 - GAPS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use thalweg_record::Ticks;

    use super::*;

    fn gap(from: i64, to: i64) -> Gap {
        let [from, to] = [from, to].map(Ticks);
        Gap { from, to }
    }

    #[test]
    fn marks_say_what_they_are_made_of_however_often_and_in_whatever_order() {
        let mut known = MarksCache::default();
        for round in 0..3_i64 {
            for n in 0..2000_i64 {
                let status = [0, 0x480, 0x8000_0000 + n as u32][n as usize % 3];
                let span = gap(n / 7, n + round);
                let marks = known.of(status, Some(span)).unwrap();
                let text = (status != 0).then(|| status::text(status));
                assert_eq!(marks.status().map(Text::as_str), text.as_deref());
                assert_eq!(marks.gap(), Some((span.from, span.to)));
                assert_eq!(known.of(status, None).map(|marks| marks.gap()), text.map(|_| None));
            }
        }
        assert_eq!(known.by_gap.len(), GAPS);
        assert!(known.by_status.len() <= STATUSES_MAX);
    }

    #[test]
    fn values_that_say_the_same_share_it() {
        let mut known = MarksCache::default();
        let spans = [gap(1, 2), gap(1, 3), gap(2, 3)];
        let first = spans.map(|span| known.of(0x480, Some(span)).unwrap());
        for (span, first) in spans.into_iter().zip(first) {
            assert!(known.of(0x480, Some(span)).unwrap().is_same(&first));
        }
        let bad = known.of(0x8000_0000, None).unwrap();
        assert!(known.of(0x8000_0000, None).unwrap().is_same(&bad));
        assert!(known.of(0, None).is_none());
    }
}
