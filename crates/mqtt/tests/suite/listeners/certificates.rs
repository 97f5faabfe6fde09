//! Certificates for tests, made by openssl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use thalweg_mqtt::{ListenerKind, MqttListenerSettings};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::listener;

/// `ca` and what it has signed: `server`, and clients.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Certificates {
        let folder = Certificates(tempfile::tempdir().unwrap());
        folder.make("ca", None);
        folder.make("server", Some("ca"));
        folder
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A certificate with its key, signed by `ca`, or by itself.
    pub fn make(&self, name: &str, ca: Option<&str>) {
        let at = |name: &str| self.file(name).to_string_lossy().into_owned();
        let mut command = Command::new("openssl");
        command
            .args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", &format!("/CN={name}")])
            .args(["-addext", "subjectAltName=DNS:localhost"])
            .args(["-keyout", &at(&format!("{name}.key"))])
            .args(["-out", &at(&format!("{name}.crt"))]);
        if let Some(ca) = ca {
            command.args(["-CA", &at(&format!("{ca}.crt")), "-CAkey", &at(&format!("{ca}.key"))]);
            command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        }
        run(&mut command);
    }

    /// A list of the revoked certificates of `ca`.
    pub fn revoke(&self, names: &[&str]) {
        let at = |name: &str| self.file(name).to_string_lossy().into_owned();
        let config = format!(
            "[ca]\ndefault_ca = d\n[d]\ndatabase = {}\ncrlnumber = {}\ndefault_md = sha256\ndefault_crl_days = 2\n\
             certificate = {}\nprivate_key = {}\ncrl_extensions = e\n[e]\nauthorityKeyIdentifier = keyid\n",
            at("index"),
            at("number"),
            at("ca.crt"),
            at("ca.key"),
        );
        std::fs::write(self.file("config"), config).unwrap();
        std::fs::write(self.file("index"), "").unwrap();
        std::fs::write(self.file("number"), "01\n").unwrap();
        for name in names {
            let certificate = at(&format!("{name}.crt"));
            run(Command::new("openssl").args(["ca", "-config", &at("config"), "-revoke", &certificate]));
        }
        run(Command::new("openssl").args(["ca", "-config", &at("config"), "-gencrl", "-out", &at("new.crl")]));
        std::fs::rename(self.file("new.crl"), self.file("crl")).unwrap();
    }

    pub fn listener(&self, kind: ListenerKind) -> MqttListenerSettings {
        MqttListenerSettings {
            cert_file: Some(self.file("server.crt")),
            key_file: Some(self.file("server.key")),
            ..listener(kind)
        }
    }

    fn roots(&self, ca: &str) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.file(&format!("{ca}.crt")))).unwrap();
        roots
    }

    /// TLS over a socket, with the certificate of a client.
    pub async fn over(&self, socket: TcpStream, client: Option<&str>) -> std::io::Result<TlsStream<TcpStream>> {
        self.with(socket, "ca", client, &[]).await
    }

    /// TLS with a server that `ca` has signed.
    pub async fn with(
        &self,
        socket: TcpStream,
        ca: &str,
        client: Option<&str>,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots(ca));
        let mut config = match client {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key"))).unwrap();
                let chain = vec![certificate(&self.file(&format!("{name}.crt")))];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

fn run(command: &mut Command) {
    let done = command.output().expect("openssl is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
