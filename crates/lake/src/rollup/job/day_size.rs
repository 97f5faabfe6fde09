//! How much space the windows and the points of a day take once their files are merged.

use std::time::Duration;

use thalweg_delta::FileEntry;

/// A file with fewer of a day's rows may have others than most: late rows, or the end of the day.
const SHARE: u64 = 50;
/// A file with so many rows is like a merged one, however short its time is.
const MANY_ROWS: u64 = 500_000;
/// About what a file of few rows has: its footer and indexes.
const FILE_BYTES: u64 = 6_000;

/// Rows and bytes of a file, and the time from its first to its last row.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSize {
    pub rows: u64,
    pub bytes: u64,
    pub nanos: i64,
}

impl FileSize {
    pub fn of(file: &FileEntry) -> FileSize {
        FileSize {
            rows: file.stats.rows.unwrap_or(0),
            bytes: file.size,
            nanos: file.times.map_or(0, |(first, last)| last.saturating_sub(first)),
        }
    }
}

/// The points of a day, or its windows of one resolution.
#[derive(Clone, Debug, Default)]
pub(super) struct DaySize {
    pub rows: u64,
    files: Vec<FileSize>,
}

impl DaySize {
    /// Adds a file with this number of rows in the time that is considered.
    pub fn add(&mut self, rows: u64, file: FileSize) {
        self.rows += rows;
        self.files.push(file);
    }

    /// Each file names all series, so files of a time shorter than `min_span` have more bytes for a row. The largest of the others
    /// tells; `None` if there is none.
    fn bytes_per_row(&self, min_span: Duration) -> Option<f64> {
        let all: u64 = self.files.iter().map(|file| file.rows).sum();
        let is_long = |file: &FileSize| u128::try_from(file.nanos).is_ok_and(|nanos| nanos >= min_span.as_nanos());
        let like_merged = self.files.iter().filter(|file| {
            let is_share = file.rows > 0 && file.rows.saturating_mul(SHARE) >= all;
            is_share && (is_long(file) || file.rows >= MANY_ROWS)
        });
        let largest = like_merged.max_by_key(|file| file.rows)?;
        Some(largest.bytes.saturating_sub(FILE_BYTES) as f64 / largest.rows as f64)
    }

    /// `None` if it cannot be told yet.
    pub fn bytes(&self, min_span: Duration) -> Option<f64> {
        match self.rows {
            0 => Some(0.0),
            rows => Some(rows as f64 * self.bytes_per_row(min_span)?),
        }
    }
}

/// The space of all resolutions, from the finest. A coarser one without a file that tells counts like the next finer one, which is
/// a little too low. `None` if it cannot be told yet.
pub(super) fn bytes_of_windows(sizes: &[DaySize], min_span: Duration) -> Option<f64> {
    let (mut all, mut per_row) = (0.0, None);
    for size in sizes.iter().filter(|size| size.rows > 0) {
        per_row = size.bytes_per_row(min_span).or(per_row);
        all += size.rows as f64 * per_row?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(900);

    fn of(files: &[(u64, u64, i64)]) -> DaySize {
        let mut size = DaySize::default();
        for (rows, bytes, seconds) in files {
            let file = FileSize {
                rows: *rows,
                bytes: bytes + FILE_BYTES,
                nanos: seconds * 1_000_000_000,
            };
            size.add(*rows, file);
        }
        size
    }

    #[test]
    fn files_of_a_short_time_or_with_few_of_the_rows_tell_nothing() {
        assert_eq!(of(&[]).bytes(SPAN), Some(0.0));
        assert_eq!(of(&[(10_000, 300_000, 10)]).bytes(SPAN), None);
        // Merged ones, and the newest, which are not.
        let merged = [
            (100_000, 1_800_000, 900),
            (200_000, 3_400_000, 1800),
            (10_000, 300_000, 10),
        ];
        assert_eq!(of(&merged).bytes(SPAN), Some(310_000.0 * 17.0));
        // Late rows of three series.
        let late = [(100_000, 1_800_000, 900), (3, 9_000, 7200)];
        assert_eq!(of(&late).bytes(SPAN), Some(100_003.0 * 18.0));
        assert_eq!(of(&[(100_000, 1_800_000, 60), (3, 9_000, 7200)]).bytes(SPAN), None);
        // A pass of very many series.
        assert_eq!(of(&[(2_000_000, 36_000_000, 60)]).bytes(SPAN), Some(36_000_000.0));
    }

    #[test]
    fn a_coarser_resolution_counts_like_the_finer_one_until_its_files_tell() {
        let fine = of(&[(60_000, 1_080_000, 1800)]);
        let coarse = of(&[(10_000, 400_000, 0)]);
        let sizes = [DaySize::default(), fine.clone(), coarse.clone(), DaySize::default()];
        assert_eq!(bytes_of_windows(&sizes, SPAN), Some(70_000.0 * 18.0));
        assert_eq!(bytes_of_windows(&[coarse, fine.clone()], SPAN), None);
        let told = of(&[(10_000, 240_000, 3600)]);
        assert_eq!(bytes_of_windows(&[fine, told], SPAN), Some(60_000.0 * 18.0 + 240_000.0));
        assert_eq!(bytes_of_windows(&[], SPAN), Some(0.0));
    }
}
