mod simulated;

use super::*;

fn file(number: i64, hour: i64, size: u64, level: u32) -> Arc<FileEntry> {
    Arc::new(FileEntry {
        path: format!("date=1970-01-01/{number}.parquet").into(),
        size,
        modified_unix_ms: number,
        flushed_unix_ms: number,
        partition: Box::new([Some("1970-01-01".into())]),
        level,
        revises: false,
        is_foreign: false,
        is_sealed: false,
        times: Some((hour * HOUR, hour * HOUR + HOUR - 1)),
        arrival_max: None,
        stats: Default::default(),
    })
}

fn planned(files: &[Arc<FileEntry>], now_hours: i64) -> Option<(usize, i64, u32, SealPolicy)> {
    let files: Vec<&Arc<FileEntry>> = files.iter().collect();
    let job = jobs_of_day(&files, now_hours * HOUR, &CompactionOptions::default()).next()?;
    Some((job.inputs.len(), job.bucket.0 / HOUR, job.level, job.seals))
}

#[test]
fn buckets_are_as_wide_as_their_rows_need() {
    let small: Vec<_> = (0..40).map(|number| file(number, number % 20, 1000, 0)).collect();
    assert_eq!(
        planned(&small, 1),
        Some((32, 24, 1, SealPolicy::Nothing)),
        "a day of little"
    );
    let large: Vec<_> = (0..40).map(|number| file(number, 3, 4 << 20, 0)).collect();
    assert_eq!(
        planned(&large, 1),
        Some((32, 1, 1, SealPolicy::Nothing)),
        "an hour fills a file"
    );
    let middle: Vec<_> = (0..40).map(|number| file(number, 6 + number % 6, 4 << 20, 0)).collect();
    assert_eq!(planned(&middle, 1), Some((32, 6, 1, SealPolicy::Nothing)));
}

#[test]
fn files_wait_for_others_of_their_level_or_for_the_end() {
    let mut files: Vec<_> = (0..31).map(|number| file(number, 3, 1000, 0)).collect();
    files.push(file(31, 3, 1000, 1));
    assert_eq!(planned(&files, 24), None);
    assert_eq!(planned(&files, 25), None, "two hours after the day");
    assert_eq!(planned(&files, 26), Some((32, 24, 2, SealPolicy::All)));
    files.push(file(32, 3, 1000, 1));
    assert_eq!(
        planned(&files, 26),
        Some((32, 24, 2, SealPolicy::Full)),
        "no more than can be open"
    );
    let late = vec![file(25 * 3_600_000, 3, 1000, 0)];
    assert_eq!(planned(&late, 26), None, "it came an hour ago");
    assert_eq!(planned(&late, 27), Some((1, 24, 1, SealPolicy::All)));
}

#[test]
fn a_job_without_room_for_all_takes_the_cheapest_and_seals_what_is_full() {
    let options = CompactionOptions::default();
    let files = [300, 100, 200, 400].into_iter().zip(0..);
    let files: Vec<_> = files.map(|(size, number)| file(number, 3, size << 20, 1)).collect();
    let files: Vec<&Arc<FileEntry>> = files.iter().collect();
    let job = jobs_of_day(&files, 26 * HOUR, &options).next().unwrap();
    assert_eq!((job.inputs.len(), job.seals), (4, SealPolicy::All));
    let costs: Vec<u64> = job.inputs.iter().map(|file| file.size).collect();
    let fit = |room: u64| {
        let mut job = job.clone();
        let (kept, used) = job.fit(&costs, room << 20);
        let names: Vec<usize> = kept.iter().map(|place| (costs[*place] >> 20) as usize).collect();
        assert_eq!(kept.len(), job.inputs.len());
        (names, used >> 20, job.seals)
    };
    assert_eq!(fit(1000), (vec![300, 100, 200, 400], 1000, SealPolicy::All));
    assert_eq!(fit(999), (vec![300, 100, 200], 600, SealPolicy::Full), "in their order");
    assert_eq!(fit(1), (vec![100, 200], 300, SealPolicy::Full), "two are always merged");
    let full = CompactionJob {
        seals: SealPolicy::Full,
        ..job.clone()
    };
    assert!(full.is_sealed(options.target, options.target) && !full.is_sealed(options.target - 1, options.target));
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
