//! Trust for outgoing TLS connections: the certificate authorities of the machine, and the certificates in a file that
//! the user names. A server is trusted if one of these authorities has signed its certificate, or if the file contains
//! the certificate itself.

mod file_certificates;
mod options;
mod transport;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use ureq::config::Config;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector as _, TcpConnector};

use crate::pem;
use file_certificates::FileCertificates;
pub use options::ClientTls;
use transport::TlsConnector;

/// The TLS configuration of a connection. Reads from disk: the file, and `SSL_CERT_FILE` and `SSL_CERT_DIR` or else the
/// system's authorities.
pub fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let of_file = ca_file.map(pem::certificates).transpose()?.unwrap_or_default();
    config_of(machine_certificates(), of_file)
}

fn config_of(
    of_machine: impl Iterator<Item = CertificateDer<'static>>,
    of_file: Vec<CertificateDer<'static>>,
) -> Result<Arc<ClientConfig>> {
    let verifier = verifier_of(of_machine, of_file)?;
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Trusts authorities, and server certificates beside them.
fn verifier_of(
    of_machine: impl Iterator<Item = CertificateDer<'static>>,
    of_file: Vec<CertificateDer<'static>>,
) -> Result<Arc<FileCertificates>> {
    let mut roots = RootCertStore::empty();
    let authorities = of_file
        .iter()
        .filter(|certificate| file_certificates::is_authority(certificate));
    roots.add_parsable_certificates(of_machine.chain(authorities.cloned()));
    ensure!(
        !(roots.is_empty() && of_file.is_empty()),
        "this machine trusts no certificate authority; name a file of them with --ca-file, or install the package ca-certificates"
    );
    let provider = Arc::new(aws_lc_rs::default_provider());
    // A file with server certificates is enough on a machine without authorities.
    let verifier_of = |roots| WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let signed = Some(roots).filter(|roots| !roots.is_empty()).map(verifier_of);
    let signed = signed
        .transpose()
        .context("the certificates of this machine cannot be used")?;
    let verifier = FileCertificates::new(of_file, signed, provider.signature_verification_algorithms);
    Ok(Arc::new(verifier))
}

/// An HTTP client that uses no proxy.
pub fn agent(config: Config, ca_file: Option<&Path>) -> Result<ureq::Agent> {
    let connector = ().chain(TcpConnector::default()).chain(TlsConnector::new(client_config(ca_file)?));
    Ok(ureq::Agent::with_parts(config, connector, DefaultResolver::default()))
}

/// A configuration for callers with their own client; it trusts only the machine's authorities, of which there must be
/// one.
pub fn tls_config() -> Result<TlsConfig> {
    let trusted: Vec<CertificateDer<'static>> = machine_certificates().collect();
    ensure!(
        !trusted.is_empty(),
        "this machine trusts no certificate authority; install the package ca-certificates, or name a file of them with SSL_CERT_FILE"
    );
    Ok(config_trusting(trusted.into_iter()))
}

/// Like [`tls_config`], for callers that report failed connections anyway: on a machine without authorities all fail.
pub fn tls_config_of_machine() -> TlsConfig {
    config_trusting(machine_certificates())
}

fn config_trusting(trusted: impl Iterator<Item = CertificateDer<'static>>) -> TlsConfig {
    let trusted: Vec<Certificate<'static>> = trusted.map(|der| Certificate::from_der(&der).to_owned()).collect();
    TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build()
}

/// The authorities of the machine: those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, or else the system's. Reads from disk.
pub fn machine_certificates() -> impl Iterator<Item = CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs.into_iter()
}

/// Sets the cryptography of the process, which clients of object stores use for their own TLS. It may be set already.
pub fn install_crypto_provider() {
    let _ = aws_lc_rs::default_provider().install_default();
}

pub mod test_server;
#[cfg(test)]
mod tests;
