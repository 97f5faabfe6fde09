//! Decides which files are merged next.
//!
//! Files of a day are grouped by buckets of event time. A bucket is 1, 6 or 24 hours wide: the narrowest width whose
//! rows fill half a file. As many files of one level as can be open at a time become one file of the next level, so
//! each row is rewritten only a few times. Some time after the end of its bucket, when no more rows are expected, the
//! remaining files are merged into sealed files.
//!
//! Compaction terminates for all sizes of files, memory and disk. A job that takes all files of a complete bucket seals
//! its outputs. Any other job takes at least two files and leaves at most one below the target size in each bucket.
//! Files are therefore counted once per bucket in which they have rows: that count shrinks with each job. Where a
//! complete bucket has more files than one job can take, outputs of the target size are sealed, so none is merged
//! again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::merge::BucketWidth;
use thalweg_delta::{FileEntry, Snapshot};

const HOUR: i64 = 3_600_000_000_000;
const WIDTHS: [i64; 3] = [HOUR, 6 * HOUR, 24 * HOUR];

/// How files are merged (`lake.compaction.*`).
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// The target size of an output file, in bytes.
    pub target: u64,
    /// The wait after the end of a bucket and after its last flush.
    pub seal_after: Duration,
    /// The most files that are open at a time.
    pub inputs: usize,
    pub zstd_level: i32,
    /// Memory for the inputs and a row group.
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

/// The least number of files in a merge.
const INPUTS_MIN: usize = 2;

/// Which output files of a job are sealed, that is never merged again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealPolicy {
    /// More rows are expected.
    Nothing,
    /// Those of the target size: the bucket is complete, but too large for one job.
    Full,
    /// The bucket is complete, and the job has all of its rows.
    All,
}

/// The kind of work on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionKind {
    /// Merges sorted files into fewer.
    Merge,
    /// Rewrites the file of another writer into sorted ones.
    Rewrite,
}

/// Files of one day and bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionJob {
    pub work: CompactionKind,
    /// In order of arrival.
    pub inputs: Vec<Arc<FileEntry>>,
    pub bucket: BucketWidth,
    pub level: u32,
    pub seals: SealPolicy,
}

impl CompactionJob {
    pub fn rewrite(file: &Arc<FileEntry>) -> CompactionJob {
        CompactionJob {
            work: CompactionKind::Rewrite,
            inputs: vec![file.clone()],
            bucket: BucketWidth(WIDTHS[2]),
            level: 0,
            seals: SealPolicy::Nothing,
        }
    }

    /// Drops the most expensive inputs until the rest fits into `room`, but keeps at least `INPUTS_MIN`. `costs` has
    /// one cost per input. Returns the indexes of the kept inputs in order, and their total cost.
    pub fn fit(&mut self, costs: &[u64], room: u64) -> (Vec<usize>, u64) {
        let mut by_cost: Vec<(u64, usize)> = costs.iter().copied().zip(0..self.inputs.len()).collect();
        by_cost.sort_unstable();
        let (mut kept, mut used) = (Vec::with_capacity(by_cost.len()), 0_u64);
        for (cost, place) in by_cost {
            if kept.len() >= INPUTS_MIN && used.saturating_add(cost) > room {
                break;
            }
            used = used.saturating_add(cost);
            kept.push(place);
        }
        kept.sort_unstable();
        if kept.len() < self.inputs.len() {
            self.inputs = kept
                .iter()
                .filter_map(|place| self.inputs.get(*place).cloned())
                .collect();
            if self.seals == SealPolicy::All {
                self.seals = SealPolicy::Full;
            }
        }
        (kept, used)
    }

    /// Whether an output of this size is sealed.
    pub fn is_sealed(&self, bytes: u64, target: u64) -> bool {
        match self.seals {
            SealPolicy::Nothing => false,
            SealPolicy::Full => bytes >= target,
            SealPolicy::All => true,
        }
    }
}

/// The most urgent job of a table, if any; rewrites come first. `now` is in nanoseconds.
pub fn plan(table: &Snapshot, now: i64, options: &CompactionOptions) -> Option<CompactionJob> {
    let foreign = table.files.values().find(|file| is_rewritten(file));
    foreign
        .map(CompactionJob::rewrite)
        .or_else(|| jobs(table, now, options).next())
}

/// Files without a value in a partition column have no folder that this program would write to.
fn is_rewritten(file: &FileEntry) -> bool {
    file.is_foreign && has_place(file)
}

fn has_place(file: &FileEntry) -> bool {
    file.partition.iter().all(Option::is_some)
}

/// Bytes of the files that would be rewritten or merged now.
pub fn pending(table: &Snapshot, now: i64, options: &CompactionOptions) -> u64 {
    let of = |job: CompactionJob| job.inputs.iter().map(|file| file.size).sum::<u64>();
    let foreign = table.files.values().filter(|file| is_rewritten(file));
    foreign.map(|file| file.size).sum::<u64>() + jobs(table, now, options).map(of).sum::<u64>()
}

/// Merges: at most one per bucket.
fn jobs<'a>(table: &'a Snapshot, now: i64, options: &'a CompactionOptions) -> impl Iterator<Item = CompactionJob> + 'a {
    let mut days: BTreeMap<&[Option<Box<str>>], Vec<&Arc<FileEntry>>> = BTreeMap::new();
    let is_merged = |file: &&Arc<FileEntry>| file.times.is_some() && !file.is_foreign && has_place(file);
    for file in table.files.values().filter(is_merged) {
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
) -> impl Iterator<Item = CompactionJob> + use<'a> {
    let bytes = BytesByBucket::of(files);
    let mut buckets: BTreeMap<(i64, BucketWidth), Vec<&Arc<FileEntry>>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_sealed) {
        let bucket = BucketWidth(bytes.width_of(begin_of(file), options));
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

/// Bytes of a day's files by bucket width and bucket number: summed once, looked up for each file.
struct BytesByBucket(HashMap<(i64, i64), u64>);

impl BytesByBucket {
    fn of(files: &[&Arc<FileEntry>]) -> BytesByBucket {
        let mut bytes: HashMap<(i64, i64), u64> = HashMap::new();
        for file in files {
            for width in WIDTHS {
                let sum = bytes.entry((width, BucketWidth(width).of(begin_of(file)))).or_default();
                *sum = sum.saturating_add(file.size);
            }
        }
        BytesByBucket(bytes)
    }

    /// The bucket width at a time: the narrowest that fills half a file.
    fn width_of(&self, time: i64, options: &CompactionOptions) -> i64 {
        let within = |width: i64| self.0.get(&(width, BucketWidth(width).of(time))).copied().unwrap_or(0);
        let fills = |width: &i64| within(*width) >= options.target / 2;
        WIDTHS.into_iter().find(fills).unwrap_or(WIDTHS[2])
    }
}

fn plan_bucket(
    mut files: Vec<&Arc<FileEntry>>,
    number: i64,
    bucket: BucketWidth,
    now: i64,
    options: &CompactionOptions,
) -> Option<CompactionJob> {
    let in_order =
        |a: &&Arc<FileEntry>, b: &&Arc<FileEntry>| (a.flushed_unix_ms, &a.path).cmp(&(b.flushed_unix_ms, &b.path));
    files.sort_by(in_order);
    let job = |files: Vec<&Arc<FileEntry>>, seals: SealPolicy| {
        let above = files.iter().map(|file| file.level).max().unwrap_or(0);
        CompactionJob {
            work: CompactionKind::Merge,
            inputs: files.into_iter().cloned().collect(),
            bucket,
            level: above + 1,
            seals,
        }
    };
    let is_small = |file: &&&Arc<FileEntry>| file.size < options.target / 2;
    let top = files.iter().map(|file| file.level).max()?;
    for level in 0..=top {
        let of_level = files.iter().filter(|file| file.level == level).filter(is_small);
        let first: Vec<&Arc<FileEntry>> = of_level.take(options.inputs).copied().collect();
        if first.len() == options.inputs {
            return Some(job(first, SealPolicy::Nothing));
        }
    }
    let end = number.saturating_add(1).saturating_mul(bucket.0);
    let newest = files
        .iter()
        .map(|file| file.flushed_unix_ms)
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
        files.sort_by(in_order);
        return Some(job(files, SealPolicy::Full));
    }
    Some(job(files, SealPolicy::All))
}

#[cfg(test)]
mod tests;
