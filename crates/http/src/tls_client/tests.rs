use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use super::test_server::TestIdentity;
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

/// Answers each request through TLS while the test runs. Returns its port.
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

/// Every combination of certificate options and hosts.
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
                    let identity = TestIdentity::new(folder.path(), "own", subject, &arguments);
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

/// The extension arguments for openssl; an empty usage adds none.
fn said(is_authority: bool, key_usage: &str, purpose: &str) -> Vec<String> {
    let mut said = vec!["subjectAltName=DNS:localhost".to_owned()];
    said.extend((!is_authority).then(|| "basicConstraints=critical,CA:FALSE".to_owned()));
    said.extend((!key_usage.is_empty()).then(|| format!("keyUsage=critical,{key_usage}")));
    said.extend((!purpose.is_empty()).then(|| format!("extendedKeyUsage={purpose}")));
    said
}

fn made(folder: &Path, name: &str, subject: &str, said: &[String], signed_by: Option<&TestIdentity>) -> TestIdentity {
    let mut arguments: Vec<&str> = said.iter().flat_map(|said| ["-addext", said.as_str()]).collect();
    if let Some(by) = signed_by {
        arguments.extend([
            "-CA",
            by.certificate.to_str().unwrap(),
            "-CAkey",
            by.key.to_str().unwrap(),
        ]);
    }
    TestIdentity::new(folder, name, subject, &arguments)
}

/// Whether curl and Thalweg both accept the certificate; they must agree.
fn is_taken(shown: &TestIdentity, ca_file: &Path, what: &str) -> bool {
    let url = format!("https://localhost:{}/", server(shown.shown()));
    let (by_curl, by_us) = (curl(&url, ca_file), ask(&url, ca_file));
    assert_eq!(by_us.is_ok(), by_curl, "{what}: {by_us:?}");
    by_curl
}

const KEY_USAGES: [&str; 11] = [
    "",
    "digitalSignature",
    "nonRepudiation",
    "keyEncipherment",
    "dataEncipherment",
    "keyAgreement",
    "keyCertSign",
    "cRLSign",
    "keyCertSign,cRLSign",
    "digitalSignature,keyCertSign",
    "keyAgreement,encipherOnly",
];

/// A server certificate of the file, and one signed by an authority of the file.
#[test]
fn a_certificate_of_any_key_usage_is_taken_when_curl_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestIdentity::new(folder.path(), "authority", "test authority", &[]);
    let mut taken = Vec::new();
    for is_authority in [true, false] {
        for usage in KEY_USAGES {
            let said = said(is_authority, usage, "");
            let own = made(folder.path(), "own", "localhost", &said, None);
            if is_taken(&own, &own.certificate, &format!("its own, {said:?}")) && !is_authority {
                taken.push(usage);
            }
            if !is_authority {
                let signed = made(folder.path(), "signed", "localhost", &said, Some(&authority));
                is_taken(&signed, &authority.certificate, &format!("signed, {said:?}"));
            }
        }
    }
    let for_tls = [
        "",
        "digitalSignature",
        "keyEncipherment",
        "keyAgreement",
        "digitalSignature,keyCertSign",
        "keyAgreement,encipherOnly",
    ];
    assert_eq!(taken, for_tls);
}

/// Such a file may also contain server certificates, which must not sign others.
#[test]
fn whoever_may_sign_for_curl_may_sign_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let leaf = said(false, "", "");
    let mut taken = Vec::new();
    for is_authority in [true, false] {
        for purpose in ["", "serverAuth", "clientAuth", "anyExtendedKeyUsage"] {
            for usage in [
                "",
                "digitalSignature",
                "keyCertSign",
                "cRLSign",
                "digitalSignature,keyCertSign",
            ] {
                let said = said(is_authority, usage, purpose);
                let by = made(folder.path(), "by", "some authority", &said, None);
                let signed = made(folder.path(), "signed", "localhost", &leaf, Some(&by));
                if is_taken(&signed, &by.certificate, &format!("signed by {said:?}")) {
                    taken.push((is_authority, purpose, usage));
                }
            }
        }
    }
    let purposes = ["", "serverAuth"].into_iter();
    let usages = ["", "keyCertSign", "digitalSignature,keyCertSign"];
    let expected: Vec<_> = purposes
        .flat_map(|purpose| usages.map(|usage| (true, purpose, usage)))
        .collect();
    assert_eq!(taken, expected);
}

/// Like in a container without the package of authorities.
#[test]
fn where_the_machine_has_no_authority_a_file_of_servers_is_enough() {
    assert!(config_of(std::iter::empty(), Vec::new()).is_err());
    let folder = tempfile::tempdir().unwrap();
    let said = said(false, "", "");
    let [known, other] = ["known", "other"].map(|name| made(folder.path(), name, "localhost", &said, None));
    let config = config_of(std::iter::empty(), vec![known.der()]).unwrap();
    let handshake = |shown: &TestIdentity| {
        let stream = TcpStream::connect(("127.0.0.1", server(shown.shown()))).unwrap();
        let host = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(config.clone(), host).unwrap();
        connection.complete_io(&mut &stream).map_err(|error| error.to_string())
    };
    handshake(&known).unwrap();
    let error = handshake(&other).unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn a_known_certificate_without_its_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["-addext", "subjectAltName=DNS:localhost"];
    let known = TestIdentity::new(folder.path(), "known", "localhost", &names);
    let thief = TestIdentity::new(folder.path(), "thief", "localhost", &names);
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
    let authority = TestIdentity::new(folder.path(), "authority", "test authority", &[]);
    let other = TestIdentity::new(folder.path(), "other", "other authority", &[]);
    let signed_by = |by: &TestIdentity, name: &str| {
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
        TestIdentity::new(folder.path(), name, "localhost", &[&signed[..], &leaf].concat())
    };
    let (right, wrong) = (signed_by(&authority, "right"), signed_by(&other, "wrong"));
    let url = |identity: &TestIdentity| format!("https://localhost:{}/", server(identity.shown()));
    assert_eq!(ask(&url(&right), &authority.certificate).unwrap(), "hello");
    ask(&url(&wrong), &authority.certificate).unwrap_err();
    // The file may contain the certificate itself instead of its authority.
    assert_eq!(ask(&url(&wrong), &wrong.certificate).unwrap(), "hello");
}

#[test]
fn a_known_certificate_counts_in_its_time_alone() {
    let folder = tempfile::tempdir().unwrap();
    let known = TestIdentity::new(folder.path(), "known", "localhost", &[]);
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
