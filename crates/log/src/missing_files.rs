//! Determines which file is missing when records are in none. Every record was first written to a commit file, and
//! lower offsets of a partition are in files with lower numbers, so the numbers around a hole name the missing file.

use crate::file::commit_name;
use crate::format::footer::FileKind;
use crate::ids::Offset;
use crate::partition::FileRange;

/// Names the commit files between those around the offset `at`, which no range covers. `there` has the numbers of all
/// commit files in order; numbers may also be missing for legitimate reasons.
pub(crate) fn stood_in(ranges: &[FileRange], at: Offset, there: &[u64]) -> String {
    let commits = || ranges.iter().filter(|range| range.file.kind == FileKind::Commit);
    let before = commits()
        .filter(|range| range.first < at)
        .map(|range| range.file.number);
    let after = commits()
        .filter(|range| range.first > at)
        .map(|range| range.file.number);
    let before = before.max().map(|number| number.saturating_add(1));
    let highest = there.last().map_or(0, |number| number.saturating_add(1));
    let last = after.min().map_or(highest, |number| number.saturating_sub(1));
    match absent(before.unwrap_or(0), last, there) {
        Some((first, last)) if first == last => commit_name(first),
        // Not all of these numbers need to have existed: files that are no longer needed are reused under new numbers.
        Some((_, last)) if before.is_none() => format!("{} or one before it", commit_name(last)),
        Some((first, last)) => format!("one of {} to {}", commit_name(first), commit_name(last)),
        None => "a commit file".to_owned(),
    }
}

/// The first and last number from `first` to `last` that is not in `there`.
fn absent(mut first: u64, mut last: u64, there: &[u64]) -> Option<(u64, u64)> {
    let is_there = |number: u64| there.binary_search(&number).is_ok();
    while first < last && is_there(first) {
        first += 1;
    }
    while last > first && is_there(last) {
        last -= 1;
    }
    (first <= last && !is_there(first)).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_that_are_not_there_are_named_from_the_first_to_the_last() {
        assert_eq!(absent(3, 3, &[2, 4]), Some((3, 3)));
        assert_eq!(absent(2, 9, &[2, 4, 8, 9]), Some((3, 7)));
        assert_eq!(absent(2, 3, &[2, 3]), None);
        assert_eq!(absent(4, 3, &[]), None);
        assert_eq!(absent(0, u64::MAX, &[0, u64::MAX]), Some((1, u64::MAX - 1)));
    }
}
