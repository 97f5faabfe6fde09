//! A console over a made-up plant, for work on the status page: `cargo run --release -p thalweg-console --example
//! fake_console -- [ADDRESS]`. Nothing is collected; the counters run by themselves, with a source that is away for 20
//! of every 90 seconds. Heap profiles work with `MALLOC_CONF=prof:true,prof_active:true,lg_prof_sample:16`.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;
use thalweg_config::Config;
use thalweg_console::{ConfigText, Console, ConsoleOptions};
use thalweg_telemetry::alloc::CountingAllocator;
use thalweg_telemetry::{
    Access, BalanceStatus, FlowStatus, HttpRoutes, Metrics, Mount, NodeKind, NodeStatus, StatusBoard, StatusDetail,
    StatusSource, TableStatus, register_process_metrics,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator<tikv_jemallocator::Jemalloc> = CountingAllocator(tikv_jemallocator::Jemalloc);

const TICK: Duration = Duration::from_millis(50);
const AWAY_EVERY_SECONDS: u64 = 90;
const AWAY_SECONDS: u64 = 20;

/// Counters of one made-up flow.
#[derive(Clone, Copy, Default)]
struct Counts {
    entered: u64,
    filtered: u64,
    dropped: u64,
    out: u64,
}

impl Counts {
    fn in_flight(&self) -> u64 {
        self.entered - self.filtered - self.dropped - self.out
    }

    /// What has entered leaves one step later.
    fn step(&mut self, entered: u64, filtered_share: f64, dropped: u64) {
        let dropped = dropped.min(self.in_flight());
        let filtered = ((self.in_flight() - dropped) as f64 * filtered_share) as u64;
        self.out += self.in_flight() - dropped - filtered;
        self.dropped += dropped;
        self.filtered += filtered;
        self.entered += entered;
    }

    fn balance(&self, filtered_by: &str, dropped_by: &str) -> BalanceStatus {
        let reasons = |reason: &str, n: u64| {
            if n == 0 {
                Vec::new()
            } else {
                vec![(reason.to_owned(), n)]
            }
        };
        BalanceStatus {
            entered: self.entered,
            expanded: 0,
            out: self.out,
            filtered: self.filtered,
            dropped: self.dropped,
            in_flight: self.in_flight(),
            adds_up: true,
            filtered_by: reasons(filtered_by, self.filtered),
            dropped_by: reasons(dropped_by, self.dropped),
        }
    }
}

struct Plant {
    started: Instant,
    counts: parking_lot::Mutex<Flows>,
}

#[derive(Clone, Copy, Default)]
struct Flows {
    tags: Counts,
    orders: Counts,
}

impl Plant {
    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn source_is_away(&self) -> bool {
        self.started.elapsed().as_secs() % AWAY_EVERY_SECONDS >= AWAY_EVERY_SECONDS - AWAY_SECONDS
    }

    fn step(&self, step: u64) {
        let wave = 1.0 + 0.15 * (self.seconds() / 17.0).sin() + 0.05 * (self.seconds() / 2.3).sin();
        let tick = TICK.as_secs_f64();
        let orders = (42.0 * wave * tick) as u64 + u64::from(step.is_multiple_of(3));
        let mut counts = self.counts.lock();
        counts.tags.step(
            (5_500.0 * wave * tick) as u64,
            0.25,
            u64::from(step.is_multiple_of(400)) * 3,
        );
        counts.orders.step(
            if self.source_is_away() { 0 } else { orders },
            0.0,
            u64::from(step.is_multiple_of(60)),
        );
    }
}

fn node(kind: NodeKind, component: &str, path: &str, received: u64, sent: u64) -> NodeStatus {
    NodeStatus {
        kind,
        component: component.to_owned(),
        path: path.to_owned(),
        label: String::new(),
        received,
        sent,
        errors: 0,
        connected: matches!(kind, NodeKind::Input | NodeKind::Output).then_some(true),
        not_ready: None,
        details: Vec::new(),
    }
}

impl StatusSource for Plant {
    fn flows(&self) -> Vec<FlowStatus> {
        let counts = *self.counts.lock();
        vec![tags(&counts.tags), orders(&counts.orders, self.source_is_away())]
    }

    fn tables(&self) -> Vec<TableStatus> {
        let rows = self.counts.lock().tags.out;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let commits = self.started.elapsed().as_secs() / 2;
        vec![
            TableStatus {
                name: "tags".to_owned(),
                rows: 148_201_377 + rows - rows % 8_000,
                files: 312 + commits,
                bytes: 1_930_211_904 + rows * 13,
                version: 1_204 + commits as i64,
                buffered_rows: rows % 8_000,
                last_commit_unix_ms: Some(now - now % 2_000),
                failed: None,
            },
            TableStatus {
                name: "orders".to_owned(),
                rows: 90_112,
                files: 14,
                bytes: 4_411_200,
                version: 33,
                buffered_rows: 512,
                last_commit_unix_ms: Some(now - 7_260_000),
                failed: Some("the disk of ./thalweg-data/lake is full; free some space, then restart".to_owned()),
            },
        ]
    }

    fn not_ready(&self) -> Vec<String> {
        let mut sentences = vec![
            "flow orders: output mqtt: cannot reach tcp://broker.plant.example:1883: connection refused".to_owned(),
        ];
        if self.source_is_away() {
            sentences.push("flow orders: input http_server: nobody is connected".to_owned());
        }
        sentences
    }
}

fn tags(counts: &Counts) -> FlowStatus {
    let balance = counts.balance("deadband", "script_error");
    let scripted = balance.entered - balance.dropped;
    let kept = scripted - balance.filtered - balance.in_flight;
    let mut input = node(NodeKind::Input, "opcua", "root.input", balance.entered, balance.entered);
    input.details = vec![
        StatusDetail::new("endpoint", "opc.tcp://127.0.0.1:4840"),
        StatusDetail::new("tags found", 10_000),
        StatusDetail::new("tags monitored", 9_998),
        StatusDetail::new("tags failed", 2),
        StatusDetail::new("security", "SignAndEncrypt, Basic256Sha256"),
    ];
    let mut script = node(
        NodeKind::Processor,
        "tag_processor",
        "root.pipeline.processors.0",
        balance.entered,
        scripted,
    );
    script.errors = balance.dropped;
    let mut sampler = node(
        NodeKind::Processor,
        "downsampler",
        "root.pipeline.processors.1",
        scripted,
        kept,
    );
    sampler.label = "keep changes".to_owned();
    let mut output = node(NodeKind::Output, "lake", "root.output", kept, balance.out);
    output.details = vec![
        StatusDetail::new("table", "tags"),
        StatusDetail::new("rows buffered", balance.out % 8_000),
    ];
    FlowStatus {
        name: "tags".to_owned(),
        nodes: vec![input, script, sampler, output],
        balance,
        latency_p50_ns: 1_180_000_000,
        latency_p99_ns: 2_090_000_000,
    }
}

fn orders(counts: &Counts, source_is_away: bool) -> FlowStatus {
    let balance = counts.balance("unchanged", "output_rejected");
    let (entered, out) = (balance.entered, balance.out);
    let mut input = node(NodeKind::Input, "http_server", "root.input", entered, entered);
    if source_is_away {
        input.connected = Some(false);
        input.not_ready = Some("nobody is connected".to_owned());
    }
    let mapping = node(
        NodeKind::Processor,
        "mapping",
        "root.pipeline.processors.0",
        entered,
        entered - balance.in_flight,
    );
    let broker = node(NodeKind::Output, "broker", "root.output", out, out);
    let mut file = node(NodeKind::Output, "file", "root.output.broker.outputs.0", out, out);
    file.details = vec![StatusDetail::new(
        "path",
        "/var/lib/plant/orders/2031/archive-of-every-order.jsonl",
    )];
    let mut mqtt = node(
        NodeKind::Output,
        "mqtt",
        "root.output.broker.outputs.1",
        out,
        out - out / 9,
    );
    mqtt.label = "shop floor".to_owned();
    mqtt.errors = out / 40;
    mqtt.connected = Some(false);
    mqtt.not_ready = Some("cannot reach tcp://broker.plant.example:1883: connection refused".to_owned());
    let letters = node(
        NodeKind::DeadLetter,
        "file",
        "root.dead_letter",
        balance.dropped,
        balance.dropped,
    );
    FlowStatus {
        name: "orders".to_owned(),
        nodes: vec![input, mapping, broker, file, mqtt, letters],
        balance,
        latency_p50_ns: 840_000,
        latency_p99_ns: 12_400_000,
    }
}

struct Sql;

impl HttpRoutes for Sql {
    fn mounts(&self) -> Vec<Mount> {
        let router = Router::new().route("/api/sql", post(answer));
        vec![Mount {
            router,
            access: Access::Read,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        vec![("/api/sql".to_owned(), "Made-up answers.".to_owned())]
    }
}

async fn answer(query: String) -> Response {
    if !query.to_lowercase().contains("select") {
        let problem =
            json!({"code": "sql.parse", "detail": "line 1, column 1: expected SELECT, WITH, EXPLAIN or SHOW"});
        return (StatusCode::BAD_REQUEST, axum::Json(problem)).into_response();
    }
    let rows: Vec<_> = (0..120)
        .map(|n| {
            json!({
                "time": format!("2031-05-04T10:{:02}:{:02}.500Z", n / 60, n % 60),
                "location_path": "enterprise.site.area.line",
                "tag_name": format!("temperature_{n}"),
                "value": 20.0 + f64::from(n) / 8.0,
                "quality": if n % 17 == 5 { json!(null) } else { json!("Good") },
                "counter": "9007199254740993",
            })
        })
        .collect();
    axum::Json(rows).into_response()
}

/// Load for profiles.
fn work(plant: &Plant) {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for step in 1.. {
        plant.step(step);
        let burn = Instant::now();
        while burn.elapsed() < Duration::from_millis(2) {
            std::hint::black_box((0..500u64).fold(step, |a, b| a.rotate_left(5) ^ b));
        }
        kept.push(vec![step as u8; 10_000]);
        if kept.len() > 2_000 {
            kept.clear();
        }
        std::thread::sleep(TICK);
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut http = Config::default().http;
    http.address = std::env::args().nth(1).unwrap_or(http.address);
    http.debug_endpoints = true;
    let mut options = ConsoleOptions::new(http, Config::default().auth);
    options.built = "made up".to_owned();
    options.config = ConfigText {
        json: "{\"made\": \"up\"}\n".to_owned(),
        yaml: "made: up\n".to_owned(),
    };
    let plant = Arc::new(Plant {
        started: Instant::now(),
        counts: parking_lot::Mutex::default(),
    });
    let worker = plant.clone();
    std::thread::Builder::new()
        .name("plant".to_owned())
        .spawn(move || work(&worker))
        .unwrap();
    let board = StatusBoard::default();
    board.add(plant);
    let metrics = Arc::new(Metrics::default());
    register_process_metrics(&metrics);
    match Console::start(options, metrics, board, vec![Arc::new(Sql)]).await {
        Ok(running) => {
            println!("{}", running.url());
            tokio::signal::ctrl_c().await.unwrap();
            running.stop().await;
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
