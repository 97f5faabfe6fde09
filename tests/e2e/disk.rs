//! Disks that are full or read-only: one clear error, sources that wait, and no loss once there is room again.

use serde_json::Value;
use thalweg_tests::thalweg::{RUN, binary};
use thalweg_tests::{Disk, Thalweg, eventually};

/// Small buffers, so that the source stops soon when the log is full. A failing table commit is reported after ten seconds.
const FLOW: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
lake: {flush: {bytes: 256KiB, interval: 200ms}}
buffer: {memory: {limit: 256KiB}}
input:
  generate: {interval: 2ms, batch_size: 20, mapping: root = counter()}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"enterprise.site\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"n\";
          return msg;
output:
  lake: {table: tags}
";

fn disk(thalweg: &Thalweg) -> &Disk {
    thalweg.disk.as_ref().unwrap()
}

fn wait_for_rows(thalweg: &mut Thalweg, more_than: u64) -> u64 {
    let mut out = 0;
    eventually(|| {
        thalweg.process.check_running()?;
        out = thalweg.balance()?.out;
        anyhow::ensure!(out > more_than, "{out} rows; {:?}", thalweg.request("/ready"));
        Ok(())
    })
    .unwrap();
    out
}

/// Waits until the flow stops and reports the cause; returns the number of acknowledged rows.
fn wait_for_standstill(thalweg: &mut Thalweg, why: &str) -> u64 {
    let mut last = (0, 0);
    eventually(|| {
        thalweg.process.check_running()?;
        let (status, body) = thalweg.request("/ready")?;
        anyhow::ensure!(
            status == 503 && body.contains(why) && body.contains("lake"),
            "{status} {body}"
        );
        let balance = thalweg.balance()?;
        let before = std::mem::replace(&mut last, (balance.entered, balance.out));
        anyhow::ensure!(balance.dropped == 0 && balance.in_flight > 0, "{balance:?}");
        anyhow::ensure!(before == last, "values still enter: {balance:?}");
        // A request may see it before it is logged.
        let log = thalweg.process.stdout();
        anyhow::ensure!(log.contains(why), "not logged: {log}");
        Ok(())
    })
    .unwrap();
    let errors = thalweg.process.stderr();
    assert!(!errors.contains("panicked"), "{errors}");
    last.1
}

/// Every number from 1 to the last is in the table, once, and the number of acknowledgements equals the number of rows.
fn assert_whole(rows: &[Value], out: u64) {
    let figure = |name: &str| rows[0][name].as_u64();
    let expected = (Some(out), Some(1), Some(out), Some(out * (out + 1) / 2));
    assert_eq!((figure("n"), figure("min"), figure("max"), figure("sum")), expected);
}

const WHOLE: &str =
    "select count(*) as n, min(value_int) as min, max(value_int) as max, sum(value_int) as sum from tags";

/// Waits until the failing commit is reported, with the cause.
fn wait_for_trouble(thalweg: &mut Thalweg, why: &str) {
    eventually(|| {
        thalweg.process.check_running()?;
        let (status, body) = thalweg.request("/ready")?;
        anyhow::ensure!(
            status == 503 && body.contains(why) && body.contains("lake"),
            "{status} {body}"
        );
        let log = thalweg.process.stdout();
        anyhow::ensure!(log.contains(why), "not logged: {log}");
        Ok(())
    })
    .unwrap();
    let errors = thalweg.process.stderr();
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Waits until the table has every acknowledged number, once.
fn wait_until_whole(thalweg: &mut Thalweg, out: u64) {
    eventually(|| {
        let rows = thalweg.sql(WHOLE)?;
        let n = rows[0]["n"].as_u64();
        anyhow::ensure!(n >= Some(out), "{rows:?}, {out} acknowledged");
        assert_whole(&rows, n.unwrap_or_default());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_log_on_a_disk_that_fills_up_stops_the_source_and_loses_nothing() {
    let mut thalweg = Thalweg::start_with_disk_of(FLOW, "data", 400, |_| Ok(())).unwrap();
    wait_for_rows(&mut thalweg, 500);
    disk(&thalweg).fill().unwrap();
    let out = wait_for_standstill(&mut thalweg, "is full");
    // Rows in the lake can still be queried; rows only in the log follow as soon as there is room.
    let counted = thalweg.sql("select count(*) as n from tags").unwrap();
    assert!(counted[0]["n"].as_u64() > Some(0), "{counted:?}, {out} acknowledged");
    disk(&thalweg).free().unwrap();
    wait_for_rows(&mut thalweg, out + 500);
    wait_until_whole(&mut thalweg, out + 500);
    thalweg.wait_ready().unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!((balance.entered, balance.dropped), (balance.out, 0));
    let asked = disk(&thalweg)
        .enter(thalweg.folder.path(), &binary())
        .args(["sql", "--data-dir", "data", "--format", "json", WHOLE])
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    assert_whole(
        &serde_json::from_slice::<Vec<Value>>(&asked.stdout).unwrap(),
        balance.out,
    );
}

#[test]
fn a_lake_on_a_disk_that_fills_up_leaves_rows_in_the_log_until_there_is_room() {
    let mut thalweg = Thalweg::start_with_disk(FLOW, "data/lake", |_| Ok(())).unwrap();
    wait_for_rows(&mut thalweg, 500);
    disk(&thalweg).fill().unwrap();
    wait_for_trouble(&mut thalweg, "No space left on device");
    // The log keeps accepting data.
    let out = thalweg.balance().unwrap().out;
    let out = wait_for_rows(&mut thalweg, out + 500);
    disk(&thalweg).free().unwrap();
    wait_until_whole(&mut thalweg, out);
    thalweg.wait_ready().unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!((balance.entered, balance.dropped), (balance.out, 0));
}

#[test]
fn a_process_that_is_killed_while_its_lake_is_full_starts_on_it_and_goes_on_when_there_is_room() {
    let mut thalweg = Thalweg::start_with_disk(FLOW, "data/lake", |_| Ok(())).unwrap();
    wait_for_rows(&mut thalweg, 500);
    disk(&thalweg).fill().unwrap();
    wait_for_trouble(&mut thalweg, "No space left on device");
    let acknowledged = thalweg.balance().unwrap().out;
    thalweg.process.kill().unwrap();
    // A start may remove incomplete leftovers, so this fills that room again.
    thalweg.restart().unwrap();
    disk(&thalweg).fill().unwrap();
    wait_for_trouble(&mut thalweg, "No space left on device");
    disk(&thalweg).free().unwrap();
    eventually(|| {
        let rows = thalweg.sql("select count(distinct value_int) as n, max(value_int) as max from tags")?;
        anyhow::ensure!(rows[0]["max"].as_u64() >= Some(acknowledged), "{rows:?}");
        anyhow::ensure!(
            rows[0]["n"] == rows[0]["max"],
            "both runs count from 1, and a number is missing: {rows:?}"
        );
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!(balance.dropped, 0);
}

#[test]
fn a_lake_on_a_disk_that_is_read_only_holds_messages_back_until_it_can_be_written() {
    let mut thalweg = Thalweg::start_with_disk(FLOW, "data/lake", |disk| disk.set_writable(false)).unwrap();
    let out = wait_for_standstill(&mut thalweg, "Read-only file system");
    assert_eq!(out, 0);
    disk(&thalweg).set_writable(true).unwrap();
    wait_for_rows(&mut thalweg, 500);
    thalweg.wait_ready().unwrap();
    // Rows are acknowledged when they are in the log, and queries see them a moment later.
    eventually(|| {
        let rows = thalweg.sql("select min(value_int) as first, count(*) as n, max(value_int) as max from tags")?;
        let is_whole = (&rows[0]["first"], &rows[0]["n"]) == (&1.into(), &rows[0]["max"]);
        anyhow::ensure!(is_whole, "{rows:?}");
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!((balance.entered, balance.dropped), (balance.out, 0));
}

#[test]
fn an_existing_data_folder_that_is_read_only_is_named_with_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flow.yaml"), FLOW).unwrap();
    let disk = Disk::mount(folder.path(), "data", 8).unwrap();
    disk.set_writable(false).unwrap();
    let ended = disk.enter(folder.path(), &binary()).args(RUN).output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    for words in ["data", "Read-only file system", "data_dir"] {
        assert!(error.contains(words), "{words:?} is missing in {error}");
    }
}
