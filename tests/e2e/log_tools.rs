//! `thalweg log check|dump|repair` on the log of the real binary: running, intact, damaged, repaired.

use std::path::Path;
use std::process::Command;

use thalweg_tests::Thalweg;
use thalweg_tests::thalweg::{Finished, binary, run};

use crate::log::damaged;

/// A queue is enough to create a log.
const ONE: &str = "log: {min_free: 16MiB, commit: {spare: 1}}\nqueues: {list: [{name: jobs}]}\n";

fn log(folder: &Path, arguments: &[&str]) -> Finished {
    let all: Vec<&str> = ["log"].iter().chain(arguments).copied().collect();
    run(folder, &all).unwrap()
}

#[test]
fn the_log_of_a_running_process_is_not_touched() {
    let mut thalweg = Thalweg::start(ONE).unwrap();
    let (folder, pid) = (thalweg.folder.path().to_owned(), thalweg.process.id().to_string());
    for command in ["check", "repair"] {
        for place in [&["--data-dir", "data"][..], &["data/log"]] {
            let arguments: Vec<&str> = [command].iter().chain(place).copied().collect();
            let refused = log(&folder, &arguments);
            assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
            assert!(refused.stderr.contains(&pid), "{arguments:?}: {}", refused.stderr);
        }
    }
    let dump = log(&folder, &["dump", "--data-dir", "data"]);
    assert!(dump.status.success() && dump.stderr.contains(&pid), "{}", dump.stderr);
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
    let whole = log(&folder, &["check", "--data-dir", "data"]);
    assert!(
        whole.status.success() && whole.stdout.contains("the log is whole"),
        "{}",
        whole.stdout
    );
    let nothing = log(&folder, &["check", "elsewhere"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(nothing.stderr.contains("elsewhere"), "{}", nothing.stderr);
}

#[test]
fn a_log_in_the_data_folder_of_another_process_is_taken_by_nobody_else() {
    let elsewhere = ONE.replacen('{', "{dirs: [theirs/log], ", 1);
    let mut thalweg = Thalweg::start(&elsewhere).unwrap();
    let (folder, pid) = (thalweg.folder.path().to_owned(), thalweg.process.id().to_string());
    // The data folder around it is free, and belongs to another process.
    let arguments = [
        "run",
        "own.yaml",
        "-s",
        "data_dir=theirs",
        "-s",
        "http.address=127.0.0.1:0",
    ];
    std::fs::write(folder.join("own.yaml"), ONE).unwrap();
    let refused = run(&folder, &arguments).unwrap();
    assert!(
        !refused.status.success() && refused.stderr.contains(&pid),
        "{}",
        refused.stderr
    );
    let check = log(&folder, &["check", "--data-dir", "theirs"]);
    assert_eq!(check.status.code(), Some(1), "{}", check.stdout);
    assert!(check.stderr.contains(&pid), "{}", check.stderr);
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn damage_is_named_shown_and_given_up_only_when_told_to() {
    let (mut thalweg, block) = damaged();
    let folder = thalweg.folder.path().to_owned();
    let (file, position) = ("commit-0000000000000000.log", format!("{block}"));
    let check = log(&folder, &["check", "--data-dir", "data"]);
    assert_eq!(check.status.code(), Some(65), "{}", check.stdout);
    for words in [file, &position, "damaged"] {
        assert!(check.stdout.contains(words), "{words} is missing in {}", check.stdout);
    }
    let json = log(&folder, &["check", "--data-dir", "data", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((json.status.code(), &report["whole"]), (Some(65), &false.into()));
    assert!(
        report["findings"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["position"] == block))
    );
    let dump = log(&folder, &["dump", "--data-dir", "data", "--records"]);
    assert!(dump.stdout.contains(&format!("{file}:{position}")) && dump.stdout.contains("damaged"));
    assert!(dump.stdout.contains("text-24-9.") && !dump.stdout.contains("text-25-3."));
    let before = std::fs::read(folder.join("data/log").join(file)).unwrap();
    let asked = log(&folder, &["repair", "--data-dir", "data"]);
    assert_eq!(asked.status.code(), Some(1), "{}", asked.stdout);
    assert!(
        asked.stdout.contains("would be lost") && asked.stderr.contains("--accept-loss"),
        "{}",
        asked.stderr
    );
    assert!(
        before == std::fs::read(folder.join("data/log").join(file)).unwrap(),
        "it was changed"
    );
    let repaired = log(&folder, &["repair", "--data-dir", "data", "--accept-loss"]);
    assert!(repaired.status.success(), "{}{}", repaired.stdout, repaired.stderr);
    assert!(
        repaired.stdout.contains("set aside") && repaired.stdout.contains("the log is whole"),
        "{}",
        repaired.stdout
    );
    let again = log(&folder, &["repair", "--data-dir", "data", "--accept-loss"]);
    assert!(
        again.status.success() && again.stdout.contains("nothing to repair"),
        "{}",
        again.stdout
    );
    let check = log(&folder, &["check", "--data-dir", "data"]);
    assert!(check.status.success(), "{}", check.stdout);
    thalweg.restart().unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn a_check_tells_on_a_terminal_how_far_it_is() {
    let mut thalweg = Thalweg::start(ONE).unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
    let command = format!("'{}' log check --data-dir data", binary().display());
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(thalweg.folder.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("100 % of"), "{shown}");
}

#[test]
fn what_a_newer_version_wrote_is_named_by_every_tool_with_exit_code_1_and_left_as_it_is() {
    let mut thalweg = Thalweg::start(ONE).unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
    let folder = thalweg.folder.path().to_owned();
    let (name, path) = ("commit-0000000000000000.log", "data/log/commit-0000000000000000.log");
    let mut bytes = std::fs::read(folder.join(path)).unwrap();
    // The second block, with another version and a valid checksum; the first block gives its position.
    let at = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    assert_eq!(bytes.get(at..at + 6).unwrap(), b"TWB1\x01\0");
    (bytes[at + 4], bytes[at + 12]) = (9, !bytes[at + 12]);
    std::fs::write(folder.join(path), &bytes).unwrap();
    let words = [
        &format!("{at}")[..],
        name,
        "a block of format version 9",
        "reads up to 1; install that version",
    ];
    let names_it = |text: &str| words.iter().all(|word| text.contains(word));
    for arguments in [
        &["check"][..],
        &["check", "--json"],
        &["dump"],
        &["dump", "--json"],
        &["repair"],
        &["repair", "--accept-loss"],
    ] {
        let all: Vec<&str> = arguments.iter().copied().chain(["data/log"]).collect();
        let told = log(&folder, &all);
        assert_eq!(
            told.status.code(),
            Some(1),
            "{arguments:?}: {}{}",
            told.stdout,
            told.stderr
        );
        let text = if arguments[0] == "check" {
            &told.stdout
        } else {
            &told.stderr
        };
        assert!(names_it(text), "{arguments:?}: {text}");
    }
    // The output has everything before it, and then states that no more follows.
    let dump = log(&folder, &["dump", "data/log"]).stdout;
    let last = dump.lines().last().unwrap();
    assert!(
        dump.starts_with("block 1 ") && last.starts_with("newer  ") && names_it(last),
        "{dump}"
    );
    let json = log(&folder, &["check", "data/log", "--json"]).stdout;
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["newer"], &report["whole"]), (&true.into(), &false.into()));
    let newer = serde_json::json!({"what": "block", "found": 9, "reads_up_to": 1});
    assert!(
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["newer"] == newer),
        "{json}"
    );
    assert!(std::fs::read(folder.join(path)).unwrap() == bytes, "it was changed");
}

#[test]
fn the_help_of_each_tool_tells_its_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    for (tool, codes) in [
        ("check", &[0, 1, 2, 65][..]),
        ("dump", &[0, 1, 2]),
        ("repair", &[0, 1, 2, 65]),
    ] {
        let help = log(folder.path(), &[tool, "--help"]).stdout;
        let (_, told) = help.split_once("Exit codes:").unwrap();
        let told: Vec<i32> = told
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse().ok())
            .collect();
        assert_eq!(told, codes, "{help}");
    }
    assert_eq!(log(folder.path(), &["check", "--wrong"]).status.code(), Some(2));
}
