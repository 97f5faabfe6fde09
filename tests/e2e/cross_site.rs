//! Pages of other sites, in a real browser: every request that they make to any listener of this machine is refused, and
//! changes nothing.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
use thalweg_tests::servers::{free_port, node_modules, tool_chromium};
use thalweg_tests::{Api, Thalweg, eventually};

use crate::events_server::Events;

/// All requests of a browser that succeeded, except the harmless ones. Requests with effects are also opened by their address,
/// as from an e-mail.
fn attack(listeners: &[String], paths: &[String], acting: &[&str]) -> Vec<Value> {
    let script = thalweg_tests::beside("browser/cross_site.mjs");
    let mut command = Command::new("node");
    command.arg(script).args(listeners);
    command
        .args(["--paths", &serde_json::to_string(paths).unwrap()])
        .args(["--acting", &serde_json::to_string(acting).unwrap()])
        .env("NODE_PATH", node_modules().unwrap())
        .env("THALWEG_TEST_NODE_MODULES", node_modules().unwrap())
        .env("THALWEG_TEST_CHROMIUM", tool_chromium().unwrap());
    let output = command.output().unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{error}");
    let tried: Value = serde_json::from_str(out.trim()).unwrap();
    let sent = tried["sent"].as_u64().unwrap();
    // Four pages, and more than five kinds of network requests from each.
    let least = listeners.len() * paths.len() * 4 * 5;
    assert!(
        sent as usize >= least,
        "only {sent} requests were sent, of at least {least}"
    );
    let opened = tried["opened"].as_u64().unwrap();
    assert_eq!(
        opened as usize,
        listeners.len() * acting.len(),
        "addresses that were opened"
    );
    tried["answered"].as_array().unwrap().clone()
}

#[test]
fn nothing_that_a_page_of_another_site_sends_is_answered_or_changes_anything() {
    let otlp = free_port().unwrap();
    let yaml = format!(
        "\
http: {{debug_endpoints: true}}
log: {{min_free: 16MiB, commit: {{spare: 1}}}}
queues:
  auto_create: true
  list: [{{name: q, visibility_timeout: 1s, retry: {{max_retries: 1, initial_backoff: 100ms}}}}]
events: {{}}
ingest: {{otlp: {{http: {{address: '127.0.0.1:{otlp}'}}, grpc: {{enabled: false}}}}}}
flows:
  - name: waits
    input: {{generate: {{interval: 1h, count: 0, mapping: 'root = {{}}'}}}}
    output: {{lake: {{table: tags}}}}
"
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    thalweg.wait_ready().unwrap();
    let address = thalweg.address().unwrap();
    let api = Api::new(&address);
    for n in 0..3 {
        let sent = api.post("/queues/q/messages", &json!({ "n": n }));
        assert!(sent.status < 300, "{sent:?}");
    }
    let before = api.get("/queues/q").json;
    let groups = api.get("/queues/q/groups").json;

    // Every existing path, with its parameters filled in.
    let listed = thalweg.json("/endpoints").unwrap();
    let document = api.get("/openapi.json").json;
    let mut paths: BTreeSet<String> = listed.as_object().unwrap().keys().cloned().collect();
    paths.extend(
        document["paths"]
            .as_object()
            .unwrap()
            .keys()
            .map(|path| format!("/api/v1{path}")),
    );
    let named = |path: &String| {
        let path = path
            .replace("{queue}", "q")
            .replace("{group}", "evil")
            .replace("{id}", "0-0");
        path.split('{').next().unwrap_or_default().to_owned()
    };
    let mut paths: BTreeSet<String> = paths.iter().map(named).collect();
    paths.insert("/api/sql?q=select+1".to_owned());
    paths.insert("/api/v1/queues/new/groups/evil/events".to_owned());
    paths.insert("/subscribe?all=true".to_owned());
    paths.insert("/import?force=true".to_owned());
    let paths: Vec<String> = paths.into_iter().collect();
    assert!(
        paths.iter().any(|path| path == "/api/v1/queues/q/groups/evil/events"),
        "{paths:?}"
    );

    // A page that rebinds its name may read public paths.
    let is_open = |one: &Value| {
        let url = one["url"].as_str().unwrap();
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        let path = path.strip_prefix("benthos/").unwrap_or(path).split('?').next().unwrap();
        url.contains("rebind.test")
            && ["ping", "ready", "version", "endpoints", "metrics", "stats", "health"].contains(&path)
    };
    let acting = [
        "/api/v1/queues/q/groups/evil/events",
        "/api/v1/queues/new/groups/evil/events?consumer=x",
        "/api/sql?q=select+1",
        "/subscribe?all=true",
        "/debug/pprof/profile?seconds=1",
    ];
    let mut answered = attack(&[format!("http://{address}")], &paths, &acting);
    let of_receiver = ["/", "/v1/logs", "/v1/metrics", "/v1/traces"].map(str::to_owned);
    answered.extend(attack(&[format!("http://127.0.0.1:{otlp}")], &of_receiver, &[]));
    let more: Vec<&Value> = answered.iter().filter(|one| !is_open(one)).collect();
    assert!(more.is_empty(), "{more:#?}");

    assert_eq!(api.get("/queues/q/groups").json, groups, "no group was made");
    assert_eq!(api.get("/queues/q").json["depth"], before["depth"]);
    assert_eq!(api.get("/queues/new").status, 404, "no queue was made");
    assert_eq!(
        api.get("/queues/q/dlq").json["messages"],
        json!([]),
        "nothing was claimed until it was dead"
    );
    let queries = thalweg.metric("thalweg_lake_query_seconds_count", "").unwrap_or(0.0);
    assert_eq!(queries, 0.0, "no query ran");
    thalweg.stop().unwrap();
}

#[test]
fn a_store_without_tokens_is_safe_from_pages_too() {
    let events = Events::in_memory();
    let paths = [
        "/rpc",
        "/subscribe?all=true",
        "/import?force=true",
        "/api/v1/events/backup",
    ]
    .map(str::to_owned);
    let acting = ["/subscribe?all=true", "/api/v1/events/backup"];
    let answered = attack(&[format!("http://{}", events.address)], &paths, &acting);
    assert!(answered.is_empty(), "{answered:#?}");
    eventually(|| {
        let streams = events.call(json!(["ns.streams"]));
        anyhow::ensure!(streams == json!([]), "{streams}");
        Ok(())
    })
    .unwrap();
}
