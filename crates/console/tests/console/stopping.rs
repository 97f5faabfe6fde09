use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use thalweg_telemetry::{Access, HttpRoutes, Mount};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::support::{connect, fetch, options, start_with, try_start};

/// `/slow` signals when it began and answers on request.
#[derive(Default)]
struct Slow {
    began: Arc<Notify>,
    answer: Arc<Notify>,
}

impl HttpRoutes for Slow {
    fn mounts(&self) -> Vec<Mount> {
        let (began, answer) = (self.began.clone(), self.answer.clone());
        let slow = async move || {
            began.notify_one();
            answer.notified().await;
            "done"
        };
        vec![Mount {
            router: Router::new().route("/slow", get(slow)),
            access: Access::Open,
            under_root_path: false,
        }]
    }
}

#[tokio::test]
async fn stopping_lets_a_running_request_finish_and_closes_idle_connections() {
    let slow = Arc::new(Slow::default());
    let running = try_start(options(), vec![slow.clone()]).await.unwrap();
    let address = running.address();
    let mut idle = connect(&running).await;
    idle.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut busy = connect(&running).await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    slow.began.notified().await;
    let stopping = tokio::spawn(running.stop());
    let mut rest = String::new();
    idle.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("pong"), "{rest}");
    slow.answer.notify_one();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("done"), "{answer}");
    stopping.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_request_that_does_not_finish_is_cut_off() {
    let slow = Arc::new(Slow::default());
    let mut hasty = options();
    hasty.limits.stop_grace = Duration::from_millis(50);
    let running = try_start(hasty, vec![slow.clone()]).await.unwrap();
    let mut busy = connect(&running).await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    slow.began.notified().await;
    running.stop().await;
    let mut answer = Vec::new();
    let _ = busy.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
}

#[tokio::test]
async fn the_address_is_free_again_after_stopping() {
    let running = start_with(options()).await;
    assert_eq!(fetch(&running, "/ping").await.status, 200);
    let mut same = options();
    same.http.address = running.address().to_string();
    running.stop().await;
    let again = start_with(same).await;
    assert_eq!(fetch(&again, "/ping").await.status, 200);
}

#[tokio::test]
async fn dropping_it_stops_it() {
    let running = start_with(options()).await;
    let address = running.address();
    drop(running);
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
