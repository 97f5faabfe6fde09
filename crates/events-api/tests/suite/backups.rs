//! Backups: who may get one, and how one ends that cannot go on.

use serde_json::json;
use thalweg_events::backup::{BackupPart, BackupReader};
use tokio::io::AsyncReadExt as _;

use crate::client::Client;
use crate::face::{Face, TOKEN};

const PATH: &str = "/api/v1/events/backup";

fn header(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

/// More than the buffers between client and server can store.
async fn with_much() -> Face {
    let face = Face::start().await;
    for _ in 0..40 {
        let data = json!({"x": "x".repeat(1 << 20)});
        face.call(json!(["stream.write", "s", {"type": "t", "data": data}]))
            .await;
    }
    face
}

/// A client that has read only the head of the response.
async fn begun(face: &Face, token: &str) -> Client {
    let mut client = face.client().await;
    let head = format!("GET {PATH} HTTP/1.1\r\nhost: x\r\n{}\r\n", header(token));
    client.write(head.as_bytes()).await;
    let (status, headers) = client.head().await;
    assert_eq!(status, 200, "{headers:?}");
    assert_eq!(headers["content-type"], "application/octet-stream");
    assert_eq!(headers["transfer-encoding"], "chunked");
    client
}

/// The rest, and whether the body ends properly.
async fn rest(mut client: Client) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    loop {
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            match client.0.read_u8().await {
                Ok(byte) => size.push(byte),
                Err(_) => return (bytes, false),
            }
        }
        let text = String::from_utf8(size).unwrap();
        let mut chunk = vec![0; usize::from_str_radix(text.trim(), 16).unwrap() + 2];
        if client.0.read_exact(&mut chunk).await.is_err() {
            return (bytes, false);
        }
        chunk.truncate(chunk.len() - 2);
        if chunk.is_empty() {
            return (bytes, true);
        }
        bytes.extend_from_slice(&chunk);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_for_administrators_and_comes_whole() {
    let face = with_much().await;
    let made = face
        .call(json!(["token.create", "default", {"scopes": ["read", "write"]}]))
        .await;
    let other = made["token"].as_str().unwrap();
    for (method, headers, status) in [
        ("GET", String::new(), 401),
        ("GET", header(other), 403),
        ("POST", header(TOKEN), 405),
    ] {
        let answer = face.send(method, PATH, &headers, b"").await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let (bytes, ended) = rest(begun(&face, TOKEN).await).await;
    assert!(ended);
    let mut backup = BackupReader::new(&bytes[..]).unwrap();
    let mut messages = None;
    while let Some(part) = backup.next_part().unwrap() {
        if let BackupPart::End(counts) = part {
            messages = Some(counts.messages);
        }
    }
    assert_eq!(messages, Some(40));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_ends_early_with_its_token_or_the_server_and_is_seen_to() {
    let face = with_much().await;
    let made = face
        .call(json!(["token.create", "default", {"scopes": ["admin"]}]))
        .await;
    let (with_token, beside) = (
        begun(&face, made["token"].as_str().unwrap()).await,
        begun(&face, TOKEN).await,
    );
    face.call(json!(["token.revoke", "default", made["id"]])).await;
    let (bytes, ended) = rest(with_token).await;
    assert!(!ended && bytes.len() < 40 << 20, "{}", bytes.len());
    face.server.stop();
    let (bytes, ended) = rest(beside).await;
    assert!(!ended && bytes.len() < 40 << 20, "{}", bytes.len());
    // Even the head may be incomplete in the little that was sent.
    let is_seen = match BackupReader::new(&bytes[..]) {
        Err(_) => true,
        Ok(mut backup) => loop {
            match backup.next_part() {
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
        },
    };
    assert!(is_seen);
}
