use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use thalweg_console::{Console, HttpLimits, ResponseStyle, RunningListener};
use thalweg_http::tls_server::{ServerTls, TlsFiles, TlsNames};
use thalweg_telemetry::{Metrics, OriginPolicy};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::support::{connect, exchange, fetch, options, start_with, try_start};

fn data(name: &str) -> PathBuf {
    // Cargo sets this at each run; the value at build time may be another clone.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join("tests/console/data").join(name)
}

fn encrypted() -> thalweg_console::ConsoleOptions {
    let mut options = options();
    options.http.cert_file = Some(data("localhost.crt"));
    options.http.key_file = Some(data("localhost.key"));
    options
}

async fn handshake(running: &RunningListener, protocols: &[&str]) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
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
    // The files are looked at once per second, when a connection begins.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    handshake(&running, &[]).await.unwrap();
}

/// A certificate with its key, signed by `ca`, or self-signed.
fn certify(folder: &std::path::Path, name: &str, ca: Option<&str>) {
    let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let mut command = std::process::Command::new("openssl");
    command
        .args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", &format!("/CN={name}")])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args([
            "-keyout",
            &at(&format!("{name}.key")),
            "-out",
            &at(&format!("{name}.crt")),
        ]);
    if let Some(ca) = ca {
        command.args(["-CA", &at(&format!("{ca}.crt")), "-CAkey", &at(&format!("{ca}.key"))]);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    }
    let made = command.output().expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn files(folder: &std::path::Path, client_ca: Option<&str>) -> TlsFiles {
    TlsFiles {
        cert: folder.join("server.crt"),
        key: folder.join("server.key"),
        client_ca: client_ca.map(|name| folder.join(name)),
        names: TlsNames {
            cert: "--tls-cert",
            key: "--tls-key",
            client_ca: "--tls-client-ca",
        },
    }
}

async fn serve(tls: &Arc<ServerTls>) -> RunningListener {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = Router::new().route("/ping", get(|| async { "pong" }));
    let (limits, metrics) = (HttpLimits::default(), Metrics::default());
    let mut all = Console::serve(
        Some(tls.clone()),
        vec![listener],
        &router,
        limits,
        &ResponseStyle::default(),
        OriginPolicy::default(),
        &metrics,
    )
    .unwrap();
    all.remove(0)
}

/// The answer to a client that trusts `ca`, has the certificate `identity`, and uses one version of the protocol.
async fn ask(
    running: &RunningListener,
    folder: &std::path::Path,
    (ca, identity): (&str, Option<&str>),
    version: &'static SupportedProtocolVersion,
) -> Option<String> {
    let read = |name: &str| CertificateDer::from_pem_file(folder.join(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(read(&format!("{ca}.crt"))).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
            let own = vec![read(&format!("{name}.crt"))];
            builder.with_client_auth_cert(own, key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, connect(running).await).await.ok()?;
    let request = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    Some(exchange(&mut stream, request).await?.text().to_owned())
}

#[tokio::test]
async fn both_versions_of_tls_are_spoken_and_only_clients_of_the_authority_get_in() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (name, ca) in [
        ("ca", None),
        ("other", None),
        ("server", Some("ca")),
        ("friend", Some("ca")),
        ("stranger", Some("other")),
    ] {
        certify(at, name, ca);
    }
    let open = serve(&Arc::new(ServerTls::open(files(at, None)).unwrap())).await;
    let closed = serve(&Arc::new(ServerTls::open(files(at, Some("ca.crt"))).unwrap())).await;
    for version in [&TLS12, &TLS13] {
        assert_eq!(ask(&open, at, ("ca", None), version).await.as_deref(), Some("pong"));
        assert_eq!(
            ask(&closed, at, ("ca", Some("friend")), version).await.as_deref(),
            Some("pong")
        );
        assert_eq!(ask(&closed, at, ("ca", None), version).await, None);
        assert_eq!(ask(&closed, at, ("ca", Some("stranger")), version).await, None);
        assert_eq!(ask(&open, at, ("other", None), version).await, None);
    }
}

#[tokio::test]
async fn files_are_read_again_when_somebody_asks_and_broken_ones_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (name, ca) in [("old", None), ("new", None), ("server", Some("old"))] {
        certify(at, name, ca);
    }
    let tls = Arc::new(ServerTls::open(files(at, None)).unwrap());
    let running = serve(&tls).await;
    assert!(ask(&running, at, ("old", None), &TLS13).await.is_some());
    certify(at, "server", Some("new"));
    tls.reload().unwrap();
    assert!(ask(&running, at, ("new", None), &TLS13).await.is_some());
    assert!(ask(&running, at, ("old", None), &TLS13).await.is_none());
    std::fs::write(at.join("server.key"), "broken").unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.starts_with("--tls-cert, --tls-key: "), "{error}");
    assert!(ask(&running, at, ("new", None), &TLS13).await.is_some());
}

#[tokio::test]
async fn an_unusable_authority_of_clients_is_named() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path(), "server", None);
    for (authority, start) in [
        ("none.crt", "--tls-client-ca: cannot read "),
        ("server.key", "--tls-client-ca: "),
    ] {
        let error = ServerTls::open(files(folder.path(), Some(authority)))
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with(start), "{error}");
    }
}
