//! Process shutdown: one signal drains, a second one ends it at once.

use std::process::Command;
use std::time::Duration;

use thalweg_tests::process::Process;
use thalweg_tests::thalweg::binary;
use thalweg_tests::{Thalweg, eventually};

#[test]
fn ctrl_c_ends_the_demo_with_its_balance_and_the_queries_it_printed_work() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command
        .args([
            "demo",
            "--http",
            "127.0.0.1:0",
            "--slow-nodes",
            "50",
            "--fast-nodes",
            "50",
        ])
        .current_dir(folder.path());
    let mut demo = Process::start("demo", folder.path(), &mut command).unwrap();
    eventually(|| {
        demo.check_running()?;
        let out = demo.stdout();
        let rows = out.lines().rev().find_map(|line| {
            let before = line.split(" rows").next()?;
            before.rsplit(' ').next()?.replace(',', "").parse::<u64>().ok()
        });
        anyhow::ensure!(rows > Some(100), "{out}");
        Ok(())
    })
    .unwrap();
    let queries: Vec<String> = demo
        .stdout()
        .replace("\\\n", "")
        .lines()
        .filter(|line| line.contains(" sql ") && line.contains("select "))
        .map(|line| line.trim_start_matches("ask it").trim().to_owned())
        .collect();
    assert_eq!(queries.len(), 2, "{}", demo.stdout());
    // Pasted into a shell beside the running demo, and again after its end.
    let ask = |when: &str| {
        for query in &queries {
            let answer = Command::new("sh")
                .arg("-c")
                .arg(query)
                .current_dir(folder.path())
                .output()
                .unwrap();
            let (out, error) = (
                String::from_utf8_lossy(&answer.stdout),
                String::from_utf8_lossy(&answer.stderr),
            );
            assert!(
                answer.status.success() && out.lines().count() >= 1,
                "{when}: {query}\n{out}\n{error}"
            );
        }
    };
    ask("beside the demo");
    demo.signal("INT").unwrap();
    let status = demo.wait().unwrap();
    let out = demo.stdout();
    assert!(status.success(), "{status}\n{out}\n{}", demo.stderr());
    let balance = out.lines().find(|line| line.starts_with("balance")).unwrap();
    assert!(
        balance.contains("in flight 0") && balance.contains("dropped 0") && balance.ends_with("(balanced)"),
        "{balance}"
    );
    ask("after the demo");
    let plants = Command::new("pgrep").args(["-f", "simulate opcua"]).output().unwrap();
    let left = String::from_utf8_lossy(&plants.stdout).into_owned();
    let of_this_demo = left
        .lines()
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.path()));
    assert_eq!(of_this_demo.count(), 0, "the plant ends with the demo");
}

#[test]
fn the_first_interrupt_drains_and_exits_0() {
    let mut thalweg = Thalweg::start(
        "\
input: {generate: {interval: 1ms, mapping: root.n = counter()}}
output: {file: {path: out.jsonl}}
",
    )
    .unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.balance()?.out > 100);
        Ok(())
    })
    .unwrap();
    thalweg.process.signal("INT").unwrap();
    let balance = thalweg.finish().unwrap();
    let written = std::fs::read_to_string(thalweg.folder.path().join("out.jsonl")).unwrap();
    let count = written.lines().count() as u64;
    assert_eq!((balance.entered, balance.out), (count, count));
}

#[test]
fn the_second_signal_ends_a_process_that_cannot_drain() {
    let mut thalweg = Thalweg::start(
        "\
shutdown_timeout: 10m
input: {generate: {interval: 1ms, mapping: root.n = counter()}}
output: {file: {path: \"/proc/no/such/${! json(\\\"n\\\") }\"}}
",
    )
    .unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.balance()?.in_flight > 0);
        Ok(())
    })
    .unwrap();
    thalweg.process.signal("TERM").unwrap();
    eventually(|| {
        let log = thalweg.process.stdout();
        anyhow::ensure!(log.contains("stopping") || log.contains("draining"), "{log}");
        Ok(())
    })
    .unwrap();
    thalweg.process.check_running().unwrap();
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait_within(Duration::from_secs(20)).unwrap();
    assert_eq!(status.code(), Some(1), "{}", thalweg.process.stderr());
    // The folder is free again.
    thalweg.restart().unwrap();
    thalweg.process.kill().unwrap();
}

#[test]
fn a_hangup_takes_over_the_list_of_queues_and_names_what_needs_a_restart() {
    let file = |depth: u64, more: &str, linger: &str| {
        format!(
            "log: {{commit: {{linger: {linger}}}}}\n\
             queues:\n  list:\n    - {{name: pumps, partitions: 1, max_depth: {depth}}}\n{more}"
        )
    };
    let mut thalweg = Thalweg::start(&file(7, "", "0us")).unwrap();
    let depth = |thalweg: &Thalweg| thalweg.json("/api/v1/queues/pumps").unwrap()["settings"]["max_depth"].as_u64();
    assert_eq!(depth(&thalweg), Some(7));

    let path = thalweg.folder.path().join("flow.yaml");
    std::fs::write(&path, file(9, "    - {name: fans}\n", "20us")).unwrap();
    thalweg.process.signal("HUP").unwrap();
    eventually(|| {
        anyhow::ensure!(depth(&thalweg) == Some(9) && thalweg.json("/api/v1/queues/fans").is_ok());
        let told = thalweg.process.stdout();
        anyhow::ensure!(
            told.contains("in force: queue pumps changed, queue fans created"),
            "{told}"
        );
        anyhow::ensure!(told.contains("need a restart: log.commit"), "{told}");
        Ok(())
    })
    .unwrap();

    std::fs::write(&path, file(3, "    - {name: fans, partition: 1}\n", "0us")).unwrap();
    thalweg.process.signal("HUP").unwrap();
    eventually(|| {
        let told = thalweg.process.stdout();
        anyhow::ensure!(told.contains("none of it is in force: it has errors"), "{told}");
        Ok(())
    })
    .unwrap();
    assert_eq!(depth(&thalweg), Some(9));
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}
