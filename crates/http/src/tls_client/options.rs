//! The TLS of a client as a configuration describes it: which authorities it trusts, and which certificate it presents.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::{machine_certificates, verifier_of};

/// What a configuration says of the TLS of a client.
#[derive(Default)]
pub struct ClientTls {
    /// Any certificate of a server is accepted.
    pub skips_verification: bool,
    /// The authorities, or server certificates, that are trusted; `None`: the authorities of the machine.
    pub trusted: Option<Vec<CertificateDer<'static>>>,
    /// The certificate that the client presents with those that signed it, and its key.
    pub own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl ClientTls {
    /// The TLS configuration of a connection. Reads the authorities of the machine from disk if nothing else is trusted.
    pub fn config(self) -> Result<Arc<ClientConfig>> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match (self.skips_verification, self.trusted) {
            (true, _) => Arc::new(AnyCertificate(provider.signature_verification_algorithms)),
            (false, Some(trusted)) => verifier_of(std::iter::empty(), trusted)?,
            (false, None) => verifier_of(machine_certificates(), Vec::new())?,
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("TLS cannot be set up")?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match self.own {
            None => config.with_no_client_auth(),
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .context("the client's certificate and its key cannot be used together")?,
        };
        Ok(Arc::new(config))
    }
}

/// Accepts every certificate. The server must still have its key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::pem;
    use crate::tls_client::test_server::TestIdentity;

    /// Whether a client with these options gets through to a server of this configuration.
    async fn gets_through(server: Arc<ServerConfig>, client: ClientTls) -> bool {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = TlsAcceptor::from(server).accept(stream).await {
                let _ = stream.write_all(b"hello").await;
                let _ = stream.shutdown().await;
            }
        });
        let connector = TlsConnector::from(client.config().unwrap());
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let host = ServerName::try_from("localhost").unwrap();
        let mut said = Vec::new();
        if let Ok(mut stream) = connector.connect(host, stream).await {
            let _ = stream.read_to_end(&mut said).await;
        }
        serving.await.unwrap();
        said == b"hello"
    }

    #[tokio::test]
    async fn a_server_is_trusted_as_the_options_say() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["-addext", "subjectAltName=DNS:localhost"];
        let server = TestIdentity::new(folder.path(), "server", "localhost", &names);
        let other = TestIdentity::new(folder.path(), "other", "localhost", &names);
        let trusts = |identity: &TestIdentity| ClientTls {
            trusted: Some(vec![identity.der()]),
            ..ClientTls::default()
        };
        assert!(gets_through(server.shown(), trusts(&server)).await);
        assert!(!gets_through(server.shown(), trusts(&other)).await);
        let unverified = ClientTls {
            skips_verification: true,
            ..trusts(&other)
        };
        assert!(gets_through(server.shown(), unverified).await);
        // A key that is not the certificate's is refused even so.
        let unverified = ClientTls {
            skips_verification: true,
            ..ClientTls::default()
        };
        assert!(!gets_through(server.shown_with(&other.key), unverified).await);
    }

    #[tokio::test]
    async fn a_client_presents_its_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["-addext", "subjectAltName=DNS:localhost"];
        let server = TestIdentity::new(folder.path(), "server", "localhost", &names);
        let authority = TestIdentity::new(folder.path(), "authority", "plant", &[]);
        let signed = [
            "-CA",
            authority.certificate.to_str().unwrap(),
            "-CAkey",
            authority.key.to_str().unwrap(),
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ];
        let client = TestIdentity::new(folder.path(), "client", "gauge-7", &signed);
        let mut roots = RootCertStore::empty();
        roots.add(authority.der()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![server.der()], pem::private_key(&server.key).unwrap())
            .unwrap();
        let config = Arc::new(config);
        let options = |own| ClientTls {
            trusted: Some(vec![server.der()]),
            own,
            ..ClientTls::default()
        };
        let own = (vec![client.der()], pem::private_key(&client.key).unwrap());
        assert!(gets_through(config.clone(), options(Some(own))).await);
        assert!(!gets_through(config, options(None)).await);
        let mixed = (vec![client.der()], pem::private_key(&server.key).unwrap());
        let error = options(Some(mixed)).config().unwrap_err().to_string();
        assert_eq!(error, "the client's certificate and its key cannot be used together");
    }
}
