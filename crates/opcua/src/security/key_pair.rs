//! A certificate with its private key, from the base64 texts of the configuration.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use opcua::crypto::{KeySize as _, PrivateKey, X509};

use super::x509;

const WRONG_KEY: &str = "invalid private key type or not RSA";

/// Clones copy the key in memory; it is never printed.
#[derive(Clone)]
pub(crate) struct KeyPair {
    pub certificate: X509,
    pub key: PrivateKey,
    /// The certificate's bytes as given, for fingerprints and the server.
    pub der: Vec<u8>,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyPair({})", super::sha256_hex(&self.der))
    }
}

impl KeyPair {
    /// Parses base64 of a PEM bundle that contains both.
    pub fn from_bundle(text: &str) -> Result<KeyPair, String> {
        let bytes = decode(text)?;
        if !is_pem(&bytes) {
            return Err("expected base64 of a PEM bundle with a certificate and its private key".to_owned());
        }
        KeyPair::from_parts(&bytes, &bytes)
    }

    /// Parses base64 of PEM or DER for each.
    pub fn from_base64(certificate: &str, key: &str) -> Result<KeyPair, String> {
        KeyPair::from_parts(&decode(certificate)?, &decode(key)?)
    }

    pub fn from_parts(certificate: &[u8], key: &[u8]) -> Result<KeyPair, String> {
        let der = x509::first_certificate(certificate).ok_or("it holds no certificate in PEM or DER form")?;
        let certificate = X509::from_der(&der).map_err(|_| "the certificate cannot be read")?;
        let key = private_key(key)?;
        let pair = KeyPair { certificate, key, der };
        if !pair.belong_together() {
            return Err("the private key does not belong to the certificate".to_owned());
        }
        Ok(pair)
    }

    /// Whether the certificate's public key verifies what the private key signs.
    fn belong_together(&self) -> bool {
        const PROBE: &[u8] = b"thalweg";
        let mut signature = vec![0; self.key.size()];
        let Ok(public) = self.certificate.public_key() else {
            return false;
        };
        self.key.sign_sha256(PROBE, &mut signature).is_ok() && public.verify_sha256(PROBE, &signature).unwrap_or(false)
    }
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    // Users often paste a PEM text directly.
    if text.contains("-----BEGIN") {
        return Ok(text.as_bytes().to_vec());
    }
    STANDARD
        .decode(compact)
        .map_err(|_| "expected base64; make it with: base64 -w0 FILE".to_owned())
}

fn is_pem(bytes: &[u8]) -> bool {
    bytes.windows(10).any(|window| window == b"-----BEGIN")
}

fn private_key(bytes: &[u8]) -> Result<PrivateKey, String> {
    if is_pem(bytes) {
        let text = std::str::from_utf8(bytes).map_err(|_| WRONG_KEY)?;
        let block = pem_block(text, |label| label.ends_with("PRIVATE KEY")).ok_or("it holds no private key")?;
        return PrivateKey::from_pem(block.as_bytes()).map_err(|_| WRONG_KEY.to_owned());
    }
    // The library reads keys only as PEM, whose label distinguishes PKCS#8 from PKCS#1.
    for label in ["PRIVATE KEY", "RSA PRIVATE KEY"] {
        if let Ok(key) = PrivateKey::from_pem(to_pem(label, bytes).as_bytes()) {
            return Ok(key);
        }
    }
    Err(WRONG_KEY.to_owned())
}

/// Returns the first block with a matching label, including its armour.
fn pem_block(text: &str, wanted: impl Fn(&str) -> bool) -> Option<String> {
    const BEGIN: &str = "-----BEGIN ";
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        rest = rest.get(at..)?;
        let label = rest.get(BEGIN.len()..)?.split("-----").next()?;
        let end_line = format!("-----END {label}-----");
        let end = rest.find(&end_line)? + end_line.len();
        if wanted(label) {
            // Windows line ends and indentation from YAML blocks are tolerated.
            let lines = rest.get(..end)?.lines().map(str::trim);
            return Some(lines.collect::<Vec<_>>().join("\n") + "\n");
        }
        rest = rest.get(end..)?;
    }
    None
}

pub(super) fn to_pem(label: &str, der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let lines: Vec<&str> = base64
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap_or_default())
        .collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Returns the bytes of all blocks with a label.
pub(super) fn pem_contents(text: &str, label: &str) -> Vec<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let blocks = text.split(&begin).skip(1).filter_map(|block| block.split(&end).next());
    blocks
        .filter_map(|block| {
            let compact: String = block.chars().filter(|c| !c.is_whitespace()).collect();
            STANDARD.decode(compact).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests;
