//! `bench lake`: the cost of a record from a request to a table. The in-process rows come from a benchmark of the crate itself;
//! those over HTTP and gRPC drive the binary through real sockets, with the load in this process.

use anyhow::Result;

use super::Effort;
use super::driver::in_process;
use super::environment;
use super::export::Protocol;
use super::otlp;
use super::report::{self, Row};
use crate::shell::binary_under_test;

const FROM_OUTSIDE: [(&str, Protocol); 2] = [("otlp_grpc_fsync", Protocol::Grpc), ("otlp_http_fsync", Protocol::Http)];

pub fn run(effort: Effort, only: Option<&str>, input: Option<&str>) -> Result<Vec<Row>> {
    let is_wanted = |name: &str| only.is_none_or(|word| name.contains(word));
    let outside: Vec<_> = FROM_OUTSIDE.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let mut rows = Vec::new();
    if only.is_none_or(|word| !word.starts_with("otlp")) {
        let more: Vec<&str> = input.map(|file| ["--input", file]).into_iter().flatten().collect();
        rows = in_process("thalweg-otlp", "lake", effort, only, &more)?;
    }
    if input.is_some() || outside.is_empty() {
        return Ok(rows);
    }
    let (binary, mut from_outside) = (binary_under_test()?, Vec::new());
    for (name, protocol) in outside {
        println!("measuring {name}");
        from_outside.push(otlp::measure(&binary, protocol, effort)?);
    }
    println!(
        "\nover sockets: one op is one log; connections with one request of {} logs at a time, acknowledged when synced (fsync), \
         {:.0} s; rows and tables are made concurrently; CPU, bytes and allocs are the server's",
        otlp::RECORDS_PER_REQUEST,
        effort.seconds()
    );
    report::print("lake", &from_outside, &environment::bench_folder());
    rows.extend(from_outside);
    Ok(rows)
}

pub(crate) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
