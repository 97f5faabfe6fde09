//! The single user of the reference system's `http.basic_auth`, who has all roles.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;
use thalweg_config::{BasicAuth, Role};
use tokio_util::sync::CancellationToken;

use super::{Identity, sha256};
use crate::protection_error::ProtectionError;

pub struct BasicLogin {
    username: String,
    hash: [u8; 32],
}

impl BasicLogin {
    /// Supports only `sha256`. Each other hash would need another library for a deprecated section, and `users_file`
    /// accepts the same user with a better hash.
    pub fn new(config: &BasicAuth) -> Result<BasicLogin, ProtectionError> {
        let problem = |problem: &str| ProtectionError::Auth {
            problem: format!("http.basic_auth: {problem}"),
        };
        if config.algorithm != "sha256" {
            return Err(problem(&format!(
                "the algorithm {} is not supported; use sha256, or move the user to auth.users_file",
                config.algorithm
            )));
        }
        let hash = BASE64_STANDARD
            .decode(&config.password_hash)
            .ok()
            .and_then(|hash| hash.try_into().ok());
        let hash = hash.ok_or_else(|| problem("password_hash must be the base64 of the password's SHA-256"))?;
        Ok(BasicLogin {
            username: config.username.clone(),
            hash,
        })
    }

    pub fn check(&self, username: &str, password: &str) -> Option<Identity> {
        let right = bool::from(self.hash.ct_eq(&sha256(password))) && self.username == username;
        right.then(|| Identity {
            name: username.to_owned(),
            roles: vec![Role::Admin],
            // The section is read only at the start.
            ended: CancellationToken::new(),
        })
    }
}
