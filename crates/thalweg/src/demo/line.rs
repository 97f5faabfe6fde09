//! The live line: what happened since the last update, in the words of the status page.

use std::time::{Duration, Instant};

use thalweg_kit::clock;
use thalweg_telemetry::{BalanceStatus, FlowStatus, StatusBoard, cpu_time, resident_bytes};

pub struct StatusLine {
    last: Option<(Instant, Duration, u64)>,
}

impl StatusLine {
    pub fn new() -> StatusLine {
        StatusLine { last: None }
    }

    pub fn render(&mut self, board: &StatusBoard) -> String {
        let flows = board.flows();
        let values: u64 = flows.iter().map(|flow| flow.balance.entered).sum();
        let (now, cpu) = (clock::now(), cpu_time());
        let (rate, load) = match self.last {
            Some((then, cpu_then, values_then)) => {
                let seconds = now.duration_since(then).as_secs_f64().max(1e-3);
                let rate = (values.saturating_sub(values_then)) as f64 / seconds;
                (rate, cpu.saturating_sub(cpu_then).as_secs_f64() / seconds * 100.0)
            }
            None => (0.0, 0.0),
        };
        self.last = Some((now, cpu, values));
        // Uncommitted rows are on disk in the log, and visible to queries.
        let tables = board.tables();
        let rows: u64 = tables.iter().map(|table| table.rows + table.buffered_rows).sum();
        let mib = resident_bytes() >> 20;
        let tags = flows.first().map(tags).unwrap_or_default();
        let balance = flows.first().map(|flow| balance(&flow.balance)).unwrap_or_default();
        format!("{rate:>7.0} values/s | tags {tags} | CPU {load:>3.0} % {mib} MiB | {rows} rows | {balance}")
    }
}

/// `10000 found, 10000 monitored`, as far as the input reports it.
fn tags(flow: &FlowStatus) -> String {
    let details = flow
        .nodes
        .first()
        .map(|node| node.details.as_slice())
        .unwrap_or_default();
    let number = |name: &str| {
        details
            .iter()
            .find(|detail| detail.name == name)
            .and_then(|detail| detail.value.as_u64())
    };
    match (number("tags_found"), number("tags_monitored")) {
        (Some(found), Some(monitored)) => format!("{found} found, {monitored} monitored"),
        _ => flow
            .nodes
            .first()
            .and_then(|node| node.not_ready.clone())
            .unwrap_or_else(|| "-".to_owned()),
    }
}

fn balance(b: &BalanceStatus) -> String {
    let sign = if b.adds_up { "=" } else { "≠" };
    format!(
        "in {} {sign} out {} + filtered {} + dropped {} + in flight {}",
        b.entered, b.out, b.filtered, b.dropped, b.in_flight
    )
}
