//! Moving data on a disk that is full or becomes full: partial files are removed, and all data stays in place.

use super::*;

#[test]
fn a_move_without_room_leaves_nothing_behind_and_all_where_it_was() {
    let (mut by_space, mut by_write) = (0, 0);
    for seed in 0..40 {
        let disk = SimDisk::new(seed, 64 << 20);
        let (driven, mut known, mut random) = worked(&disk, seed, 20);
        let sealed = driven.pool.sealed();
        let files = &sealed[1..1 + random.below(sealed.len() as u64 - 1) as usize];
        let space = disk.space().unwrap();
        let names = disk.names().unwrap();
        let ranges = files
            .iter()
            .flat_map(|file| driven.partitions.iter().map(|one| one.ranges_in(file)));
        let bytes: u64 = ranges.flatten().map(|range| range.bytes).sum();
        // Room for the bodies only: headers and index do not fit.
        for free in [bytes.saturating_sub(1), bytes] {
            disk.set_capacity(space.total_bytes - space.free_bytes + free);
            let planned = MovePlan::of(files, &driven.partitions).unwrap();
            match planned.run(&driven.pool, &|_| {}) {
                Err(LogError::DiskFull { free_bytes: 0, .. }) if free > 0 => by_write += 1,
                Err(LogError::DiskFull { .. }) => by_space += 1,
                Ok(0) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
            assert_eq!(disk.names().unwrap(), names, "seed {seed}");
        }
        disk.set_capacity(64 << 20);
        for (slot, partition) in driven.partitions.iter().enumerate() {
            assert_eq!(read_all(partition).len() as u64, known[slot].acknowledged);
        }
        MovePlan::of(files, &driven.partitions)
            .unwrap()
            .run(&driven.pool, &|_| {})
            .unwrap();
        disk.kill();
        check(&open(&disk).unwrap(), &mut known, false);
    }
    assert!(by_space > 20 && by_write > 20, "{by_space} {by_write}");
}

#[test]
fn a_move_leaves_free_what_the_log_is_to_leave() {
    let disk = SimDisk::new(1, 64 << 20);
    drop(worked(&disk, 1, 20));
    disk.kill();
    let least = 1 << 20;
    let options = LogOptions {
        min_free_bytes: Some(least),
        ..options()
    };
    let opened = open::open(Arc::new(disk.clone()), 42, &options).unwrap();
    let partitions: Vec<_> = opened.partitions.values().cloned().collect();
    let space = disk.space().unwrap();
    for free in [least, 4 * least] {
        disk.set_capacity(space.total_bytes - space.free_bytes + free);
        let planned = MovePlan::of(&opened.pool.sealed()[..3], &partitions).unwrap();
        let moved = planned.run(&opened.pool, &|_| {});
        assert_eq!(moved.is_ok(), free > least, "{moved:?}");
        assert!(disk.space().unwrap().free_bytes >= least);
    }
}
