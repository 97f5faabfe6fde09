//! Detects the format of a file by its name or its first bytes.

use crate::entry::PayloadCompression;
use crate::signal::Signal;

/// The format of a file after decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkFormat {
    /// Concatenated OTLP requests as protobuf.
    Otlp,
    /// One value per line, values that span lines, or a list of rows.
    Json,
    /// One value per line.
    JsonLines,
    Csv,
    Parquet,
}

impl BulkFormat {
    pub fn name(self) -> &'static str {
        match self {
            BulkFormat::Otlp => "binpb",
            BulkFormat::Json | BulkFormat::JsonLines => "json",
            BulkFormat::Csv => "csv",
            BulkFormat::Parquet => "parquet",
        }
    }

    pub fn of_name(name: &str) -> Option<BulkFormat> {
        match name {
            "binpb" => Some(BulkFormat::Otlp),
            "json" => Some(BulkFormat::Json),
            "jsonl" | "ndjson" => Some(BulkFormat::JsonLines),
            "csv" => Some(BulkFormat::Csv),
            "parquet" => Some(BulkFormat::Parquet),
            _ => None,
        }
    }

    /// The format and compression according to the file name extension.
    pub fn of_file(name: &str) -> (Option<BulkFormat>, Option<PayloadCompression>) {
        let (stem, last) = name.rsplit_once('.').unwrap_or((name, ""));
        let packed = match last.to_ascii_lowercase().as_str() {
            "gz" => Some(PayloadCompression::Gzip),
            "zst" => Some(PayloadCompression::Zstd),
            _ => None,
        };
        let ending = match packed {
            Some(_) => stem.rsplit_once('.').map_or("", |(_, ending)| ending),
            None => last,
        };
        (BulkFormat::of_name(&ending.to_ascii_lowercase()), packed)
    }

    /// Detects the format by the first bytes. Any text may be CSV, so CSV is never detected.
    pub fn of_beginning(bytes: &[u8]) -> Option<BulkFormat> {
        let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        match (bytes, first) {
            ([b'P', b'A', b'R', b'1', ..], _) => Some(BulkFormat::Parquet),
            // The key of a request's group is a line feed. Read as text it would be an empty line, followed by JSON.
            (_, Some(b'{' | b'[')) => Some(BulkFormat::Json),
            ([GROUPS, ..], _) => Some(BulkFormat::Otlp),
            _ => None,
        }
    }
}

pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The first byte of a protobuf request.
const GROUPS: u8 = 0x0a;

/// Detects the compression by the magic number.
pub(super) fn compression_of(beginning: &[u8]) -> PayloadCompression {
    match beginning {
        [0x1f, 0x8b, ..] => PayloadCompression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => PayloadCompression::Zstd,
        // A skippable zstd frame, which some tools write first.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => PayloadCompression::Zstd,
        _ => PayloadCompression::None,
    }
}

/// The signal that a file name begins with.
pub fn signal_of_file(name: &str) -> Option<Signal> {
    let name = name.to_ascii_lowercase();
    Signal::ALL.into_iter().find(|signal| name.starts_with(signal.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_is() {
        use PayloadCompression::{Gzip, Zstd};
        for (name, kind, packed) in [
            ("logs.binpb", Some(BulkFormat::Otlp), None),
            ("a/b.c/LOGS.BINPB.GZ", Some(BulkFormat::Otlp), Some(Gzip)),
            ("x.ndjson.zst", Some(BulkFormat::JsonLines), Some(Zstd)),
            ("x.jsonl", Some(BulkFormat::JsonLines), None),
            ("x.json", Some(BulkFormat::Json), None),
            ("x.csv.gz", Some(BulkFormat::Csv), Some(Gzip)),
            ("x.parquet", Some(BulkFormat::Parquet), None),
            ("x.log.gz", None, Some(Gzip)),
            ("gz", None, None),
            ("-", None, None),
        ] {
            assert_eq!(BulkFormat::of_file(name), (kind, packed), "{name}");
        }
        assert_eq!(signal_of_file("Traces-2026.binpb"), Some(Signal::Traces));
        assert_eq!(signal_of_file("my-logs.binpb"), None);
    }

    #[test]
    fn first_bytes_say_it_too_but_text_alone_says_nothing() {
        for (bytes, kind) in [
            (&b"{\"a\":1}"[..], Some(BulkFormat::Json)),
            (b"\xef\xbb\xbf\r\n [{", Some(BulkFormat::Json)),
            (b"\n{\"a\":1}", Some(BulkFormat::Json)),
            (b"\x0a\x05\x12\x03abc", Some(BulkFormat::Otlp)),
            (b"PAR1....", Some(BulkFormat::Parquet)),
            (b"time,message\n", None),
            (b"", None),
        ] {
            assert_eq!(BulkFormat::of_beginning(bytes), kind, "{bytes:?}");
        }
        assert_eq!(compression_of(&[0x1f, 0x8b, 8]), PayloadCompression::Gzip);
        assert_eq!(compression_of(&[0x28, 0xb5, 0x2f, 0xfd]), PayloadCompression::Zstd);
        assert_eq!(compression_of(b"{"), PayloadCompression::None);
    }
}
