//! Shutdown: what is being stored is answered, and everything else ends at once.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::Value;
use thalweg_console::RunningListener;

use crate::client::Client;
use crate::face::{Face, TOKEN};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_subscriptions_properly_answers_what_is_stored_and_refuses_the_rest() {
    let face = Face::start().await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    let mut subscribers = Vec::new();
    for n in 0..1000 {
        let query = ["all=true", "category=c", "stream=c-1"][n % 3];
        subscribers.push(face.subscribe(query).await);
    }
    // One client waits for a message, one has its body half sent, and one has an append in progress.
    let mut waits = face.client().await;
    let wait = br#"["stream.get","s",{"waitMs":30000}]"#;
    let head = |len: usize| format!("POST /rpc HTTP/1.1\r\nhost: x\r\n{header}content-length: {len}\r\n\r\n");
    waits.write(&[head(wait.len()).as_bytes(), wait].concat()).await;
    let mut sends = face.client().await;
    sends.write(format!("{}[\"sys.", head(100)).as_bytes()).await;
    let mut imports = face.client().await;
    let import = format!("POST /import HTTP/1.1\r\nhost: x\r\n{header}content-length: 100\r\n\r\n{{");
    imports.write(import.as_bytes()).await;
    assert_eq!(imports.head().await.0, 200);
    tokio::time::sleep(Duration::from_millis(100)).await;
    face.store.seen.append_ms.store(300, SeqCst);
    let mut stores = face.client().await;
    let write = br#"["stream.write","c-1",{"type":"t","data":{}}]"#;
    stores.write(&[head(write.len()).as_bytes(), write].concat()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let Face {
        server,
        running,
        address,
        ..
    } = face;
    let stopped = tokio::spawn(async move {
        server.stop();
        running.iter().for_each(RunningListener::close);
        server.settled().await;
        futures::future::join_all(running.into_iter().map(RunningListener::stop)).await;
    });
    for pokes in &mut subscribers {
        pokes.end().await;
    }
    let stored = stores.answer().await;
    assert_eq!(
        (stored.status, stored.text.as_str()),
        (200, "{\"globalPosition\":1,\"position\":0}\n")
    );
    for client in [&mut waits, &mut sends] {
        let refused = client.answer().await;
        let json: Value = serde_json::from_str(&refused.text).unwrap();
        assert_eq!(
            (refused.status, &json["error"]["code"]),
            (503, &Value::from("UNAVAILABLE"))
        );
        assert_eq!(refused.headers["content-type"], "application/json");
    }
    let told = imports.chunk().await.unwrap();
    assert!(
        told.starts_with(
            "data: {\"error\":\"IMPORT_FAILED\",\"message\":\"the server is shutting down\",\"imported\":0,\"read\":0}"
        ),
        "{told}"
    );
    stopped.await.unwrap();
    assert!(
        tokio::net::TcpStream::connect(&address).await.is_err(),
        "the port is free"
    );
    tokio::net::TcpListener::bind(&address).await.unwrap();
    assert!(waits.is_closed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_comes_while_it_stops_is_refused() {
    let face = Face::start().await;
    let mut client = Client::connect(&face.address).await;
    face.server.stop();
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    for (method, path) in [
        ("POST", "/rpc"),
        ("GET", "/subscribe?all=true"),
        ("POST", "/import"),
        ("GET", "/ready"),
    ] {
        let answer = client.send(method, path, &header, b"").await;
        let expected = "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"The server is shutting down\"}}\n";
        assert_eq!((answer.status, answer.text.as_str()), (503, expected), "{path}");
        assert_eq!(answer.headers["retry-after"], "1");
    }
}
