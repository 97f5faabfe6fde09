//! Trust in the certificates of a file. As an authority each is what it always is; as the certificate of a server itself it is known
//! byte by byte, so nobody has to have signed it. A self-signed certificate as `openssl req -x509` makes it is one of an authority,
//! which a server must not show by the rules of web browsers; curl takes it from `--cacert`, and so does this. What such a certificate says
//! of its host, its time and its use counts here, too.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{ExtendedKeyUsage, SubjectAltName};
use x509_cert::spki::ObjectIdentifier;
use x509_cert::{Certificate, TbsCertificate};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const SERVER_AUTHENTICATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");

#[derive(Debug)]
pub(super) struct FileCertificates {
    of_file: Vec<CertificateDer<'static>>,
    /// For all others.
    signed: Arc<WebPkiServerVerifier>,
}

impl FileCertificates {
    pub fn new(of_file: Vec<CertificateDer<'static>>, signed: Arc<WebPkiServerVerifier>) -> FileCertificates {
        FileCertificates { of_file, signed }
    }
}

impl ServerCertVerifier for FileCertificates {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.of_file.iter().any(|known| known.as_ref() == shown.as_ref()) {
            return self.signed.verify_server_cert(shown, chain, host, ocsp, now);
        }
        check(shown, host, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// Whether a certificate that is known is one for this host, now.
pub(super) fn check(shown: &CertificateDer<'_>, host: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
    let parsed = Certificate::from_der(shown).map_err(|_| CertificateError::BadEncoding)?;
    let content = &parsed.tbs_certificate;
    let since = content.validity.not_before.to_unix_duration().as_secs();
    let until = content.validity.not_after.to_unix_duration().as_secs();
    if now.as_secs() < since {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > until {
        return Err(CertificateError::Expired.into());
    }
    let usage = content.get::<ExtendedKeyUsage>();
    // "Any use" does not name this one, as OpenSSL sees it.
    if let Some((_, usage)) = usage.map_err(|_| CertificateError::BadEncoding)?
        && !usage.0.contains(&SERVER_AUTHENTICATION)
    {
        return Err(CertificateError::InvalidPurpose.into());
    }
    match has_host_names(content)? {
        true => verify_server_name(&ParsedCertificate::try_from(shown)?, host),
        // As curl does it, only where there is nothing else.
        false if is_common_name(content, &host.to_str()) => Ok(()),
        false => Err(CertificateError::NotValidForName.into()),
    }
}

fn has_host_names(content: &TbsCertificate) -> Result<bool, Error> {
    let names = content.get::<SubjectAltName>();
    let names = names.map_err(|_| CertificateError::BadEncoding)?;
    let is_of_host = |name: &GeneralName| matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_));
    Ok(names.is_some_and(|(_, names)| names.0.iter().any(is_of_host)))
}

fn is_common_name(content: &TbsCertificate, host: &str) -> bool {
    let parts = content.subject.0.iter().flat_map(|part| part.0.iter());
    let mut names = parts
        .filter(|part| part.oid == COMMON_NAME)
        .filter_map(|part| std::str::from_utf8(part.value.value()).ok());
    let address = |text: &str| text.parse::<IpAddr>().ok();
    names.any(|name| match address(host) {
        Some(host) => address(name) == Some(host),
        None => name.eq_ignore_ascii_case(host),
    })
}
