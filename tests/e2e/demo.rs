//! `thalweg demo`, as a new user runs it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use thalweg_tests::thalweg::{binary, run};

#[test]
fn the_demo_collects_a_plant_into_a_table_and_balances() {
    let folder = tempfile::tempdir().unwrap();
    let demo = run(
        folder.path(),
        &[
            "demo",
            "--for",
            "12s",
            "--http",
            "127.0.0.1:0",
            "--slow-nodes",
            "500",
            "--fast-nodes",
            "500",
        ],
    )
    .unwrap();
    assert!(
        demo.status.success(),
        "stdout: {}\nstderr: {}",
        demo.stdout,
        demo.stderr
    );
    for words in [
        "opc.tcp://",
        "status     http://",
        "select count(*)",
        "1000 found, 1000 monitored",
        "(balanced)",
        "table      tags:",
    ] {
        assert!(demo.stdout.contains(words), "{words:?} is missing in\n{}", demo.stdout);
    }
    assert!(!demo.stderr.contains("not encrypted"), "{}", demo.stderr);
    let balance = demo.stdout.lines().find(|line| line.starts_with("balance")).unwrap();
    assert!(
        balance.contains("in flight 0") && balance.contains("dropped 0"),
        "{balance}"
    );
    let out: u64 = balance
        .split("out ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        out >= 4000,
        "500 fast tags over several seconds and all initial values: {balance}"
    );

    // The printed command works unchanged in another folder.
    let (_, pasted) = demo.stdout.split_once("ask it").unwrap();
    let pasted: Vec<&str> = pasted.lines().take(2).collect();
    let answered = Command::new("sh")
        .arg("-c")
        .arg(pasted.join("\n"))
        .current_dir("/")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&answered.stderr);
    assert!(answered.status.success(), "{}: {error}", pasted.join("\n"));
    assert!(String::from_utf8_lossy(&answered.stdout).contains("1000"), "{pasted:?}");

    let counted = run(
        folder.path(),
        &[
            "sql",
            "--format",
            "json",
            "select count(*) as rows, count(distinct tag) as tags from tags",
        ],
    )
    .unwrap();
    assert!(counted.status.success(), "{}", counted.stderr);
    let rows: serde_json::Value = serde_json::from_str(&counted.stdout).unwrap();
    assert_eq!(
        rows[0]["rows"].as_u64(),
        Some(out),
        "what went out is in the table, once"
    );
    assert_eq!(rows[0]["tags"], 1000);

    // Each fast tag counts up by one per change: a hole would be a lost value.
    let holes = "with s as (select tag, value_int - lag(value_int) over (partition by tag order by time_unix_nano) as step from tags) \
                 select count(*) as n from s where step <> 1";
    let holes = run(folder.path(), &["sql", "--format", "json", holes]).unwrap();
    let holes: serde_json::Value = serde_json::from_str(&holes.stdout).unwrap();
    assert_eq!(holes[0]["n"], 0);
}

/// A demo in the background, ended by a failing test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(folder: &std::path::Path) -> (Running, impl Iterator<Item = String>) {
        let mut child = Command::new(binary())
            .args([
                "demo",
                "--for",
                "300s",
                "--http",
                "127.0.0.1:0",
                "--slow-nodes",
                "10",
                "--fast-nodes",
                "100",
            ])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (Running(child), lines.map_while(Result::ok))
    }
}

#[test]
fn a_second_demo_says_which_of_its_options_helps() {
    let folder = tempfile::tempdir().unwrap();
    let (_first, mut lines) = Running::start(folder.path());
    let status = lines.find(|line| line.starts_with("status")).unwrap();
    let address = status.split("http://").nth(1).unwrap().trim_end_matches('/');
    let second = |arguments: &[&str]| {
        let all = [
            &["demo", "--for", "1s", "--slow-nodes", "1", "--fast-nodes", "1"],
            arguments,
        ]
        .concat();
        let second = run(folder.path(), &all).unwrap();
        assert_eq!(second.status.code(), Some(1), "{}", second.stderr);
        second.stderr
    };
    let same_folder = second(&["--http", "127.0.0.1:0"]);
    assert!(
        same_folder.contains("or set --data-dir to another folder"),
        "{same_folder}"
    );
    let same_port = second(&["--http", address, "--data-dir", "other"]);
    assert!(same_port.contains("or set --http to another port"), "{same_port}");
}

#[test]
fn a_demo_whose_reader_leaves_drains_and_commits() {
    let folder = tempfile::tempdir().unwrap();
    let (mut demo, mut lines) = Running::start(folder.path());
    let rows = |line: &str| -> Option<u64> { line.split(" rows ").next()?.rsplit(' ').next()?.parse().ok() };
    let seen = lines.find_map(|line| rows(&line).filter(|rows| *rows > 0)).unwrap();
    drop(lines);
    let status = demo.0.wait().unwrap();
    let error = std::fs::read_to_string(folder.path().join("stderr")).unwrap();
    assert!(status.success() && !error.contains("panicked"), "{error}");
    let counted = run(
        folder.path(),
        &["sql", "--format", "csv", "select count(*) as n from tags"],
    )
    .unwrap();
    let counted: u64 = counted.stdout.lines().nth(1).unwrap().parse().unwrap();
    assert!(counted >= seen, "{counted} rows, {seen} were shown");
}
