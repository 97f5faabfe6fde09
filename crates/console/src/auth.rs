//! Who is asking: the credentials of the configuration's `auth` section against what a request presents.
//!
//! Tokens come as bearer tokens, or as HTTP basic with the token's name and the token as password, so that browsers and
//! tools that know only basic can use them. Users of `users_file` come as HTTP basic. Secrets are compared in constant
//! time, and only their hashes are kept. Files are read again when they change.

mod basic;
mod users;
pub mod watch;

use std::collections::HashSet;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thalweg_config::{AuthConfig, BasicAuth, Role, Token, TokenSecret};
use tokio::sync::Semaphore;

use crate::StartError;
use users::Users;
use watch::Watch;

/// Password checks at the same time: each takes tens of milliseconds and megabytes by design, so strangers must not be
/// able to ask for many.
const PASSWORD_CHECKS_MAX: usize = 2;

/// Passwords that were right, remembered so that only a user's first request pays for the check.
const REMEMBERED_MAX: usize = 1024;

/// All credentials of the process.
pub struct Credentials {
    config: AuthConfig,
    basic: Option<basic::Login>,
    loaded: Mutex<(Watch, Arc<Loaded>)>,
    /// Salted hashes of user and password that were right under the present users file.
    remembered: Mutex<HashSet<[u8; 32]>>,
    salt: [u8; 32],
    password_checks: Semaphore,
}

struct Loaded {
    tokens: Vec<KnownToken>,
    users: Users,
}

struct KnownToken {
    name: String,
    hash: [u8; 32],
    roles: Vec<Role>,
}

/// Someone who proved who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub roles: Vec<Role>,
}

impl Identity {
    pub fn may(&self, needed: Role) -> bool {
        self.roles.iter().any(|role| role.includes(needed))
    }
}

/// Why nobody was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// The request presents nothing.
    Silent,
    /// It presents something that is wrong.
    Wrong,
}

impl Credentials {
    /// `None` when the configuration names no one, which is something else than an empty users file.
    pub fn load(config: &AuthConfig, basic: Option<&BasicAuth>) -> Result<Option<Credentials>, StartError> {
        if config.tokens.is_empty() && config.users_file.is_none() && basic.is_none() {
            return Ok(None);
        }
        let watch = Watch::new(files(config));
        let loaded = Arc::new(Loaded::read(config)?);
        Ok(Some(Credentials {
            config: config.clone(),
            basic: basic.map(basic::Login::new).transpose()?,
            loaded: Mutex::new((watch, loaded)),
            remembered: Mutex::default(),
            salt: random()?,
            password_checks: Semaphore::new(PASSWORD_CHECKS_MAX),
        }))
    }

    /// Checks what a request presents.
    pub async fn identify(&self, headers: &HeaderMap) -> Result<Identity, Stranger> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Err(Stranger::Silent);
        };
        let (scheme, rest) = value
            .to_str()
            .ok()
            .and_then(|value| value.split_once(' '))
            .ok_or(Stranger::Wrong)?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.loaded().token(rest, None).ok_or(Stranger::Wrong);
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(Stranger::Wrong);
        }
        let decoded = BASE64_STANDARD.decode(rest).map_err(|_| Stranger::Wrong)?;
        let decoded = String::from_utf8(decoded).map_err(|_| Stranger::Wrong)?;
        let (name, password) = decoded.split_once(':').ok_or(Stranger::Wrong)?;
        let loaded = self.loaded();
        if let Some(identity) = loaded.token(password, Some(name)) {
            return Ok(identity);
        }
        if let Some(identity) = self.basic.as_ref().and_then(|login| login.check(name, password)) {
            return Ok(identity);
        }
        self.user(&loaded, name, password).await.ok_or(Stranger::Wrong)
    }

    async fn user(&self, loaded: &Arc<Loaded>, name: &str, password: &str) -> Option<Identity> {
        let fingerprint = self.fingerprint(name, password);
        if self.remembered.lock().contains(&fingerprint) {
            return loaded.users.identity(name);
        }
        let _permit = self.password_checks.acquire().await.ok()?;
        let (users, login, secret) = (loaded.clone(), name.to_owned(), password.to_owned());
        let right = tokio::task::spawn_blocking(move || users.users.check(&login, &secret))
            .await
            .ok()?;
        if !right {
            return None;
        }
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(fingerprint);
        loaded.users.identity(name)
    }

    fn fingerprint(&self, name: &str, password: &str) -> [u8; 32] {
        let length = (name.len() as u64).to_le_bytes();
        let parts = [&self.salt[..], &length, name.as_bytes(), password.as_bytes()];
        parts
            .iter()
            .fold(Sha256::new(), |hash, part| hash.chain_update(part))
            .finalize()
            .into()
    }

    /// The present content of the files. Content that cannot be used leaves the former in place.
    fn loaded(&self) -> Arc<Loaded> {
        let mut current = self.loaded.lock();
        if current.0.changed() {
            match Loaded::read(&self.config) {
                Ok(loaded) => {
                    current.1 = Arc::new(loaded);
                    self.remembered.lock().clear();
                    tracing::info!("the changed tokens and users are in force");
                }
                Err(error) => tracing::warn!(%error, "the former tokens and users stay in force"),
            }
        }
        current.1.clone()
    }
}

impl Loaded {
    fn read(config: &AuthConfig) -> Result<Loaded, StartError> {
        let tokens = config.tokens.iter().map(KnownToken::read).collect::<Result<_, _>>()?;
        let users = match &config.users_file {
            Some(path) => Users::read(path)?,
            None => Users::default(),
        };
        Ok(Loaded { tokens, users })
    }

    /// Compares with every token, so that the time tells nothing. With `name`, only the token of that name fits.
    fn token(&self, presented: &str, name: Option<&str>) -> Option<Identity> {
        let hash: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let mut found = None;
        for token in &self.tokens {
            let fits = bool::from(token.hash.ct_eq(&hash));
            if fits && name.is_none_or(|name| name == token.name) {
                found = Some(token);
            }
        }
        found.map(|token| Identity {
            name: token.name.clone(),
            roles: token.roles.clone(),
        })
    }
}

impl KnownToken {
    fn read(token: &Token) -> Result<KnownToken, StartError> {
        let hash = match &token.secret {
            TokenSecret::Sha256(hash) => *hash,
            TokenSecret::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| StartError::Unreadable {
                    key: "auth.tokens",
                    path: path.clone(),
                    error,
                })?;
                let text = text.trim();
                if text.is_empty() {
                    let (name, path) = (&token.name, path.display());
                    let problem =
                        format!("auth.tokens: the file {path} of token \"{name}\" is empty; write the token into it");
                    return Err(StartError::Auth { problem });
                }
                Sha256::digest(text.as_bytes()).into()
            }
        };
        Ok(KnownToken {
            name: token.name.clone(),
            hash,
            roles: token.roles.clone(),
        })
    }
}

fn files(config: &AuthConfig) -> Vec<std::path::PathBuf> {
    let of_tokens = config.tokens.iter().filter_map(|token| match &token.secret {
        TokenSecret::File(path) => Some(path.clone()),
        TokenSecret::Sha256(_) => None,
    });
    of_tokens.chain(config.users_file.clone()).collect()
}

fn random() -> Result<[u8; 32], StartError> {
    let mut bytes = [0; 32];
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    match read {
        Ok(()) => Ok(bytes),
        Err(error) => Err(StartError::Unreadable {
            key: "auth",
            path: "/dev/urandom".into(),
            error,
        }),
    }
}

#[cfg(test)]
mod tests;
