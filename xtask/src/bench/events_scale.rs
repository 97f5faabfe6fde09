//! `bench events-scale`: the event store with ten million streams and a hundred million messages: the ingest rate with all
//! indexes, its memory, the time to the first response after `kill -9`, and the cost of reads and writes at random positions.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Effort;
use super::environment;
use super::events::{Connection, Server, request};
use super::report::{self, Row};
use crate::shell::binary_under_test;

const STREAMS: u64 = 10_000_000;
const STREAMS_QUICK: u64 = 100_000;
/// Messages per stream, written in this many rounds over all streams, so that each stream is spread over the log.
const PER_STREAM: u64 = 10;
/// Streams and messages of one `stream.appendMany`.
const AT_ONCE: u64 = 1000;
const FILLERS: u64 = 2;
const CATEGORIES: u64 = 8;

struct Scale {
    streams: u64,
}

impl Scale {
    fn name(number: u64) -> String {
        format!("device{}-{number:08}", number % CATEGORIES)
    }

    /// One message for each of some streams.
    fn append(first: u64, round: u64) -> Vec<u8> {
        let parts: Vec<String> = (first..first + AT_ONCE)
            .map(|number| {
                format!(
                    r#"{{"stream":"{}","messages":[{{"type":"Measured","data":{{"round":{round},"value":{number}.5,"unit":"bar"}}}}],"expectedVersion":{}}}"#,
                    Scale::name(number),
                    round as i64 - 1
                )
            })
            .collect();
        request(&format!(r#"["stream.appendMany",[{}]]"#, parts.join(",")))
    }

    fn fill(&self, server: &Server, begun: Instant) -> Result<()> {
        let batches = self.streams / AT_ONCE;
        let done = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            let fillers: Vec<_> = (0..FILLERS)
                .map(|filler| {
                    let done = &done;
                    scope.spawn(move || -> Result<()> {
                        let mut connection = Connection::open(server.port)?;
                        for round in 0..PER_STREAM {
                            for batch in (filler..batches).step_by(FILLERS as usize) {
                                connection.call(&Scale::append(batch * AT_ONCE, round))?;
                                done.fetch_add(AT_ONCE, std::sync::atomic::Ordering::Relaxed);
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            let (mut told, mut before) = (Instant::now(), 0);
            while !fillers.iter().all(|filler| filler.is_finished()) {
                std::thread::sleep(Duration::from_millis(200));
                if told.elapsed() < Duration::from_secs(10) {
                    continue;
                }
                let done = done.load(std::sync::atomic::Ordering::Relaxed);
                println!(
                    "  {:4.0} s: {done} of {} messages, {:.0}/s, {} MiB resident",
                    begun.elapsed().as_secs_f64(),
                    self.streams * PER_STREAM,
                    (done - before) as f64 / told.elapsed().as_secs_f64(),
                    server.resident_bytes()? >> 20
                );
                (told, before) = (Instant::now(), done);
            }
            for filler in fillers {
                filler.join().map_err(|_| anyhow::anyhow!("a writer has died"))??;
            }
            Ok(())
        })
    }
}

/// Requests at random positions, and the expected part of each response.
struct Asked {
    name: &'static str,
    ask: fn(u64) -> String,
    holds: fn(u64, &Value) -> bool,
}

const ASKED: [Asked; 6] = [
    Asked {
        name: "scale_stream_get",
        ask: |number| format!(r#"["stream.get","{}"]"#, Scale::name(number)),
        holds: |_, answer| answer.as_array().is_some_and(|rows| rows.len() as u64 >= PER_STREAM),
    },
    Asked {
        name: "scale_stream_version",
        ask: |number| format!(r#"["stream.version","{}"]"#, Scale::name(number)),
        holds: |_, answer| answer.as_u64() >= Some(PER_STREAM - 1),
    },
    Asked {
        name: "scale_stream_last",
        ask: |number| format!(r#"["stream.last","{}"]"#, Scale::name(number)),
        holds: |_, answer| answer.get(2).and_then(Value::as_u64) >= Some(PER_STREAM - 1),
    },
    Asked {
        name: "scale_stream_unknown",
        ask: |number| format!(r#"["stream.version","device1-none{number}"]"#),
        holds: |_, answer| answer.is_null(),
    },
    Asked {
        name: "scale_write",
        ask: |number| {
            format!(
                r#"["stream.write","{}",{{"type":"Measured","data":{{"late":true}}}}]"#,
                Scale::name(number)
            )
        },
        holds: |_, answer| answer.get("position").and_then(Value::as_u64) >= Some(PER_STREAM),
    },
    Asked {
        name: "scale_category_page",
        ask: |number| {
            let category = number % CATEGORIES;
            format!(
                r#"["category.get","device{category}",{{"position":{},"batchSize":100}}]"#,
                1 + number * PER_STREAM
            )
        },
        holds: |_, answer| answer.as_array().is_some_and(|rows| rows.len() == 100),
    },
];

pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let binary = binary_under_test()?;
    let scale = Scale {
        streams: if effort.is_quick() { STREAMS_QUICK } else { STREAMS },
    };
    let messages = scale.streams * PER_STREAM;
    let mut server = Server::start(&binary, "fsync")?;
    println!("writing {messages} messages into {} streams", scale.streams);
    let (before, begun) = (server.costs()?, Instant::now());
    scale.fill(&server, begun)?;
    let (after, seconds) = (server.costs()?, begun.elapsed().as_secs_f64());
    let fill = Row {
        name: "scale_fill".to_owned(),
        ops_per_second: messages as f64 / seconds,
        wall_ns_per_op: seconds * 1e9 / messages as f64,
        cpu_ns_per_op: (after.cpu_seconds - before.cpu_seconds) * 1e9 / messages as f64,
        bytes_per_op: (after.bytes - before.bytes) / messages as f64,
        allocs_per_op: (after.allocations - before.allocations) / messages as f64,
        p50_ns: None,
        p99_ns: None,
        more: [("resident_bytes".to_owned(), server.resident_bytes()?.into())]
            .into_iter()
            .collect(),
    };
    println!(
        "written in {seconds:.0} s; {} MiB resident, {} MiB of log, {} MiB of indexes",
        server.resident_bytes()? >> 20,
        bytes_below(&server.data().join("log"))? >> 20,
        bytes_below(&server.data().join("events"))? >> 20
    );
    let begun = Instant::now();
    server = server.killed_and_started(&binary, "fsync")?;
    let start = begun.elapsed();
    println!(
        "after kill -9 it answers in {:.2} s, {} MiB resident",
        start.as_secs_f64(),
        server.resident_bytes()? >> 20
    );
    let mut rows = vec![fill];
    for asked in &ASKED {
        println!("measuring {}", asked.name);
        rows.push(measure(&server, &scale, asked, effort.seconds() / 2.0)?);
    }
    println!("{} MiB resident at the end", server.resident_bytes()? >> 20);
    report::print("events-scale", &rows, &environment::bench_folder());
    Ok(rows)
}

/// One connection, one request at a time, each at a random position.
fn measure(server: &Server, scale: &Scale, asked: &Asked, seconds: f64) -> Result<Row> {
    let mut connection = Connection::open(server.port)?;
    let (before, begun, mut times) = (server.costs()?, Instant::now(), Vec::new());
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    while begun.elapsed().as_secs_f64() < seconds {
        chance = chance
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        // Not the last ones, so that a page is full.
        let number = (chance >> 24) % (scale.streams - 1000);
        let call = request(&(asked.ask)(number));
        let sent = Instant::now();
        connection.call(&call)?;
        times.push(sent.elapsed().as_nanos() as u64);
        let answer: Value = serde_json::from_slice(connection.body())?;
        ensure!((asked.holds)(number, &answer), "{}: {number}: {answer}", asked.name);
    }
    let (after, elapsed, ops) = (server.costs()?, begun.elapsed().as_secs_f64(), times.len() as f64);
    times.sort_unstable();
    let at = |part: f64| times.get((ops * part) as usize).map(|nanos| *nanos as f64);
    Ok(Row {
        name: asked.name.to_owned(),
        ops_per_second: ops / elapsed,
        wall_ns_per_op: elapsed * 1e9 / ops,
        cpu_ns_per_op: (after.cpu_seconds - before.cpu_seconds) * 1e9 / ops,
        bytes_per_op: (after.bytes - before.bytes) / ops,
        allocs_per_op: (after.allocations - before.allocations) / ops,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        more: [("p999_ns".to_owned(), at(0.999).into())].into_iter().collect(),
    })
}

fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() {
            bytes_below(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(bytes)
}
