//! Parsing of certificates: extraction from PEM and DER, names, times, keys, signatures.

mod extensions;
mod name;

use std::time::Duration;

use rsa::RsaPublicKey;
use rsa::pkcs1v15::{Signature, VerifyingKey};
use rsa::signature::Verifier as _;
use rsa::traits::PublicKeyParts as _;
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode as _;
use x509_cert::der::referenced::OwnedToRef as _;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::{AlgorithmIdentifierOwned, ObjectIdentifier};

pub(super) use extensions::Extensions;
pub(super) use name::ComparedName;

use super::key_pair::pem_contents;

const SHA1_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5");
const SHA256_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
const SHA384_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12");
const SHA512_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13");

/// A certificate with its original bytes.
#[derive(Clone, Debug)]
pub(super) struct ParsedCertificate {
    pub der: Vec<u8>,
    pub certificate: Certificate,
    pub extensions: Extensions,
    pub subject_name: ComparedName,
    pub issuer_name: ComparedName,
    /// `None` if it is not RSA, or longer than 4,096 bits.
    key: Option<RsaPublicKey>,
}

impl PartialEq for ParsedCertificate {
    fn eq(&self, other: &ParsedCertificate) -> bool {
        self.der == other.der
    }
}

/// Signed data in its original form: encoded again, it could differ in defaults.
pub(super) struct SignedData<'a> {
    pub bytes: &'a [u8],
    /// From inside the signed data, and from beside the signature.
    pub algorithms: [&'a AlgorithmIdentifierOwned; 2],
    pub signature: &'a [u8],
}

impl ParsedCertificate {
    pub fn from_der(der: &[u8]) -> Result<ParsedCertificate, String> {
        let certificate =
            Certificate::from_der(der).map_err(|error| format!("the certificate cannot be read: {error}"))?;
        let tbs = &certificate.tbs_certificate;
        Ok(ParsedCertificate {
            der: der.to_vec(),
            extensions: Extensions::of(tbs),
            subject_name: ComparedName::of(&tbs.subject),
            issuer_name: ComparedName::of(&tbs.issuer),
            key: RsaPublicKey::try_from(tbs.subject_public_key_info.owned_to_ref()).ok(),
            certificate,
        })
    }

    pub fn subject(&self) -> String {
        self.certificate.tbs_certificate.subject.to_string()
    }

    /// Since 1970.
    pub fn valid_from(&self) -> Duration {
        self.certificate.tbs_certificate.validity.not_before.to_unix_duration()
    }

    pub fn valid_to(&self) -> Duration {
        self.certificate.tbs_certificate.validity.not_after.to_unix_duration()
    }

    pub fn is_valid_at(&self, now: Duration) -> bool {
        self.valid_from() <= now && now <= self.valid_to()
    }

    /// The length of its RSA key.
    pub fn key_bits(&self) -> Option<usize> {
        self.key.as_ref().map(|key| key.n().bits())
    }

    pub fn application_uri(&self) -> Option<String> {
        self.extensions.names.iter().find_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.to_string()),
            _ => None,
        })
    }

    /// Whether the certificate names a host name or address.
    pub fn names_host(&self, host: &str) -> bool {
        let host = host.trim_matches(['[', ']']);
        let address: Option<std::net::IpAddr> = host.parse().ok();
        self.extensions.names.iter().any(|name| match name {
            GeneralName::DnsName(dns) => dns.as_str().eq_ignore_ascii_case(host),
            GeneralName::IpAddress(bytes) => match address {
                Some(std::net::IpAddr::V4(v4)) => bytes.as_bytes() == v4.octets(),
                Some(std::net::IpAddr::V6(v6)) => bytes.as_bytes() == v6.octets(),
                None => false,
            },
            _ => false,
        })
    }

    /// Whether it may sign other certificates. Old certificates without the extension may not.
    pub fn is_authority(&self) -> bool {
        self.extensions
            .constraints
            .is_some_and(|constraints| constraints.is_authority)
    }

    pub fn is_self_issued(&self) -> bool {
        self.subject_name == self.issuer_name
    }

    /// Whether the key identifier of its issuer, if present, equals the issuer's own.
    pub fn names_key_of(&self, issuer: &ParsedCertificate) -> bool {
        let key_id = self.extensions.issuer_key_id.as_ref();
        key_id.is_some() && key_id == issuer.extensions.key_id.as_ref()
    }

    pub fn has_same_key(&self, other: &ParsedCertificate) -> bool {
        let [own, its] = [self, other].map(|parsed| &parsed.certificate.tbs_certificate.subject_public_key_info);
        own == its
    }

    pub fn signed(&self) -> SignedData<'_> {
        let certificate = &self.certificate;
        SignedData {
            bytes: signed_bytes(&self.der).unwrap_or_default(),
            algorithms: [&certificate.tbs_certificate.signature, &certificate.signature_algorithm],
            signature: certificate.signature.as_bytes().unwrap_or_default(),
        }
    }

    /// Whether this certificate's key verifies a signature. Names are not compared.
    pub fn has_signed(&self, signed: &SignedData<'_>) -> bool {
        let [inside, beside] = signed.algorithms;
        let (Some(key), Ok(signature)) = (self.key.clone(), Signature::try_from(signed.signature)) else {
            return false;
        };
        if inside != beside {
            return false;
        }
        match beside.oid {
            SHA256_WITH_RSA => VerifyingKey::<Sha256>::new(key)
                .verify(signed.bytes, &signature)
                .is_ok(),
            SHA384_WITH_RSA => VerifyingKey::<Sha384>::new(key)
                .verify(signed.bytes, &signature)
                .is_ok(),
            SHA512_WITH_RSA => VerifyingKey::<Sha512>::new(key)
                .verify(signed.bytes, &signature)
                .is_ok(),
            SHA1_WITH_RSA => VerifyingKey::<Sha1>::new(key).verify(signed.bytes, &signature).is_ok(),
            _ => false,
        }
    }

    pub fn is_signed_with_sha1(&self) -> bool {
        self.certificate.signature_algorithm.oid == SHA1_WITH_RSA
    }

    /// The algorithm of its signature, if it is not supported here.
    pub fn unknown_signature(&self) -> Option<ObjectIdentifier> {
        const KNOWN: [ObjectIdentifier; 4] = [SHA1_WITH_RSA, SHA256_WITH_RSA, SHA384_WITH_RSA, SHA512_WITH_RSA];
        let oid = self.certificate.signature_algorithm.oid;
        (!KNOWN.contains(&oid)).then_some(oid)
    }
}

/// Returns the first element inside the outer sequence of a certificate or a list, which is the signed part.
pub(super) fn signed_bytes(der: &[u8]) -> Option<&[u8]> {
    let (header, length) = der_header(der)?;
    let content = der.get(header..header.checked_add(length)?)?;
    let (header, length) = der_header(content)?;
    content.get(..header.checked_add(length)?)
}

/// Returns all certificates in a file: PEM blocks, or concatenated DER.
pub(super) fn certificates(bytes: &[u8]) -> Vec<Vec<u8>> {
    first_certificates(bytes, usize::MAX)
}

/// Returns the first ones of a file or of a server's response, whatever follows them.
pub(super) fn first_certificates(bytes: &[u8], most: usize) -> Vec<Vec<u8>> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.contains("-----BEGIN CERTIFICATE-----")
    {
        let mut all = pem_contents(text, "CERTIFICATE");
        all.truncate(most);
        return all;
    }
    let mut found = Vec::new();
    let mut rest = bytes;
    while found.len() < most
        && let Some((header, length)) = der_header(rest)
        && let Some((first, after)) = rest.split_at_checked(header.saturating_add(length))
    {
        found.push(first.to_vec());
        rest = after;
    }
    found
}

pub(super) fn first_certificate(bytes: &[u8]) -> Option<Vec<u8>> {
    first_certificates(bytes, 1).into_iter().next()
}

/// Returns all lists in a file, PEM or DER, each with its bytes. An unreadable one is an error, because ignoring it
/// would accept what it revokes.
pub(super) fn revocation_lists(bytes: &[u8]) -> Result<Vec<(Vec<u8>, CertificateList)>, String> {
    const BEGIN: &str = "-----BEGIN X509 CRL-----";
    let ders = match std::str::from_utf8(bytes) {
        Ok(text) if text.contains(BEGIN) => {
            let contents = pem_contents(text, "X509 CRL");
            if contents.len() != text.matches(BEGIN).count() {
                return Err("a block is no base64".to_owned());
            }
            contents
        }
        _ => vec![bytes.to_vec()],
    };
    ders.into_iter()
        .map(|der| match CertificateList::from_der(&der) {
            Ok(list) => Ok((der, list)),
            Err(error) => Err(error.to_string()),
        })
        .collect()
}

/// Returns the lengths of the header and of the content of the DER sequence at the start.
fn der_header(bytes: &[u8]) -> Option<(usize, usize)> {
    let (&[0x30, first], rest) = bytes.split_first_chunk::<2>()? else {
        return None;
    };
    if first < 0x80 {
        return Some((2, usize::from(first)));
    }
    let digits = usize::from(first & 0x7F);
    if !(1..=4).contains(&digits) {
        return None;
    }
    let length = rest
        .get(..digits)?
        .iter()
        .fold(0, |length, byte| length << 8 | usize::from(*byte));
    Some((2 + digits, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_in_der_is_taken_apart() {
        let short = [&[0x30, 3][..], &[1, 2, 3]].concat();
        let long = [&[0x30, 0x82, 1, 0][..], &[7; 256]].concat();
        assert_eq!(
            certificates(&[short.clone(), long.clone()].concat()),
            [short.clone(), long]
        );
        assert_eq!(certificates(&[short.clone(), vec![0x30, 0x82, 9]].concat()), [short]);
        assert!(certificates(b"nonsense").is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (certificates(&bytes), revocation_lists(&bytes), ParsedCertificate::from_der(&bytes));
        }
    }
}
