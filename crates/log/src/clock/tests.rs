use std::path::Path;

use proptest::prelude::*;

use super::sim::ManualClock;
use super::*;
use crate::disk::FolderDisk;
use crate::embedded::EmbeddedLog;
use crate::options::LogOptions;

const SECOND: Micros = 1_000_000;
const DAY: Micros = 86_400 * SECOND;
/// A day in 2026.
const TODAY: Micros = 1_795_000_000 * SECOND;

/// Opens the log of a folder with the clocks of `machine`.
async fn start(folder: &Path, machine: &Arc<ManualClock>) -> (EmbeddedLog, Arc<LogClock>, Option<ClockJump>) {
    let clock = Arc::new(LogClock::new(machine.clone()));
    let log = open(folder, &clock);
    let jump = clock.resume(&log).await.unwrap();
    (log, clock, jump)
}

fn open(folder: &Path, clock: &Arc<LogClock>) -> EmbeddedLog {
    let options = LogOptions {
        file_bytes: 1 << 20,
        first_file_bytes: 1 << 20,
        spare: 1,
        min_free_bytes: Some(0),
        clock: clock.clone(),
        ..LogOptions::default()
    };
    EmbeddedLog::open(Arc::new(FolderDisk::open(folder).unwrap()), 7, &options).unwrap()
}

/// Stores a record now.
async fn store(log: &EmbeddedLog, clock: &LogClock) {
    let id = PartitionId::new(1, 0);
    if !log.partitions().contains(&id) {
        log.create(id, Durability::Fsync).await.unwrap();
    }
    let mut records = Records::new();
    records.push(&RecordRef::of(clock.now(), b"x")).unwrap();
    log.append(WriteBatch::of(id, records)).await.unwrap();
}

#[tokio::test]
async fn a_gateway_that_boots_in_1970_and_is_set_right_counts_what_passed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let machine = ManualClock::at(20 * SECOND);
    let (log, clock, _) = start(folder.path(), &machine).await;
    let sent = clock.now();
    store(&log, &clock).await;
    machine.pass(60 * SECOND);
    machine.set(TODAY);
    let jump = clock.look(&log).await.unwrap().unwrap();
    assert_eq!(jump.by(), TODAY);
    assert_eq!(clock.look(&log).await.unwrap(), None, "it is seen once");
    assert_eq!(clock.now() - sent, 60 * SECOND);
    assert_eq!(
        clock.wall_at(clock.now()),
        TODAY + 80 * SECOND,
        "what is shown is right"
    );
    machine.pass(5 * SECOND);
    store(&log, &clock).await;
    log.close();

    // Without a battery the clock shows 1970 again, and the downtime is unknown.
    for boot in 0..3 {
        let machine = ManualClock::at(10 * SECOND);
        let (log, clock, jump) = start(folder.path(), &machine).await;
        assert!(jump.is_some_and(|jump| jump.by() < -300 * DAY), "boot {boot}");
        assert_eq!(clock.now() - sent, (65 + 60 * boot) * SECOND, "boot {boot}");
        machine.pass(30 * SECOND);
        machine.set(TODAY + 30 * DAY);
        assert!(clock.look(&log).await.unwrap().is_some());
        machine.pass(30 * SECOND);
        store(&log, &clock).await;
        log.close();
    }

    // A machine with a battery knows the downtime.
    let machine = ManualClock::at(TODAY + 30 * DAY + 70 * SECOND + DAY);
    let (log, clock, jump) = start(folder.path(), &machine).await;
    assert_eq!(jump, None);
    assert_eq!(clock.now() - sent, 245 * SECOND + DAY);
    log.close();
}

/// The log may start a file, or an API may store something, as soon as it is open.
#[tokio::test]
async fn what_is_written_before_the_jumps_are_known_is_not_stamped_by_the_wall_clock() {
    let folder = tempfile::tempdir().unwrap();
    let machine = ManualClock::at(20 * SECOND);
    let (log, clock, _) = start(folder.path(), &machine).await;
    let sent = clock.now();
    store(&log, &clock).await;
    machine.set(TODAY);
    clock.look(&log).await.unwrap();
    log.close();
    for boot in 1..3 {
        let machine = ManualClock::at(TODAY + 20 * SECOND + boot * SECOND);
        let clock = Arc::new(LogClock::new(machine.clone()));
        let log = open(folder.path(), &clock);
        store(&log, &clock).await;
        clock.resume(&log).await.unwrap();
        assert_eq!(
            clock.now() - sent,
            boot * SECOND,
            "56 years would let everything expire"
        );
        log.close();
    }
}

#[tokio::test]
async fn a_clock_that_is_days_ahead_and_set_back_changes_no_time_that_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let machine = ManualClock::at(TODAY);
    let (log, clock, jump) = start(folder.path(), &machine).await;
    assert_eq!((jump, clock.now()), (None, TODAY));
    machine.set(8 * DAY);
    clock.look(&log).await.unwrap();
    assert_eq!(clock.now(), TODAY);
    let (wrong, named) = (clock.wall_at(clock.now()), TODAY + 8 * DAY + 60 * SECOND);
    assert_eq!(
        clock.at_wall(named),
        TODAY + 60 * SECOND,
        "a time that a person named follows the wall clock"
    );
    machine.pass(10 * SECOND);
    machine.set(-8 * DAY);
    clock.look(&log).await.unwrap();
    assert_eq!(clock.now(), TODAY + 10 * SECOND);
    assert_eq!(clock.at_wall(named), TODAY + 8 * DAY + 60 * SECOND);
    assert!(
        clock.oldest_wall(10 * SECOND) <= wrong,
        "what was stamped with the wrong time is no older than it is"
    );
    assert_eq!(
        clock.wall_at(TODAY + 5 * SECOND),
        TODAY + 8 * DAY + 5 * SECOND,
        "it shows what it was stamped with"
    );
    log.close();
}

#[tokio::test]
async fn a_full_disk_keeps_no_start_away_and_the_jump_is_stored_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let machine = ManualClock::at(TODAY);
    let (log, clock, _) = start(folder.path(), &machine).await;
    store(&log, &clock).await;
    log.close();
    // From here on the disk refuses writes.
    let (log, _, _) = start(folder.path(), &machine).await;
    log.close();
    let machine = ManualClock::at(SECOND);
    let clock = LogClock::new(machine.clone());
    let jump = clock.resume(&log).await.unwrap();
    assert!(jump.is_some_and(|jump| jump.by() < -DAY));
    assert!(clock.look(&log).await.is_err(), "it is not stored");
    assert_eq!((clock.now(), clock.wall_at(clock.now())), (TODAY, SECOND));
    let (log, clock, jump) = start(folder.path(), &machine).await;
    assert!(jump.is_some());
    assert!(
        log.bounds(CLOCK).is_ok_and(|bounds| bounds.first < bounds.next),
        "it is stored"
    );
    assert_eq!(clock.look(&log).await.unwrap(), None);
    log.close();
}

#[test]
fn a_jump_is_noticed_once_whoever_looks_first() {
    let machine = ManualClock::at(TODAY);
    let clock = LogClock::new(machine.clone());
    let oldest = clock.oldest_wall(DAY);
    machine.set(-8 * DAY);
    // A new timestamp must count as recent, although the jump has not been noticed yet.
    assert!(clock.oldest_wall(DAY) <= machine.wall());
    assert_eq!(clock.take_in(), None);
    machine.set(8 * DAY);
    clock.notice();
    machine.pass(2 * DAY);
    assert_eq!(clock.oldest_wall(DAY), oldest + 2 * DAY);
}

/// Otherwise retention adds the length of the jump to the age of the data.
#[test]
fn what_is_stamped_before_a_clock_that_was_set_back_is_looked_at_is_as_old_as_it_is() {
    let machine = ManualClock::at(TODAY);
    let clock = LogClock::new(machine.clone());
    machine.pass(DAY);
    machine.set(-45 * DAY);
    let (stamp, stamped) = (machine.wall(), clock.now());
    machine.pass(SECOND);
    clock.notice();
    for _ in 0..5 {
        machine.pass(5 * DAY);
        assert!(
            clock.oldest_wall(clock.now() - stamped) <= stamp,
            "its time has not come"
        );
    }
    assert!(clock.oldest_wall(DAY) > stamp, "it goes after all");
}

#[tokio::test]
async fn a_clock_that_never_jumped_leaves_nothing_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let machine = ManualClock::at(TODAY);
    let (log, clock, _) = start(folder.path(), &machine).await;
    for by in [JUMP_LEAST - 1, -JUMP_LEAST / 2, 0] {
        machine.pass(SECOND);
        machine.set(by);
        assert_eq!(clock.look(&log).await.unwrap(), None);
        machine.set(-by);
    }
    assert_eq!(log.partitions(), []);
    log.close();
}

#[tokio::test]
async fn without_its_jumps_a_log_counts_no_stop_but_those_that_follow() {
    let folder = tempfile::tempdir().unwrap();
    let machine = ManualClock::at(SECOND);
    let (log, clock, _) = start(folder.path(), &machine).await;
    machine.set(TODAY);
    clock.look(&log).await.unwrap();
    // A repair that gave the record up leaves this state.
    log.trim(CLOCK, log.bounds(CLOCK).unwrap().next).unwrap();
    store(&log, &clock).await;
    let before = clock.now();
    log.close();
    let machine = ManualClock::at(TODAY + DAY);
    let (log, clock, _) = start(folder.path(), &machine).await;
    assert_eq!(clock.now(), before, "56 years would let everything expire");
    assert_eq!(clock.wall_at(clock.now()), TODAY + DAY);
    log.close();
    // From then on the difference is known.
    let machine = ManualClock::at(TODAY + 3 * DAY);
    let (log, clock, jump) = start(folder.path(), &machine).await;
    assert_eq!((clock.now(), jump), (before + 2 * DAY, None), "a stop takes time again");
    log.close();
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Passes(Micros),
    Set(Micros),
    Looks,
    Stamps,
    /// Duration of the stop, and the change of the wall clock during it.
    Stops(Micros, Micros),
}

fn event() -> impl Strategy<Value = Event> {
    let step = prop_oneof![
        -400 * DAY..400 * DAY,
        -5 * SECOND..5 * SECOND,
        Just(-TODAY),
        Just(TODAY),
        Just(0)
    ];
    prop_oneof![
        4 => (0..3 * DAY).prop_map(Event::Passes),
        2 => (0..3 * SECOND).prop_map(Event::Passes),
        3 => step.clone().prop_map(Event::Set),
        4 => Just(Event::Looks),
        4 => Just(Event::Stamps),
        1 => (0..3 * DAY, step).prop_map(|(long, by)| Event::Stops(long, by)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn log_time_goes_on_as_time_passes_whatever_the_wall_clock_does(events in prop::collection::vec(event(), 1..60)) {
        let mut machine = ManualClock::at(TODAY);
        let mut clock = LogClock::new(machine.clone());
        // Elapsed log time, including every stop that could be counted.
        let mut passed = 0;
        let mut stamps: Vec<(Micros, Micros)> = Vec::new();
        for event in events {
            match event {
                Event::Passes(time) => {
                    machine.pass(time);
                    passed += time;
                }
                Event::Set(by) => machine.set(by),
                Event::Looks => {
                    clock.take_in();
                    let off = clock.wall_at(clock.now()) - machine.wall();
                    prop_assert!(off.abs() < JUMP_LEAST, "what is shown is off by {off}");
                }
                Event::Stamps => {
                    clock.take_in();
                    stamps.push((clock.now(), clock.wall_at(clock.now())));
                    machine.pass(1);
                    passed += 1;
                }
                Event::Stops(long, by) => {
                    let stored = match clock.jumps().is_empty() {
                        true => StoredJumps::Never,
                        false => StoredJumps::Jumps(stored_jumps::decode(&stored_jumps::encode(&clock.jumps())).unwrap()),
                    };
                    let (last, shown) = (clock.now(), clock.wall_at(clock.now()));
                    machine = ManualClock::at(machine.wall() + long + by);
                    clock = LogClock::new(machine.clone());
                    clock.go_on(stored, last);
                    let took = clock.now() - last;
                    prop_assert_eq!(took, (machine.wall() - shown).max(0), "a stop takes what the wall clock says, or nothing");
                    passed += took;
                }
            }
            prop_assert_eq!(clock.now(), TODAY + passed);
            for (time, wall) in &stamps {
                prop_assert_eq!(clock.wall_at(*time), *wall, "a stamp is what it was");
                let oldest = clock.oldest_wall(clock.now() - time);
                prop_assert!(oldest <= *wall, "taken for older than it is: before {oldest}");
                let named = clock.at_wall(*wall);
                prop_assert!(named >= *time || (clock.wall_at(named) - wall).abs() < JUMP_LEAST);
            }
        }
    }

    #[test]
    fn jumps_are_read_as_they_were_written_and_no_bytes_break_them(
        jumps in prop::collection::vec((0..1000i64, any::<i64>()), 0..600), cut in 0..4000usize, bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut table = ClockJumps::starting_with(7);
        let mut at = 0;
        for (later, offset) in &jumps {
            at += later;
            table = table.and(ClockJump { at, before: table.offset(), offset: *offset });
        }
        let written = stored_jumps::encode(&table);
        prop_assert_eq!(stored_jumps::decode(&written), Some(table.clone()));
        if cut < written.len() {
            prop_assert_eq!(stored_jumps::decode(&written[..cut]), None);
        }
        if let Some(found) = stored_jumps::decode(&bytes) {
            prop_assert_eq!(stored_jumps::encode(&found), bytes);
        }
        // The last jump is known, however many were dropped.
        if let Some((_, offset)) = jumps.last() {
            prop_assert_eq!(table.wall_at(at), at.saturating_add(*offset));
        }
    }
}

/// The number of cases. CI runs few; set `THALWEG_CLOCK_CASES=10000` for more.
fn cases() -> u32 {
    let wanted = std::env::var("THALWEG_CLOCK_CASES").ok();
    wanted.and_then(|cases| cases.parse().ok()).unwrap_or(300)
}
