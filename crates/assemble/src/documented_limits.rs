//! Checks docs/reference/limits.md: each range is the enforced one, and each default the real one. Each row whose first
//! cell is a field is tried at both ends of its range and one beyond.

use std::fmt::Write as _;
use std::time::Duration;

use thalweg_config::{Diagnostics, LoadOptions, SourceText, load};
use thalweg_queue::settings::LogSettings;

use crate::checked_config::CheckedConfig;
use crate::settings::{FlowRequirements, Settings};

const DOCUMENT: &str = include_str!("../../../docs/reference/limits.md");

const FLOW: &str = "input: {stdin: {}}\noutput: {drop: {}}\n";

/// Settings of a queue have no section before them.
const OF_A_QUEUE: &str = "A queue";

/// A row about one field.
struct Row<'a> {
    section: &'a str,
    field: &'a str,
    /// Default and range.
    says: &'a str,
}

fn rows() -> Vec<Row<'static>> {
    let mut section = "";
    let mut found = Vec::new();
    for line in DOCUMENT.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            section = name;
        }
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (Some(first), Some(says)) = (cells.next(), cells.next()) else {
            continue;
        };
        let field = first.strip_prefix('`').and_then(|name| name.strip_suffix('`'));
        let is_field = |name: &&str| !name.starts_with('-') && !name.contains('`');
        found.extend(field.filter(is_field).map(|field| Row { section, field, says }));
    }
    found
}

/// A number with its unit, as a file may contain it.
#[derive(Clone, Copy, Debug)]
struct Edge {
    value: i128,
    unit: &'static str,
}

impl Edge {
    fn read(text: &str) -> Edge {
        let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
        let number: i128 = number
            .replace(',', "")
            .parse()
            .unwrap_or_else(|_| panic!("no number: {text}"));
        let (factor, unit) = match unit {
            "" => (1, ""),
            "B" => (1, "B"),
            "KiB" => (1 << 10, "B"),
            "MiB" => (1 << 20, "B"),
            "GiB" => (1 << 30, "B"),
            "ms" => (1, "ms"),
            "s" => (1000, "ms"),
            "m" => (60_000, "ms"),
            "h" => (3_600_000, "ms"),
            _ => panic!("no unit: {text}"),
        };
        Edge {
            value: number * factor,
            unit,
        }
    }

    fn moved(self, by: i128) -> String {
        format!("{}{}", self.value + by, self.unit)
    }
}

/// The minimum and maximum in brackets.
fn range(says: &str) -> Option<(Option<Edge>, Option<Edge>)> {
    let within = says.rsplit_once('(')?.1.split_once(')')?.0;
    let read = |text| Some(Edge::read(text));
    Some(
        match (within.strip_prefix("at least "), within.strip_prefix("up to ")) {
            (Some(least), _) => (read(least), None),
            (_, Some(most)) => (None, read(most)),
            _ => {
                let (least, most) = within.split_once('–').unwrap_or_else(|| panic!("no range: {says}"));
                (read(least), read(most))
            }
        },
    )
}

/// A file in which the field has this value.
fn file(row: &Row<'_>, value: &str) -> String {
    let names: Vec<&str> = row.field.split('.').collect();
    let (first, inner) = names.split_first().unwrap();
    let nested = |names: &[&str], before: &str| {
        let mut text = String::new();
        for (n, name) in names.iter().enumerate() {
            let opening = if n + 1 < names.len() { "{" } else { "" };
            write!(text, "{name}: {opening}").unwrap();
            text.push_str(if n + 2 == names.len() { before } else { "" });
        }
        text + value + &"}".repeat(names.len().saturating_sub(1))
    };
    match *first {
        _ if row.section == OF_A_QUEUE => format!("queues: {{list: [{{name: q, {}}}]}}\n{FLOW}", nested(&names, "")),
        "opcua" if ["maxInFlight", "giveUpAfterMs", "handshake"].contains(inner.first().unwrap()) => {
            let output = format!("opcua: {{endpoint: 'opc.tcp://plc:4840', {}}}", nested(inner, ""));
            format!("input: {{stdin: {{}}}}\noutput: {{{output}}}\n")
        }
        "opcua" => {
            let fields = nested(inner, "");
            format!(
                "input: {{opcua: {{endpoint: 'opc.tcp://plc:4840', nodeIDs: ['ns=2;s=a'], {fields}}}}}\noutput: {{drop: {{}}}}\n"
            )
        }
        // Without a table nothing is merged.
        "lake" => format!("{}\ningest: {{}}\n{FLOW}", nested(&names, "")),
        "kafka" => {
            let fields = nested(inner, "");
            format!("input: {{stdin: {{}}}}\noutput: {{kafka: {{addresses: [a], topic: t, {fields}}}}}\n")
        }
        "topic_browser" => format!("pipeline: {{processors: [{{{}}}]}}\n{FLOW}", nested(&names, "")),
        "batching" => format!(
            "input: {{stdin: {{}}}}\noutput: {{queue: {{name: q, {}}}}}\n",
            nested(&names, "")
        ),
        "buffer" => format!("{}\n{FLOW}", nested(&names, "name: buffer.a, ")),
        _ => format!("{}\n{FLOW}", nested(&names, "")),
    }
}

/// The diagnostics about the field.
fn told(row: &Row<'_>, value: &str) -> String {
    let source = SourceText::new("f.yaml", file(row, value));
    let checked = CheckedConfig::text(&source, &|_| None, &LoadOptions::default());
    let last = row.field.rsplit('.').next().unwrap();
    let all = checked.diagnostics.to_string();
    let of_it = |line: &&str| line.contains(&format!("{last}: "));
    all.lines().filter(of_it).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_range_in_the_document_is_the_one_that_a_check_enforces() {
    let mut tried = 0;
    let mut wrong = String::new();
    for row in rows() {
        let Some((least, most)) = range(row.says) else { continue };
        tried += 1;
        for (edge, beyond) in [(least, -1), (most, 1)] {
            let Some(edge) = edge else { continue };
            let (at, over) = (told(&row, &edge.moved(0)), told(&row, &edge.moved(beyond)));
            if !at.is_empty() {
                writeln!(wrong, "{} = {} is refused: {at}", row.field, edge.moved(0)).unwrap();
            }
            // A value that cannot be negative has no enforced minimum.
            if over.is_empty() && edge.value + beyond >= 0 {
                writeln!(wrong, "{} = {} is taken", row.field, edge.moved(beyond)).unwrap();
            }
        }
    }
    assert_eq!(wrong, "");
    assert!(tried > 50, "{tried} ranges");
}

fn count(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn bytes(number: impl TryInto<u64>) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units
        .iter()
        .find(|(_, unit)| number >= *unit && number.is_multiple_of(*unit))
    {
        Some((name, unit)) => format!("{} {name}", number / unit),
        None => format!("{number} B"),
    }
}

fn time(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms % 3_600_000 == 0 && ms > 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}

/// The effective defaults.
fn defaults() -> Vec<(&'static str, String)> {
    let text = format!("queues: {{list: [{{name: q}}]}}\ningest: {{}}\nevents: {{}}\nlake: {{}}\nquery: {{}}\n{FLOW}");
    let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    let diagnostics = Diagnostics::new("f.yaml");
    let settings = Settings::read(&loaded.config, FlowRequirements::default(), &diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    let (config, log) = (loaded.config, LogSettings::default());
    let (scripting, ingest) = (&config.scripting, settings.ingest.unwrap());
    let (receiver, walk) = (&ingest.receiver, &ingest.receiver.walk);
    let (lake, query) = (&settings.lake, &settings.query);
    let (_, queue) = &settings.store.queues.list[0];
    vec![
        ("shutdown_timeout", time(config.shutdown_timeout)),
        ("http.max_connections", count(thalweg_config::CONNECTIONS_USUAL)),
        ("ingest.otlp.grpc.max_connections", count(ingest.grpc.max_connections)),
        ("ingest.otlp.http.max_connections", count(ingest.http.max_connections)),
        ("partitions", count(queue.partitions)),
        ("max_message_size", bytes(queue.max_message_size)),
        ("max_depth", count(queue.max_depth)),
        ("max_bytes", bytes(queue.max_bytes)),
        ("block_timeout", time(queue.block_timeout)),
        ("visibility_timeout", time(queue.visibility_timeout)),
        ("consumer_timeout", time(queue.consumer_timeout)),
        ("claim_batch", count(queue.claim_batch)),
        ("max_in_flight", count(queue.max_in_flight)),
        ("max_pending", count(queue.max_pending)),
        ("lane_window", count(queue.lane_window)),
        ("retry.max_retries", count(queue.retry.max_retries)),
        ("retry.total_timeout", time(queue.retry.total_timeout)),
        ("ttl", time(queue.ttl)),
        ("dedup_window", time(queue.dedup_window)),
        ("group_expiry", time(queue.group_expiry)),
        ("log.interval", time(log.interval)),
        ("log.commit.max_bytes", bytes(log.commit.max_bytes)),
        ("log.commit.spare", count(log.commit.spare)),
        ("log.commit.max_files", count(log.commit.max_files)),
        ("log.io_bytes_per_second", bytes(log.io_bytes_per_second)),
        ("ingest.max_body_bytes", bytes(receiver.body_bytes_max)),
        ("ingest.max_decoded_bytes", bytes(receiver.decoded_bytes_max)),
        ("ingest.max_ratio", count(receiver.ratio_max)),
        ("ingest.zstd_window", bytes(receiver.zstd_window_max)),
        ("ingest.max_requests", count(receiver.requests_max)),
        ("ingest.body_timeout", time(receiver.body_timeout)),
        ("ingest.max_nesting", count(walk.nesting)),
        ("ingest.max_attributes", count(walk.attributes)),
        ("ingest.max_name_bytes", bytes(walk.name_bytes)),
        ("ingest.max_value_bytes", bytes(walk.value_bytes)),
        (
            "ingest.past_max",
            time(Duration::from_nanos(ingest.window.past.unsigned_abs())),
        ),
        ("lake.flush.bytes", bytes(lake.options.flush_bytes)),
        ("lake.flush.interval", time(lake.options.flush_interval)),
        (
            "lake.compaction.target",
            bytes(lake.options.maintenance.compaction.target),
        ),
        (
            "lake.parquet.row_group_bytes",
            bytes(lake.options.files.row_group_bytes),
        ),
        ("lake.logs.max_promoted", count(lake.options.promotions[0].max_promoted)),
        ("lake.vacuum.retain", time(lake.options.maintenance.vacuum_retain)),
        ("query.timeout", time(query.timeout)),
        ("query.queue", count(query.queue)),
        ("query.spill", bytes(query.spill_bytes)),
        ("scripting.timeout", time(scripting.timeout)),
        ("scripting.lost_threads", count(scripting.lost_threads)),
        ("scripting.memory", bytes(scripting.memory)),
        ("scripting.stack", bytes(scripting.stack)),
        ("scripting.results", count(scripting.results)),
        ("scripting.cache_entries", count(scripting.cache_entries)),
    ]
}

#[test]
fn every_default_in_the_document_is_the_one_in_force() {
    let (rows, defaults) = (rows(), defaults());
    for (field, default) in &defaults {
        let row = rows
            .iter()
            .find(|row| row.field == *field)
            .unwrap_or_else(|| panic!("no row of {field}"));
        let rest = row.says.strip_prefix(default.as_str());
        let is_all = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric());
        assert!(
            rest.is_some_and(is_all),
            "{field} is {default}, and the document says {}",
            row.says
        );
    }
    // The test must cover every field of these sections.
    let is_known = |field: &str| defaults.iter().any(|(known, _)| *known == field);
    let sections = [OF_A_QUEUE, "OpenTelemetry", "Scripts and mappings"];
    for row in rows.iter().filter(|row| sections.contains(&row.section)) {
        assert!(is_known(row.field), "{} is compared with nothing", row.field);
    }
}
