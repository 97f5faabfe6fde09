//! Examples that serve others: queues, events, OpenTelemetry, logins.

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::servers::free_port;
use thalweg_tests::thalweg::run;
use thalweg_tests::{Api, Thalweg, eventually};

use super::{example, lines, make_certificate, with};
use crate::otlp::{end, is_stored, logs};

/// Waits until a query of the running process has these rows.
fn sql_is(thalweg: &Thalweg, query: &str, expected: &Value) {
    eventually(|| {
        let rows = Value::from(thalweg.sql(query)?);
        ensure!(rows == *expected, "{rows} instead of {expected}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn orders_are_billed_once_by_two_members_and_are_rows() {
    // The file has its first order twice; it is one event.
    let orders: String = (1..=40)
        .chain([1])
        .map(|n| format!("{}\n", json!({"order": n, "customer": format!("c{}", n % 3), "sum": n})))
        .collect();
    let mut thalweg = Thalweg::spawn_with(&example("event-projection"), &[("orders.jsonl", &orders)]).unwrap();
    eventually(|| thalweg.get("/ping")).unwrap();
    let count =
        "select event_type as kind, count(*) as n, count(distinct stream) as streams from events group by 1 order by 1";
    sql_is(
        &thalweg,
        count,
        &json!([{"kind": "Billed", "n": 40, "streams": 40}, {"kind": "Placed", "n": 40, "streams": 40}]),
    );
    sql_is(
        &thalweg,
        "select data from events where stream = 'bill-7'",
        &json!([{"data": "{\"order\":7,\"net\":7,\"gross\":8.33}"}]),
    );
    sql_is(
        &thalweg,
        "select count(*) as n from events where attr_customer = 'c2'",
        &json!([{"n": 13}]),
    );
    let status = thalweg.json("/api/v1/status").unwrap();
    let shares: Vec<u64> = status["flows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|flow| flow["name"].as_str().is_some_and(|name| name.starts_with("bills")))
        .map(|flow| flow["balance"]["out"].as_u64().unwrap())
        .collect();
    assert!(shares.len() == 2 && shares.iter().all(|out| *out > 0), "{shares:?}");
    assert_eq!(shares.iter().sum::<u64>(), 40);
    thalweg.stop().unwrap();
}

#[test]
fn jobs_are_done_once_and_one_that_cannot_be_done_is_a_dead_letter() {
    let mut thalweg = Thalweg::start(&example("job-queue")).unwrap();
    thalweg.wait_ready().unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let job = json!({"customer": 7, "report": "november"}).to_string();
    let headers = [("x-key", "7"), ("x-dedup-id", "7-november")];
    // The second one is told that it is stored already.
    for status in [201, 200] {
        let stored = api.send("POST", "/queues/jobs/messages", &headers, &job);
        assert_eq!(stored.status, status, "{stored:?}");
    }
    let stored = api.send("POST", "/queues/jobs/messages", &[], "{\"report\": \"x\"}");
    assert_eq!(stored.status, 201, "{stored:?}");
    let done = eventually(|| {
        let done = api.get("/queues/done/messages?partition=0").json;
        let dead = api.get("/queues/jobs/dlq").json;
        let count = |found: &Value| found["messages"].as_array().map_or(0, Vec::len);
        ensure!((count(&done), count(&dead)) == (1, 1), "{done} {dead}");
        let detail = dead["messages"][0]["properties"]["x-dlq-detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        ensure!(detail.contains("a job has a number of a customer"), "{dead}");
        Ok(done)
    })
    .unwrap();
    let text = done["messages"][0]["text"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap(),
        json!({"customer": 7, "report": "november", "attempt": 1})
    );
    assert_eq!(done["messages"][0]["key"], "7");
    let unknown = api.send("POST", "/queues/job/messages", &[], "x");
    assert_eq!(unknown.status, 404, "queues are declared: {unknown:?}");
    let balance = thalweg.stop().unwrap();
    assert_eq!((balance.entered, balance.out, balance.dropped), (2, 1, 1));
}

#[test]
fn a_queue_between_two_flows_hands_everything_on() {
    let mut thalweg = Thalweg::start(&example("queues")).unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        let balance = thalweg.balance()?;
        ensure!(balance.out > 2000, "{balance:?}");
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!(balance.dropped, 0);
    let forces = lines(&thalweg, "thalweg-data/presses.jsonl");
    assert!(forces.len() > 500, "{}", forces.len());
    assert!(
        forces
            .iter()
            .all(|row| row["press"].is_number() && row["force"].is_number())
    );
}

#[test]
fn opentelemetry_data_is_received_over_http() {
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let addresses = (format!("127.0.0.1:{http}"), format!("127.0.0.1:{grpc}"));
    let yaml = with(
        example("otlp"),
        &[("OTLP_HTTP", &addresses.0), ("OTLP_GRPC", &addresses.1)],
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    thalweg.wait_ready().unwrap();
    is_stored(&Api::at_root(&addresses.0).post("/v1/logs", &logs(0..100)));
    sql_is(
        &thalweg,
        "select resource_service_name as service, count(*) as n from logs group by 1",
        &json!([{"service": "shop", "n": 100}]),
    );
    end(&mut thalweg);
}

#[test]
fn only_logins_of_the_file_get_in_and_only_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    make_certificate(folder.path());
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let yaml = with(
        example("secured"),
        &[
            ("OTLP_HTTP", &format!("127.0.0.1:{http}")),
            ("OTLP_GRPC", &format!("127.0.0.1:{grpc}")),
        ],
    );
    std::fs::write(folder.path().join("secured.yaml"), &yaml).unwrap();
    let added = run(
        folder.path(),
        &["auth", "add", "edge", "--roles", "write", "-c", "secured.yaml"],
    )
    .unwrap();
    assert!(added.status.success(), "{}", added.stderr);
    let token = added.stdout.trim().to_owned();
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let (key, certificate, tokens, users) = (file("server.key"), file("server.crt"), file("tokens"), file("users"));
    let files = [
        ("server.key", key.as_str()),
        ("server.crt", certificate.as_str()),
        ("tokens", tokens.as_str()),
        ("users", users.as_str()),
    ];
    let mut thalweg = Thalweg::spawn_with(&yaml, &files).unwrap();
    let address = eventually(|| {
        thalweg.process.check_running()?;
        let address = thalweg.address()?;
        std::net::TcpStream::connect(&address)?;
        Ok(address)
    })
    .unwrap();
    let url = format!("https://{address}");
    let queue = |arguments: &[&str]| {
        let place = ["--url", &url, "--ca-file", "server.crt"];
        let ran = run(thalweg.folder.path(), &[&["queue"], arguments, &place].concat()).unwrap();
        (ran.status.code(), ran.stdout + &ran.stderr)
    };
    let produce = ["produce", "commands", "start"];
    let with_token = [&produce[..], &["--token", &token]].concat();
    eventually(|| {
        let (code, said) = queue(&with_token);
        ensure!(code == Some(0), "{said}");
        Ok(())
    })
    .unwrap();
    let (code, said) = queue(&produce);
    assert!(
        code != Some(0) && said.contains("not_authenticated"),
        "without a token: {said}"
    );
    let (code, said) = queue(&["purge", "commands", "--yes", "--token", &token]);
    assert!(
        code != Some(0) && said.contains("admin"),
        "with a token of the role write: {said}"
    );
    let plain = thalweg.request("/metrics");
    assert!(
        plain.is_err() || plain.is_ok_and(|(status, _)| status >= 400),
        "without TLS"
    );
    end(&mut thalweg);
}
