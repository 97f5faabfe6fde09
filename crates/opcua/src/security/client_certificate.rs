//! Our own certificate: the configured one, or one that is generated once and stored in the data folder's `keys/`.
//!
//! A policy from the time of SHA-1 gets a certificate signed with SHA-1, stored beside the other. Private keys are
//! readable only by their owner and never logged.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use opcua::crypto::{PrivateKey, SecurityPolicy, random};
use rsa::RsaPrivateKey;
use rsa::pkcs1v15::SigningKey;
use rsa::pkcs8::DecodePrivateKey as _;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use thalweg_kit::{blocking, clock};
use tokio::sync::OnceCell;
use x509_cert::builder::{Builder as _, CertificateBuilder, Profile};
use x509_cert::der::Encode as _;
use x509_cert::der::asn1::{GeneralizedTime, Ia5String, OctetString, UtcTime};
use x509_cert::der::{DateTime, Decode as _};
use x509_cert::ext::pkix::name::{GeneralName, GeneralNames};
use x509_cert::ext::pkix::{
    BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName, SubjectKeyIdentifier,
};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{ObjectIdentifier, SubjectPublicKeyInfoOwned};
use x509_cert::time::{Time, Validity};

use super::durable_file::keep;
use super::key_pair::{KeyPair, to_pem};
use super::policy_rules::{check_key, is_legacy};
use super::x509::ParsedCertificate;

const KEY_BITS: u32 = 2048;
const VALID_YEARS: u16 = 10;
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// The certificate that a server receives from us.
#[derive(Clone)]
pub(crate) struct OwnCertificate {
    pub pair: KeyPair,
    /// From the certificate, because servers require them to match.
    pub application_uri: String,
}

/// Shared by all connections of a component; loads or generates on first use.
pub(crate) struct ClientCertificates {
    configured: Option<KeyPair>,
    folder: PathBuf,
    sha256: OnceCell<OwnCertificate>,
    sha1: OnceCell<OwnCertificate>,
}

impl ClientCertificates {
    /// `keys` is the data folder's.
    pub fn new(configured: Option<KeyPair>, keys: &Path) -> ClientCertificates {
        ClientCertificates {
            configured,
            folder: keys.to_owned(),
            sha256: OnceCell::new(),
            sha1: OnceCell::new(),
        }
    }

    /// Returns the certificate for an endpoint's policy. Errors are sentences.
    pub async fn for_policy(&self, policy: SecurityPolicy) -> Result<OwnCertificate, String> {
        let legacy = is_legacy(policy);
        if let Some(pair) = &self.configured {
            check_key(policy, "clientCertificate", pair.certificate.key_length().ok())?;
        }
        let cell = if legacy && self.configured.is_none() {
            &self.sha1
        } else {
            &self.sha256
        };
        let loaded = cell.get_or_try_init(|| self.load(legacy)).await;
        loaded.cloned()
    }

    /// For connections without security, which need no certificate.
    pub fn application_uri_if_known(&self) -> String {
        let known = self.sha256.get().map(|own| own.application_uri.clone());
        let configured = || self.configured.as_ref().and_then(|pair| application_uri(pair).ok());
        known
            .or_else(configured)
            .unwrap_or_else(|| "urn:thalweg:client".to_owned())
    }

    async fn load(&self, legacy: bool) -> Result<OwnCertificate, String> {
        if let Some(pair) = &self.configured {
            let application_uri = application_uri(pair).map_err(|why| format!("clientCertificate {why}"))?;
            return Ok(OwnCertificate {
                pair: pair.clone(),
                application_uri,
            });
        }
        let folder = self.folder.clone();
        // Generating a key takes a noticeable part of a second.
        let made = blocking::spawn(move || kept_or_generated(&folder, legacy)).await;
        made.map_err(|_| "the client certificate could not be created".to_owned())?
    }
}

fn application_uri(pair: &KeyPair) -> Result<String, String> {
    let uri = ParsedCertificate::from_der(&pair.der)?.application_uri();
    uri.ok_or_else(|| "has no application URI among its alternative names, which OPC UA servers require".to_owned())
}

/// One process locks the data folder, but several inputs may start at once.
static GENERATING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

fn kept_or_generated(folder: &Path, legacy: bool) -> Result<OwnCertificate, String> {
    let _one_at_a_time = GENERATING.lock();
    let name = if legacy { "opcua-client-sha1" } else { "opcua-client" };
    let (certificate_file, key_file) = (
        folder.join(format!("{name}.der")),
        folder.join(format!("{name}.key.pem")),
    );
    if let Some((certificate, key)) = kept(&certificate_file, &key_file)? {
        let damaged = |why: String| {
            format!(
                "the stored certificate {} cannot be used: {why}; remove it and its key to have a new one created",
                certificate_file.display()
            )
        };
        let pair = KeyPair::from_parts(&certificate, &key).map_err(damaged)?;
        let application_uri = application_uri(&pair).map_err(damaged)?;
        return Ok(OwnCertificate { pair, application_uri });
    }
    let (pair, application_uri, key_pem) = generate(legacy)?;
    let unwritable = |error: std::io::Error| {
        format!(
            "the client certificate cannot be stored in {}: {error}; make the folder writable",
            folder.display()
        )
    };
    keep(&key_file, key_pem.as_bytes()).map_err(unwritable)?;
    keep(&certificate_file, &pair.der).map_err(unwritable)?;
    tracing::info!(
        certificate = super::sha256_hex(&pair.der),
        application_uri,
        "created a client certificate, stored in {}; servers must trust it",
        certificate_file.display()
    );
    Ok(OwnCertificate { pair, application_uri })
}

/// The bytes of a certificate and of its key.
type Pair = (Vec<u8>, Vec<u8>);

/// Returns the stored certificate and key; `None` to generate new ones. Servers trust the stored certificate, so it is
/// replaced only if it is missing: not if a file cannot be read at the moment, and not if the key is missing, which
/// must then be restored. A key without a certificate is left by a crash, because it is stored first; no server knows
/// it.
fn kept(certificate_file: &Path, key_file: &Path) -> Result<Option<Pair>, String> {
    match (read_if_there(certificate_file)?, read_if_there(key_file)?) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (Some(_), None) => Err(format!(
            "the key {} of the stored certificate {} is missing; restore it, or remove the certificate to have a new one created, which servers must trust again",
            key_file.display(),
            certificate_file.display()
        )),
        (None, _) => Ok(None),
    }
}

fn read_if_there(file: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!(
            "the stored client certificate cannot be used, since {} cannot be read: {error}; make the file readable for Thalweg",
            file.display()
        )),
    }
}

/// Generates a pair; returns it with its application URI and its key as PEM.
fn generate(legacy: bool) -> Result<(KeyPair, String, String), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the client certificate could not be created: {error}");
    let key = PrivateKey::new(KEY_BITS).map_err(|error| failed(&error))?;
    let key_der = key.to_der().map_err(|error| failed(&error))?;
    let rsa = RsaPrivateKey::from_pkcs8_der(key_der.as_bytes()).map_err(|error| failed(&error))?;
    let random = random_name();
    let application_uri = format!("urn:thalweg:client:{random}");
    let der = build(&rsa, &format!("thalweg-{random}"), &application_uri, legacy).map_err(|error| failed(&error))?;
    let key_pem = to_pem("PRIVATE KEY", key_der.as_bytes());
    let pair = KeyPair::from_parts(&der, key_pem.as_bytes())?;
    Ok((pair, application_uri, key_pem))
}

/// Generates a pair; returns it with its key as PEM.
#[cfg(test)]
pub(super) fn generate_for_tests(application_uri: &str) -> (KeyPair, String) {
    let key = PrivateKey::new(KEY_BITS).unwrap();
    let key_der = key.to_der().unwrap();
    let rsa = RsaPrivateKey::from_pkcs8_der(key_der.as_bytes()).unwrap();
    let der = build(&rsa, "test", application_uri, false).unwrap();
    let key_pem = to_pem("PRIVATE KEY", key_der.as_bytes());
    (KeyPair::from_parts(&der, key_pem.as_bytes()).unwrap(), key_pem)
}

/// Eight letters and digits.
fn random_name() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let bytes = random::byte_string(8);
    let letters = bytes
        .as_ref()
        .iter()
        .map(|byte| LETTERS.get(usize::from(byte % 32)).copied().unwrap_or(b'a'));
    letters.map(char::from).collect()
}

type BuildError = x509_cert::builder::Error;

fn build(key: &RsaPrivateKey, common_name: &str, application_uri: &str, legacy: bool) -> Result<Vec<u8>, BuildError> {
    let public = rsa::pkcs8::EncodePublicKey::to_public_key_der(&key.to_public_key())?;
    let public = SubjectPublicKeyInfoOwned::from_der(public.as_bytes())?;
    match legacy {
        false => builder(
            &SigningKey::<Sha256>::new(key.clone()),
            public,
            common_name,
            application_uri,
        ),
        true => builder(
            &SigningKey::<Sha1>::new(key.clone()),
            public,
            common_name,
            application_uri,
        ),
    }
}

fn builder<S>(
    signer: &S,
    public: SubjectPublicKeyInfoOwned,
    common_name: &str,
    uri: &str,
) -> Result<Vec<u8>, BuildError>
where
    S: rsa::signature::Keypair + x509_cert::spki::DynSignatureAlgorithmIdentifier,
    S: rsa::signature::Signer<rsa::pkcs1v15::Signature>,
    S::VerifyingKey: rsa::pkcs8::EncodePublicKey,
{
    let subject: Name = std::str::FromStr::from_str(&format!("CN={common_name}"))?;
    let key_id = Sha1::digest(public.subject_public_key.as_bytes().unwrap_or_default());
    let mut serial = random::byte_string(16).as_ref().to_vec();
    // Positive and of full length.
    if let Some(first) = serial.first_mut() {
        *first = *first & 0x7F | 0x40;
    }
    let profile = Profile::Manual {
        issuer: Some(subject.clone()),
    };
    let mut builder = CertificateBuilder::new(
        profile,
        SerialNumber::new(&serial)?,
        validity(),
        subject,
        public,
        signer,
    )?;
    let usage = KeyUsages::DigitalSignature
        | KeyUsages::NonRepudiation
        | KeyUsages::KeyEncipherment
        | KeyUsages::DataEncipherment
        | KeyUsages::KeyCertSign;
    let mut names = GeneralNames::new();
    names.push(GeneralName::UniformResourceIdentifier(Ia5String::new(uri)?));
    if let Ok(host) = opcua::crypto::hostname()
        && let Ok(host) = Ia5String::new(&host)
    {
        names.push(GeneralName::DnsName(host));
    }
    builder.add_extension(&SubjectKeyIdentifier(OctetString::new(key_id.as_slice())?))?;
    builder.add_extension(&BasicConstraints {
        ca: false,
        path_len_constraint: None,
    })?;
    builder.add_extension(&KeyUsage(usage))?;
    builder.add_extension(&ExtendedKeyUsage(vec![CLIENT_AUTH]))?;
    builder.add_extension(&SubjectAltName(names))?;
    Ok(builder.build::<rsa::pkcs1v15::Signature>()?.to_der()?)
}

/// Ten years from 1 January UTC of this year.
fn validity() -> Validity {
    let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let year =
        DateTime::from_unix_duration(now.min(Duration::from_secs(250_000_000_000))).map_or(2026, |now| now.year());
    Validity {
        not_before: first_of_january(year),
        not_after: first_of_january(year.saturating_add(VALID_YEARS)),
    }
}

/// Certificates encode years up to 2049 in the short form.
fn first_of_january(year: u16) -> Time {
    let date = DateTime::new(year, 1, 1, 0, 0, 0).unwrap_or(DateTime::INFINITY);
    match UtcTime::from_date_time(date) {
        Ok(short) => Time::UtcTime(short),
        Err(_) => Time::GeneralTime(GeneralizedTime::from_date_time(date)),
    }
}

#[cfg(test)]
mod tests;
