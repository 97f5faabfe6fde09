//! `buffer: queue`: messages acknowledged to the source survive any fault, and are delivered once the output accepts them.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use thalweg_tests::thalweg::{RUN, run};
use thalweg_tests::{Balance, Thalweg, eventually};

/// Numbers from 1 on, each of one of seven tags.
const NUMBERS: &str = r#"mapping: |
        let n = count("n")
        root = $n
        meta umh_topic = "t%v".format($n % 7)
"#;

/// An input that only redelivers one nacked message.
const NOTHING: &str = "{generate: {interval: 1h, mapping: 'root = deleted()'}}";

const LOG: &str = "log: {min_free: 16MiB, commit: {spare: 1}}\n";

fn lines(thalweg: &Thalweg, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(thalweg.folder.path().join(file)).unwrap_or_default();
    // A killed process may have left an incomplete line.
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    complete.lines().map(str::to_owned).collect()
}

/// Waits until the buffer's content at a start is delivered, and stops.
fn drained(thalweg: &mut Thalweg) -> Balance {
    stopped_when(thalweg, |balance| balance.out > 0)
}

fn stopped_when(thalweg: &mut Thalweg, is: impl Fn(&Balance) -> bool) -> Balance {
    eventually(|| {
        thalweg.process.check_running()?;
        let balance = thalweg.balance()?;
        // The buffer's content at a start is in the mass balance only once the buffer is open.
        ensure!(is(&balance) && balance.in_flight == 0, "{balance:?}");
        Ok(())
    })
    .unwrap();
    thalweg.stop().unwrap()
}

fn set_config(thalweg: &Thalweg, yaml: &str) {
    std::fs::write(thalweg.folder.path().join("flow.yaml"), yaml).unwrap();
}

fn post(thalweg: &Thalweg, path: &str, headers: &[(&str, String)], body: &[u8]) -> Result<u16> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = agent.post(format!("http://{}/api/v1/queues/{path}", thalweg.address()?));
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    Ok(request.send(body)?.status().as_u16())
}

/// `tag_processor` gives each number its topic and time.
fn to_tags(slow: bool) -> String {
    let sleep = if slow { "    - sleep: {duration: 20ms}\n" } else { "" };
    format!(
        "pipeline:\n  threads: 3\n  processors:\n{sleep}    - tag_processor:\n        defaults: |\n          \
         msg.meta.location_path = \"acme\"; msg.meta.data_contract = \"_raw\";\n          \
         msg.meta.tag_name = \"n\" + (msg.payload % 7); return msg;\n"
    )
}

fn value_of(line: &str) -> u64 {
    let message: Value = serde_json::from_str(line).unwrap();
    message["value"].as_u64().unwrap()
}

#[test]
fn after_kill_nine_everything_that_was_stored_arrives_in_the_order_of_its_tag() {
    let output = "output: {file: {path: out.txt, codec: lines}}\n";
    let config = format!(
        "{LOG}input:\n  generate:\n    interval: 1ms\n    batch_size: 50\n    {NUMBERS}buffer: {{queue: {{partitions: 4, claim_batch: 100}}}}\n{}{output}",
        to_tags(true)
    );
    let mut thalweg = Thalweg::start(&config).unwrap();
    let mut told = 0;
    for round in 1..=3 {
        let stored = eventually(|| {
            let stored = thalweg.metric("buffer_received", "path=\"root.buffer\"")? as u64;
            let (written, wanted) = (lines(&thalweg, "out.txt").len(), 200 * round);
            ensure!(stored > 5000 && written > wanted, "{stored} stored, {written} written");
            thalweg.balance()?;
            Ok(stored)
        })
        .unwrap();
        told = told.max(stored);
        thalweg.process.kill().unwrap();
        if round < 3 {
            thalweg.restart().unwrap();
        }
    }
    // The rest comes out of the buffer alone.
    let before = lines(&thalweg, "out.txt").len();
    set_config(
        &thalweg,
        &format!(
            "{LOG}input: {NOTHING}\nbuffer: {{queue: {{partitions: 4}}}}\n{}{output}",
            to_tags(false)
        ),
    );
    thalweg.restart().unwrap();
    let balance = drained(&mut thalweg);
    let all: Vec<u64> = lines(&thalweg, "out.txt").iter().map(|line| value_of(line)).collect();
    let found: HashSet<u64> = all.iter().copied().collect();
    let missing: Vec<u64> = (1..=told).filter(|n| !found.contains(n)).collect();
    assert!(
        missing.is_empty(),
        "{} of {told} are missing: {:?}",
        missing.len(),
        &missing[..missing.len().min(9)]
    );
    assert!(
        balance.out > 0 && balance.dropped == 0 && balance.filtered == 1,
        "{balance:?}"
    );
    assert_eq!(balance.out, (all.len() - before) as u64);
    // Each start of the generator begins at 1, so the last run has up to three rises of each tag, and no more falls.
    let mut last: HashMap<u64, (u64, u32)> = HashMap::new();
    for n in &all[before..] {
        let (last, falls) = last.entry(n % 7).or_default();
        *falls += u32::from(n <= last);
        *last = *n;
        assert!(*falls <= 3, "the order of tag {} is lost at {n}", n % 7);
    }
}

/// A queue with room for ten messages: its producers wait.
const STUCK: &str = "queues: {list: [{name: stuck, max_depth: 10, overflow: reject, ttl: 0}]}\n";

fn stuck(buffer: &str, count: u32) -> String {
    format!(
        "{LOG}{STUCK}shutdown_timeout: 1s\ninput:\n  generate:\n    count: {count}\n    interval: ''\n    batch_size: 100\n    {NUMBERS}\
         buffer: {{queue: {{{buffer}}}}}\noutput: {{queue: {{name: stuck, batching: {{count: 10}}}}}}\n"
    )
}

#[test]
fn a_full_buffer_makes_the_source_wait_until_there_is_room_and_loses_nothing() {
    const COUNT: u32 = 400_000;
    for (limit, most) in [("max_depth: 3000", 3000.0), ("max_bytes: 1MiB", 400_000.0)] {
        let mut thalweg = Thalweg::start(&stuck(limit, COUNT)).unwrap();
        eventually(|| {
            let log = thalweg.process.stdout() + &thalweg.process.stderr();
            ensure!(log.contains("is full and its source waits"), "{log}");
            Ok(())
        })
        .unwrap();
        let received = thalweg.metric("buffer_received", "").unwrap();
        let buffered = thalweg.metric("thalweg_flow_buffered", "").unwrap();
        assert!(
            received < f64::from(COUNT) && buffered <= most,
            "{limit}: {received} received, {buffered} buffered"
        );
        let balance = thalweg.balance().unwrap();
        assert!(balance.in_flight > 0 && balance.dropped == 0, "{balance:?}");
        // Unacknowledged messages are lost with it; stored ones are not.
        thalweg.process.kill().unwrap();
        let output = "output: {file: {path: out.txt, codec: lines}}\n";
        set_config(
            &thalweg,
            &format!("{LOG}input: {NOTHING}\nbuffer: {{queue: {{{limit}}}}}\n{output}"),
        );
        thalweg.restart().unwrap();
        let balance = drained(&mut thalweg);
        assert!(
            balance.out >= buffered as u64 && balance.dropped == 0,
            "{limit}: {balance:?}"
        );
        let found: HashSet<u64> = lines(&thalweg, "out.txt")
            .iter()
            .map(|line| line.parse().unwrap())
            .collect();
        let stored = found.iter().max().copied().unwrap_or_default();
        assert!(
            stored >= received as u64 && found.len() as u64 >= stored - 20,
            "{limit}: {stored}, {}",
            found.len()
        );
    }
}

#[test]
fn a_clean_stop_leaves_what_is_buffered_for_the_next_start_and_drops_nothing() {
    let mut thalweg = Thalweg::start(&stuck("partitions: 3", 5000)).unwrap();
    eventually(|| {
        let stored = thalweg.metric("buffer_received", "")?;
        ensure!(stored == 5000.0, "{stored} stored");
        Ok(())
    })
    .unwrap();
    let node = thalweg.node("buffer").unwrap();
    assert_eq!(
        (&node["component"], &node["received"]),
        (&json!("queue"), &json!(5000)),
        "{node}"
    );
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait().unwrap();
    assert!(status.success(), "everything was acknowledged: {status}");
    let stopped = thalweg.last_balance().unwrap();
    assert!(
        stopped.dropped == 0 && stopped.out < 5000 && stopped.in_flight == 5000 - stopped.out,
        "{stopped:?}"
    );

    // More partitions are allowed only if no order can change.
    let output = "output: {file: {path: out.txt, codec: lines}}\n";
    set_config(
        &thalweg,
        &format!("{LOG}input: {NOTHING}\nbuffer: {{queue: {{partitions: 5}}}}\n{output}"),
    );
    thalweg.restart().unwrap();
    let rest = drained(&mut thalweg);
    assert!(
        rest.out >= stopped.in_flight && rest.dropped == 0,
        "{stopped:?} {rest:?}"
    );
    let found: HashSet<u64> = lines(&thalweg, "out.txt")
        .iter()
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(
        found.len() as u64 >= stopped.in_flight && found.contains(&5000),
        "{}",
        found.len()
    );
    thalweg.restart().unwrap();
    let empty = stopped_when(&mut thalweg, |balance| balance.filtered > 0);
    assert_eq!(
        (empty.entered, empty.filtered),
        (1, 1),
        "nothing comes twice after a clean stop: {empty:?}"
    );
}

#[test]
fn mistakes_in_a_buffer_are_found_by_check() {
    let folder = tempfile::tempdir().unwrap();
    for (buffer, problem) in [
        ("", None),
        (
            "name: buffer.mine, partitions: 3, durability: os, max_depth: 5, max_bytes: 2GiB, claim_batch: 7",
            None,
        ),
        ("partitons: 3", Some("did you mean \"partitions\"?")),
        ("name: mine", Some("a buffer's queue must be called buffer.<something>")),
        (
            "name: buffer.",
            Some("a buffer's queue must be called buffer.<something>"),
        ),
        ("name: ../buffer.a", Some("this one has '/'")),
        ("partitions: 0", Some("from 1 to 1000")),
        ("partitions: 1001", Some("from 1 to 1000")),
        ("durability: maybe", Some("fsync")),
        ("max_bytes: 100KiB", Some("a buffer needs at least 1MiB")),
        ("max_depth: -1", Some("max_depth")),
        ("claim_batch: 10001", Some("from 1 to 10000")),
        ("ttl: 5s", Some("unknown field \"ttl\"")),
    ] {
        let yaml = format!("input: {{stdin: {{}}}}\nbuffer: {{queue: {{{buffer}}}}}\noutput: {{drop: {{}}}}\n");
        std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
        let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
        let said = checked.stdout + &checked.stderr;
        match problem {
            None => assert!(checked.status.success(), "{buffer}: {said}"),
            Some(problem) => assert!(
                checked.status.code() == Some(1) && said.contains("flow.yaml:2:") && said.contains(problem),
                "{buffer}: {said}"
            ),
        }
    }
    let flow = |name: &str| {
        format!(
            "- {{name: {name}, input: {{stdin: {{}}}}, buffer: {{queue: {{name: buffer.a}}}}, output: {{drop: {{}}}}}}\n"
        )
    };
    std::fs::write(
        folder.path().join("flow.yaml"),
        format!("flows:\n{}{}", flow("a"), flow("b")),
    )
    .unwrap();
    let checked = run(folder.path(), &RUN).unwrap();
    let said = checked.stdout + &checked.stderr;
    assert!(
        checked.status.code() == Some(1) && said.contains("flow \"a\" has the buffer buffer.a already"),
        "{said}"
    );
}

#[test]
fn what_a_flow_refuses_for_good_goes_to_the_dead_letters_of_the_queue_it_came_from() {
    let config = format!(
        "{LOG}queues: {{list: [{{name: jobs, groups: [{{name: default}}]}}]}}\ninput: {{queue: {{name: jobs}}}}\n\
         pipeline:\n  processors:\n    - tag_processor:\n        defaults: |\n          \
         if (msg.payload == \"bad\") throw new Error(\"no such machine\");\n          \
         msg.meta.location_path = \"acme\"; msg.meta.data_contract = \"_raw\"; msg.meta.tag_name = \"t\"; return msg;\n\
         output: {{file: {{path: out.txt, codec: lines}}}}\n"
    );
    let mut thalweg = Thalweg::start(&config).unwrap();
    for text in ["good", "bad", "fine"] {
        assert_eq!(post(&thalweg, "jobs/messages", &[], text.as_bytes()).unwrap(), 201);
    }
    let letters = eventually(|| {
        let letters = thalweg.json("/api/v1/queues/jobs/dlq")?;
        ensure!(letters.to_string().contains("no such machine"), "{letters}");
        Ok(letters)
    })
    .unwrap();
    assert!(letters.to_string().contains("rejected"), "{letters}");
    eventually(|| {
        let found = lines(&thalweg, "out.txt").len();
        ensure!(found == 2, "{found}");
        Ok(())
    })
    .unwrap();
    let expected = Balance {
        entered: 3,
        out: 2,
        dropped: 1,
        ..Balance::default()
    };
    assert_eq!(thalweg.stop().unwrap(), expected);
}

#[test]
fn an_output_collects_what_batching_says_before_it_writes() {
    for (batching, least) in [
        ("count: 250", 250.0),
        ("byte_size: 20KiB", 50.0),
        ("count: 100000, period: 300ms", 50.0),
    ] {
        let config = format!(
            "{LOG}queues: {{list: [{{name: out, max_depth: 0}}]}}\n\
             input: {{generate: {{interval: 1ms, mapping: 'root = \"%0100d\".format(count(\"n\"))'}}}}\n\
             output: {{queue: {{name: out, batching: {{{batching}}}}}}}\n"
        );
        let mut thalweg = Thalweg::start(&config).unwrap();
        eventually(|| {
            let (messages, batches) = (
                thalweg.metric("output_sent", "")?,
                thalweg.metric("output_batch_sent", "")?,
            );
            ensure!(
                messages >= 500.0 && messages / batches >= least,
                "{batching}: {messages} in {batches}"
            );
            Ok(())
        })
        .unwrap();
        let balance = thalweg.stop().unwrap();
        assert_eq!(
            balance.out, balance.entered,
            "what is collected at the end is written: {balance:?}"
        );
    }
}
