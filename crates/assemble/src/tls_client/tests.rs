use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::test_server::Identity;
use super::*;

#[test]
fn a_file_without_certificates_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let problem = |path: &Path| client_config(Some(path)).err().unwrap().to_string();
    assert!(
        problem(&path).starts_with("cannot read the certificates in "),
        "{}",
        problem(&path)
    );
    std::fs::write(&path, "no certificate").unwrap();
    assert!(
        problem(&path).ends_with("ca.pem holds no certificate in PEM form"),
        "{}",
        problem(&path)
    );
}

/// Answers each request through TLS, for as long as the test runs. Returns its port.
fn server(config: Arc<ServerConfig>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let config = config.clone();
            std::thread::spawn(move || {
                let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), connection.unwrap());
                let mut seen = Vec::new();
                let mut piece = [0; 1024];
                while !seen.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut piece) {
                        Ok(read) if read > 0 => seen.extend_from_slice(&piece[..read]),
                        _ => return,
                    }
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
                let _ = stream.write_all(answer).and_then(|()| stream.flush());
            });
        }
    });
    port
}

fn ask(url: &str, ca_file: &Path) -> Result<String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(20)))
        .proxy(None)
        .build();
    let mut answer = agent(config, Some(ca_file))?.get(url).call()?;
    Ok(answer.body_mut().read_to_string()?)
}

fn curl(url: &str, ca_file: &Path) -> bool {
    let done = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--noproxy",
            "*",
            "--max-time",
            "20",
            "--cacert",
        ])
        .arg(ca_file)
        .arg(url)
        .output()
        .expect("curl is installed, by cargo xtask tools");
    done.status.success()
}

/// Every combination of what openssl makes with such a command, at every host.
#[test]
fn a_self_signed_certificate_is_taken_when_curl_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        "",
        "DNS:localhost",
        "IP:127.0.0.1",
        "DNS:localhost,IP:127.0.0.1",
        "DNS:other.example",
        "email:a@localhost",
    ];
    let (mut taken, mut refused) = (0, 0);
    for is_authority in [true, false] {
        for subject in ["localhost", "127.0.0.1", "other.example"] {
            for names in names {
                for usage in ["", "serverAuth", "clientAuth", "clientAuth,anyExtendedKeyUsage"] {
                    let names_extension = format!("subjectAltName={names}");
                    let usage_extension = format!("extendedKeyUsage={usage}");
                    let mut arguments = Vec::new();
                    if !is_authority {
                        arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
                    }
                    if !names.is_empty() {
                        arguments.extend(["-addext", &names_extension]);
                    }
                    if !usage.is_empty() {
                        arguments.extend(["-addext", &usage_extension]);
                    }
                    let identity = Identity::new(folder.path(), "own", subject, &arguments);
                    let port = server(identity.shown());
                    for host in ["localhost", "127.0.0.1"] {
                        let url = format!("https://{host}:{port}/");
                        let (by_curl, by_us) = (curl(&url, &identity.certificate), ask(&url, &identity.certificate));
                        assert_eq!(
                            by_us.is_ok(),
                            by_curl,
                            "{host} with the subject {subject} and {arguments:?}: {by_us:?}"
                        );
                        *(if by_curl { &mut taken } else { &mut refused }) += 1;
                    }
                }
            }
        }
    }
    assert!(taken > 50 && refused > 50, "{taken} taken, {refused} refused");
}

#[test]
fn a_known_certificate_without_its_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["-addext", "subjectAltName=DNS:localhost"];
    let known = Identity::new(folder.path(), "known", "localhost", &names);
    let thief = Identity::new(folder.path(), "thief", "localhost", &names);
    let port = server(known.shown_with(&thief.key));
    let error = ask(&format!("https://localhost:{port}/"), &known.certificate).unwrap_err();
    assert!(format!("{error:#}").contains("BadSignature"), "{error:#}");
    let port = server(thief.shown());
    let error = ask(&format!("https://localhost:{port}/"), &known.certificate).unwrap_err();
    assert!(format!("{error:#}").contains("certificate"), "{error:#}");
}

#[test]
fn what_an_authority_of_the_file_has_signed_is_taken_and_what_another_has_signed_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Identity::new(folder.path(), "authority", "test authority", &[]);
    let other = Identity::new(folder.path(), "other", "other authority", &[]);
    let signed_by = |by: &Identity, name: &str| {
        let (certificate, key) = (by.certificate.to_str().unwrap(), by.key.to_str().unwrap());
        let signed = [
            "-CA",
            certificate,
            "-CAkey",
            key,
            "-addext",
            "subjectAltName=DNS:localhost",
        ];
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        Identity::new(folder.path(), name, "localhost", &[&signed[..], &leaf].concat())
    };
    let (right, wrong) = (signed_by(&authority, "right"), signed_by(&other, "wrong"));
    let url = |identity: &Identity| format!("https://localhost:{}/", server(identity.shown()));
    assert_eq!(ask(&url(&right), &authority.certificate).unwrap(), "hello");
    ask(&url(&wrong), &authority.certificate).unwrap_err();
    // The certificate itself is as good as that of its authority.
    assert_eq!(ask(&url(&wrong), &wrong.certificate).unwrap(), "hello");
}

#[test]
fn a_known_certificate_counts_in_its_time_alone() {
    let folder = tempfile::tempdir().unwrap();
    let known = Identity::new(folder.path(), "known", "localhost", &[]);
    let host = ServerName::try_from("localhost").unwrap();
    let at = |seconds: i64| {
        let now = UnixTime::now().as_secs().saturating_add_signed(seconds);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        file_certificates::check(&known.der(), &host, now).map_err(|error| error.to_string())
    };
    let day = 24 * 60 * 60;
    assert_eq!(at(0), Ok(()));
    assert_eq!(at(day), Ok(()));
    assert!(at(3 * day).unwrap_err().contains("Expired"));
    assert!(at(-day).unwrap_err().contains("NotValidYet"));
}
