//! `bench lake`: what a record costs on its way from a request to a table. The rows in one process come from a benchmark of the
//! crate itself; those over HTTP drive the binary through real sockets, with the load in this process.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Result, bail, ensure};

use super::Effort;
use super::driver::{in_process, load, post};
use super::environment;
use super::generator::{Generator, Shape};
use super::report::{self, Row};
use super::under_test::UnderTest;
use crate::shell::build_binary;

/// Each with one request at a time, as exporters have.
const CLIENTS: usize = 8;
const RECORDS_PER_REQUEST: u64 = 500;
/// Distinct ones, sent in turn.
const REQUESTS: usize = 200;

pub fn run(effort: Effort, only: Option<&str>, input: Option<&str>) -> Result<Vec<Row>> {
    let more: Vec<&str> = input.map(|file| ["--input", file]).into_iter().flatten().collect();
    let mut rows = in_process("thalweg-lake", "lake", effort, only, &more)?;
    if input.is_some() || only.is_some_and(|word| !"otlp_http_fsync".contains(word)) {
        return Ok(rows);
    }
    println!("measuring otlp_http_fsync");
    let over_http = vec![http(effort)?];
    println!(
        "\nover HTTP: {CLIENTS} clients, each with one request of {RECORDS_PER_REQUEST} logs at a time, acknowledged when synced \
         (fsync), {:.0} s; decoding and tables beside it; CPU, bytes and allocs are the server's",
        effort.seconds()
    );
    report::print("lake", &over_http, &environment::bench_folder());
    rows.extend(over_http);
    Ok(rows)
}

fn http(effort: Effort) -> Result<Row> {
    let folder = environment::bench_folder();
    if let Some(refused) = environment::refused(&folder) {
        bail!(refused);
    }
    std::fs::create_dir_all(&folder)?;
    let port = free_port()?;
    let config = format!(
        "log: {{min_free: 0, durability: fsync}}\ningest:\n  otlp:\n    http: {{address: \"127.0.0.1:{port}\"}}\n    grpc: {{enabled: false}}\n"
    );
    let binary = build_binary()?;
    let mut server = UnderTest::start_below(&folder, &binary, &config)?;
    server.wait_ready()?;
    let mut generator = Generator::new(Shape::Logs, 1);
    let requests: Vec<Vec<u8>> = (0..REQUESTS).map(|_| generator.request(RECORDS_PER_REQUEST)).collect();
    let (url, next) = (format!("http://127.0.0.1:{port}/v1/logs"), AtomicUsize::new(0));
    let row = load(&server, "otlp_http_fsync", CLIENTS, effort, |agent, _| {
        let request = next.fetch_add(1, Relaxed) % requests.len();
        let request = requests.get(request).map_or(&[][..], Vec::as_slice);
        let answer = post(agent, &url, "application/x-protobuf", request)?;
        ensure!(answer.is_empty(), "not all records were taken: {answer:?}");
        Ok(RECORDS_PER_REQUEST as usize)
    })?;
    server.stop()?;
    Ok(row)
}

pub(super) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
