//! `/import` on every kind of storage: positions are kept, progress is reported while the body is still being sent, and each
//! mistake names its line and leaves earlier batches stored.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::events_server::{Events, TOKEN, for_every_backend, for_lasting_backends, record};

for_every_backend!(
    progress_is_told_after_each_thousand_while_the_body_still_comes,
    each_mistake_of_an_import_has_its_code_its_line_and_its_words,
    what_was_stored_before_a_mistake_stays_in_whole_batches,
    an_import_with_force_begins_anew,
    ids_of_imports_are_kept_and_taken_once,
    a_client_that_reads_only_at_the_end_gets_the_last_event,
);
for_lasting_backends!(an_import_keeps_places_over_a_restart);

fn an_import_keeps_places_over_a_restart(events: Events) {
    let import = |query: &str, lines: &str| {
        let answer = events
            .api
            .send("POST", &format!("/import?token={TOKEN}{query}"), &[], lines);
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let last = answer.text.trim_end().rsplit("data: ").next().unwrap_or_default();
        serde_json::from_str::<Value>(last).unwrap()
    };
    let done = |answer: &Value| (answer["done"] == true).then(|| answer["imported"].as_u64().unwrap());
    assert_eq!(done(&import("", "")), Some(0));
    // From the end to the start, every third, in two streams.
    let lines: String = (0..2500u64)
        .rev()
        .map(|n| record(&format!("i-{}", n % 2), n / 2 * 2, 3 * n + 1))
        .collect();
    assert_eq!(done(&import("", &lines)), Some(2500));
    let globals = |call: Value| -> Vec<u64> {
        let rows = events.call(call);
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row[4].as_u64().unwrap())
            .collect()
    };
    let all: Vec<u64> = (0..2500).map(|n| 3 * n + 1).collect();
    assert_eq!(globals(json!(["category.get", "i", {"batchSize": -1}])), all);
    assert_eq!(
        globals(json!(["category.get", "", {"position": 7000, "batchSize": 3}])),
        [7000, 7003, 7006]
    );
    assert_eq!(events.call(json!(["stream.version", "i-1"])), 2498);
    let row = events.call(json!(["stream.last", "i-1"]));
    assert_eq!(
        (&row[4], &row[6]),
        (&json!({"n": 7498}), &json!("2026-01-15T10:00:00.5Z"))
    );
    let next = events.call(json!(["stream.write", "i-1", {"type": "t", "data": {}}]));
    assert_eq!(next, json!({"globalPosition": 7499, "position": 2499}));

    // A used position is reported with its line, and nothing of its batch is stored.
    let lines = record("j-1", 0, 9000) + "\n" + &record("j-1", 1, 4);
    let error = json!({"error": "POSITION_EXISTS", "message": "global position already exists: 4", "imported": 0, "read": 2, "line": 3});
    assert_eq!(import("", &lines), error);
    assert_eq!(events.call(json!(["stream.get", "j-1"])), json!([]));
    for (lines, code, start) in [
        ("{\"a\":}\n", "INVALID_JSON", "malformed JSON at line 1: "),
        ("[]\n", "INVALID_RECORD", "invalid record at line 1: "),
        (
            "\n{\"stream\":\"s\",\"type\":\"t\",\"pos\":0,\"gpos\":9}\n",
            "INVALID_RECORD",
            "invalid record at line 2: time",
        ),
    ] {
        let answer = import("", lines);
        let message = answer["message"].as_str().unwrap();
        assert!(answer["error"] == code && message.starts_with(start), "{answer}");
    }
    let free = record("j-1", 0, 5);
    assert_eq!(done(&import("", &free)), Some(1), "a free place below the end");
    assert_eq!(globals(json!(["category.get", "", {"batchSize": 4}])), [1, 4, 5, 7]);

    // Across a restart, and again.
    let events = events.again();
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 2502);
    let next = events.call(json!(["stream.write", "k", {"type": "t", "data": {}}]));
    assert_eq!(next["globalPosition"], 7500);
    let answer = events.api.send(
        "POST",
        &format!("/import?force=true&token={TOKEN}"),
        &[],
        &record("z", 0, 1),
    );
    assert!(answer.text.contains("\"done\":true,\"imported\":1,"), "{}", answer.text);
    let events = events.again();
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 1);
    assert_eq!(
        events.call(json!(["stream.write", "z", {"type": "t", "data": {}}]))["globalPosition"],
        2
    );
}

/// An import whose body is sent piece by piece.
struct Upload(BufReader<TcpStream>);

impl Upload {
    fn begin(events: &Events) -> Upload {
        let mut stream = TcpStream::connect(&events.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            stream,
            "POST /import?token={TOKEN} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        .unwrap();
        Upload(BufReader::new(stream))
    }

    /// An empty piece is the end.
    fn send(&mut self, piece: &str) {
        write!(self.0.get_mut(), "{:x}\r\n{piece}\r\n", piece.len()).unwrap();
    }

    fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "{head}");
        }
        head
    }

    /// The next chunk of the response; empty at its end.
    fn chunk(&mut self) -> String {
        let mut size = String::new();
        self.0.read_line(&mut size).unwrap();
        let len = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; len + 2];
        self.0.read_exact(&mut chunk).unwrap();
        chunk.truncate(len);
        String::from_utf8(chunk).unwrap()
    }
}

fn records(range: std::ops::Range<u64>) -> String {
    range.map(|n| record("p-1", n, n + 1)).collect()
}

fn progress_is_told_after_each_thousand_while_the_body_still_comes(events: Events) {
    let mut upload = Upload::begin(&events);
    upload.send(&records(0..1000));
    let head = upload.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for header in [
        "content-type: text/event-stream",
        "cache-control: no-cache",
        "x-accel-buffering: no",
    ] {
        assert!(head.contains(&format!("\r\n{header}\r\n")), "{header} in {head}");
    }
    assert_eq!(upload.chunk(), "data: {\"imported\":1000,\"gpos\":1000}\n\n");
    // Reported records are stored.
    assert_eq!(events.call(json!(["stream.version", "p-1"])), 999);
    upload.send(&records(1000..1999));
    upload.send("\n  \n");
    upload.send(&records(1999..2600));
    assert_eq!(upload.chunk(), "data: {\"imported\":2000,\"gpos\":2000}\n\n");
    upload.send("");
    let done = upload.chunk();
    let elapsed = done
        .strip_prefix("data: {\"done\":true,\"imported\":2600,\"elapsed\":\"")
        .unwrap();
    let seconds = elapsed.strip_suffix("s\",\"read\":2600}\n\n").unwrap();
    let (whole, tenth) = seconds.split_once('.').unwrap();
    assert!(whole.parse::<u32>().is_ok() && tenth.len() == 1, "{done}");
    assert_eq!(upload.chunk(), "");
    assert_eq!(events.call(json!(["stream.version", "p-1"])), 2599);
    let nothing = events.import("", "");
    assert_eq!(
        nothing,
        [json!({"done": true, "imported": 0, "elapsed": "0.0s", "read": 0})]
    );
    // Exactly a thousand lines have one event more than fewer lines.
    let told = events.import("", &(0..1000).map(|n| record("e-1", n, n + 3000)).collect::<String>());
    assert_eq!(told.last().unwrap()["imported"], 1000);
}

fn each_mistake_of_an_import_has_its_code_its_line_and_its_words(events: Events) {
    events.call(json!(["stream.append", "s-1", [
        {"type": "t", "data": {}, "id": "0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819"}, {"type": "t", "data": {}}]]));
    let good =
        r#"{"id":"","stream":"s-9","type":"t","pos":7,"gpos":70,"data":{},"meta":null,"time":"2026-01-15T10:00:00Z"}"#;
    assert_eq!(events.import("", good)[0]["imported"], 1);
    let wrong = |from: &str, to: &str| good.replace("70", "80").replace("s-9", "s-8").replacen(from, to, 1);
    let numbers = "must be a number from";
    for (line, code, message) in [
        (
            "{\"a\":}".to_owned(),
            "INVALID_JSON",
            "malformed JSON at line 3: ".to_owned(),
        ),
        (
            good.to_owned() + "x",
            "INVALID_JSON",
            "malformed JSON at line 3: ".to_owned(),
        ),
        (
            "[]".to_owned(),
            "INVALID_RECORD",
            "invalid record at line 3: it is not an object".to_owned(),
        ),
        (
            wrong("stream", "strem"),
            "INVALID_RECORD",
            "invalid record at line 3: stream is required".to_owned(),
        ),
        (
            wrong("type", "tpe"),
            "INVALID_RECORD",
            "invalid record at line 3: type is required".to_owned(),
        ),
        (
            wrong("time", "tme"),
            "INVALID_RECORD",
            "invalid record at line 3: time is required".to_owned(),
        ),
        (
            wrong("2026-", "2026"),
            "INVALID_RECORD",
            "invalid record at line 3: time must be RFC 3339".to_owned(),
        ),
        (
            wrong(":7,", ":-1,"),
            "INVALID_RECORD",
            format!("invalid record at line 3: pos {numbers} 0 to 9007199254740991"),
        ),
        (
            wrong("80", "0"),
            "INVALID_RECORD",
            format!("invalid record at line 3: gpos {numbers} 1 to 9007199254740991"),
        ),
        (
            wrong("{}", "[]"),
            "INVALID_RECORD",
            "invalid record at line 3: data must be an object".to_owned(),
        ),
        (
            wrong("null", "5"),
            "INVALID_RECORD",
            "invalid record at line 3: meta must be an object".to_owned(),
        ),
        (
            wrong(":\"\"", ":5"),
            "INVALID_RECORD",
            "invalid record at line 3: id must be a string".to_owned(),
        ),
        (
            good.to_owned(),
            "POSITION_EXISTS",
            "global position already exists: 70".to_owned(),
        ),
        (good.replace(":70", ":71"), "POSITION_EXISTS", String::new()),
        (
            wrong(":\"\"", ":\"0190B5C2-7A00-7C1F-A2B3-C4D5E6F70819\""),
            "POSITION_EXISTS",
            String::new(),
        ),
    ] {
        // Blank lines count.
        let told = events.import("", &format!("{}\n\n{line}\n", wrong("80", "81").replace(":7,", ":8,")));
        let [told] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(
            (&told["error"], &told["line"]),
            (&json!(code), &json!(3)),
            "{line}: {told}"
        );
        let said = told["message"].as_str().unwrap();
        assert!(said.starts_with(&message) && !said.is_empty(), "{line}: {told}");
        assert_eq!(
            events.call(json!(["stream.version", "s-8"])),
            Value::Null,
            "nothing of the batch is stored"
        );
    }
    // The same position twice in one import counts as used.
    for line in [record("t-1", 0, 500), record("t-1", 1, 500), record("t-1", 0, 501)] {
        let told = events.import("", &(record("t-1", 0, 500) + &line));
        assert_eq!(
            (&told[0]["error"], &told[0]["line"]),
            (&json!("POSITION_EXISTS"), &json!(2)),
            "{line}"
        );
    }
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 3);
}

fn what_was_stored_before_a_mistake_stays_in_whole_batches(events: Events) {
    let told = events.import("", &(records(0..1400) + "{}\n" + &records(1400..1500)));
    assert_eq!(told.last().unwrap()["line"], 1401);
    assert_eq!(events.call(json!(["stream.version", "p-1"])), 999);
    // A batch also ends at 24 MiB.
    let large =
        |n: u64| record("l-1", n, 5000 + n).replace("{\"n\"", &format!("{{\"x\":\"{}\",\"n\"", "x".repeat(10 << 20)));
    let lines: String = (0..3).map(large).collect();
    let told = events.import("", &(lines + "{}\n"));
    assert_eq!(told.last().unwrap()["line"], 4);
    assert_eq!(events.call(json!(["stream.version", "l-1"])), 1);
    let next = events.call(json!(["stream.write", "l-1", {"type": "t", "data": {}}]));
    assert_eq!(next, json!({"globalPosition": 5002, "position": 2}));
}

fn an_import_with_force_begins_anew(events: Events) {
    events.import("", &records(0..10));
    let refused = events
        .api
        .send("GET", &format!("/import?force=true&token={TOKEN}"), &[], "");
    assert_eq!(refused.status, 405);
    // Only the literal word counts.
    for query in ["&force=1", "&force=TRUE", "&force="] {
        assert_eq!(
            events.import(query, &record("p-1", 0, 1))[0]["error"],
            "POSITION_EXISTS",
            "{query}"
        );
    }
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 10);
    let told = events.import("&force=true", &record("q-1", 3, 7));
    assert_eq!(told[0]["imported"], 1);
    assert_eq!(events.call(json!(["stream.version", "p-1"])), Value::Null);
    assert_eq!(events.import("&force=true", "")[0]["imported"], 0);
    assert_eq!(events.call(json!(["category.get", "", {"batchSize": -1}])), json!([]));
    let first = events.call(json!(["stream.write", "q-1", {"type": "t", "data": {}}]));
    assert_eq!(first, json!({"globalPosition": 1, "position": 0}));
    let info = events.call(json!(["ns.info", "default"]));
    assert_eq!((&info["messageCount"], &info["streamCount"]), (&json!(1), &json!(1)));
}

fn ids_of_imports_are_kept_and_taken_once(events: Events) {
    let with_id = |n: u64, id: &str| record("i-1", n, n + 1).replacen('{', &format!("{{\"id\":{id},"), 1);
    let (long, quoted) = ("é".repeat(127) + "x", "\"say \\\"hi\\\"\"");
    let lines = [
        with_id(0, "\"0190B5C27A007C1FA2B3C4D5E6F70819\""),
        with_id(1, &format!("\"{long}\"")),
        with_id(2, quoted),
        with_id(3, "\"\""),
        with_id(4, "null"),
        record("i-1", 5, 6),
    ];
    assert_eq!(events.import("", &lines.concat())[0]["imported"], 6);
    let rows = events.call(json!(["stream.get", "i-1"]));
    let ids: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row[0].as_str().unwrap())
        .collect();
    assert_eq!(ids[..3], ["0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819", &long, "say \"hi\""]);
    assert!(ids[3..].iter().all(|id| id.len() == 36), "{ids:?}");
    for (id, position) in ids.iter().zip(0..) {
        assert_eq!(events.call(json!(["message.get", id]))[3], position, "{id}");
        let again = record("j-1", 0, 100).replacen('{', &format!("{{\"id\":{},", json!(id)), 1);
        assert_eq!(events.import("", &again)[0]["error"], "POSITION_EXISTS", "{id}");
    }
    let taken = json!(["stream.write", "j-1", {"type": "t", "data": {}}, {"id": ids[0]}]);
    assert_eq!(events.refusal(&taken.to_string()).1, "MESSAGE_ID_CONFLICT");
    let too_long = with_id(9, &format!("\"{long}x\""));
    let message = "invalid record at line 1: id exceeds 255 bytes";
    assert_eq!(events.import("", &too_long)[0]["message"], message);
}

fn a_client_that_reads_only_at_the_end_gets_the_last_event(events: Events) {
    // More than sockets can buffer, after a mistake in the first line.
    let rest = "x".repeat(1 << 20) + "\n";
    let mut upload = Upload::begin(&events);
    upload.send("{}\n");
    (0..32).for_each(|_| upload.send(&rest));
    upload.send("");
    assert!(upload.head().starts_with("HTTP/1.1 200 "));
    let told = upload.chunk();
    assert!(
        told.starts_with("data: {\"error\":\"INVALID_RECORD\",") && told.ends_with(",\"line\":1}\n\n"),
        "{told}"
    );
    assert_eq!(upload.chunk(), "");
    // The same without a mistake, and with progress that the client does not read meanwhile.
    let mut upload = Upload::begin(&events);
    (0..20).for_each(|n| upload.send(&records(n * 1000..(n + 1) * 1000)));
    upload.send("");
    upload.head();
    let mut last = String::new();
    loop {
        match upload.chunk() {
            end if end.is_empty() => break,
            chunk => last = chunk,
        }
    }
    assert!(last.contains("\"done\":true,\"imported\":20000,"), "{last}");
}
