//! Streams of each form, cut into pieces at any place.

use std::io::Write as _;

use flate2::Compression as Level;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use thalweg_config::{Diagnostics, Node};
use thalweg_record::{Payload, Value};

use super::*;

fn read(yaml: &str) -> (ScannerSpec, String) {
    let diagnostics = Diagnostics::new("f.yaml");
    let mut fields = Fields::new(&Node::parse(yaml).unwrap(), &diagnostics);
    let spec = ScannerSpec::read(&mut fields);
    fields.finish();
    (spec, diagnostics.to_string())
}

fn spec(yaml: &str) -> ScannerSpec {
    let (spec, mistakes) = read(yaml);
    assert_eq!(mistakes, "", "{yaml}");
    spec
}

/// Messages as text, a failed one as `!` and its error; numbers of those too large and malformed; the error at the end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scanned {
    texts: Vec<String>,
    too_large: usize,
    malformed: usize,
    error: String,
}

fn scan(spec: &ScannerSpec, pieces: &[&[u8]]) -> Scanned {
    let mut all = Scanned::default();
    let mut scanner = spec.scanner("in").unwrap();
    let mut add = |found: ScannedMessages| {
        all.texts
            .extend(found.messages.iter().map(|message| match &message.failure {
                None => String::from_utf8_lossy(&message.bytes()).into_owned(),
                Some(failure) => format!("!{}", failure.error),
            }));
        all.too_large += found.too_large;
        all.malformed += found.malformed;
    };
    let mut run = || {
        for piece in pieces {
            let mut rest = *piece;
            while let ScanStep::Messages(found) = scanner.step(&mut rest)? {
                add(found);
            }
        }
        add(scanner.finish()?);
        io::Result::Ok(())
    };
    let error = run().err().map(|error| error.to_string()).unwrap_or_default();
    Scanned { error, ..all }
}

fn compressed(algorithm: &str, plain: &[u8]) -> Vec<u8> {
    match algorithm {
        "zlib" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Level::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        "flate" => {
            let mut encoder = DeflateEncoder::new(Vec::new(), Level::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => zstd::encode_all(plain, 3).unwrap(),
        _ => {
            let mut encoder = GzEncoder::new(Vec::new(), Level::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
    }
}

#[test]
fn streams_are_cut_as_the_scanner_says() {
    for (yaml, stream, expected) in [
        ("scanner: {lines: {}}", "a\r\nb\n\nc", vec!["a", "b", "", "c"]),
        ("scanner: {lines: }", "a\nb", vec!["a", "b"]),
        ("scanner: {lines: {omit_empty: true}}", "a\n\n\nb\n", vec!["a", "b"]),
        (
            "scanner: {lines: {custom_delimiter: \"; \"}}",
            "a; b\n; c",
            vec!["a", "b\n", "c"],
        ),
        ("scanner: {to_the_end: {}}", "a\nb\n", vec!["a\nb\n"]),
        ("scanner: {chunker: {size: 3}}", "abcdefgh", vec!["abc", "def", "gh"]),
        (
            "scanner: {skip_bom: {into: {lines: {}}}}",
            "\u{FEFF}a\nb",
            vec!["a", "b"],
        ),
        ("scanner: {skip_bom: {into: {lines: {}}}}", "ab", vec!["ab"]),
        ("scanner: {skip_bom: {}}", "\u{FEFF}", vec![]),
        ("codec: 'delim:|'", "a|b", vec!["a", "b"]),
        (
            "scanner: {json_documents: {}}",
            "{\"a\": [1, \"}\\\"]\"]}\n[2]{}\"x y\" 7 null[\n]",
            vec!["{\"a\": [1, \"}\\\"]\"]}", "[2]", "{}", "\"x y\"", "7", "null", "[\n]"],
        ),
        (
            "scanner: {csv: {}}",
            "name;b,c\n\"a \"\"b\"\"\n,\",1\n\nx,\n",
            vec![
                "{\"name;b\":\"a \\\"b\\\"\\n,\",\"c\":\"1\"}",
                "{\"name;b\":\"x\",\"c\":\"\"}",
            ],
        ),
        (
            "scanner: {csv: {custom_delimiter: \";\", parse_header_row: false}}",
            "a;b,c\r\n1;2",
            vec!["[\"a\",\"b,c\"]", "[\"1\",\"2\"]"],
        ),
    ] {
        let spec = spec(yaml);
        let whole = scan(&spec, &[stream.as_bytes()]);
        assert_eq!(whole.texts, expected, "{yaml}");
        assert_eq!(
            (whole.too_large, whole.malformed, whole.error.as_str()),
            (0, 0, ""),
            "{yaml}"
        );
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(scan(&spec, &bytes), whole, "{yaml}, byte by byte");
    }
}

#[test]
fn compressed_streams_are_read_in_pieces_of_any_size() {
    let lines: Vec<String> = (0..20_000).map(|n| format!("line {}", n * 7919 % 104_729)).collect();
    let plain = lines.join("\n");
    for algorithm in ["gzip", "pgzip", "zlib", "flate", "zstd"] {
        let spec = spec(&format!(
            "scanner: {{decompress: {{algorithm: {algorithm}, into: {{lines: {{}}}}}}}}"
        ));
        let bytes = compressed(algorithm, plain.as_bytes());
        for size in [1, 7, 1000, 1 << 20] {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let found = scan(&spec, &pieces);
            assert_eq!(
                (found.texts == lines, found.error.as_str()),
                (true, ""),
                "{algorithm}, {size}"
            );
        }
        // The blocks of zstd are as long as this text.
        let half = scan(&spec, &[&bytes[..bytes.len() / 2]]);
        assert!(
            half.error.contains("ends in the middle") && (half.texts.len() > 1000 || algorithm == "zstd"),
            "{algorithm}: {}",
            half.error
        );
        let other = scan(&spec, &[b"this is no compressed text at all, whatever it may be"]);
        assert_ne!(other.error, "", "{algorithm}");
        assert_eq!(scan(&spec, &[]).texts.len(), 0, "{algorithm}");
    }
    // Several in one file, as tools that append make them.
    for algorithm in ["gzip", "zstd"] {
        let spec = spec(&format!("scanner: {{decompress: {{algorithm: {algorithm}}}}}"));
        let bytes = [compressed(algorithm, b"one "), compressed(algorithm, b"two")].concat();
        assert_eq!(scan(&spec, &[&bytes]).texts, ["one two"], "{algorithm}");
    }
}

#[test]
fn what_expands_a_million_times_leaves_in_pieces() {
    let zeros = vec![b'0'; 64 << 20];
    for algorithm in ["gzip", "zstd"] {
        let bytes = compressed(algorithm, &zeros);
        let spec = spec(&format!(
            "scanner: {{decompress: {{algorithm: {algorithm}, into: {{chunker: {{size: 65536}}}}}}}}"
        ));
        let mut scanner = spec.scanner("in").unwrap();
        let (mut rest, mut chunks) = (bytes.as_slice(), 0);
        while let ScanStep::Messages(found) = scanner.step(&mut rest).unwrap() {
            assert!(found.messages.len() <= 4, "{} at once", found.messages.len());
            chunks += found.messages.len();
        }
        chunks += scanner.finish().unwrap().messages.len();
        assert_eq!(chunks, 1024, "{algorithm}");
    }
}

#[test]
fn what_is_too_large_or_malformed_is_skipped_and_the_next_is_whole() {
    let documents = spec("{max_buffer: 8, scanner: {json_documents: {}}}");
    let found = scan(
        &documents,
        &[b"{\"a\":1} {\"long\":", b" [1, 2, 3]}{\"b\":2} [}] nul 5, ] {}"],
    );
    assert_eq!(found.texts, ["{\"a\":1}", "{\"b\":2}", "{}"]);
    assert_eq!((found.too_large, found.malformed), (1, 5), "{found:?}");
    let rows = spec("{max_buffer: 8, scanner: {csv: {parse_header_row: false}}}");
    let long = format!("a,b\n{},c\nd,e\n", "x".repeat(5000));
    let found = scan(&rows, &[long.as_bytes()]);
    assert_eq!(found.texts, ["[\"a\",\"b\"]", "[\"d\",\"e\"]"]);
    assert_eq!((found.too_large, found.error.as_str()), (1, ""));
    let lines = spec("scanner: {lines: {max_buffer_size: 3}}");
    assert_eq!(scan(&lines, &[b"abcd\nab\n"]).too_large, 1);
}

#[test]
fn a_row_of_another_width_ends_the_stream_or_is_marked() {
    let stream: &[u8] = b"a,b\n1,2\n3\n4,5\n";
    let found = scan(&spec("scanner: {csv: {}}"), &[stream]);
    assert_eq!(found.texts, ["{\"a\":\"1\",\"b\":\"2\"}"], "rows before it pass");
    assert!(
        found.error.starts_with("row 1 has 1 fields, and the first row 2; ")
            && found.error.contains("continue_on_error"),
        "{}",
        found.error
    );
    let found = scan(&spec("scanner: {csv: {continue_on_error: true}}"), &[stream]);
    let expected = [
        "{\"a\":\"1\",\"b\":\"2\"}",
        "!row 1 has 1 fields, and the first row 2",
        "{\"a\":\"4\",\"b\":\"5\"}",
    ];
    assert_eq!(
        (found.texts, found.error.as_str()),
        (expected.map(str::to_owned).to_vec(), "")
    );
}

#[test]
fn rows_are_counted_and_keep_bytes_that_are_no_text() {
    let mut scanner = spec("scanner: {csv: {}}").scanner("in").unwrap();
    let mut rest: &[u8] = b"a,a,b\n1,2,\xFF\n3,4,5\n";
    let ScanStep::Messages(found) = scanner.step(&mut rest).unwrap() else {
        panic!("no rows")
    };
    let numbers: Vec<_> = found
        .messages
        .iter()
        .map(|message| message.meta.get("csv_row").unwrap().into_owned())
        .collect();
    assert_eq!(numbers, ["0", "1"]);
    let Payload::Value(Value::Object(first)) = &found.messages[0].payload else {
        panic!("no object")
    };
    // Of two fields of one name, the later one counts.
    assert_eq!(first.len(), 2);
    assert_eq!(first.get("a"), Some(&Value::text("2")));
    assert_eq!(first.get("b"), Some(&Value::Bytes(b"\xFF".as_slice().into())));
}

#[test]
fn mistakes_are_named() {
    for (yaml, part) in [
        (
            "scanner: {tar: {}}",
            "f.yaml:1:11: unknown field \"tar\" in scanner; valid names: chunker, csv, decompress",
        ),
        ("scanner: {lines: {}, csv: {}}", "a scanner has one name"),
        (
            "{codec: lines, scanner: {lines: {}}}",
            "codec: scanner says already how the stream is cut",
        ),
        ("scanner: {chunker: {}}", "a chunk has at least one byte"),
        ("scanner: {decompress: {}}", "missing required field \"algorithm\""),
        (
            "scanner: {decompress: {algorithm: bzip2}}",
            "expected one of gzip, pgzip, zlib, flate, zstd",
        ),
        (
            "scanner: {decompress: {algorithm: gzip, into: {decompress: {algorithm: gzip}}}}",
            "the stream is decompressed already",
        ),
        ("scanner: {csv: {custom_delimiter: ab}}", "expected one ASCII character"),
        (
            "scanner: {skip_bom: {into: {skip_bom: {into: {skip_bom: {into: {skip_bom: {into: {skip_bom: {into: {lines: {}}}}}}}}}}}}",
            "more than 4 deep",
        ),
        ("scanner: lines", "expected a mapping"),
        ("codec: words", "unknown codec \"words\""),
    ] {
        let mistakes = read(yaml).1;
        assert!(mistakes.contains(part), "{yaml}: {mistakes}");
        assert_eq!(mistakes.lines().count(), 1, "{yaml}: {mistakes}");
    }
}

proptest! {
    /// Documents come back as they were written, wherever the stream is torn.
    #[test]
    fn json_documents_come_back(
        documents in prop::collection::vec("(\\{\"[a-c\\]\\}]{0,3}\": \\[1, \"\\\\\\\\\\\\\"\"\\]\\})|(\\[\\])|(\"[{}\\[ ]{0,4}\")", 0..8),
        space in prop::sample::select(vec!["", " ", "\n", "\r\n\t"]),
        size in 1usize..20,
    ) {
        let stream = documents.join(space);
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
        let found = scan(&spec("scanner: {json_documents: {}}"), &pieces);
        prop_assert_eq!(&found.texts, &documents);
        prop_assert_eq!((found.malformed, found.too_large), (0, 0));
    }

    /// Any bytes end without a panic, and every byte of a chunk comes back.
    #[test]
    fn any_stream_ends(bytes in prop::collection::vec(any::<u8>(), 0..400), size in 1usize..50) {
        let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
        for scanner in [
            "json_documents: {}", "csv: {continue_on_error: true}", "decompress: {algorithm: gzip}",
            "decompress: {algorithm: zstd}", "decompress: {algorithm: flate, into: {csv: {}}}", "skip_bom: {}",
        ] {
            scan(&spec(&format!("scanner: {{{scanner}}}")), &pieces);
        }
        let mut scanner = spec("scanner: {chunker: {size: 7}}").scanner("in").unwrap();
        let mut back = Vec::new();
        for piece in pieces {
            let mut rest = piece;
            while let ScanStep::Messages(found) = scanner.step(&mut rest).unwrap() {
                found.messages.iter().for_each(|message| back.extend_from_slice(&message.bytes()));
            }
        }
        scanner.finish().unwrap().messages.iter().for_each(|message| back.extend_from_slice(&message.bytes()));
        prop_assert_eq!(back, bytes);
    }
}
