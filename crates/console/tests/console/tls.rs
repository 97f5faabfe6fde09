use std::path::PathBuf;
use std::sync::Arc;

use thalweg_console::Running;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::{connect, exchange, fetch, options, start_with, try_start};

fn data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/console/data")).join(name)
}

fn encrypted() -> thalweg_console::ConsoleOptions {
    let mut options = options();
    options.http.cert_file = Some(data("localhost.crt"));
    options.http.key_file = Some(data("localhost.key"));
    options
}

async fn handshake(running: &Running, protocols: &[&str]) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(data("localhost.crt")).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, connect(running).await)
        .await
}

#[tokio::test]
async fn with_a_certificate_http_is_spoken_through_tls() {
    let running = start_with(encrypted()).await;
    assert!(running.url().starts_with("https://127.0.0.1:"));
    let mut stream = handshake(&running, &["http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let request = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(&mut stream, request).await.unwrap().text(), "pong");
}

#[tokio::test]
async fn http2_is_agreed_on_within_tls() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let running = start_with(encrypted()).await;
    let stream = handshake(&running, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = axum::http::Request::get("https://localhost/ping")
        .body(String::new())
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn a_plain_request_to_the_encrypted_port_is_told_so() {
    let running = start_with(encrypted()).await;
    let answer = fetch(&running, "/ping").await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.text(),
        "this port speaks HTTPS only; begin the address with https://\n"
    );
}

#[tokio::test]
async fn a_client_that_sends_nothing_does_not_keep_the_connection() {
    let mut hasty = encrypted();
    hasty.limits.tls_handshake_timeout = std::time::Duration::from_millis(50);
    let running = start_with(hasty).await;
    assert!(exchange(&mut connect(&running).await, b"").await.is_none());
}

#[tokio::test]
async fn unusable_files_are_refused_at_start_with_the_cure() {
    let cases = [
        ("missing.crt", "localhost.key", "http.cert_file: cannot read "),
        ("localhost.crt", "missing.key", "http.key_file: cannot read "),
        ("README.md", "localhost.key", "holds no certificate in PEM form"),
        ("localhost.crt", "README.md", "holds no private key in PEM form"),
        (
            "localhost.crt",
            "other.key",
            "the certificate and the key cannot be used together",
        ),
    ];
    for (certificate, key, part) in cases {
        let mut wrong = options();
        wrong.http.cert_file = Some(data(certificate));
        wrong.http.key_file = Some(data(key));
        let error = try_start(wrong, Vec::new()).await.err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_needs_no_restart_and_a_broken_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| std::fs::copy(data(from), folder.path().join(to)).unwrap();
    copy("localhost.crt", "c");
    copy("localhost.key", "k");
    let mut renewed = options();
    renewed.http.cert_file = Some(folder.path().join("c"));
    renewed.http.key_file = Some(folder.path().join("k"));
    let running = start_with(renewed).await;
    handshake(&running, &[]).await.unwrap();
    std::fs::write(folder.path().join("c"), "broken").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    handshake(&running, &[]).await.unwrap();
}
