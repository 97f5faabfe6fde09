//! Tokens. A token's text contains its namespace; only a digest of its secret is stored.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use thalweg_kit::random;
use thalweg_log::Micros;

use crate::error::EventsError;

const PREFIX: &str = "ns_";
const SECRET_DIGITS: usize = 64;

/// The stored digest of a token.
#[derive(Clone, Copy, Debug)]
pub struct TokenDigest([u8; 32]);

/// A well-formed token, which need not be valid.
#[derive(Clone, Debug)]
pub struct Token {
    namespace: String,
    digest: TokenDigest,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("invalid token format: missing 'ns_' prefix")]
    Prefix,
    #[error("invalid token format: expected 2 parts after prefix, got 1")]
    Parts,
    #[error("invalid token format: random part must be 64 hex characters, got {0}")]
    Length(usize),
    #[error("invalid token format: random part is not valid hexadecimal: {0}")]
    Hexadecimal(String),
    #[error("invalid token format: namespace part is not valid base64url: {0}")]
    Base64(String),
    #[error("invalid token format: namespace is empty")]
    Empty,
}

/// `ns_<base64url of the namespace>_<64 hexadecimal digits>`.
pub fn token_text(namespace: &str, secret: [u8; 32]) -> String {
    let mut text = String::from(PREFIX);
    URL_SAFE_NO_PAD.encode_string(namespace, &mut text);
    text.push('_');
    for byte in secret {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Whether a token with this end is no longer valid. It is valid before its end.
pub fn is_token_expired(expires_at: Option<Micros>, now: Micros) -> bool {
    expires_at.is_some_and(|end| end <= now)
}

/// A random token and its text.
pub fn new_token(namespace: &str) -> Result<(Token, String), EventsError> {
    let mut secret = [0; 32];
    random::fill(&mut secret)
        .map_err(|error| EventsError::Unavailable(format!("no random numbers for a token: {error}")))?;
    let text = token_text(namespace, secret);
    let token = Token::parse(&text).map_err(|error| EventsError::Damaged(error.to_string()))?;
    Ok((token, text))
}

impl Token {
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let rest = text.strip_prefix(PREFIX).ok_or(TokenError::Prefix)?;
        // At the last `_`, because base64url can contain `_`.
        let (namespace, secret) = rest.rsplit_once('_').ok_or(TokenError::Parts)?;
        let digits = secret.chars().count();
        if digits != SECRET_DIGITS {
            return Err(TokenError::Length(digits));
        }
        if let Some((at, other)) = secret.char_indices().find(|(_, digit)| !digit.is_ascii_hexdigit()) {
            return Err(TokenError::Hexadecimal(format!("{other:?} at {at}")));
        }
        let decoded = URL_SAFE_NO_PAD.decode(namespace);
        let namespace = decoded.map_err(|error| TokenError::Base64(error.to_string()))?;
        let namespace = String::from_utf8(namespace).map_err(|error| TokenError::Base64(error.to_string()))?;
        if namespace.is_empty() {
            return Err(TokenError::Empty);
        }
        Ok(Token {
            digest: TokenDigest::of(&namespace, secret),
            namespace,
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn digest(&self) -> &TokenDigest {
        &self.digest
    }
}

impl TokenDigest {
    /// The digest ignores the case of the digits.
    fn of(namespace: &str, secret: &str) -> TokenDigest {
        let mut sha = Sha256::new();
        sha.update(namespace);
        sha.update([0]);
        sha.update(secret.to_ascii_lowercase());
        TokenDigest(sha.finalize().into())
    }

    pub fn from_bytes(bytes: [u8; 32]) -> TokenDigest {
        TokenDigest(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &TokenDigest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bad_token_is_told_what_is_wrong_with_it() {
        let zeros = "0".repeat(64);
        for (text, error) in [
            (String::new(), "missing 'ns_' prefix"),
            (format!("nsx_ZGVmYXVsdA_{zeros}"), "missing 'ns_' prefix"),
            ("ns_abc".to_owned(), "expected 2 parts after prefix, got 1"),
            (
                "ns_ZGVmYXVsdA_00".to_owned(),
                "random part must be 64 hex characters, got 2",
            ),
            (
                format!("ns_ZGVmYXVsdA_{}", "x".repeat(64)),
                "random part is not valid hexadecimal: 'x' at 0",
            ),
            (format!("ns_Z_{zeros}"), "namespace part is not valid base64url: "),
            (format!("ns_!!!!_{zeros}"), "namespace part is not valid base64url: "),
            (format!("ns__{zeros}"), "namespace is empty"),
        ] {
            let found = Token::parse(&text).unwrap_err().to_string();
            assert!(
                found.starts_with(&format!("invalid token format: {error}")),
                "{text}: {found}"
            );
        }
    }

    #[test]
    fn the_case_of_the_digits_does_not_matter_but_the_digits_do() {
        let text = token_text("default", [0xab; 32]);
        let upper = format!("ns_ZGVmYXVsdA_{}", "AB".repeat(32));
        let (one, other) = (Token::parse(&text).unwrap(), Token::parse(&upper).unwrap());
        assert_eq!(one.namespace(), "default");
        assert!(one.digest().matches(other.digest()));
        let changed = Token::parse(&token_text("default", [0xac; 32])).unwrap();
        assert!(!one.digest().matches(changed.digest()));
    }

    proptest! {
        #[test]
        fn every_namespace_has_tokens_that_parse(namespace in "\\PC{1,40}", secret in any::<[u8; 32]>()) {
            let token = Token::parse(&token_text(&namespace, secret)).unwrap();
            prop_assert_eq!(token.namespace(), namespace);
        }

        #[test]
        fn no_text_breaks_the_parser(text in ".*") {
            let _ = Token::parse(&text);
        }
    }
}
