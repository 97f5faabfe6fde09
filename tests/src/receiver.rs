//! A server that accepts posts, with TLS or without, and returns the body of every complete request.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Longer than all attempts of a sender.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Receiver {
    pub url: String,
    bodies: mpsc::Receiver<Value>,
}

impl Receiver {
    /// Refuses the first requests and accepts all later ones.
    pub fn start(refuse: usize) -> Receiver {
        Receiver::serve("http", refuse, None)
    }

    pub fn with_tls(identity: &Identity) -> Receiver {
        Receiver::serve("https", 0, Some(identity.server_config().unwrap()))
    }

    /// The next body; waits for it if necessary.
    pub fn body(&self) -> Value {
        self.bodies.recv_timeout(TIMEOUT).unwrap()
    }

    /// Whether an unread body has arrived.
    pub fn has_body(&self) -> bool {
        self.bodies.try_recv().is_ok()
    }

    fn serve(scheme: &str, refuse: usize, tls: Option<Arc<ServerConfig>>) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, bodies) = mpsc::channel();
        std::thread::spawn(move || {
            let mut served = 0;
            while let Ok((stream, _)) = listener.accept() {
                let status = if served < refuse { "503 busy" } else { "200 OK" };
                let body = match &tls {
                    None => answer(stream, status),
                    Some(tls) => ServerConnection::new(tls.clone())
                        .map_err(anyhow::Error::from)
                        .and_then(|connection| answer(StreamOwned::new(connection, stream), status)),
                };
                // A client that does not trust this server disconnects before it sends anything.
                let Ok(body) = body else { continue };
                served += 1;
                if seen.send(body).is_err() {
                    return;
                }
            }
        });
        Receiver {
            url: format!("{scheme}://localhost:{port}/dead"),
            bodies,
        }
    }
}

/// Reads one request and answers it.
fn answer(stream: impl Read + Write, status: &str) -> Result<Value> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    ensure!(length > 0, "no request with a body");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    reader.get_mut().write_all(head.as_bytes())?;
    reader.get_mut().flush()?;
    Ok(serde_json::from_slice(&body)?)
}

/// A certificate authority.
pub struct Authority {
    folder: PathBuf,
    name: String,
}

/// A certificate that an authority signed, with its key.
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Its files are in `folder`, by its name.
    pub fn new(folder: &Path, name: &str) -> Result<Authority> {
        let authority = Authority {
            folder: folder.to_owned(),
            name: name.to_owned(),
        };
        let made = Identity::in_folder(folder, name);
        made.request(&["-addext", "keyUsage=critical,keyCertSign"], name)?;
        Ok(authority)
    }

    /// The file that a client must trust.
    pub fn certificate(&self) -> PathBuf {
        Identity::in_folder(&self.folder, &self.name).certificate
    }

    /// For a server at this host.
    pub fn certify(&self, host: &str) -> Result<Identity> {
        let own = Identity::in_folder(&self.folder, &self.name);
        let made = Identity::in_folder(&self.folder, &format!("{}-{host}", self.name));
        let (ca, ca_key) = (own.certificate.to_string_lossy(), own.key.to_string_lossy());
        let of_host = format!("subjectAltName=DNS:{host}");
        let leaf = "basicConstraints=critical,CA:FALSE";
        made.request(
            &["-CA", &ca, "-CAkey", &ca_key, "-addext", &of_host, "-addext", leaf],
            host,
        )?;
        Ok(made)
    }
}

impl Identity {
    fn in_folder(folder: &Path, name: &str) -> Identity {
        Identity {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        }
    }

    fn request(&self, arguments: &[&str], subject: &str) -> Result<()> {
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let made = Command::new("openssl")
            .args(["req", "-x509", "-days", "2", "-subj", &format!("/CN={subject}")])
            .args(key)
            .args(arguments)
            .arg("-keyout")
            .arg(&self.key)
            .arg("-out")
            .arg(&self.certificate)
            .output()
            .context("openssl 3 is not installed; on Debian: apt-get install openssl")?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Ok(())
    }

    fn server_config(&self) -> Result<Arc<ServerConfig>> {
        let certificate = CertificateDer::from_pem_reader(File::open(&self.certificate)?)?;
        let key = PrivateKeyDer::from_pem_reader(File::open(&self.key)?)?;
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        Ok(Arc::new(config))
    }
}
