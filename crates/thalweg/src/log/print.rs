//! The output of `thalweg log`: reports and lines of a dump, for people and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use thalweg_log::format::frame::{FrameFlags, FrameHeader};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{CheckReport, DumpLine, Finding, FindingKind, LostRange, NewerVersion, PartitionId};
use thalweg_record::Ticks;

/// Values are cut at this many characters.
const VALUE_CHARACTERS: usize = 80;

pub fn findings(report: &CheckReport) -> String {
    report.findings.iter().fold(String::new(), |mut text, finding| {
        let _ = writeln!(text, "{finding}");
        text
    })
}

pub fn report(report: &CheckReport) -> String {
    let mut text = findings(report);
    if !report.partitions.is_empty() {
        let head = [
            "partition",
            "durability",
            "first",
            "next",
            "bytes",
            "gaps",
            "lost",
            "let go",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(report.partitions.iter().map(|row| {
            [
                partition(row.id),
                row.durability.name().to_owned(),
                row.first.to_string(),
                row.next.to_string(),
                bytes(row.bytes),
                row.gaps.to_string(),
                row.lost.to_string(),
                row.let_go.to_string(),
            ]
        }));
        table(&mut text, &rows);
    }
    text.push_str(&let_go(report));
    let (files, spares, segments) = (report.files, report.spares, report.segments);
    let _ = writeln!(
        text,
        "{files} commit files ({spares} more ready), {segments} segments, {}: {} blocks, {} frames; \
         last block {}, synced up to {}",
        bytes(report.bytes),
        report.blocks,
        report.frames,
        report.last,
        report.synced
    );
    let verdict = if report.is_newer() {
        "the log continues in a newer format, which only that version can read".to_owned()
    } else if report.is_whole() {
        "the log is whole".to_owned()
    } else {
        format!("the log is damaged: {} errors", report.errors())
    };
    let _ = writeln!(text, "{verdict}");
    text
}

/// Left-aligned names, right-aligned numbers.
fn table<const N: usize>(text: &mut String, rows: &[[String; N]]) {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    for row in rows {
        for (n, (width, cell)) in widths.iter().zip(row).enumerate() {
            let _ = match n {
                0 => write!(text, "{cell:width$}"),
                1 => write!(text, "  {cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
}

/// The name of a partition of the program's own; those of queues have none here.
fn name(id: PartitionId) -> Option<&'static str> {
    let mut names = thalweg_mqtt::partitions::NAMES.into_iter();
    names.find(|(known, _)| *known == id).map(|(_, name)| name)
}

/// A partition by its name, or else by its numbers.
fn partition(id: PartitionId) -> String {
    name(id).map_or_else(|| id.to_string(), str::to_owned)
}

/// The records that a repair drops, or would drop.
pub fn losses(report: &CheckReport, what: &str) -> String {
    let mut text = String::new();
    for lost in &report.lost {
        let _ = writeln!(text, "{what}: {}", records(lost));
    }
    if report.skipped > 0 {
        let _ = writeln!(
            text,
            "{what}: {} records or more, of any partition, in blocks of which nothing is left; \
             each partition continues {} offsets later, so that no lost offset is used again",
            report.unaccounted, report.skipped
        );
    }
    let _ = writeln!(text, "{} records in all", report.lost_records());
    text.push_str(&let_go(report));
    text
}

/// Damage that no reader needs, but that blocks moving files.
fn let_go(report: &CheckReport) -> String {
    report.let_go.iter().fold(String::new(), |mut text, span| {
        let _ = writeln!(
            text,
            "note: {} cannot be read and are not needed, as a checkpoint follows them; a repair removes them",
            records(span)
        );
        text
    })
}

fn records(LostRange { partition, from, to }: &LostRange) -> String {
    format!(
        "records {from} to {} of partition {}",
        to.saturating_sub(1),
        self::partition(*partition)
    )
}

pub fn report_json(report: &CheckReport) -> Value {
    let partitions = report.partitions.iter().map(|row| {
        json!({
            "partition": row.id.to_string(), "name": name(row.id), "durability": row.durability.name(), "first": row.first, "next": row.next,
            "bytes": row.bytes, "gaps": row.gaps, "lost": row.lost, "let_go": row.let_go,
        })
    });
    let spans = |spans: &[LostRange]| {
        let each =
            |span: &LostRange| json!({"partition": span.partition.to_string(), "from": span.from, "to": span.to});
        spans.iter().map(each).collect::<Vec<_>>()
    };
    json!({
        "whole": report.is_whole(), "newer": report.is_newer(), "log_id": report.log_id,
        "files": report.files, "spares": report.spares, "segments": report.segments, "bytes": report.bytes,
        "blocks": report.blocks, "frames": report.frames, "last": report.last, "synced": report.synced,
        "partitions": partitions.collect::<Vec<_>>(), "lost": spans(&report.lost),
        "let_go": spans(&report.let_go), "unaccounted": report.unaccounted, "skipped": report.skipped,
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
    })
}

fn finding_json(finding: &Finding) -> Value {
    let mut json = json!({
        "kind": finding.kind.name(), "error": finding.is_error, "file": finding.file, "position": finding.position,
        "bytes": finding.bytes, "text": finding.to_string(),
    });
    if let Some((partition, from, to)) = finding.records {
        json["partition"] = partition.to_string().into();
        (json["from"], json["to"]) = (from.into(), to.into());
    }
    if let FindingKind::Corrupt { expected, last, .. } = finding.kind {
        (json["expected"], json["last"]) = (expected.into(), last.into());
    }
    if let FindingKind::NewerFormat(newer) = finding.kind {
        json["newer"] = newer_json(newer);
    }
    json
}

fn newer_json(newer: NewerVersion) -> Value {
    json!({"what": newer.what.name(), "found": newer.found, "reads_up_to": newer.known()})
}

pub fn line(line: &DumpLine<'_>) -> String {
    match line {
        DumpLine::Block {
            file,
            position,
            sequence,
            time,
            synced,
            frames,
            bytes,
        } => format!(
            "block {sequence}  {}  synced {synced}  {file}:{position}  {frames} frames  {bytes} B",
            time_of(*time)
        ),
        DumpLine::Newer { file, position, found } => format!("newer  {file}:{position}  {found}"),
        DumpLine::Damage { file, position, bytes } => format!("damaged  {file}:{position}  {bytes} B"),
        DumpLine::Frame {
            file,
            position,
            header,
            sound,
        } => format!(
            "  frame {}  {}  {}..{}  {} records  {} B  {file}:{position}  {}{}",
            partition(header.partition),
            kind_of(header),
            header.base,
            header.next(),
            header.records,
            header.body_len,
            flags_of(header).join(","),
            if *sound { "" } else { "  DAMAGED" }
        ),
        DumpLine::Record { offset, record } => {
            let key = record
                .key
                .map(|key| format!("  key {}", shown(key)))
                .unwrap_or_default();
            let mut properties = String::new();
            for (name, value) in record.properties.iter() {
                let _ = write!(properties, "  {name}={value:?}");
            }
            let value = shown(record.value);
            format!("    {offset}  {}{key}{properties}  {value}", time_of(record.time))
        }
    }
}

pub fn line_json(line: &DumpLine<'_>) -> Value {
    match line {
        DumpLine::Block {
            file,
            position,
            sequence,
            time,
            synced,
            frames,
            bytes,
        } => json!({
            "block": sequence, "time": time_of(*time), "synced": synced, "file": file, "position": position,
            "frames": frames, "bytes": bytes,
        }),
        DumpLine::Newer { file, position, found } => {
            json!({"newer": newer_json(*found), "file": file, "position": position})
        }
        DumpLine::Damage { file, position, bytes } => {
            json!({"damaged": true, "file": file, "position": position, "bytes": bytes})
        }
        DumpLine::Frame {
            file,
            position,
            header,
            sound,
        } => json!({
            "frame": kind_of(header), "partition": header.partition.to_string(), "name": name(header.partition), "first": header.base,
            "next": header.next(), "records": header.records, "bytes": header.body_len, "flags": flags_of(header),
            "file": file, "position": position, "damaged": !sound,
        }),
        DumpLine::Record { offset, record } => record_json(*offset, record),
    }
}

fn record_json(offset: u64, record: &RecordRef<'_>) -> Value {
    let pairs: Vec<Value> = record
        .properties
        .iter()
        .map(|(name, value)| json!([name, value]))
        .collect();
    json!({
        "record": offset, "time": time_of(record.time), "key": record.key.map(shown), "properties": pairs,
        "ttl_ms": record.ttl_ms, "not_before": record.not_before.map(time_of), "deliver_at": record.deliver_at.map(time_of), "value": shown(record.value),
        "bytes": record.value.len(),
    })
}

fn kind_of(header: &FrameHeader) -> String {
    format!("{:?}", header.kind).to_lowercase()
}

fn flags_of(header: &FrameHeader) -> Vec<&'static str> {
    let all = [
        (FrameFlags::LZ4, "lz4"),
        (FrameFlags::ZSTD, "zstd"),
        (FrameFlags::KEYS, "keys"),
        (FrameFlags::PROPERTIES, "properties"),
        (FrameFlags::TTL, "ttl"),
        (FrameFlags::NOT_BEFORE, "not-before"),
        (FrameFlags::TARGETED, "targeted"),
        (FrameFlags::OFFSET_DELTAS, "offset-deltas"),
    ];
    let set = all.into_iter().filter(|(flag, _)| header.flags.has(*flag));
    set.map(|(_, name)| name).collect()
}

/// Text as it is, anything else as hexadecimal digits.
fn shown(bytes: &[u8]) -> String {
    let printable = |text: &&str| !text.chars().any(|c| c.is_control() && !c.is_whitespace());
    let mut text = match std::str::from_utf8(bytes).ok().filter(printable) {
        Some(text) => text
            .chars()
            .take(VALUE_CHARACTERS + 1)
            .map(|c| if c.is_whitespace() { ' ' } else { c })
            .collect(),
        None => bytes
            .iter()
            .take(VALUE_CHARACTERS)
            .fold("0x".to_owned(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            }),
    };
    if let Some((end, _)) = text.char_indices().nth(VALUE_CHARACTERS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn time_of(micros: i64) -> String {
    // A time beyond any clock is shown as its number.
    match micros.checked_mul(1000) {
        Some(nanos) => Ticks::from_unix_nanos(nanos).to_string(),
        None => micros.to_string(),
    }
}

pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64 / 1024.0;
    for unit in units {
        if value < 1024.0 || unit == "TiB" {
            return if bytes < 1024 {
                format!("{bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use thalweg_log::{CheckedPartition, Durability};

    use super::*;

    #[test]
    fn a_value_is_text_or_digits_and_not_longer_than_a_line() {
        assert_eq!(shown(b"{\"a\": 1}\n"), "{\"a\": 1} ");
        assert_eq!(shown(&[0, 255]), "0x00ff");
        assert_eq!(shown("ä".repeat(100).as_bytes()), format!("{}…", "ä".repeat(80)));
        assert_eq!(shown(&[0; 100]).chars().count(), 81);
    }

    #[test]
    fn what_a_checkpoint_lets_go_of_is_shown_beside_what_is_lost() {
        let partition = PartitionId::new(3, 0);
        let span = |from, to| LostRange { partition, from, to };
        let row = CheckedPartition {
            id: partition,
            durability: Durability::Fsync,
            first: 5,
            next: 40,
            bytes: 100,
            gaps: 0,
            lost: 2,
            let_go: 5,
        };
        let report = CheckReport {
            partitions: vec![row],
            lost: vec![span(30, 32)],
            let_go: vec![span(5, 10)],
            ..CheckReport::default()
        };
        let (text, json) = (super::report(&report), report_json(&report));
        for words in [
            "lost  let go",
            "   2       5\n",
            "note: records 5 to 9 of partition 3/0 cannot be read and are not needed",
        ] {
            assert!(text.contains(words), "{words:?} is missing in {text}");
        }
        assert_eq!(json["let_go"], json!([{"partition": "3/0", "from": 5, "to": 10}]));
        assert_eq!(json["partitions"][0]["let_go"], 5);
        let losses = losses(&report, "lost");
        assert!(
            losses.starts_with("lost: records 30 to 31 of partition 3/0\n2 records in all\nnote: records 5 to 9"),
            "{losses}"
        );
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1023, 1024, 16 << 20, 3 << 40].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "16.0 MiB", "3.0 TiB"]);
    }
}
