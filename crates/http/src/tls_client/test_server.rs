//! Certificates made with openssl, as operators do, and servers that present them. For tests of this crate and its
//! users.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

pub struct TestIdentity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TestIdentity {
    /// Makes a self-signed certificate, or one signed as `arguments` say. By default openssl marks it as an authority.
    pub fn new(folder: &Path, name: &str, subject: &str, arguments: &[&str]) -> TestIdentity {
        let made = TestIdentity {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        let done = Command::new("openssl")
            .args(["req", "-x509", "-days", "2", "-subj", &format!("/CN={subject}")])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
            .args(arguments)
            .arg("-keyout")
            .arg(&made.key)
            .arg("-out")
            .arg(&made.certificate)
            .output()
            .expect("openssl 3 is installed, by cargo xtask tools");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        made
    }

    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.certificate).unwrap()
    }

    /// A server that presents the certificate and signs with `key`, which may be the wrong one.
    pub fn shown_with(&self, key: &Path) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let shown = SingleCertAndKey::from(CertifiedKey::new(vec![self.der()], key));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown));
        Arc::new(config)
    }

    pub fn shown(&self) -> Arc<ServerConfig> {
        self.shown_with(&self.key)
    }
}
