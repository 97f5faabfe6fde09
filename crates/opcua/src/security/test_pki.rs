//! Certificates and revocation lists for tests, with arbitrary fields, including those that no authority would issue.

use std::sync::OnceLock;
use std::time::Duration;

use rsa::RsaPrivateKey;
use rsa::pkcs1v15::SigningKey;
use rsa::pkcs8::{DecodePrivateKey as _, EncodePublicKey as _};
use rsa::signature::{SignatureEncoding as _, Signer as _};
use sha1::{Digest as _, Sha1};
use sha2::{Sha256, Sha384, Sha512};
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::crl::{CertificateList, RevokedCert, TbsCertList};
use x509_cert::der::asn1::{Any, BitString, GeneralizedTime, Ia5String, OctetString, SetOfVec};
use x509_cert::der::flagset::FlagSet;
use x509_cert::der::{Decode as _, Encode, Tag};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
    SubjectKeyIdentifier,
};
use x509_cert::name::{Name, RdnSequence, RelativeDistinguishedName};
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{AlgorithmIdentifierOwned, ObjectIdentifier, SubjectPublicKeyInfoOwned};
use x509_cert::time::{Time, Validity};
use x509_cert::{Certificate, TbsCertificate, Version};

pub(crate) const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
pub(crate) const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");
pub(crate) const ANY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");
pub(crate) const URI: &str = "urn:server";

/// The current time of the tests, in seconds since 1970, and a day.
pub(crate) const NOW: u64 = 1_800_000_000;
pub(crate) const DAY: u64 = 86_400;

/// Keys 0 to 7 have 2,048 bits, 8 to 9 have 1,024. Each is generated once, because that takes a noticeable part of a
/// second.
pub(crate) fn key(index: usize) -> RsaPrivateKey {
    static KEYS: [OnceLock<RsaPrivateKey>; 10] = [const { OnceLock::new() }; 10];
    let bits = if index < 8 { 2048 } else { 1024 };
    let make = || {
        let der = opcua::crypto::PrivateKey::new(bits).unwrap().to_der().unwrap();
        RsaPrivateKey::from_pkcs8_der(der.as_bytes()).unwrap()
    };
    KEYS[index].get_or_init(make).clone()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    fn algorithm(self) -> AlgorithmIdentifierOwned {
        let last = match self {
            Hash::Sha1 => 5,
            Hash::Sha256 => 11,
            Hash::Sha384 => 12,
            Hash::Sha512 => 13,
        };
        AlgorithmIdentifierOwned {
            oid: ObjectIdentifier::new(&format!("1.2.840.113549.1.1.{last}")).unwrap(),
            parameters: Some(Any::null()),
        }
    }

    fn sign(self, key: RsaPrivateKey, bytes: &[u8]) -> BitString {
        let signature = match self {
            Hash::Sha1 => SigningKey::<Sha1>::new(key).sign(bytes),
            Hash::Sha256 => SigningKey::<Sha256>::new(key).sign(bytes),
            Hash::Sha384 => SigningKey::<Sha384>::new(key).sign(bytes),
            Hash::Sha512 => SigningKey::<Sha512>::new(key).sign(bytes),
        };
        BitString::from_bytes(&signature.to_vec()).unwrap()
    }
}

/// The fields of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Design {
    pub name: String,
    /// The string type of the name: UTF-8 or printable.
    pub name_tag: Tag,
    pub key: usize,
    pub serial: u32,
    /// Seconds since 1970.
    pub from: u64,
    pub to: u64,
    pub hash: Hash,
    pub version: Version,
    /// Whether it is an authority, and its path length limit.
    pub constraints: Option<(bool, Option<u8>)>,
    pub usage: Option<FlagSet<KeyUsages>>,
    pub extended_usage: Option<Vec<ObjectIdentifier>>,
    pub uri: Option<String>,
    pub with_key_ids: bool,
    pub more: Vec<Extension>,
}

impl Design {
    pub fn authority(name: &str, key: usize) -> Design {
        Design {
            name: name.to_owned(),
            name_tag: Tag::Utf8String,
            key,
            serial: 100 + key as u32,
            from: NOW - 100 * DAY,
            to: NOW + 100 * DAY,
            hash: Hash::Sha256,
            version: Version::V3,
            constraints: Some((true, None)),
            usage: Some(KeyUsages::KeyCertSign | KeyUsages::CRLSign),
            extended_usage: None,
            uri: None,
            with_key_ids: true,
            more: Vec::new(),
        }
    }

    /// As Part 6 of OPC UA requires.
    pub fn server(key: usize) -> Design {
        let usage = KeyUsages::DigitalSignature
            | KeyUsages::NonRepudiation
            | KeyUsages::KeyEncipherment
            | KeyUsages::DataEncipherment;
        Design {
            constraints: Some((false, None)),
            usage: Some(usage),
            extended_usage: Some(vec![SERVER_AUTH]),
            uri: Some(URI.to_owned()),
            ..Design::authority("server", key)
        }
    }

    pub fn self_signed(&self) -> Vec<u8> {
        self.signed_by(self)
    }

    /// Returns DER.
    pub fn signed_by(&self, issuer: &Design) -> Vec<u8> {
        let tbs = TbsCertificate {
            version: self.version,
            serial_number: SerialNumber::from(self.serial),
            signature: self.hash.algorithm(),
            issuer: issuer.subject(),
            validity: Validity {
                not_before: time(self.from),
                not_after: time(self.to),
            },
            subject: self.subject(),
            subject_public_key_info: self.public_key(),
            issuer_unique_id: None,
            subject_unique_id: None,
            extensions: (self.version == Version::V3).then(|| self.extensions(issuer)),
        };
        let signature = self.hash.sign(key(issuer.key), &tbs.to_der().unwrap());
        let certificate = Certificate {
            tbs_certificate: tbs,
            signature_algorithm: self.hash.algorithm(),
            signature,
        };
        certificate.to_der().unwrap()
    }

    pub fn subject(&self) -> Name {
        let common_name = AttributeTypeAndValue {
            oid: ObjectIdentifier::new_unwrap("2.5.4.3"),
            value: Any::new(self.name_tag, self.name.as_bytes()).unwrap(),
        };
        let only = RelativeDistinguishedName::from(SetOfVec::try_from(vec![common_name]).unwrap());
        RdnSequence(vec![only])
    }

    fn public_key(&self) -> SubjectPublicKeyInfoOwned {
        let public = key(self.key).to_public_key().to_public_key_der().unwrap();
        SubjectPublicKeyInfoOwned::from_der(public.as_bytes()).unwrap()
    }

    fn key_id(&self) -> OctetString {
        let info = self.public_key();
        let digest = Sha1::digest(info.subject_public_key.as_bytes().unwrap());
        OctetString::new(digest.as_slice()).unwrap()
    }

    fn extensions(&self, issuer: &Design) -> Vec<Extension> {
        let mut all = Vec::new();
        if self.with_key_ids {
            all.push(extension("2.5.29.14", false, &SubjectKeyIdentifier(self.key_id())));
            let by = AuthorityKeyIdentifier {
                key_identifier: Some(issuer.key_id()),
                ..AuthorityKeyIdentifier::default()
            };
            all.push(extension("2.5.29.35", false, &by));
        }
        if let Some((ca, path_len_constraint)) = self.constraints {
            let constraints = BasicConstraints {
                ca,
                path_len_constraint,
            };
            all.push(extension("2.5.29.19", true, &constraints));
        }
        all.extend(self.usage.map(|usage| extension("2.5.29.15", true, &KeyUsage(usage))));
        if let Some(purposes) = &self.extended_usage {
            all.push(extension("2.5.29.37", false, &ExtendedKeyUsage(purposes.clone())));
        }
        if let Some(uri) = &self.uri {
            let names = vec![
                GeneralName::UniformResourceIdentifier(Ia5String::new(uri).unwrap()),
                GeneralName::DnsName(Ia5String::new("plc").unwrap()),
            ];
            all.push(extension("2.5.29.17", false, &SubjectAltName(names)));
        }
        all.extend(self.more.iter().cloned());
        all
    }

    /// Returns a list that revokes these serial numbers.
    pub fn revokes(&self, serials: &[u32], extensions: Vec<Extension>) -> Vec<u8> {
        self.revokes_within(serials, extensions, NOW - DAY, Some(NOW + DAY))
    }

    /// Returns a list with these dates, in seconds since 1970.
    pub fn revokes_within(&self, serials: &[u32], extensions: Vec<Extension>, from: u64, to: Option<u64>) -> Vec<u8> {
        let entry = |serial: &u32| RevokedCert {
            serial_number: SerialNumber::from(*serial),
            revocation_date: time(NOW - DAY),
            crl_entry_extensions: None,
        };
        let tbs = TbsCertList {
            version: Version::V2,
            signature: self.hash.algorithm(),
            issuer: self.subject(),
            this_update: time(from),
            next_update: to.map(time),
            revoked_certificates: (!serials.is_empty()).then(|| serials.iter().map(entry).collect()),
            crl_extensions: (!extensions.is_empty()).then_some(extensions),
        };
        self.sign_list(tbs)
    }

    pub fn sign_list(&self, tbs: TbsCertList) -> Vec<u8> {
        let list = CertificateList {
            signature: self.hash.sign(key(self.key), &tbs.to_der().unwrap()),
            signature_algorithm: self.hash.algorithm(),
            tbs_cert_list: tbs,
        };
        list.to_der().unwrap()
    }
}

pub(crate) fn extension(oid: &str, critical: bool, value: &impl Encode) -> Extension {
    Extension {
        extn_id: ObjectIdentifier::new(oid).unwrap(),
        critical,
        extn_value: OctetString::new(value.to_der().unwrap()).unwrap(),
    }
}

pub(crate) fn time(seconds: u64) -> Time {
    Time::GeneralTime(GeneralizedTime::from_unix_duration(Duration::from_secs(seconds)).unwrap())
}
