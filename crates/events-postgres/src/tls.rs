//! TLS to the database, as `sslmode` asks: `disable`, `prefer` and `require` mean the same as in PostgreSQL's own
//! clients, and `verify-ca` is as strict as `verify-full`.

use std::path::Path;
use std::sync::Arc;

use thalweg_events::{EventsError, Result};
use thalweg_http::pem::{self, PemFileError};
use thalweg_http::tls_client::machine_certificates;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The TLS options of the URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub mode: TlsMode,
    /// Certificate authorities in PEM, instead of the system's.
    pub root_file: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TlsMode {
    Disable,
    #[default]
    Prefer,
    Require,
    Verify,
}

impl TlsMode {
    pub fn parse(text: &str) -> Option<TlsMode> {
        match text {
            "disable" => Some(TlsMode::Disable),
            "allow" | "prefer" => Some(TlsMode::Prefer),
            "require" => Some(TlsMode::Require),
            "verify-ca" | "verify-full" => Some(TlsMode::Verify),
            _ => None,
        }
    }

    pub fn of_driver(self) -> SslMode {
        match self {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::Verify => SslMode::Require,
        }
    }
}

impl TlsOptions {
    pub fn connector(&self) -> Result<MakeRustlsConnect> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let wrong = |what: String| EventsError::Unavailable(format!("TLS to the database: {what}"));
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?;
        // With its own authorities `require` verifies too, as in PostgreSQL's clients.
        let verifies = self.mode == TlsMode::Verify || self.mode == TlsMode::Require && self.root_file.is_some();
        let config = match verifies {
            true => builder.with_root_certificates(self.roots().map_err(wrong)?),
            false => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(NoCertificateVerification(provider))),
        };
        Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
    }

    fn roots(&self) -> std::result::Result<RootCertStore, String> {
        let Some(file) = &self.root_file else {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(machine_certificates());
            return match roots.is_empty() {
                true => Err("the system has no certificate authorities; name some with sslrootcert=FILE".to_owned()),
                false => Ok(roots),
            };
        };
        pem::authorities(Path::new(file)).map_err(|error| match error {
            PemFileError::Unreadable { error, .. } => format!("cannot read sslrootcert {file}: {error}"),
            wrong => format!("sslrootcert: {wrong}"),
        })
    }
}

/// Encrypts without verifying the peer.
#[derive(Debug)]
struct NoCertificateVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoCertificateVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
