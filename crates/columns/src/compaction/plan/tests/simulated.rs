//! Applies plans to random tables, limits and times until no job is left: jobs end, and no byte is rewritten often.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 24 * HOUR;

/// The resources for merges, beside the options.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Disk space for copies of a job's files.
    room: Option<u64>,
    memory: u64,
    /// The percentage of the input bytes that remains.
    shrinks_to: u64,
    /// By how much files exceed the target, because they end with a row group.
    row_group: u64,
}

/// A file before any merge.
fn any_file(target: u64) -> impl Strategy<Value = (i64, i64, u64, u32, bool)> {
    let size = prop_oneof![
        4 => 1..target / 8 + 2,
        2 => target / 3..target + 1,
        1 => target..target * 4,
    ];
    let long = prop_oneof![4 => 0..HOUR / 20, 2 => 0..3 * HOUR, 1 => 0..DAY];
    (0..DAY, long, size, 0_u32..3, prop::bool::weighted(0.1))
}

fn any_limits(target: u64) -> impl Strategy<Value = Limits> {
    let room = prop::option::of(1..target * 8);
    (room, 1..target * 8, 70_u64..=110, 0..=target / 4).prop_map(|(room, memory, shrinks_to, row_group)| Limits {
        room,
        memory,
        shrinks_to,
        row_group,
    })
}

fn table_of(files: Vec<(i64, i64, u64, u32, bool)>) -> Vec<Arc<FileEntry>> {
    let entry = |((begin, long, size, level, is_sealed), number): ((i64, i64, u64, u32, bool), i64)| {
        Arc::new(FileEntry {
            times: Some((begin, (begin + long).min(DAY - 1))),
            is_sealed,
            ..(*file(number, 0, size, level)).clone()
        })
    };
    files.into_iter().zip(0..).map(entry).collect()
}

/// The outputs of a merge: per bucket, files of the target size and at most one smaller file.
fn made_by(job: &CompactionJob, options: &CompactionOptions, limits: Limits, next: &mut i64) -> Vec<Arc<FileEntry>> {
    let mut buckets: BTreeMap<i64, (u64, i64, i64)> = BTreeMap::new();
    for input in &job.inputs {
        let (begin, end) = input.times.unwrap();
        let (first, last) = (job.bucket.of(begin), job.bucket.of(end));
        for bucket in first..=last {
            let part = input.size / (last - first + 1).unsigned_abs();
            let (from, to) = (
                begin.max(bucket * job.bucket.0),
                end.min((bucket + 1) * job.bucket.0 - 1),
            );
            let all = buckets.entry(bucket).or_insert((0, from, to));
            *all = (all.0 + part.max(1), all.1.min(from), all.2.max(to));
        }
    }
    let mut made = Vec::new();
    for (bytes, from, to) in buckets.into_values() {
        let mut left = (bytes * limits.shrinks_to / 100).max(1);
        while left > 0 {
            let size = match left >= options.target {
                true => left.min(options.target + limits.row_group),
                false => left,
            };
            left -= size;
            *next += 1;
            made.push(Arc::new(FileEntry {
                times: Some((from, to)),
                is_sealed: job.is_sealed(size, options.target),
                flushed_unix_ms: job.inputs.iter().map(|file| file.flushed_unix_ms).max().unwrap(),
                ..(*file(*next, 0, size, job.level)).clone()
            }));
        }
    }
    made
}

/// The number of buckets that unsealed files have rows in, summed over the files.
fn spread(files: &[Arc<FileEntry>], bucket: BucketWidth) -> i64 {
    let of = |file: &Arc<FileEntry>| {
        let (begin, end) = file.times.unwrap();
        bucket.of(end) - bucket.of(begin) + 1
    };
    files.iter().filter(|file| !file.is_sealed).map(of).sum()
}

fn cases() -> u32 {
    let cases = std::env::var("THALWEG_SIM_SEEDS").ok();
    cases.and_then(|cases| cases.parse().ok()).unwrap_or(256)
}

const TARGET: u64 = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn jobs_come_to_an_end_and_write_no_byte_often(
        files in prop::collection::vec(any_file(TARGET), 1..150),
        limits in any_limits(TARGET),
        inputs in 2_usize..34,
        is_over in any::<bool>(),
    ) {
        let options = CompactionOptions { target: TARGET, inputs, ..CompactionOptions::default() };
        let mut files = table_of(files);
        let now = if is_over { 100 * DAY } else { 12 * HOUR };
        let all: u64 = files.iter().map(|file| file.size).sum();
        let begun = spread(&files, BucketWidth(HOUR)).max(1);
        let (mut jobs, mut written, mut next) = (0, 0, 1000);
        loop {
            let refs: Vec<&Arc<FileEntry>> = files.iter().collect();
            let Some(mut job) = jobs_of_day(&refs, now, &options).next() else { break };
            let costs = |job: &CompactionJob| job.inputs.iter().map(|file| file.size).collect::<Vec<u64>>();
            if let Some(room) = limits.room {
                job.fit(&costs(&job), room);
            }
            job.fit(&costs(&job), limits.memory);
            let made = made_by(&job, &options, limits, &mut next);
            let (before, after) = (spread(&job.inputs, job.bucket), spread(&made, job.bucket));
            prop_assert!(after < before, "{} files became {}: {job:?}", job.inputs.len(), made.len());
            files.retain(|file| !job.inputs.iter().any(|input| input.path == file.path));
            files.extend(made);
            written += job.inputs.iter().map(|file| file.size).sum::<u64>();
            jobs += 1;
            prop_assert!(jobs <= begun, "{jobs} jobs of {begun} parts of files");
        }
        let often = written as f64 / all as f64;
        prop_assert!(often <= 4.0 + (begun as f64).log2(), "each byte {often} times in {jobs} jobs of {begun}");
        if is_over {
            prop_assert!(files.iter().all(|file| file.is_sealed), "nothing more is expected");
        }
    }
}
