//! Fingerprints of certificates: SHA3-512 or SHA-256 over the DER, as hex.

use sha2::{Digest as _, Sha256};
use sha3::Sha3_512;

/// The expected fingerprint of the server's certificate, in lower case without colons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    hex: String,
}

const SHA256_DIGITS: usize = 64;
const SHA3_512_DIGITS: usize = 128;

impl Fingerprint {
    pub fn parse(text: &str) -> Result<Fingerprint, String> {
        let hex: String = text
            .chars()
            .filter(|c| *c != ':' && !c.is_whitespace())
            .collect::<String>()
            .to_lowercase();
        if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("expected hex digits, with or without colons".to_owned());
        }
        if !matches!(hex.len(), SHA256_DIGITS | SHA3_512_DIGITS) {
            let digits = hex.len();
            return Err(format!(
                "expected the 128 hex digits of a SHA3-512 or the 64 of a SHA-256, got {digits}"
            ));
        }
        Ok(Fingerprint { hex })
    }

    /// `Err` contains the configured digits and those of the certificate by the same algorithm.
    pub fn check(&self, der: &[u8]) -> Result<(), (String, String)> {
        let got = match self.hex.len() {
            SHA256_DIGITS => sha256_hex(der),
            _ => hex(&Sha3_512::digest(der)),
        };
        if got == self.hex {
            Ok(())
        } else {
            Err((self.hex.clone(), got))
        }
    }
}

pub(crate) fn sha256_hex(der: &[u8]) -> String {
    hex(&Sha256::digest(der))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_algorithms_match_in_any_spelling() {
        let der = b"certificate";
        let sha3 = hex(&Sha3_512::digest(der));
        let with_colons: Vec<String> = sha3
            .as_bytes()
            .chunks(2)
            .map(|c| String::from_utf8_lossy(c).to_uppercase())
            .collect();
        for text in [sha3.clone(), with_colons.join(":"), sha256_hex(der).to_uppercase()] {
            Fingerprint::parse(&text).unwrap().check(der).unwrap();
        }
        let (expected, got) = Fingerprint::parse(&sha3).unwrap().check(b"other").unwrap_err();
        assert_eq!(expected, sha3);
        assert_eq!(got.len(), 128);
    }

    #[test]
    fn mistakes_are_explained() {
        assert!(Fingerprint::parse("xyz").unwrap_err().contains("hex digits"));
        assert!(Fingerprint::parse("ab:cd").unwrap_err().contains("got 4"));
    }
}
