use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use thalweg_console::{Console, StartError};
use thalweg_telemetry::{Access, HttpRoutes, MetricDoc, Metrics, Mount, StatusBoard};

use crate::support::{Extra, fetch, options, send, start, start_with, try_start};

#[tokio::test]
async fn the_reference_paths_answer_at_the_root_and_under_the_root_path() {
    let (running, _) = start().await;
    for prefix in ["", "/benthos"] {
        assert_eq!(fetch(&running, &format!("{prefix}/ping")).await.text(), "pong");
        assert_eq!(fetch(&running, &format!("{prefix}/ready")).await.status, 200);
        let version = fetch(&running, &format!("{prefix}/version")).await.json();
        assert_eq!(version, serde_json::json!({"version": "1.2.3", "built": "in a test"}));
        for path in ["metrics", "stats"] {
            let metrics = fetch(&running, &format!("{prefix}/{path}")).await;
            assert_eq!(
                metrics.header("content-type"),
                Some("text/plain; version=0.0.4; charset=utf-8")
            );
            assert!(
                metrics.text().contains("process_cpu_seconds_total "),
                "{}",
                metrics.text()
            );
            assert!(
                metrics.text().contains("thalweg_http_connections 1"),
                "{}",
                metrics.text()
            );
        }
    }
    assert_eq!(fetch(&running, "/benthos/api/v1/status").await.status, 404);
    assert_eq!(fetch(&running, "/benthos/").await.status, 404);
}

#[tokio::test]
async fn the_root_path_can_be_changed_and_left_out() {
    let mut elsewhere = options();
    elsewhere.http.root_path = "/plant/7/".to_owned();
    let running = start_with(elsewhere).await;
    assert_eq!(fetch(&running, "/plant/7/ping").await.status, 200);
    assert_eq!(fetch(&running, "/benthos/ping").await.status, 404);

    let mut nowhere = options();
    nowhere.http.root_path = "/".to_owned();
    let running = start_with(nowhere).await;
    assert_eq!(fetch(&running, "/ping").await.status, 200);
}

#[tokio::test]
async fn not_ready_names_everything_that_keeps_data_from_flowing() {
    let (running, source) = start().await;
    *source.not_ready.lock() = vec![
        "flow a: input opcua: no route".to_owned(),
        "flow b: output lake: disk full".to_owned(),
    ];
    let answer = fetch(&running, "/ready").await;
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.text(),
        "flow a: input opcua: no route\nflow b: output lake: disk full\n"
    );
    source.not_ready.lock().clear();
    assert_eq!(fetch(&running, "/ready").await.status, 200);
}

/// The runtime of this test has one thread.
#[tokio::test]
async fn probes_are_answered_while_metrics_and_the_status_are_made() {
    let (answered, told) = std::sync::mpsc::channel();
    let told = parking_lot::Mutex::new(told);
    let metrics = Metrics::default();
    let slow = MetricDoc::gauge("slow", "Whether others were answered meanwhile.");
    metrics.tell(&slow, move |families| {
        // Longer than anything takes; reaching it fails the test.
        let is_answered = told.lock().recv_timeout(std::time::Duration::from_secs(30)).is_ok();
        families.gauge(&slow, &[], f64::from(is_answered));
    });
    let routes: Vec<Arc<dyn HttpRoutes>> = vec![Arc::new(Extra)];
    let running = Console::start(options(), Arc::new(metrics), StatusBoard::default(), routes)
        .await
        .unwrap();
    for path in ["/metrics", "/stats"] {
        let (metrics, ()) = tokio::join!(fetch(&running, path), async {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            for path in ["/ping", "/ready", "/version", "/api/v1/status", "/"] {
                assert_eq!(fetch(&running, path).await.status, 200, "{path}");
            }
            answered.send(()).unwrap();
        });
        assert!(metrics.text().contains("slow 1"), "{path}: {}", metrics.text());
    }
}

#[tokio::test]
async fn a_long_list_of_metrics_comes_whole_and_compressed_to_whoever_takes_that() {
    const MANY: MetricDoc = MetricDoc::gauge("many", "Many.").with_labels(&["n"]);
    let metrics = Metrics::default();
    metrics.tell(&MANY, |families| {
        for n in 0..5000 {
            families.gauge(&MANY, &[("n", &n.to_string())], f64::from(n));
        }
    });
    let running = Console::start(options(), Arc::new(metrics), StatusBoard::default(), Vec::new())
        .await
        .unwrap();
    let plain = fetch(&running, "/metrics").await;
    assert_eq!(plain.header("content-length").unwrap().parse(), Ok(plain.body.len()));
    assert_eq!(plain.text().matches("many{n=").count(), 5000);
    let packed = send(&running, "GET", "/metrics", &["accept-encoding: gzip"], "").await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < plain.body.len() / 4);
}

#[tokio::test]
async fn what_is_degraded_is_ready_and_says_why() {
    let (running, source) = start().await;
    source.degraded.lock().push("a frame is damaged".to_owned());
    let answer = fetch(&running, "/ready").await;
    assert_eq!(
        (answer.status, answer.text()),
        (200, "OK, but degraded\na frame is damaged\n")
    );
    let status = fetch(&running, "/api/v1/status").await.json();
    assert_eq!(status["degraded"][0], "a frame is damaged");
    source.not_ready.lock().push("flow a: waits".to_owned());
    assert_eq!(fetch(&running, "/ready").await.status, 503);
}

#[tokio::test]
async fn the_status_holds_flows_tables_and_process() {
    let (running, source) = start().await;
    source.not_ready.lock().push("flow a: waits".to_owned());
    let status = fetch(&running, "/api/v1/status").await;
    assert_eq!(status.header("cache-control"), Some("no-store"));
    let status = status.json();
    assert_eq!(status["flows"][0]["balance"]["in"], 10);
    assert_eq!(status["flows"][0]["nodes"][0]["kind"], "input");
    assert_eq!(status["tables"][0]["rows"], 7);
    assert_eq!(status["not_ready"][0], "flow a: waits");
    assert_eq!(status["sql"], true);
    assert_eq!(status["version"], "1.2.3");
    assert!(status["process"]["resident_bytes"].as_u64().unwrap() > 0);
    assert!(status["process"]["cores"].as_u64().unwrap() > 0);
    let later = fetch(&running, "/api/v1/status").await.json();
    assert!(later["uptime_ms"].as_u64() >= status["uptime_ms"].as_u64());
    assert_eq!(later["started_unix_ms"], status["started_unix_ms"]);
}

#[tokio::test]
async fn the_history_begins_with_the_start() {
    let (running, _) = start().await;
    let mut samples = fetch(&running, "/api/v1/status/history").await.json();
    while samples.as_array().unwrap().is_empty() {
        samples = fetch(&running, "/api/v1/status/history").await.json();
    }
    assert_eq!(samples[0]["flows"][0], serde_json::json!([10, 7]));
}

#[tokio::test]
async fn the_list_of_endpoints_holds_those_of_components() {
    let (running, _) = start().await;
    let list = fetch(&running, "/endpoints").await.json();
    assert_eq!(list["/ping"], "Answers pong while the process runs.");
    assert_eq!(list["/echo"], "For tests.");
    let missing = fetch(&running, "/nowhere").await;
    assert_eq!(missing.status, 404);
    assert_eq!(
        missing.text(),
        "there is no path /nowhere here; /endpoints lists the existing ones\n"
    );
}

struct Clashing {
    path: &'static str,
    declared: bool,
}

impl HttpRoutes for Clashing {
    fn mounts(&self) -> Vec<Mount> {
        let router = Router::new().route(self.path, get(async || "mine"));
        vec![Mount {
            router,
            access: Access::Open,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        if self.declared {
            vec![(self.path.to_owned(), String::new())]
        } else {
            Vec::new()
        }
    }
}

#[tokio::test]
async fn a_path_that_is_taken_is_refused_at_start() {
    let clash =
        |path, declared| -> Vec<Arc<dyn HttpRoutes>> { vec![Arc::new(Extra), Arc::new(Clashing { path, declared })] };
    for path in ["/ping", "/echo"] {
        let error = try_start(options(), clash(path, true)).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            format!("the path {path} is already served by Thalweg or by another component; choose another one")
        );
    }
    let error = try_start(options(), clash("/open", false)).await.err().unwrap();
    assert!(matches!(error, StartError::PathsClash { .. }), "{error}");
}

#[tokio::test]
async fn a_port_in_use_gives_one_sentence_with_the_cure() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let mut same = options();
    same.http.address.clone_from(&address);
    let error = try_start(same, Vec::new()).await.err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on {address}: the port is taken by another process; stop it or set http.address to another port"
        )
    );
}

#[tokio::test]
async fn an_address_that_cannot_be_bound_gives_the_cure() {
    for (address, part) in [
        (
            "192.0.2.1:4195",
            "this machine has no such address; set http.address to 127.0.0.1:4195",
        ),
        ("no.such.host.invalid:4195", "set http.address to host:port"),
    ] {
        let mut wrong = options();
        wrong.http.address = address.to_owned();
        let error = try_start(wrong, Vec::new()).await.err().unwrap().to_string();
        assert!(
            error.starts_with(&format!("cannot listen on {address}: ")) && error.contains(part),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_empty_host_listens_on_all_addresses() {
    let mut all = options();
    all.http.address = ":0".to_owned();
    let running = start_with(all).await;
    assert!(running.address().ip().is_unspecified());
    let port = running.address().port();
    assert_eq!(running.url(), format!("http://127.0.0.1:{port}"));
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(
        crate::support::exchange(&mut stream, request).await.unwrap().text(),
        "pong"
    );
}
