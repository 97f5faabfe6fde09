//! What certificates say: taken out of PEM and DER, names, times, who signed whom.

use std::time::Duration;

use rsa::RsaPublicKey;
use rsa::pkcs1v15::{Signature, VerifyingKey};
use rsa::signature::Verifier as _;
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::referenced::OwnedToRef as _;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, KeyUsage, SubjectAltName};
use x509_cert::spki::ObjectIdentifier;

use super::key_pair::pem_contents;

const SHA1_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5");
const SHA256_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
const SHA384_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12");
const SHA512_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13");

/// A certificate with the bytes it came from.
#[derive(Clone, Debug)]
pub(super) struct Parsed {
    pub der: Vec<u8>,
    pub certificate: Certificate,
}

impl PartialEq for Parsed {
    fn eq(&self, other: &Parsed) -> bool {
        self.der == other.der
    }
}

impl Parsed {
    pub fn from_der(der: &[u8]) -> Result<Parsed, String> {
        let certificate =
            Certificate::from_der(der).map_err(|error| format!("the certificate cannot be read: {error}"))?;
        Ok(Parsed {
            der: der.to_vec(),
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

    fn alternative_names(&self) -> Vec<GeneralName> {
        let found = self.certificate.tbs_certificate.get::<SubjectAltName>();
        found.ok().flatten().map(|(_, names)| names.0).unwrap_or_default()
    }

    pub fn application_uri(&self) -> Option<String> {
        self.alternative_names().into_iter().find_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.to_string()),
            _ => None,
        })
    }

    /// Whether a host name or address is among the names of the certificate.
    pub fn names_host(&self, host: &str) -> bool {
        let host = host.trim_matches(['[', ']']);
        let address: Option<std::net::IpAddr> = host.parse().ok();
        self.alternative_names().into_iter().any(|name| match name {
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
        let constraints = self
            .certificate
            .tbs_certificate
            .get::<BasicConstraints>()
            .ok()
            .flatten();
        let usage = self.certificate.tbs_certificate.get::<KeyUsage>().ok().flatten();
        constraints.is_some_and(|(_, constraints)| constraints.ca)
            && usage.is_none_or(|(_, usage)| usage.key_cert_sign())
    }

    /// Whether a revocation list is by the name of the authority that this certificate is by.
    pub fn has_issuer_of(&self, list: &CertificateList) -> bool {
        list.tbs_cert_list.issuer == self.certificate.tbs_certificate.issuer
    }

    pub fn is_self_issued(&self) -> bool {
        self.certificate.tbs_certificate.subject == self.certificate.tbs_certificate.issuer
    }

    /// Whether `issuer` is named as the issuer and its key verifies the signature.
    pub fn is_signed_by(&self, issuer: &Parsed) -> bool {
        if self.certificate.tbs_certificate.issuer != issuer.certificate.tbs_certificate.subject {
            return false;
        }
        let Ok(signed) = self.certificate.tbs_certificate.to_der() else {
            return false;
        };
        let signature = self.certificate.signature.as_bytes().unwrap_or_default();
        issuer.verifies(&self.certificate.signature_algorithm.oid, &signed, signature)
    }

    /// Whether a revocation list comes from this authority.
    pub fn has_signed(&self, list: &CertificateList) -> bool {
        if list.tbs_cert_list.issuer != self.certificate.tbs_certificate.subject {
            return false;
        }
        let Ok(signed) = list.tbs_cert_list.to_der() else {
            return false;
        };
        let signature = list.signature.as_bytes().unwrap_or_default();
        self.verifies(&list.signature_algorithm.oid, &signed, signature)
    }

    fn verifies(&self, algorithm: &ObjectIdentifier, signed: &[u8], signature: &[u8]) -> bool {
        let info = self.certificate.tbs_certificate.subject_public_key_info.owned_to_ref();
        let (Ok(key), Ok(signature)) = (RsaPublicKey::try_from(info), Signature::try_from(signature)) else {
            return false;
        };
        match *algorithm {
            SHA256_WITH_RSA => VerifyingKey::<Sha256>::new(key).verify(signed, &signature).is_ok(),
            SHA384_WITH_RSA => VerifyingKey::<Sha384>::new(key).verify(signed, &signature).is_ok(),
            SHA512_WITH_RSA => VerifyingKey::<Sha512>::new(key).verify(signed, &signature).is_ok(),
            SHA1_WITH_RSA => VerifyingKey::<Sha1>::new(key).verify(signed, &signature).is_ok(),
            _ => false,
        }
    }

    pub fn is_revoked_by(&self, list: &CertificateList) -> bool {
        let serial = &self.certificate.tbs_certificate.serial_number;
        let revoked = list.tbs_cert_list.revoked_certificates.iter().flatten();
        revoked.into_iter().any(|entry| entry.serial_number == *serial)
    }
}

/// All certificates in a file or a server's answer: PEM blocks, or DER one behind the other.
pub(super) fn certificates(bytes: &[u8]) -> Vec<Vec<u8>> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.contains("-----BEGIN CERTIFICATE-----")
    {
        return pem_contents(text, "CERTIFICATE");
    }
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some(length) = der_length(rest)
        && let Some((first, behind)) = rest.split_at_checked(length)
    {
        found.push(first.to_vec());
        rest = behind;
    }
    found
}

pub(super) fn first_certificate(bytes: &[u8]) -> Option<Vec<u8>> {
    certificates(bytes).into_iter().next()
}

/// All lists in a file, PEM or DER. One that cannot be read is an error: to pass over it would accept what it revokes.
pub(super) fn revocation_lists(bytes: &[u8]) -> Result<Vec<CertificateList>, String> {
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
    ders.iter()
        .map(|der| CertificateList::from_der(der).map_err(|error| error.to_string()))
        .collect()
}

/// The length of the DER sequence at the start, header included.
fn der_length(bytes: &[u8]) -> Option<usize> {
    let (&[0x30, first], rest) = bytes.split_first_chunk::<2>()? else {
        return None;
    };
    if first < 0x80 {
        return Some(2 + usize::from(first));
    }
    let digits = usize::from(first & 0x7F);
    if !(1..=4).contains(&digits) {
        return None;
    }
    let length = rest
        .get(..digits)?
        .iter()
        .fold(0, |length, byte| length << 8 | usize::from(*byte));
    length.checked_add(2 + digits)
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
            let _ = (certificates(&bytes), revocation_lists(&bytes), Parsed::from_der(&bytes));
        }
    }
}
