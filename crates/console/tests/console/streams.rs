//! HTTP/2 clients that stall requests and answers.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, Version};
use axum::routing::{get, post};
use futures::{StreamExt as _, stream};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thalweg_console::{ConsoleOptions, HttpLimits, RunningListener};
use thalweg_telemetry::{Access, HttpRoutes, Mount};
use tokio::task::JoinHandle;

use crate::support::{connect, fetch, options, try_start};

const LONG: Duration = Duration::from_secs(60);
/// More than a client of this library accepts unread.
const LARGE: usize = 16 << 20;
const SHORT: Duration = Duration::from_secs(1);

/// `/large` answers with this many bytes, `/later` after five times [`SHORT`], `/events` sends one event and no more;
/// `/take` has its own body limit.
struct Slow;

impl HttpRoutes for Slow {
    fn mounts(&self) -> Vec<Mount> {
        let large = get(async || vec![b'x'; LARGE]);
        let later = get(async || {
            tokio::time::sleep(SHORT * 5).await;
            "later"
        });
        let events = get(async || {
            let one = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"data: 1\n\n"))]);
            let body = Body::from_stream(one.chain(stream::pending()));
            ([("content-type", "text/event-stream")], body)
        });
        let router = Router::new()
            .route("/large", large)
            .route("/later", later)
            .route("/events", events);
        vec![
            Mount {
                router,
                access: Access::Open,
                under_root_path: false,
            },
            Mount {
                router: Router::new().route("/take", post(async |body: String| body)),
                access: Access::Own,
                under_root_path: false,
            },
        ]
    }
}

async fn start_with(change: impl FnOnce(&mut HttpLimits)) -> RunningListener {
    let mut options: ConsoleOptions = options();
    options.limits = HttpLimits {
        header_timeout: LONG,
        request_stall_max: Some(LONG),
        write_stall_max: LONG,
        push_stall_max: LONG,
        ..options.limits
    };
    change(&mut options.limits);
    try_start(options, vec![Arc::new(Slow)]).await.unwrap()
}

struct Client {
    sender: SendRequest<Body>,
    ended: JoinHandle<hyper::Result<()>>,
}

impl Client {
    async fn of(running: &RunningListener) -> Client {
        let io = TokioIo::new(connect(running).await);
        let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
        Client {
            sender,
            ended: tokio::spawn(connection),
        }
    }

    async fn get(&mut self, path: &str) -> Body {
        let request = Request::get(format!("http://localhost{path}"))
            .body(Body::empty())
            .unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
        Body::new(response.into_body())
    }

    async fn ends(self) {
        let _ = tokio::time::timeout(LONG, self.ended)
            .await
            .expect("the connection is closed");
    }
}

#[tokio::test]
async fn clients_that_begin_requests_and_send_nothing_of_them_make_room_for_whoever_asks() {
    let running = start_with(|limits| {
        limits.connections_max = 16;
        limits.body_grace = LONG;
    })
    .await;
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        let mut client = Client::of(&running).await;
        for _ in 0..2 {
            let body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
            let request = Request::post("http://localhost/take").body(body).unwrap();
            waiting.push(client.sender.send_request(request));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        held.push(client);
    }
    let began = std::time::Instant::now();
    while fetch(&running, "/later").await.status != 200 {
        assert!(began.elapsed() < LONG, "they keep others out");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let metrics = fetch(&running, "/metrics").await;
    let slow = "thalweg_http_connections_closed_for_others_total{why=\"slow\"} ";
    let closed = metrics
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(slow).map(str::to_owned));
    assert!(closed.unwrap().parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_an_answer_is_closed() {
    let running = start_with(|limits| limits.write_stall_max = SHORT).await;
    let mut client = Client::of(&running).await;
    let untaken = client.get("/large").await;
    client.ends().await;
    assert!(to_bytes(untaken, 2 * LARGE).await.is_err());
}

#[tokio::test]
async fn one_that_takes_it_or_waits_for_it_is_not() {
    let running = start_with(|limits| {
        (limits.write_stall_max, limits.push_stall_max) = (SHORT, SHORT);
        (limits.request_stall_max, limits.header_timeout) = (Some(SHORT), SHORT);
    })
    .await;
    let mut client = Client::of(&running).await;
    let events = client.get("/events").await;
    let later = to_bytes(client.get("/later").await, 100).await.unwrap();
    assert_eq!(&later[..], b"later");
    let large = to_bytes(client.get("/large").await, 2 * LARGE).await.unwrap();
    assert_eq!(large.len(), LARGE);
    assert!(!client.ended.is_finished());
    drop(events);
    // There are no requests any more.
    client.ends().await;
}

#[tokio::test]
async fn one_that_sends_nothing_of_its_request_is_closed() {
    let running = start_with(|limits| limits.request_stall_max = Some(SHORT)).await;
    let mut client = Client::of(&running).await;
    let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"begun"))]);
    let body = Body::from_stream(begun.chain(stream::once(pending())));
    let request = Request::post("http://localhost/take").body(body).unwrap();
    assert!(client.sender.send_request(request).await.is_err());
    client.ends().await;
}
