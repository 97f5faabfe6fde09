//! The tables of hops in `ARCHITECTURE.md` are true: a message goes along the path of each through the real binary, and a
//! debugger sees it pass the named functions in the order of the table.

mod source;
mod table;
mod trace;

use std::io::{BufRead as _, BufReader};

use anyhow::ensure;
use serde_json::json;
use thalweg_tests::servers::{Kind, Server, free_port};
use thalweg_tests::{Api, eventually};

use crate::events_server::TOKEN;
use table::HopTable;
use trace::HopTrace;

const SAMPLE: &str = "Follow one sample";
const LOG_RECORD: &str = "Follow one log record";
const QUEUE_MESSAGE: &str = "Follow one queue message";
const EVENT: &str = "Follow one event";
const QUERY: &str = "Follow one query";

/// Rows become files soon.
const STORAGE: &str = "log: {min_free: 16MiB, commit: {spare: 1}}\nlake: {flush: {interval: 1s}}\n";

/// An `ExportLogsServiceRequest` with one record, whose body is the text `hop`.
const LOGS: &[u8] = b"\x0a\x0b\x12\x09\x12\x07\x2a\x05\x0a\x03hop";

/// A process that receives OpenTelemetry data, and the sender.
fn receiver(title: &str) -> (HopTrace, Api) {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let yaml = format!("{STORAGE}ingest: {{otlp: {{http: {{address: \"{address}\"}}, grpc: {{enabled: false}}}}}}\n");
    (HopTrace::start(title, &yaml), Api::at_root(&address))
}

fn send_log_record(otlp: &Api) {
    otlp.send("POST", "/v1/logs", &[("content-type", "application/x-protobuf")], LOGS)
        .ok(200);
}

#[test]
fn each_table_of_hops_is_walked() {
    let titles: Vec<String> = HopTable::all().into_iter().map(|table| table.title).collect();
    assert_eq!(titles, [SAMPLE, LOG_RECORD, QUEUE_MESSAGE, EVENT, QUERY]);
}

#[test]
fn one_sample_passes_its_hops() {
    // Its value changes at this interval.
    let few = [
        "--port",
        "0",
        "--slow-nodes",
        "1",
        "--slow-rate",
        "4",
        "--fast-nodes",
        "0",
    ];
    let plant = Server::start(Kind::Simulator, &few).unwrap();
    let mut trace = HopTrace::start(
        SAMPLE,
        &format!(
            "{STORAGE}input:
  opcua:
    endpoint: {}
    nodeIDs: [\"ns=3;s=SlowUInt1\"]
    subscribeEnabled: true
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"acme.plant\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          return msg;
output:
  lake: {{table: tags}}
",
            plant.endpoint
        ),
    );
    trace.walk(|_| {});
}

#[test]
fn one_log_record_passes_its_hops() {
    let (mut trace, otlp) = receiver(LOG_RECORD);
    trace.walk(|_| send_log_record(&otlp));
}

#[test]
fn one_queue_message_passes_its_hops() {
    let yaml = format!("{STORAGE}queues: {{list: [{{name: hops, partitions: 1, groups: [{{name: g}}]}}]}}\n");
    let mut trace = HopTrace::start(QUEUE_MESSAGE, &yaml);
    let api = Api::new(&trace.thalweg.address().unwrap());
    trace.walk(|_| {
        api.send("POST", "/queues/hops/messages", &[("x-key", "k")], "12.5")
            .ok(201);
        let claimed = api.post("/queues/hops/groups/g/claim", &json!({"wait": "10s"})).ok(200);
        let receipt = &claimed["messages"][0]["receipt"];
        let settled = api
            .post("/queues/hops/groups/g/settle", &json!({"ack": [receipt]}))
            .ok(200);
        assert_eq!(settled["settled"], 1, "{settled}");
    });
}

#[test]
fn one_event_passes_its_hops() {
    let mut trace = HopTrace::start(EVENT, &format!("{STORAGE}events: {{token: \"{TOKEN}\"}}\n"));
    let api = Api::at_root(&trace.thalweg.address().unwrap()).with_token(TOKEN);
    let pokes = api.open("GET", "/subscribe?category=order", &[], "").unwrap();
    let mut pokes = BufReader::new(pokes.into_body().into_reader()).lines();
    let mut wait_for = |part: &str| while !pokes.next().unwrap().unwrap().contains(part) {};
    wait_for("ready");
    trace.walk(|_| {
        let append = json!(["stream.append", "order-7", [{"type": "Paid", "data": {"amount": 5}}]]);
        api.post("/rpc", &append).ok(200);
        wait_for("order-7");
    });
}

#[test]
fn one_query_passes_its_hops() {
    let (mut trace, otlp) = receiver(QUERY);
    send_log_record(&otlp);
    // The table's second commit has the file, of which the query finds out whether it can have matching rows.
    let commit = "lake/logs/_delta_log/00000000000000000001.json";
    let commit = trace.thalweg.data_dir().join(commit);
    eventually(|| {
        ensure!(commit.exists(), "no file yet");
        Ok(())
    })
    .unwrap();
    trace.walk(|thalweg| assert_eq!(thalweg.sql("select body from logs").unwrap(), [json!({"body": "hop"})]));
}
