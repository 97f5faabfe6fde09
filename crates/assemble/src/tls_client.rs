//! Whom this program trusts when it sends requests through TLS: the certificate authorities of the machine, and those of a file
//! that the user names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// For the client. Reads the disk: `SSL_CERT_FILE` and `SSL_CERT_DIR`, else where the system keeps its authorities.
pub fn tls_client(ca_file: Option<&Path>) -> Result<TlsConfig> {
    let machine = rustls_native_certs::load_native_certs();
    let mut trusted: Vec<Certificate<'static>> = machine.certs.iter().map(|der| owned(der)).collect();
    if let Some(path) = ca_file {
        let shown = path.display();
        let pem = std::fs::read(path).with_context(|| format!("cannot read the certificates in {shown}"))?;
        let before = trusted.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            trusted.push(owned(&certificate.with_context(|| format!("{shown} is no PEM file"))?));
        }
        ensure!(trusted.len() > before, "{shown} holds no certificate in PEM form");
    }
    ensure!(
        !trusted.is_empty(),
        "this machine trusts no certificate authority; install the package ca-certificates, or name a file of them with SSL_CERT_FILE"
    );
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build())
}

fn owned(der: &CertificateDer<'_>) -> Certificate<'static> {
    Certificate::from_der(der).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let problem = |path: &Path| tls_client(Some(path)).err().unwrap().to_string();
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
}
