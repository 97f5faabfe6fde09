//! Responses of the OpenTelemetry receivers, over HTTP and gRPC alike: statuses, codes and retry delays, and waiting for
//! visible rows.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use thalweg_tests::api::{Answer, Api};
use thalweg_tests::grpc::{Grpc, GrpcAnswer, framed};
use thalweg_tests::servers::free_port;
use thalweg_tests::thalweg::run;
use thalweg_tests::{Thalweg, eventually};

use crate::otlp::{attributes, end, is_stored, now, text};

const LOGS: &str = "logs.v1.LogsService";
const PROTO: (&str, &str) = ("content-type", "application/x-protobuf");

/// A process and the clients for it.
struct World {
    thalweg: Thalweg,
    http: Api,
    http_address: String,
    grpc: Grpc,
}

impl World {
    /// `ingest` are fields of that section, `more` are other sections.
    fn start(ingest: &str, more: &str, files: &[(&str, &str)]) -> World {
        let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
        let [http, grpc] = [http, grpc].map(|port| format!("127.0.0.1:{port}"));
        let yaml = format!(
            "{more}ingest:\n  otlp: {{http: {{address: \"{http}\"}}, grpc: {{address: \"{grpc}\"}}}}\n{ingest}"
        );
        let mut thalweg = Thalweg::spawn_with(&yaml, files).unwrap();
        eventually(|| {
            thalweg.process.check_running()?;
            thalweg.get("/ping").map(drop)
        })
        .unwrap();
        thalweg.wait_ready().unwrap();
        World {
            thalweg,
            http: Api::at_root(&http),
            grpc: Grpc::new(&grpc),
            http_address: http,
        }
    }

    /// The same request over both, optionally with an encoding.
    fn both(&self, encoding: &str, body: &[u8]) -> (Answer, GrpcAnswer) {
        let headers = [PROTO, ("content-encoding", encoding)];
        let headers = if encoding.is_empty() { &headers[..1] } else { &headers };
        let http = self.http.send("POST", "/v1/logs", headers, body);
        let flag = u8::from(!encoding.is_empty());
        let headers = [("grpc-encoding", encoding)];
        let headers = if encoding.is_empty() { &[][..] } else { &headers };
        let grpc = self.grpc.export(LOGS, headers, &framed(flag, body)).unwrap();
        (http, grpc)
    }
}

fn varint(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A length-delimited field.
fn field(number: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(&mut out, inner.len());
    out.extend_from_slice(inner);
    out
}

fn string(value: &str) -> Vec<u8> {
    field(1, value.as_bytes())
}

/// A log with attributes, whose values are already encoded.
fn log(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pair = |(key, value): &(&str, Vec<u8>)| field(6, &[field(1, key.as_bytes()), field(2, value)].concat());
    field(2, &pairs.iter().flat_map(pair).collect::<Vec<u8>>())
}

/// A request with these records of one scope.
fn request(records: &[Vec<u8>]) -> Vec<u8> {
    field(1, &field(2, &records.concat()))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A log of a given length.
fn filler(bytes: usize) -> Vec<u8> {
    request(&[log(&[]), field(15, &vec![0; bytes])])
}

/// `code` and `message` of the status over HTTP equal those over gRPC, and so does the retry delay.
#[track_caller]
fn refused(answers: &(Answer, GrpcAnswer), status: u16, grpc_status: u8, code: &str, words: &str) -> Option<u64> {
    let (http, grpc) = answers;
    assert_eq!(
        (http.status, grpc.status),
        (status, Some(grpc_status)),
        "{code}: {http:?} {grpc:?}"
    );
    for message in [&http.text, &grpc.message] {
        assert!(
            message.contains(&format!("{code}: ")) && message.contains(words),
            "{code} {words}: {message}"
        );
    }
    let again = http
        .headers
        .get("retry-after")
        .map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
    assert_eq!(again.is_some(), grpc.retry_after.is_some(), "{http:?} {grpc:?}");
    for seconds in again.into_iter().chain(grpc.retry_after) {
        assert!((1..=30).contains(&seconds), "{seconds}");
    }
    again
}

/// Encoding, body, the HTTP and gRPC statuses, the code, and another part of the message.
type Case<'a> = (&'a str, &'a [u8], u16, u8, &'a str, &'a str);

const LIMITS: &str = "  max_body_bytes: 100KiB
  max_decoded_bytes: 2MiB
  max_ratio: 1000000
  zstd_window: 1MiB
  max_nesting: 4
  max_attributes: 4
  max_name_bytes: 16B
  max_value_bytes: 100B
  body_timeout: 2s
";

#[test]
fn what_is_refused_for_good_is_refused_in_the_same_words_over_both_protocols() {
    let mut world = World::start(LIMITS, "", &[]);
    let whole = request(&[log(&[("a", string("b"))])]);
    let (mut broken, zipped) = (gzip(&whole), gzip(&[&whole[..], &[7; 3000]].concat()));
    broken[12] ^= 0xff;
    let mut wide = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(24).unwrap();
    wide.write_all(&whole).unwrap();
    let (wide, bomb) = (wide.finish().unwrap(), gzip(&vec![0; 3 << 20]));
    let packed = zstd::bulk::compress(&whole, 1).unwrap();
    let all = request(&[log(&[("a name that is too long", string(""))])]);
    let cases: [Case<'_>; 12] = [
        ("", &[0x0a, 0x05, 0x01], 400, 3, "otlp.malformed", "byte "),
        ("", &[0x0b], 400, 3, "otlp.malformed", "byte "),
        ("gzip", &broken, 400, 3, "otlp.malformed", "byte "),
        ("gzip", &zipped[..zipped.len() - 9], 400, 3, "otlp.malformed", "byte "),
        ("zstd", &packed[..packed.len() - 3], 400, 3, "otlp.malformed", "byte "),
        ("gzip", &whole, 400, 3, "otlp.malformed", "byte "),
        (
            "",
            &all,
            400,
            3,
            "otlp.all_rejected",
            "1 of 1 records rejected (name_too_long: 1)",
        ),
        ("br", &whole, 415, 12, "otlp.encoding", "br"),
        (
            "",
            &filler(200 << 10),
            413,
            8,
            "otlp.too_large",
            "ingest.max_body_bytes",
        ),
        (
            "gzip",
            &bomb,
            413,
            8,
            "otlp.decoded_too_large",
            "ingest.max_decoded_bytes",
        ),
        ("zstd", &wide, 413, 8, "otlp.zstd_window", "ingest.zstd_window"),
        ("zstd", &whole, 400, 3, "otlp.malformed", "byte "),
    ];
    for (encoding, body, status, grpc_status, code, words) in cases {
        // zstd reports an unsupported window with this error.
        let (status, grpc_status, code, words) =
            match (encoding, body.len() < wide.len() && body.starts_with(&wide[..6])) {
                ("zstd", true) => (413, 8, "otlp.zstd_window", "ingest.zstd_window"),
                _ => (status, grpc_status, code, words),
            };
        let again = refused(&world.both(encoding, body), status, grpc_status, code, words);
        assert_eq!(again, None, "{code}");
    }
    let json = world
        .http
        .post("/v1/logs", &json!({"resourceLogs": [{"scopeLogs": 5}]}));
    assert_eq!((json.status, json.json["code"].as_u64()), (400, Some(3)));
    assert!(json.text.contains("otlp.malformed: byte "), "{json:?}");
    let other = world
        .http
        .send("POST", "/v1/logs", &[("content-type", "text/plain")], &whole);
    assert!(
        other.status == 415 && other.text.contains("otlp.media_type: "),
        "{other:?}"
    );
    let other = world
        .grpc
        .export(LOGS, &[("content-type", "text/plain")], &framed(0, &whole))
        .unwrap();
    assert_eq!(other.http_status, 415);
    let unknown = world.grpc.export("logs.v1.NoService", &[], &framed(0, &whole)).unwrap();
    assert_eq!(unknown.status, Some(12));
    let twice = [framed(0, &whole), framed(0, &whole)].concat();
    for body in [Vec::new(), framed(0, &whole)[..8].to_vec(), twice, framed(2, &whole)] {
        let answer = world.grpc.export(LOGS, &[], &body).unwrap();
        assert_eq!(answer.status, Some(3), "{answer:?}");
        assert!(answer.message.starts_with("otlp.malformed: "), "{answer:?}");
    }
    // A request that does not end in time may be retried.
    let late = world.http.raw(
        b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\ncontent-length: 99\r\n\r\nabc",
    );
    assert!(late.unwrap().starts_with("HTTP/1.1 408 "));
    let late = world.grpc.export_without_end(LOGS, &framed(0, &whole)[..9]).unwrap();
    assert_eq!(late.status, Some(4), "{late:?}");
    let rows = world.thalweg.sql("select count(*) as rows from logs").unwrap();
    assert_eq!(rows[0]["rows"], 0, "nothing of all this was stored");
    world.thalweg.records_are_accounted_for().unwrap();
    end(&mut world.thalweg);
}

#[test]
fn records_beyond_a_limit_are_told_with_their_reasons_and_the_others_are_stored() {
    let mut world = World::start(LIMITS, "", &[]);
    let mut deep = string("x");
    for _ in 0..6 {
        deep = field(5, &field(1, &deep));
    }
    let good = log(&[("a", string("good"))]);
    let many: Vec<(&str, Vec<u8>)> = ["a", "b", "c", "d", "e"].map(|name| (name, string("v"))).to_vec();
    let records = request(&[
        good.clone(),
        log(&[("a", deep)]),
        log(&many),
        log(&many),
        good,
        log(&[("a name that is too long", string("v"))]),
        log(&[("a", string(&"v".repeat(101)))]),
    ]);
    let (http, grpc) = world.both("", &records);
    let why =
        "5 of 7 records rejected (too_many_attributes: 2, nesting_too_deep: 1, name_too_long: 1, value_too_long: 1)";
    let partial = field(1, &[&[0x08, 5][..], &field(2, why.as_bytes())].concat());
    assert_eq!((http.status, http.text.as_bytes()), (200, &partial[..]));
    assert_eq!((grpc.status, grpc.body), (Some(0), partial));
    assert!(http.headers.contains_key("thalweg-position") && grpc.position.is_some());
    // Without rejected records there is no partial success, and without records nothing to store.
    let (http, grpc) = world.both("gzip", &gzip(&request(&[log(&[])])));
    assert_eq!(
        (http.status, http.text.as_str(), grpc.status, grpc.body.len()),
        (200, "", Some(0), 0)
    );
    let (http, grpc) = world.both("", &[]);
    assert_eq!((http.status, grpc.status), (200, Some(0)));
    assert!(
        !http.headers.contains_key("thalweg-position") && grpc.position.is_none(),
        "{http:?} {grpc:?}"
    );
    let no_buckets = json!({"explicitBounds": [1.0], "bucketCounts": ["1"], "count": "1", "timeUnixNano": "1"});
    let no_order = json!({"explicitBounds": [2.0, 1.0], "bucketCounts": ["1", "0", "0"], "count": "1"});
    let point = json!({"explicitBounds": [1.0], "bucketCounts": ["1", "0"], "count": "1"});
    let metrics = json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", "histogram": {
        "aggregationTemporality": 1, "dataPoints": [no_buckets, point, no_order]}}]}]}]});
    let answer = world.http.post("/v1/metrics", &metrics);
    let why = "2 of 3 records rejected (invalid_point: 2)";
    assert_eq!(
        answer.json,
        json!({"partialSuccess": {"rejectedDataPoints": "2", "errorMessage": why}})
    );
    let span = json!({"traceId": "0102030405060708090a0b0c0d0e0f10", "spanId": "0102030405060708", "name": "x"});
    let spans = json!({"resourceSpans": [{"scopeSpans": [{"spans": [span, {"traceId": "01", "spanId": "02"}]}]}]});
    let answer = world.http.post("/v1/traces", &spans);
    let why = "1 of 2 records rejected (invalid_id: 1)";
    assert_eq!(
        answer.json,
        json!({"partialSuccess": {"rejectedSpans": "1", "errorMessage": why}})
    );
    world.thalweg.records_are_accounted_for().unwrap();
    let rows = world.thalweg.sql("select count(*) as rows from logs").unwrap();
    assert_eq!(rows[0]["rows"], 6, "two of each protocol, and one more");
    let metric = |name: &str, label: &str| world.thalweg.metric(name, label).unwrap();
    let rejected = "thalweg_lake_rejected_records_total";
    assert_eq!(metric(rejected, "reason=\"too_many_attributes\""), 4.0);
    assert_eq!(metric(rejected, "signal=\"metrics\""), 2.0);
    assert_eq!(metric("thalweg_lake_records_total", "signal=\"logs\""), 16.0);
    assert_eq!(
        metric(
            "thalweg_lake_requests_total",
            "code=\"ok\",proto=\"grpc\",signal=\"logs\""
        ),
        3.0
    );
    end(&mut world.thalweg);
}

#[test]
fn senders_without_the_role_are_refused_and_a_ratio_is_a_limit_too() {
    let more = "auth: {tokens: [{name: r, file: r.token, roles: [read]}, {name: w, file: w.token, roles: [write]}]}\n";
    let files = [("r.token", "reader\n"), ("w.token", "writer\n")];
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let yaml = format!(
        "{more}ingest:\n  otlp: {{http: {{address: \"127.0.0.1:{http}\"}}, grpc: {{address: \"127.0.0.1:{grpc}\"}}}}\n  max_ratio: 10\n"
    );
    let mut thalweg = Thalweg::spawn_with(&yaml, &files).unwrap();
    let (api, calls) = (
        Api::at_root(&format!("127.0.0.1:{http}")),
        Grpc::new(&format!("127.0.0.1:{grpc}")),
    );
    let body = request(&[log(&[])]);
    let both = |token: &str, encoding: &str, body: &[u8]| {
        let bearer = format!("Bearer {token}");
        let mut headers = vec![PROTO];
        let mut metadata = Vec::new();
        if !token.is_empty() {
            headers.push(("authorization", bearer.as_str()));
            metadata.push(("authorization", bearer.as_str()));
        }
        if !encoding.is_empty() {
            headers.push(("content-encoding", encoding));
            metadata.push(("grpc-encoding", encoding));
        }
        let flag = u8::from(!encoding.is_empty());
        anyhow::Ok((
            api.try_send("POST", "/v1/logs", &headers, body)?,
            calls.export(LOGS, &metadata, &framed(flag, body))?,
        ))
    };
    let (stored, grpc) = eventually(|| {
        thalweg.process.check_running()?;
        both("writer", "", &body)
    })
    .unwrap();
    assert_eq!((stored.status, grpc.status), (200, Some(0)), "{stored:?} {grpc:?}");
    for (token, status, grpc_status, code) in [
        ("", 401, 16, "not_authenticated"),
        ("nobody", 401, 16, "not_authenticated"),
        ("reader", 403, 7, "not_authorized"),
    ] {
        let again = refused(&both(token, "", &body).unwrap(), status, grpc_status, code, "");
        assert_eq!(again, None);
    }
    let bomb = gzip(&vec![0; 3 << 20]);
    let again = refused(
        &both("writer", "gzip", &bomb).unwrap(),
        413,
        8,
        "otlp.decoded_too_large",
        "ingest.max_ratio",
    );
    assert_eq!(again, None);
    end(&mut thalweg);
}

#[test]
fn more_than_there_is_room_for_is_told_when_to_come_again() {
    const ROOM: usize = 8 << 20;
    let mut world = World::start("  inflight_bytes: 8MiB\n", "", &[]);
    let (http, grpc) = world.both("", &filler(30_000));
    assert_eq!((http.status, grpc.status), (200, Some(0)));
    // A slowly sent request uses nearly all of the room.
    let body = filler(ROOM - (16 << 10));
    let (last, begin) = body.split_last().unwrap();
    let mut slow = TcpStream::connect(&world.http_address).unwrap();
    let head = format!(
        "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).unwrap();
    slow.write_all(begin).unwrap();
    eventually(|| {
        let used = world.thalweg.metric("thalweg_lake_inflight_bytes", "")?;
        anyhow::ensure!(used >= begin.len() as f64, "{used}");
        Ok(())
    })
    .unwrap();
    let again = refused(&world.both("", &filler(30_000)), 429, 8, "otlp.pressure", "try again");
    assert!(again.is_some());
    assert_eq!(
        world
            .thalweg
            .metric("thalweg_lake_pressure_total", "cause=\"bytes\"")
            .unwrap(),
        2.0
    );
    // The slow one ends eventually, and is stored; then there is room.
    slow.write_all(&[*last]).unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let (http, grpc) = world.both("", &filler(30_000));
    assert_eq!((http.status, grpc.status), (200, Some(0)));
    assert_eq!(world.thalweg.metric("thalweg_lake_inflight_bytes", "").unwrap(), 0.0);
    world.thalweg.records_are_accounted_for().unwrap();
    end(&mut world.thalweg);
}

#[test]
fn a_log_that_takes_nothing_is_told_as_what_may_be_tried_again() {
    let log = "log: {on_poison: stay, min_free: 16MiB, commit: {spare: 1}}\n";
    let mut world = World::start("", log, &[]);
    for _ in 0..8 {
        let (http, grpc) = world.both("", &filler(50_000));
        assert_eq!((http.status, grpc.status), (200, Some(0)));
    }
    let pid = world.thalweg.process.id().to_string();
    let limited = std::process::Command::new("prlimit")
        .args(["--pid", &pid, "--fsize=262144"])
        .status()
        .unwrap();
    assert!(limited.success());
    let again = refused(&world.both("", &filler(10)), 503, 14, "log_poisoned", "");
    assert!(again.is_some());
    world.thalweg.process.kill().unwrap();

    // Requires more free space than any disk has.
    let mut world = World::start("", "log: {min_free: 16MiB}\n", &[]);
    end(&mut world.thalweg);
    let file = world.thalweg.folder.path().join("flow.yaml");
    let yaml = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, yaml.replace("16MiB", "1000TiB")).unwrap();
    world.thalweg.restart().unwrap();
    eventually(|| Ok(TcpStream::connect(&world.http_address)?)).unwrap();
    let again = refused(&world.both("", &filler(10)), 503, 14, "disk_full", "");
    assert!(again.is_some());
    end(&mut world.thalweg);
}

#[test]
fn a_lake_that_cannot_be_written_causes_no_pressure_and_gets_it_all_later() {
    const REQUESTS: u64 = 400;
    let more = "lake: {memory: 16MiB, flush: {bytes: 64KiB, interval: 50ms}}\nmemory: {limit: 256MiB}\n";
    let mut world = World::start("  inflight_bytes: 8MiB\n", more, &[]);
    // Something else is in the place of the table.
    let table = world.thalweg.data_dir().join("lake/logs");
    std::fs::remove_dir_all(&table).unwrap();
    std::fs::write(&table, "no table").unwrap();
    let mut position = String::new();
    for n in 0..REQUESTS {
        let body = request(&[
            log(&[("n", string(&n.to_string()))]),
            log(&[("text", string(&"x".repeat(50_000)))]),
        ]);
        let stored = world.http.send("POST", "/v1/logs", &[PROTO], &body);
        assert_eq!(stored.status, 200, "{stored:?}");
        position = stored.headers["thalweg-position"].to_str().unwrap().to_owned();
    }
    // The rows are not visible yet, which is reported after five seconds.
    let address = world.thalweg.address().unwrap();
    let began = Instant::now();
    let late = Api::at_root(&address).get(&format!("/api/sql?q=select%201&wait_for={position}"));
    assert_eq!(
        (late.status, &late.json["error"]["code"]),
        (504, &json!("lake.wait_timeout")),
        "{late:?}"
    );
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(
        world
            .thalweg
            .metric("thalweg_lake_backlog_bytes", "queue=\"lake.logs\"")
            .unwrap()
            > 0.0
    );
    eventually(|| {
        let (status, why) = world.thalweg.request("/ready")?;
        anyhow::ensure!(status == 503 && why.contains("logs"), "{status} {why}");
        Ok(())
    })
    .unwrap();
    world.thalweg.process.kill().unwrap();
    std::fs::remove_file(&table).unwrap();
    world.thalweg.restart().unwrap();
    world.thalweg.wait_ready().unwrap();
    eventually(|| {
        let sql = "select count(*) as rows, count(distinct attr('n')) as numbers from logs";
        let rows = world.thalweg.sql(sql)?.remove(0);
        anyhow::ensure!(rows == json!({"rows": 2 * REQUESTS, "numbers": REQUESTS}), "{rows}");
        Ok(())
    })
    .unwrap();
    // All of it came from the log.
    let entries = |from: &str| {
        world
            .thalweg
            .metric("thalweg_lake_entries_total", &format!("from=\"{from}\""))
            .unwrap()
    };
    assert_eq!((entries("log"), entries("handoff")), (REQUESTS as f64, 0.0));
    end(&mut world.thalweg);
}

#[test]
fn who_names_the_position_of_an_answer_sees_its_rows() {
    let mut world = World::start("", "", &[]);
    let address = world.thalweg.address().unwrap();
    let sql = Api::at_root(&address);
    let count = |answer: &Answer| answer.json[0]["rows"].as_u64();
    let query = "select count(*) as rows from logs";
    let mut rows = 0;
    let mut last = String::new();
    for n in 0..30_u64 {
        let position = match n % 2 {
            0 => world
                .http
                .send("POST", "/v1/logs", &[PROTO], &request(&[log(&[])]))
                .headers["thalweg-position"]
                .to_str()
                .unwrap()
                .to_owned(),
            _ => world
                .grpc
                .export(LOGS, &[], &framed(0, &request(&[log(&[])])))
                .unwrap()
                .position
                .unwrap(),
        };
        rows += 1;
        let answer = match n % 3 {
            0 => sql.get(&format!("/api/sql?q={}&wait_for={position}", query.replace(' ', "%20"))),
            1 => sql.post("/api/sql", &json!({"sql": query, "wait_for": position})),
            _ => sql.send(
                "POST",
                &format!("/api/sql?wait_for={position}"),
                &[("content-type", "text/plain")],
                query,
            ),
        };
        assert_eq!(count(&answer), Some(rows), "{position}: {answer:?}");
        last = position;
    }
    let folder = world.thalweg.folder.path().to_owned();
    let ask = |position: &str| run(&folder, &["sql", "--data-dir", "data", "--wait-for", position, query]).unwrap();
    let asked = ask(&last);
    assert_eq!(asked.stdout, "{\"rows\":30}\n", "{}", asked.stderr);
    // Two at once, of two queues.
    let span = json!({"traceId": "0102030405060708090a0b0c0d0e0f10", "spanId": "0102030405060708", "name": "x"});
    let spans = world.http.post(
        "/v1/traces",
        &json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}),
    );
    is_stored(&spans);
    let both = format!("{last},{}", spans.headers["thalweg-position"].to_str().unwrap());
    let answer = sql.get(&format!(
        "/api/sql?q=select%20count(*)%20as%20rows%20from%20traces&wait_for={both}"
    ));
    assert_eq!(count(&answer), Some(1), "{answer:?}");
    let (queue, offset) = last.rsplit_once(':').unwrap();
    let beyond = format!("{queue}:{}", offset.parse::<u64>().unwrap() + 1_000);
    for (position, words) in [
        ("yesterday", "expected QUEUE:PARTITION:OFFSET"),
        ("lake.logs:0:-1", "expected QUEUE:PARTITION:OFFSET"),
        ("jobs:0:1", "one of lake.logs, lake.metrics, lake.traces"),
        ("lake.logs:99:0", "partitions, from 0 on"),
        (beyond.as_str(), "no answer has named that position"),
    ] {
        let answer = sql.get(&format!("/api/sql?q=select%201&wait_for={position}"));
        assert_eq!(
            (answer.status, &answer.json["error"]["code"]),
            (400, &json!("query.bad_request")),
            "{answer:?}"
        );
        assert!(
            answer.json["error"]["message"].as_str().unwrap().contains(words),
            "{answer:?}"
        );
        let asked = ask(position);
        assert!(
            asked.status.code() == Some(1) && asked.stderr.contains(words),
            "{}",
            asked.stderr
        );
    }
    // After a kill, it reads uncommitted data from the log again; a waiting query sees it.
    world.thalweg.process.kill().unwrap();
    world.thalweg.restart().unwrap();
    let address = world.thalweg.address().unwrap();
    let answer = Api::at_root(&address).get(&format!("/api/sql?q={}&wait_for={last}", query.replace(' ', "%20")));
    assert_eq!(count(&answer), Some(30), "{answer:?}");
    world.thalweg.wait_ready().unwrap();
    end(&mut world.thalweg);
    // Now the table has it, and the files alone show it.
    let asked = ask(&last);
    assert_eq!(asked.stdout, "{\"rows\":30}\n", "{}", asked.stderr);
    let asked = ask(&beyond);
    assert!(
        asked.status.code() == Some(1) && asked.stderr.contains("lake.wait_timeout"),
        "{}",
        asked.stderr
    );
}

#[test]
fn the_metrics_of_the_lake_have_their_names() {
    let mut world = World::start("", "", &[]);
    let resource = json!({"attributes": attributes(&[("service.name", text("shop"))])});
    let logs = json!({"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [{"timeUnixNano": now().to_string()}]}]}]});
    let stored = world.http.post("/v1/logs", &logs);
    is_stored(&stored);
    let position = stored.headers["thalweg-position"].to_str().unwrap();
    let query = format!("/api/sql?q=select%20*%20from%20logs&wait_for={position}");
    let (_, json) = world.thalweg.request(&query).unwrap();
    assert!(json.contains("shop"), "{json}");
    let wanted = [
        "requests_total{code=\"ok\",proto=\"http\",signal=\"logs\"}",
        "records_total{signal=\"logs\"}",
        "bytes_total{signal=\"logs\",stage=\"received\"}",
        "bytes_total{signal=\"logs\",stage=\"decoded\"}",
        "bytes_total{signal=\"logs\",stage=\"logged\"}",
        "ack_seconds_count",
        "inflight_bytes",
        "pressure_total{cause=\"bytes\"}",
        "buffer_bytes{table=\"logs\"}",
        "entries_total{from=\"handoff\"}",
        "entries_total{from=\"log\"}",
        "visibility_seconds_count{table=\"logs\"}",
        "backlog_bytes{queue=\"lake.logs\"}",
        "flush_seconds_count{phase=\"encode\",table=\"logs\"}",
        "commits_total{kind=\"flush\",outcome=\"ok\",table=\"logs\"}",
        "commit_lag_seconds{table=\"logs\"}",
        "promoted_columns{table=\"logs\"}",
        "poison_entries_total",
        "quarantined_total{source=\"log\"}",
        "files{level=\"0\",table=\"logs\"}",
        "bytes{table=\"logs\"}",
        "rows{table=\"logs\"}",
        "store_seconds_count{op=\"put\",outcome=\"ok\"}",
        "compaction_bytes_total{direction=\"in\"}",
        "compaction_pending_bytes{table=\"logs\"}",
        "rollup_inexact_total",
        "memory_bytes{kind=\"limit\",share=\"lake.memory\"}",
        "memory_bytes{kind=\"used\",share=\"lake.compaction.memory\"}",
        "memory_bytes{kind=\"used\",share=\"query.memory\"}",
        "memory_bytes{kind=\"used\",share=\"query.cache\"}",
        "memory_bytes{kind=\"used\",share=\"ingest.inflight_bytes\"}",
    ];
    // A new name is committed within seconds, and tables are checked for merges every ten.
    eventually(|| {
        let metrics = world.thalweg.get("/metrics")?;
        let missing: Vec<&str> = wanted
            .into_iter()
            .filter(|name| !metrics.contains(&format!("\nthalweg_lake_{name} ")))
            .collect();
        anyhow::ensure!(missing.is_empty(), "{missing:?}");
        Ok(())
    })
    .unwrap();
    world.thalweg.records_are_accounted_for().unwrap();
    end(&mut world.thalweg);
}

const PORTAL: (&str, &str) = ("origin", "https://portal.example");
const JSON: (&str, &str) = ("content-type", "application/json");

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name).map(|value| value.to_str().unwrap())
}

/// A browser asks before it sends JSON, and gives the response to the page only if it is told that it may.
#[test]
fn pages_of_listed_origins_send_telemetry_and_no_others() {
    let port = free_port().unwrap();
    let yaml = format!(
        "ingest:\n  otlp:\n    grpc: {{enabled: false}}\n    http:\n      address: 127.0.0.1:{port}\n      \
         cors: {{enabled: true, allowed_origins: ['https://portal.example']}}\n"
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    let http = Api::at_root(&format!("127.0.0.1:{port}"));
    let asks = [
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type,x-tenant"),
    ];
    for path in ["/v1/logs", "/v1/metrics", "/v1/traces"] {
        let preflight = http.send("OPTIONS", path, &[&[PORTAL], &asks[..]].concat(), "");
        assert_eq!(preflight.status, 200, "{preflight:?}");
        assert_eq!(
            header(&preflight, "access-control-allow-origin"),
            Some("https://portal.example")
        );
        assert_eq!(
            header(&preflight, "access-control-allow-headers"),
            Some("content-type,x-tenant")
        );
        assert!(
            header(&preflight, "access-control-allow-methods")
                .unwrap()
                .contains("POST")
        );
        let sent = http.send("POST", path, &[PORTAL, JSON, ("sec-fetch-site", "cross-site")], "{}");
        assert_eq!((sent.status, sent.text.as_str()), (200, "{}"));
        assert_eq!(
            header(&sent, "access-control-allow-origin"),
            Some("https://portal.example")
        );
        assert!(
            header(&sent, "access-control-expose-headers")
                .unwrap()
                .contains("thalweg-position")
        );
        // A page reads why it is refused, too.
        let wrong = http.send("POST", path, &[PORTAL, JSON], "{");
        assert_eq!(wrong.status, 400);
        assert_eq!(
            header(&wrong, "access-control-allow-origin"),
            Some("https://portal.example")
        );
        let other = ("origin", "https://other.example");
        for (method, body) in [("OPTIONS", ""), ("POST", "{}")] {
            let refused = http.send(method, path, &[&[other, JSON], &asks[..]].concat(), body);
            assert_eq!(
                (refused.status, header(&refused, "access-control-allow-origin")),
                (403, None)
            );
            let cure = "add its origin to ingest.otlp.http.cors.allowed_origins";
            assert!(refused.text.contains(cure), "{}", refused.text);
        }
    }
    end(&mut thalweg);
}
