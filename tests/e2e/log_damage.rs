//! Damage to whole files of the log of the real binary: a start exits with code 65, names the file and the cure, and leaves
//! every file unchanged.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use thalweg_tests::thalweg::{RUN, run};
use thalweg_tests::{Api, Thalweg};

const QUEUE: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues:
  list:
    - {name: jobs, partitions: 1, max_bytes: 0, groups: [{name: g}]}
";

const MESSAGES: u64 = 1_200;

/// A queue with more messages than the first commit file can contain, stopped in good order or killed.
fn stored(signal: &str) -> Thalweg {
    let mut thalweg = Thalweg::start(QUEUE).unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let message = vec![b'x'; 20_000];
    for _ in 0..MESSAGES {
        api.send("POST", "/queues/jobs/messages", &[], &message).ok(201);
    }
    thalweg.process.signal(signal).unwrap();
    let _ = thalweg.process.wait().unwrap();
    thalweg
}

fn commit(number: u64) -> String {
    format!("commit-{number:016}.log")
}

/// Length and modification time of every file but the lock.
fn look_at(log: &Path) -> BTreeMap<String, (u64, SystemTime)> {
    let entries = std::fs::read_dir(log).unwrap().map(Result::unwrap);
    let looks = entries.map(|entry| {
        let metadata = entry.metadata().unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, (metadata.len(), metadata.modified().unwrap()))
    });
    looks.filter(|(name, _)| name != "LOCK").collect()
}

/// The damage of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Removed,
    Zeroed,
    ZeroedInFront,
    CutTo(usize),
}

impl Damage {
    fn apply(self, file: &Path, mut bytes: Vec<u8>) {
        match self {
            Damage::Removed => return std::fs::remove_file(file).unwrap(),
            Damage::Zeroed => bytes.fill(0),
            Damage::ZeroedInFront => bytes[..1 << 20].fill(0),
            Damage::CutTo(len) => bytes.truncate(len),
        }
        std::fs::write(file, &bytes).unwrap();
    }
}

#[test]
fn a_start_that_misses_what_was_acknowledged_is_refused_names_the_file_and_changes_nothing() {
    for signal in ["TERM", "KILL"] {
        let mut thalweg = stored(signal);
        let (folder, log) = (thalweg.folder.path().to_owned(), thalweg.data_dir().join("log"));
        // The first file is small and full; the second one is the current one.
        for (number, damage) in [
            (0, Damage::Zeroed),
            (0, Damage::ZeroedInFront),
            (0, Damage::CutTo(0)),
            (1, Damage::Removed),
            (1, Damage::Zeroed),
            (1, Damage::CutTo(1 << 20)),
            (1, Damage::ZeroedInFront),
        ] {
            let (file, what) = (log.join(commit(number)), format!("{number} {damage:?}"));
            let whole = std::fs::read(&file).unwrap();
            damage.apply(&file, whole.clone());
            let before = look_at(&log);
            let refused = run(&folder, &RUN).unwrap();
            let said = &refused.stderr;
            assert_eq!(refused.status.code(), Some(65), "{signal}, {what}: {said}");
            let cure = "thalweg log repair --accept-loss";
            assert!(
                said.contains("commit-") && said.contains(cure),
                "{signal}, {what}: {said}"
            );
            // A loss at the front is reported by the first check that finds it.
            assert!(
                number == 0 || said.contains(&commit(number)),
                "{signal}, {what}: {said}"
            );
            let mut after = look_at(&log);
            if (number, damage) == (0, Damage::ZeroedInFront) {
                // The file's own index names its blocks, so the log opens and can be written; the queue misses its messages.
                for open in [&commit(1), "superblock"] {
                    after.insert(open.to_owned(), before[open]);
                }
            }
            assert_eq!(after, before, "{signal}, {what}: a file was changed");
            let check = run(&folder, &["log", "check", "--data-dir", "data"]).unwrap();
            assert_eq!(check.status.code(), Some(65), "{signal}, {what}: {}", check.stdout);
            std::fs::write(&file, &whole).unwrap();
        }
        thalweg.restart().unwrap();
        let api = Api::new(&thalweg.address().unwrap());
        let queue = api.get("/queues/jobs").ok(200);
        assert_eq!(queue["depth"], MESSAGES, "{queue}");
        thalweg.process.signal("TERM").unwrap();
        assert!(thalweg.process.wait().unwrap().success());
    }
}

#[test]
fn what_a_repair_gives_up_of_the_newest_file_is_not_given_out_again() {
    let mut thalweg = stored("TERM");
    let (folder, log) = (thalweg.folder.path().to_owned(), thalweg.data_dir().join("log"));
    std::fs::remove_file(log.join(commit(1))).unwrap();
    let repaired = run(&folder, &["log", "repair", "--data-dir", "data", "--accept-loss"]).unwrap();
    assert!(repaired.status.success(), "{}{}", repaired.stdout, repaired.stderr);
    for words in ["blocks of which nothing is left", "offsets later", "the log is whole"] {
        assert!(
            repaired.stdout.contains(words),
            "{words:?} is missing in {}",
            repaired.stdout
        );
    }
    thalweg.restart().unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let answer = api.send("POST", "/queues/jobs/messages", &[], b"new").ok(201);
    let offset = answer["offset"]
        .as_u64()
        .or_else(|| answer["messages"][0]["offset"].as_u64());
    assert!(offset.is_some_and(|offset| offset >= MESSAGES), "{answer}");
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}
