//! A console on a free port, and a client that sees every byte.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::{get, post};
use parking_lot::Mutex;
use thalweg_config::{Config, Role, TokenConfig, TokenSecret};
use thalweg_console::{ConfigText, Console, ConsoleOptions, RunningListener, StartError};
use thalweg_telemetry::{
    Access, BalanceStatus, FlowStatus, HttpRoutes, Metrics, Mount, NodeKind, NodeStatus, StatusBoard, StatusSource,
    TableStatus, register_process_metrics,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// One flow that balances and one table; not ready for the reasons it is given.
#[derive(Default)]
pub struct FakeSource {
    pub not_ready: Mutex<Vec<String>>,
    pub degraded: Mutex<Vec<String>>,
}

impl StatusSource for FakeSource {
    fn flows(&self) -> Vec<FlowStatus> {
        let input = NodeStatus {
            kind: NodeKind::Input,
            component: "opcua".to_owned(),
            path: "root.input".to_owned(),
            label: String::new(),
            received: 10,
            sent: 10,
            errors: 0,
            connected: Some(true),
            not_ready: None,
            details: Vec::new(),
        };
        let balance = BalanceStatus {
            entered: 10,
            out: 7,
            filtered: 2,
            in_flight: 1,
            adds_up: true,
            ..BalanceStatus::default()
        };
        vec![FlowStatus {
            name: "default".to_owned(),
            nodes: vec![input],
            balance,
            latency_p50_ns: 5,
            latency_p99_ns: 9,
        }]
    }

    fn tables(&self) -> Vec<TableStatus> {
        vec![TableStatus {
            name: "tags".to_owned(),
            rows: 7,
            ..TableStatus::default()
        }]
    }

    fn not_ready(&self) -> Vec<String> {
        self.not_ready.lock().clone()
    }

    fn degraded(&self) -> Vec<String> {
        self.degraded.lock().clone()
    }
}

/// Paths of another component: `/echo` returns its body, `/open` is for everybody, `/own` authorizes by itself and
/// returns the length of a body of any size.
pub struct Extra;

/// A body whose end never arrives.
fn begun() -> axum::body::Body {
    use futures::StreamExt as _;
    let first = futures::stream::once(async { Ok::<_, std::io::Error>("data: begun\n\n") });
    axum::body::Body::from_stream(first.chain(futures::stream::pending()))
}

impl HttpRoutes for Extra {
    fn mounts(&self) -> Vec<Mount> {
        let guarded = Router::new()
            .route("/echo", post(async |body: String| body))
            .route("/api/sql", post(async || "[]"))
            .route(
                "/events",
                get(async || ([("content-type", "text/event-stream")], begun())),
            )
            .route("/parts", get(async || begun()))
            .route("/waits", get(std::future::pending::<String>));
        let of_reference = Router::new().route("/post", post(async |body: String| body));
        let open = Router::new().route("/open", get(async || "open"));
        let own = Router::new().route("/own", post(async |body: String| body.len().to_string()));
        let things = Router::new().route("/api/things/{thing}", post(async |body: String| body));
        vec![
            Mount {
                router: things,
                access: Access::Admin,
                under_root_path: false,
            },
            Mount {
                router: guarded,
                access: Access::ReadWrite,
                under_root_path: false,
            },
            Mount {
                router: of_reference,
                access: Access::ReadWrite,
                under_root_path: true,
            },
            Mount {
                router: open,
                access: Access::Open,
                under_root_path: false,
            },
            Mount {
                router: own,
                access: Access::Own,
                under_root_path: false,
            },
        ]
    }

    fn own_body_limits(&self) -> Vec<&'static str> {
        vec!["/own"]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        ["/echo", "/api/sql", "/post", "/open", "/own"]
            .map(|path| (path.to_owned(), "For tests.".to_owned()))
            .to_vec()
    }

    fn access(&self, _: &Method, path: &str) -> Option<Access> {
        path.ends_with(":look").then_some(Access::Read)
    }

    fn acting_reads(&self) -> Vec<String> {
        vec!["/events".to_owned()]
    }

    fn problem_paths(&self) -> Vec<&'static str> {
        vec!["/api/things"]
    }
}

pub fn options() -> ConsoleOptions {
    let config = Config::default();
    let mut http = config.http;
    http.address = "127.0.0.1:0".to_owned();
    let mut options = ConsoleOptions::new(http, config.auth);
    options.version = "1.2.3".to_owned();
    options.built = "in a test".to_owned();
    options.config = ConfigText {
        json: "{}".to_owned(),
        yaml: "{}\n".to_owned(),
    };
    options
}

/// A token whose text is its name.
pub fn token(name: &str, roles: &[Role]) -> TokenConfig {
    use sha2::Digest;
    let secret = TokenSecret::Sha256(sha2::Sha256::digest(name).into());
    TokenConfig {
        name: name.to_owned(),
        secret,
        roles: roles.to_vec(),
        pos: thalweg_config::Pos::WHOLE_FILE,
    }
}

pub async fn try_start(
    options: ConsoleOptions,
    routes: Vec<Arc<dyn HttpRoutes>>,
) -> Result<RunningListener, StartError> {
    let board = StatusBoard::default();
    board.add(Arc::new(FakeSource::default()));
    Console::start(options, Arc::new(Metrics::default()), board, routes).await
}

pub async fn start_with(options: ConsoleOptions) -> RunningListener {
    try_start(options, vec![Arc::new(Extra)]).await.unwrap()
}

/// A console whose source the caller controls.
pub async fn start() -> (RunningListener, Arc<FakeSource>) {
    let source = Arc::new(FakeSource::default());
    let board = StatusBoard::default();
    board.add(source.clone());
    let metrics = Metrics::default();
    register_process_metrics(&metrics);
    let running = Console::start(options(), Arc::new(metrics), board, vec![Arc::new(Extra)])
        .await
        .unwrap();
    (running, source)
}

/// The answer, with headers in lower case.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

pub async fn connect(running: &RunningListener) -> TcpStream {
    TcpStream::connect(running.address()).await.unwrap()
}

/// Sends bytes and reads until the server closes. Returns `None` if the connection is closed without an answer.
pub async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, request: &[u8]) -> Option<Answer> {
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        head,
        body: bytes[end + 4..].to_vec(),
    })
}

/// One request on its own connection. `headers` are whole lines.
pub async fn send(running: &RunningListener, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    if !body.is_empty() || method != "GET" {
        request += &format!("content-length: {}\r\ncontent-type: text/plain\r\n", body.len());
    }
    for header in headers {
        request += &format!("{header}\r\n");
    }
    request += &format!("\r\n{body}");
    exchange(&mut connect(running).await, request.as_bytes()).await.unwrap()
}

pub async fn fetch(running: &RunningListener, path: &str) -> Answer {
    send(running, "GET", path, &[], "").await
}
