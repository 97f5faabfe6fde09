//! Trust in the certificates of a file. A certificate authority in the file signs others as usual. A server certificate
//! in the file is matched byte by byte, so nobody has to have signed it. `openssl req -x509` makes self-signed
//! certificates that are marked as authorities, which servers must not use by the rules of web browsers; curl accepts
//! them from `--cacert`, and so does this module. The host, validity and purpose in such a certificate are checked,
//! too. The library that verifies all other certificates ignores key usage and treats every root as an authority. This
//! module therefore checks the key usage of every server certificate, and passes only authorities to the library.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAltName};
use x509_cert::spki::ObjectIdentifier;
use x509_cert::{Certificate, TbsCertificate, Version};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const SERVER_AUTHENTICATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");

#[derive(Debug)]
pub(super) struct FileCertificates {
    of_file: Vec<CertificateDer<'static>>,
    /// Verifies all other certificates; `None` if there is no authority.
    signed: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl FileCertificates {
    pub fn new(
        of_file: Vec<CertificateDer<'static>>,
        signed: Option<Arc<WebPkiServerVerifier>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> FileCertificates {
        FileCertificates {
            of_file,
            signed,
            algorithms,
        }
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
            let signed = self.signed.as_ref().ok_or(CertificateError::UnknownIssuer)?;
            let verified = signed.verify_server_cert(shown, chain, host, ocsp, now)?;
            // A certificate that only the library can parse was already verified by it.
            if let Ok(certificate) = parsed(shown) {
                check_key_usage(&certificate.tbs_certificate)?;
            }
            return Ok(verified);
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
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Checks that a certificate of the file is valid for this host now.
pub(super) fn check(shown: &CertificateDer<'_>, host: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
    let certificate = parsed(shown)?;
    let content = &certificate.tbs_certificate;
    let since = content.validity.not_before.to_unix_duration().as_secs();
    let until = content.validity.not_after.to_unix_duration().as_secs();
    if now.as_secs() < since {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > until {
        return Err(CertificateError::Expired.into());
    }
    check_key_usage(content)?;
    if !is_for_servers(content)? {
        return Err(CertificateError::InvalidPurpose.into());
    }
    match has_host_names(content)? {
        true => verify_server_name(&ParsedCertificate::try_from(shown)?, host),
        // Like curl, use the common name only if there are no other names.
        false if is_common_name(content, &host.to_str()) => Ok(()),
        false => Err(CertificateError::NotValidForName.into()),
    }
}

/// Whether a certificate of the file may sign server certificates, by the rules of OpenSSL. An unreadable one may not.
pub(super) fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    parsed(certificate).and_then(|certificate| may_sign(&certificate.tbs_certificate)) == Ok(true)
}

fn may_sign(content: &TbsCertificate) -> Result<bool, Error> {
    let usage = key_usage(content)?;
    let constraints = content.get::<BasicConstraints>();
    let constraints = constraints.map_err(|_| CertificateError::BadEncoding)?;
    let is_authority = match constraints {
        Some((_, constraints)) => constraints.ca,
        // Older certificates show it only by their key usage, and the oldest only by being self-signed.
        None => usage.is_some() || (content.version == Version::V1 && content.subject == content.issuer),
    };
    let is_for_signing = usage.is_none_or(|usage| usage.key_cert_sign());
    Ok(is_authority && is_for_signing && is_for_servers(content)?)
}

/// If the certificate lists key usages, one of them must be usable for TLS.
fn check_key_usage(content: &TbsCertificate) -> Result<(), Error> {
    let is_for_tls = |usage: KeyUsage| usage.digital_signature() || usage.key_encipherment() || usage.key_agreement();
    match key_usage(content)?.is_none_or(is_for_tls) {
        true => Ok(()),
        false => Err(CertificateError::InvalidPurpose.into()),
    }
}

fn key_usage(content: &TbsCertificate) -> Result<Option<KeyUsage>, Error> {
    let usage = content.get::<KeyUsage>();
    let usage = usage.map_err(|_| CertificateError::BadEncoding)?;
    Ok(usage.map(|(_, usage)| usage))
}

/// Like OpenSSL, this does not accept "any use".
fn is_for_servers(content: &TbsCertificate) -> Result<bool, Error> {
    let purposes = content.get::<ExtendedKeyUsage>();
    let purposes = purposes.map_err(|_| CertificateError::BadEncoding)?;
    Ok(purposes.is_none_or(|(_, purposes)| purposes.0.contains(&SERVER_AUTHENTICATION)))
}

fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
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
