//! Which files are merged next.
//!
//! Files of a day are grouped by buckets of event time. A bucket is one hour wide, or six or twenty-four, until its rows fill a
//! file. Of the files of one level as many as can be open at a time become one of the next level, so a row is written again a few
//! times at most. Some time after the end of its bucket, when nothing more is expected, what there is becomes sealed files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::merge::Bucket;
use crate::delta::{FileEntry, Snapshot};

const HOUR: i64 = 3_600_000_000_000;
const WIDTHS: [i64; 3] = [HOUR, 6 * HOUR, 24 * HOUR];

/// How files are merged (`lake.compaction.*`).
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// Bytes of a file that is made.
    pub target: u64,
    /// After the end of a bucket, and of what came later.
    pub seal_after: Duration,
    /// Files that are open at a time.
    pub inputs: usize,
    pub zstd_level: i32,
    /// What the inputs and a row group may take.
    pub memory: u64,
}

impl Default for CompactionOptions {
    fn default() -> CompactionOptions {
        CompactionOptions {
            target: 256 << 20,
            seal_after: Duration::from_secs(2 * 3600),
            inputs: 32,
            zstd_level: 3,
            memory: 384 << 20,
        }
    }
}

/// Some files of one day and bucket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    /// The ones that came first are first.
    pub inputs: Vec<Arc<FileEntry>>,
    pub bucket: Bucket,
    pub level: u32,
    pub is_final: bool,
}

/// The job that a table needs most, if any. `now` is in nanoseconds.
pub(crate) fn plan(table: &Snapshot, now: i64, options: &CompactionOptions) -> Option<Job> {
    jobs(table, now, options).next()
}

/// Bytes of the files that would be merged now.
pub(crate) fn pending(table: &Snapshot, now: i64, options: &CompactionOptions) -> u64 {
    let of = |job: Job| job.inputs.iter().map(|file| file.size).sum::<u64>();
    jobs(table, now, options).map(of).sum()
}

/// One of each bucket that has any.
fn jobs<'a>(table: &'a Snapshot, now: i64, options: &'a CompactionOptions) -> impl Iterator<Item = Job> + 'a {
    let mut days: BTreeMap<&[Option<Box<str>>], Vec<&Arc<FileEntry>>> = BTreeMap::new();
    for file in table.files.values().filter(|file| file.times.is_some()) {
        days.entry(&file.partition).or_default().push(file);
    }
    // The newest day has the most small files.
    let days = days.into_values().rev();
    days.flat_map(move |files| jobs_of_day(&files, now, options))
}

fn jobs_of_day<'a>(
    files: &[&'a Arc<FileEntry>],
    now: i64,
    options: &'a CompactionOptions,
) -> impl Iterator<Item = Job> + use<'a> {
    let mut buckets: BTreeMap<(i64, Bucket), Vec<&Arc<FileEntry>>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_sealed) {
        let bucket = Bucket(width_of(files, begin_of(file), options));
        buckets
            .entry((bucket.of(begin_of(file)), bucket))
            .or_default()
            .push(file);
    }
    buckets
        .into_iter()
        .filter_map(move |((number, bucket), files)| plan_bucket(files, number, bucket, now, options))
}

fn begin_of(file: &FileEntry) -> i64 {
    file.times.map_or(0, |(first, _)| first)
}

/// How wide the bucket of a time is.
fn width_of(files: &[&Arc<FileEntry>], time: i64, options: &CompactionOptions) -> i64 {
    let bytes_within = |width: i64| -> u64 {
        let same = |file: &&&Arc<FileEntry>| begin_of(file).div_euclid(width) == time.div_euclid(width);
        files.iter().filter(same).map(|file| file.size).sum()
    };
    let fills = |width: &i64| bytes_within(*width) >= options.target / 2;
    WIDTHS.into_iter().find(fills).unwrap_or(WIDTHS[2])
}

fn plan_bucket(
    mut files: Vec<&Arc<FileEntry>>,
    number: i64,
    bucket: Bucket,
    now: i64,
    options: &CompactionOptions,
) -> Option<Job> {
    files.sort_by(|a, b| (a.modified_unix_ms, &a.path).cmp(&(b.modified_unix_ms, &b.path)));
    let job = |files: Vec<&Arc<FileEntry>>, is_final: bool| {
        let above = files.iter().map(|file| file.level).max().unwrap_or(0);
        Job {
            inputs: files.into_iter().cloned().collect(),
            bucket,
            level: above + 1,
            is_final,
        }
    };
    let is_small = |file: &&&Arc<FileEntry>| file.size < options.target / 2;
    let top = files.iter().map(|file| file.level).max()?;
    for level in 0..=top {
        let of_level = files.iter().filter(|file| file.level == level).filter(is_small);
        let first: Vec<&Arc<FileEntry>> = of_level.take(options.inputs).copied().collect();
        if first.len() == options.inputs {
            return Some(job(first, false));
        }
    }
    let end = number.saturating_add(1).saturating_mul(bucket.0);
    let newest = files
        .iter()
        .map(|file| file.modified_unix_ms)
        .max()?
        .saturating_mul(1_000_000);
    let quiet = i64::try_from(options.seal_after.as_nanos()).unwrap_or(i64::MAX);
    if now < end.max(newest).saturating_add(quiet) {
        return None;
    }
    // More than can be open at a time: the smallest first.
    if files.len() > options.inputs {
        files.sort_by_key(|file| file.size);
        files.truncate(options.inputs);
        return Some(job(files, false));
    }
    Some(job(files, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: i64, hour: i64, size: u64, level: u32) -> Arc<FileEntry> {
        Arc::new(FileEntry {
            path: format!("date=1970-01-01/{number}.parquet").into(),
            size,
            modified_unix_ms: number,
            partition: Box::new([Some("1970-01-01".into())]),
            level,
            revises: false,
            is_sealed: false,
            times: Some((hour * HOUR, hour * HOUR + HOUR - 1)),
            arrival_max: None,
            stats: Default::default(),
        })
    }

    fn planned(files: &[Arc<FileEntry>], now_hours: i64) -> Option<(usize, i64, u32, bool)> {
        let files: Vec<&Arc<FileEntry>> = files.iter().collect();
        let job = jobs_of_day(&files, now_hours * HOUR, &CompactionOptions::default()).next()?;
        Some((job.inputs.len(), job.bucket.0 / HOUR, job.level, job.is_final))
    }

    #[test]
    fn buckets_are_as_wide_as_their_rows_need() {
        let small: Vec<_> = (0..40).map(|number| file(number, number % 20, 1000, 0)).collect();
        assert_eq!(planned(&small, 1), Some((32, 24, 1, false)), "a day of little");
        let large: Vec<_> = (0..40).map(|number| file(number, 3, 4 << 20, 0)).collect();
        assert_eq!(planned(&large, 1), Some((32, 1, 1, false)), "an hour fills a file");
        let middle: Vec<_> = (0..40).map(|number| file(number, 6 + number % 6, 4 << 20, 0)).collect();
        assert_eq!(planned(&middle, 1), Some((32, 6, 1, false)));
    }

    #[test]
    fn files_wait_for_others_of_their_level_or_for_the_end() {
        let mut files: Vec<_> = (0..31).map(|number| file(number, 3, 1000, 0)).collect();
        files.push(file(31, 3, 1000, 1));
        assert_eq!(planned(&files, 24), None);
        assert_eq!(planned(&files, 25), None, "two hours after the day");
        assert_eq!(planned(&files, 26), Some((32, 24, 2, true)));
        files.push(file(32, 3, 1000, 1));
        assert_eq!(
            planned(&files, 26),
            Some((32, 24, 2, false)),
            "no more than can be open"
        );
        let late = vec![file(25 * 3_600_000, 3, 1000, 0)];
        assert_eq!(planned(&late, 26), None, "it came an hour ago");
        assert_eq!(planned(&late, 27), Some((1, 24, 1, true)));
    }

    #[test]
    fn large_and_sealed_files_are_left_alone() {
        let large: Vec<_> = (0..40).map(|number| file(number, 3, 200 << 20, 1)).collect();
        assert_eq!(planned(&large, 3), None);
        let sealed = |file: Arc<FileEntry>| {
            Arc::new(FileEntry {
                is_sealed: true,
                ..(*file).clone()
            })
        };
        let sealed: Vec<_> = large.into_iter().map(sealed).collect();
        assert_eq!(planned(&sealed, 100), None);
    }
}
