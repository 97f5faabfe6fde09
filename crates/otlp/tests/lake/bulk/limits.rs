//! Limits on the content of a file.

use super::*;

#[test]
fn no_line_takes_more_memory_than_it_may() {
    let mut world = World::new();
    world.options.inflate.bytes = 100_000;
    let endless = "x".repeat(10 << 20);
    let report = world
        .ingest("x.ndjson", format!("{endless}\n{{\"message\":\"a\"}}").as_bytes())
        .unwrap();
    assert_eq!((report.rows(), report.rejected["bad_line"]), (1, 1));
    let error = world
        .ingest("x.csv", format!("a,b\n1,\"{endless}").as_bytes())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the record that begins in line 2 has more than"),
        "{error}"
    );
    let error = world
        .ingest("x.json", format!("{{\n\"a\": \"{endless}").as_bytes())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the value that begins in line 1 has more than"),
        "{error}"
    );
    let error = world.ingest("logs.binpb", &logs(&[endless])).unwrap_err().to_string();
    assert!(error.contains("a group of 10485"), "{error}");
}

#[test]
fn limits_of_records_are_those_of_rows() {
    let world = World::new();
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(65), "]".repeat(65));
    let many: Vec<String> = (0..1025).map(|n| format!("\"k{n}\":1")).collect();
    let lines = [
        deep,
        format!("{{\"a\":{}1{}}}", "[".repeat(64), "]".repeat(64)),
        format!("{{{}}}", many.join(",")),
        format!("{{\"{}\":1}}", "n".repeat(513)),
        format!("{{\"a\":\"{}\"}}", "v".repeat((1 << 20) + 1)),
        format!("{{\"message\":\"{}\"}}", "v".repeat((1 << 20) + 1)),
        format!("{{\"message\":\"ok\",\"{}\":1}}", "n".repeat(512)),
    ];
    let mut text = lines.join("\n").into_bytes();
    text.extend_from_slice(b"\n{\"message\":\"\xff\",\"time\":\"0001-01-01T00:00:00Z\"}\n{\"ts\":\"2554-07-21T23:34:34Z\",\"a\":1,\"a\":2}");
    let report = world.ingest("x.ndjson", &text).unwrap();
    let expected = [
        ("name_too_long", 1),
        ("nesting_too_deep", 1),
        ("too_many_attributes", 1),
        ("value_too_long", 2),
    ];
    assert_eq!(report.rejected, expected.into());
    assert_eq!(
        report.changed,
        [("key_repeated", 1), ("time_replaced", 2), ("utf8_replaced", 1)].into()
    );
    assert_eq!(report.rows(), 4);
    let rows = world.rows("logs");
    let originals: Vec<&String> = rows.iter().filter_map(|row| row.get("time_original")).collect();
    assert_eq!(originals.len(), 2);
    assert!(
        originals.contains(&&"-62135596800000000000".to_owned()),
        "{originals:?}"
    );
    assert!(
        rows.iter()
            .any(|row| row.get("body").is_some_and(|body| body == "\u{fffd}"))
    );
    assert!(rows.iter().any(|row| row.get("attr_a").is_some_and(|a| a == "2")));
}

#[test]
fn a_hundred_thousand_names_are_columns_up_to_the_limit_and_a_map_beyond() {
    let world = World::new();
    let lines: Vec<String> = (0..1000)
        .map(|line| {
            let pairs: Vec<String> = (0..100).map(|n| format!("\"key.{}\":{n}", line * 100 + n)).collect();
            format!("{{\"message\":\"m\",{}}}", pairs.join(","))
        })
        .collect();
    let report = world.ingest("x.ndjson", lines.join("\n").as_bytes()).unwrap();
    assert_eq!((report.rows(), report.rejected()), (1000, 0));
    let schema = world.snapshot("logs").unwrap().schema.clone();
    let promoted = schema
        .columns
        .iter()
        .filter(|column| column.name.starts_with("attr_"))
        .count();
    assert!((200..=256).contains(&promoted), "{promoted}");
    let rows = world.rows("logs");
    let columns: usize = rows
        .iter()
        .map(|row| row.keys().filter(|name| name.starts_with("attr_")).count())
        .sum();
    let overflow: usize = rows
        .iter()
        .filter_map(|row| row.get("overflow"))
        .map(|map| map.matches("attr.key.").count())
        .sum();
    assert_eq!(columns + overflow, 100_000);
}
