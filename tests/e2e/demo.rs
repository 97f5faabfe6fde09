//! `thalweg demo`, as a newcomer runs it.

use thalweg_tests::thalweg::run;

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
