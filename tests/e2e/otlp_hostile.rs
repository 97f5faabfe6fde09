//! Requests that no well-behaved sender sends. Each gets its response or its defined treatment, and a concurrent sender's
//! records are all stored.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use thalweg_tests::api::{Answer, Api};
use thalweg_tests::{Thalweg, eventually};

use crate::otlp::{counts, end, is_stored, logs_of, now, start};
use crate::otlp_senders::ask_with;

const MIB: u64 = 1 << 20;

/// A length-delimited protobuf field.
fn field(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut bytes = varint(u64::from(number << 3 | 2));
    bytes.extend(varint(inner.len() as u64));
    bytes.extend_from_slice(inner);
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn attribute(key: &str, value: &[u8]) -> Vec<u8> {
    field(6, &[field(1, key.as_bytes()), field(2, &field(1, value))].concat())
}

/// A log record with a time, a body and fields.
fn record(time: u64, body: &[u8], more: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![1 << 3 | 1];
    bytes.extend(time.to_le_bytes());
    bytes.extend(field(5, &field(1, body)));
    bytes.extend(more.concat());
    bytes
}

/// A request of log records, of one resource and scope.
fn request(records: &[Vec<u8>]) -> Vec<u8> {
    let records: Vec<u8> = records.iter().flat_map(|record| field(2, record)).collect();
    field(1, &field(2, &records))
}

fn send(otlp: &Api, more: &[(&str, &str)], body: &[u8]) -> Answer {
    let headers: Vec<(&str, &str)> = [("content-type", "application/x-protobuf")]
        .iter()
        .chain(more)
        .copied()
        .collect();
    otlp.send("POST", "/v1/logs", &headers, body)
}

#[track_caller]
fn is_refused(answer: &Answer, status: u16, words: &[&str]) {
    assert_eq!(answer.status, status, "{answer:?}");
    for word in words {
        assert!(answer.text.contains(word), "{word:?} is missing in {answer:?}");
    }
}

#[track_caller]
fn is_taken(answer: &Answer) {
    assert_eq!((answer.status, answer.text.as_str()), (200, ""), "{answer:?}");
}

fn row(thalweg: &Thalweg, columns: &str, body: &str) -> Value {
    let sql = format!("select {columns} from logs where body = '{body}'");
    let found = eventually(|| {
        let rows = thalweg.sql(&sql)?;
        anyhow::ensure!(rows.len() == 1, "{rows:?}");
        Ok(rows)
    });
    found.unwrap().remove(0)
}

/// Sends well-formed logs from number `next` on until the others are done; returns their number.
fn well_made(otlp: &Api, mut next: u64, is_done: &AtomicBool) -> u64 {
    while !is_done.load(Ordering::Acquire) {
        is_stored(&otlp.post("/v1/logs", &logs_of(now(), next..next + 20)));
        next += 20;
    }
    next
}

/// Runs `hostile` beside a well-behaved sender, and checks that each record of the sender is stored once.
fn beside_a_well_made_sender(thalweg: &Thalweg, otlp: &Api, hostile: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    let other = otlp.with_token("nobody asks for one");
    // Its names come first, so they have columns whatever names the others send.
    is_stored(&other.post("/v1/logs", &logs_of(now(), 0..20)));
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| well_made(&other, 20, &is_done));
        hostile();
        is_done.store(true, Ordering::Release);
        sender.join().unwrap()
    });
    eventually(|| {
        let numbers = thalweg.sql("select count(*) as rows from logs where attr_n is not null")?;
        anyhow::ensure!(numbers[0]["rows"].as_u64() >= Some(sent), "{numbers:?} of {sent}");
        let (_, numbers, sum) = counts(thalweg)?;
        assert_eq!((numbers, sum), (sent, sent * (sent - 1) / 2));
        Ok(())
    })
    .unwrap();
}

#[test]
fn requests_that_are_none_are_refused_with_the_place_of_the_mistake() {
    let (mut thalweg, otlp) = start("");
    let whole = request(&[record(now(), b"whole", &[])]);
    beside_a_well_made_sender(&thalweg, &otlp, || {
        for end in 1..whole.len() {
            is_refused(&send(&otlp, &[], &whole[..end]), 400, &["otlp.malformed", "byte"]);
        }
        // A body that is a number, and a group, a deprecated protobuf type.
        let number = [record(now(), b"x", &[]), vec![5 << 3, 7]].concat();
        is_refused(&send(&otlp, &[], &request(&[number])), 400, &["otlp.malformed"]);
        is_refused(&send(&otlp, &[], &[1 << 3 | 3, 1 << 3 | 4]), 400, &["otlp.malformed"]);
        let gzip = [("content-encoding", "gzip")];
        is_refused(&send(&otlp, &gzip, b"not gzip"), 400, &["otlp.malformed"]);
        is_refused(
            &send(&otlp, &[("content-encoding", "lzma")], &whole),
            415,
            &["otlp.encoding"],
        );
        // An empty body is a request without records.
        is_taken(&send(&otlp, &[], b""));
        is_taken(&send(&otlp, &[], &whole));
    });
    row(&thalweg, "body", "whole");
    end(&mut thalweg);
}

#[test]
fn a_bomb_takes_no_memory() {
    let (mut thalweg, otlp) = start("");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec![0; MIB as usize];
    for _ in 0..1024 {
        gzip.write_all(&zeros).unwrap();
    }
    let bomb = gzip.finish().unwrap();
    assert!(
        bomb.len() < 16 << 20,
        "{} bytes are below the limit of a body",
        bomb.len()
    );
    beside_a_well_made_sender(&thalweg, &otlp, || {
        for _ in 0..3 {
            let answer = send(&otlp, &[("content-encoding", "gzip")], &bomb);
            is_refused(&answer, 413, &["otlp.decoded_too_large"]);
        }
        let large = vec![0; 17 * MIB as usize];
        is_refused(&send(&otlp, &[], &large), 413, &["otlp.too_large"]);
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", thalweg.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib / 1024 < 400, "{kib} KiB at most: a gigabyte was never there");
    end(&mut thalweg);
}

#[test]
fn strange_values_are_kept_or_replaced_and_counted() {
    let (mut thalweg, otlp) = start("");
    // The last nanosecond of OTLP, in the year 2554; the first, in 1970; and one before 1970, as some senders write it.
    let (last, first, negative) = (u64::MAX, 1, (-62_135_596_800_000_000_000_i128) as u64);
    let observed = now();
    beside_a_well_made_sender(&thalweg, &otlp, || {
        for (time, name) in [(last, "last"), (first, "first"), (negative, "year 1")] {
            is_taken(&send(&otlp, &[], &request(&[record(time, name.as_bytes(), &[])])));
        }
        let mut seen = vec![11 << 3 | 1];
        seen.extend(observed.to_le_bytes());
        is_taken(&send(&otlp, &[], &request(&[record(0, b"observed", &[seen])])));
        is_taken(&send(&otlp, &[], &request(&[record(0, b"never", &[])])));
        let invalid = record(now(), b"a \xff b", &[attribute("caf\u{e9}", b"\xc3\x28")]);
        is_taken(&send(&otlp, &[], &request(&[invalid])));
        let twice = record(now(), b"twice", &[attribute("k", b"old"), attribute("k", b"new")]);
        is_taken(&send(&otlp, &[], &request(&[twice])));
    });
    for (name, time) in [("last", last), ("first", first), ("year 1", negative)] {
        let found = row(
            &thalweg,
            "time_original, time_source, time_unix_nano = arrival_unix_nano as is_arrival, date = cast(now() as date) as today",
            name,
        );
        let expected =
            json!({"time_original": time.to_string(), "time_source": "arrival", "is_arrival": true, "today": true});
        assert_eq!(found, expected, "{name}");
    }
    let found = row(&thalweg, "time_source, time_unix_nano", "observed");
    assert_eq!(
        found,
        json!({"time_source": "observed", "time_unix_nano": observed.to_string()})
    );
    let found = row(&thalweg, "time_source, time_original", "never");
    assert_eq!(found, json!({"time_source": "arrival", "time_original": null}));
    assert_eq!(
        row(&thalweg, "attr_caf__", "a \u{fffd} b")["attr_caf__"],
        "\u{fffd}(",
        "of the invalid two bytes the second is a character"
    );
    assert_eq!(row(&thalweg, "attr_k", "twice")["attr_k"], "new");
    let changed = |reason: &str| {
        let label = format!("reason=\"{reason}\",table=\"logs\"");
        thalweg.metric("thalweg_lake_changed_values_total", &label).unwrap()
    };
    let counted = ["time_replaced", "utf8_replaced", "key_repeated"].map(changed);
    assert_eq!(counted, [3.0, 2.0, 1.0]);
    end(&mut thalweg);
}

/// 100,000 names become 256 columns; the rest is in the map, and other engines can still read the table.
#[test]
fn names_without_end_become_neither_columns_nor_memory_without_end() {
    const NAMES: usize = 100_000;
    const PER_RECORD: usize = 500;
    let (mut thalweg, otlp) = start("lake: {flush: {interval: 1s}}\n");
    let records: Vec<Vec<u8>> = (0..NAMES / PER_RECORD)
        .map(|at| {
            let names = at * PER_RECORD..(at + 1) * PER_RECORD;
            let attributes: Vec<_> = names
                .map(|n| attribute(&format!("name.{n}"), n.to_string().as_bytes()))
                .collect();
            record(now(), format!("record {at}").as_bytes(), &attributes)
        })
        .collect();
    beside_a_well_made_sender(&thalweg, &otlp, || {
        for some in records.chunks(20) {
            is_taken(&send(&otlp, &[], &request(some)));
        }
        // All of them in one record exceed the limit of a record, which is reported, and the record beside it is stored.
        let all: Vec<_> = (0..NAMES).map(|n| attribute(&format!("n{n}"), b"x")).collect();
        let answer = send(
            &otlp,
            &[],
            &request(&[record(now(), b"too many", &all), record(now(), b"beside", &[])]),
        );
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.text.contains("too_many_attributes"), "{answer:?}");
    });
    row(&thalweg, "body", "beside");
    for n in [0, 255, 256, 50_000, NAMES - 1] {
        let found = thalweg
            .sql(&format!(
                "select attr('name.{n}') as v from logs where attr('name.{n}') is not null"
            ))
            .unwrap();
        assert_eq!(found, [json!({"v": n.to_string()})], "{n}");
    }
    assert_eq!(
        thalweg
            .sql("select count(*) as n from logs where body = 'too many'")
            .unwrap(),
        [json!({"n": 0})]
    );
    end(&mut thalweg);
    let table = thalweg.data_dir().join("lake/logs");
    let sql = "select count(*)::bigint as rows, sum(len(map_keys(overflow)))::bigint as others from t where body like 'record %'";
    let found = ask_with("duckdb", &table, sql);
    let others = found[0]["others"].as_u64().unwrap();
    assert_eq!(found[0]["rows"], NAMES / PER_RECORD);
    // Columns for the names of the well-behaved sender, and up to the limit for these names.
    let columns = NAMES as u64 - others;
    assert!((200..=256).contains(&columns), "{columns} names have columns");
}
