//! HTTP endpoints and the status page of a running process.

use std::process::Command;

use thalweg_tests::servers::{node_modules, tool_chromium};
use thalweg_tests::{Thalweg, eventually};

const FLOW: &str = "\
http: {debug_endpoints: true}
input:
  generate: {interval: 10ms, batch_size: 10, mapping: root = counter()}
pipeline:
  processors:
    - label: tags
      tag_processor:
        defaults: |
          msg.meta.location_path = \"e\"; msg.meta.data_contract = \"_raw\"; msg.meta.tag_name = \"n\"; return msg;
output:
  lake: {table: tags}
";

#[test]
fn health_version_and_metrics_answer_as_the_reference_does() {
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    assert_eq!(thalweg.get("/ping").unwrap(), "pong");
    thalweg.wait_ready().unwrap();
    let version = thalweg.json("/version").unwrap();
    let part = |name: &str| version[name].as_str().unwrap_or_default().to_owned();
    assert!(!part("version").is_empty() && part("built").ends_with('Z'), "{version}");
    let endpoints = thalweg.get("/endpoints").unwrap();
    for path in ["/api/sql", "/api/v1/opcua/nodes", "/api/v1/opcua/failures"] {
        assert!(
            endpoints.contains(&format!("\"{path}\"")),
            "{path} is missing in {endpoints}"
        );
    }
    eventually(|| {
        let metrics = thalweg.get("/metrics")?;
        for name in [
            "input_received",
            "processor_received{label=\"tags\",path=\"root.pipeline.processors.0\"}",
            "output_sent",
            "thalweg_flow_in_total",
            "thalweg_flow_latency_ns",
            "thalweg_lake_visibility_seconds_count{table=\"tags\"}",
            "thalweg_lake_memory_bytes{kind=\"limit\",share=\"lake.memory\"}",
            "thalweg_lake_memory_bytes{kind=\"used\",share=\"query.memory\"}",
            "process_cpu_seconds_total",
        ] {
            anyhow::ensure!(metrics.contains(name), "{name} is missing");
        }
        anyhow::ensure!(thalweg.metric("output_sent", "")? > 0.0);
        Ok(())
    })
    .unwrap();
    assert_eq!(thalweg.request("/benthos/ping").unwrap().0, 200);
    thalweg.balance().unwrap();
    thalweg.stop().unwrap();
}

#[test]
fn profiles_are_readable_by_the_go_tool() {
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    thalweg.wait_ready().unwrap();
    // What is sampled comes with some luck: the allocator samples each 512 KiB, the kernel each 10 ms of CPU time.
    eventually(|| {
        let heap = raw_profile(&thalweg, "heap");
        profile_has(
            &heap,
            &["PeriodType: space bytes", "inuse_space/bytes", "[FN]", "/thalweg"],
        )?;
        profile_has(&heap, &["thalweg_", ".rs:"])
    })
    .unwrap();
    eventually(|| {
        let cpu = raw_profile(&thalweg, "profile?seconds=1");
        profile_has(&cpu, &["samples/count", "cpu/nanoseconds", "thread:["])?;
        profile_has(&cpu, &["thalweg_", ".rs:"])
    })
    .unwrap();
    let threads = raw_profile(&thalweg, "goroutine");
    profile_has(&threads, &["threads/count", "thread:["]).unwrap();
    thalweg.stop().unwrap();
}

/// A profile as the Go tool prints it: samples, locations with their functions, and mappings.
fn raw_profile(thalweg: &Thalweg, path: &str) -> String {
    let url = format!("http://{}/debug/pprof/{path}", thalweg.address().unwrap());
    let output = Command::new("go")
        .args(["tool", "pprof", "-raw", &url])
        // It keeps profiles in the one, and itself in the other: compiling it takes long.
        .env("HOME", thalweg.folder.path())
        .env("GOCACHE", go_cache())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn go_cache() -> String {
    let output = Command::new("go").args(["env", "GOCACHE"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn profile_has(profile: &str, words: &[&str]) -> anyhow::Result<()> {
    for word in words {
        anyhow::ensure!(profile.contains(word), "{word:?} is missing in {profile}");
    }
    Ok(())
}

#[test]
fn the_console_says_how_each_script_runs_and_why() {
    let yaml = "\
input: {generate: {interval: 10ms, mapping: root = counter()}}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"acme\"; msg.meta.data_contract = \"_raw\"; msg.meta.tag_name = \"t\";
          return msg;
        advancedProcessing: |
          msg.payload = new Map([[1, msg.payload]]).get(1);
          return msg;
output: {drop: {}}
";
    let mut thalweg = Thalweg::start(yaml).unwrap();
    thalweg.wait_ready().unwrap();
    let details = thalweg.node("processor").unwrap()["details"].clone();
    let detail = |name: &str| {
        let all = details.as_array().unwrap().iter();
        let found = all.into_iter().find(|detail| detail["name"] == name);
        found.map(|detail| detail["value"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(
        detail("script defaults").as_deref(),
        Some("native code, once for each tag"),
        "{details}"
    );
    let advanced = detail("script advanced").unwrap_or_else(|| panic!("{details}"));
    assert!(
        advanced.starts_with("QuickJS: ") && advanced.contains("line 1, column "),
        "{advanced}"
    );
    thalweg.stop().unwrap();
}

#[test]
fn the_status_page_shows_a_person_the_running_graph() {
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    thalweg.wait_ready().unwrap();
    let script = thalweg_tests::beside("browser/status_page.mjs");
    let output = Command::new("node")
        .arg(script)
        .arg(format!("http://{}", thalweg.address().unwrap()))
        .args(["--sql", "select tag, value from tags limit 5"])
        .env("NODE_PATH", node_modules().unwrap())
        .env("THALWEG_TEST_NODE_MODULES", node_modules().unwrap())
        .env("THALWEG_TEST_CHROMIUM", tool_chromium().unwrap())
        .output()
        .unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{error}");
    thalweg.stop().unwrap();
}
