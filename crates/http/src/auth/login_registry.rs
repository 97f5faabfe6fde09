//! The current logins, and revocation of those that are removed.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier as _;
use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use thalweg_config::{AuthConfig, Role, TokenConfig, TokenSecret};
use thalweg_record::{CacheLimits, Remembered};
use tokio_util::sync::CancellationToken;

use super::login_file::{LoginFile, LoginFileKind, LoginLine, LoginSecret};
use super::{Identity, sha256};
use crate::protection_error::ProtectionError;

/// Cached successful password checks, so that only a user's first request pays for the check.
const REMEMBERED_MAX: usize = 1024;

/// All logins as they were read.
pub struct LoginRegistry {
    tokens: Vec<LoginEntry<[u8; 32]>>,
    users: BTreeMap<String, UserEntry>,
    /// Salted hashes of user and password for successful checks. They are dropped with the registry.
    remembered: Mutex<Remembered<[u8; 32], ()>>,
}

impl Default for LoginRegistry {
    fn default() -> LoginRegistry {
        LoginRegistry {
            tokens: Vec::new(),
            users: BTreeMap::new(),
            remembered: Mutex::new(Remembered::within(CacheLimits::entries(REMEMBERED_MAX))),
        }
    }
}

type UserEntry = LoginEntry<argon2::password_hash::PasswordHashString>;

struct LoginEntry<H> {
    name: String,
    hash: H,
    roles: Vec<Role>,
    /// Cancelled when the login is removed or changed.
    ended: CancellationToken,
}

impl<H> LoginEntry<H> {
    fn identity(&self) -> Identity {
        Identity {
            name: self.name.clone(),
            roles: self.roles.clone(),
            ended: self.ended.clone(),
        }
    }
}

impl LoginRegistry {
    /// Reads all files. An unreadable file or line lets nobody in, and is among the errors.
    pub fn read(config: &AuthConfig) -> (LoginRegistry, Vec<ProtectionError>) {
        let (mut known, mut flaws) = (LoginRegistry::default(), Vec::new());
        for token in &config.tokens {
            match secret_of(token) {
                Ok(hash) => known.add_token(token.name.clone(), hash, token.roles.clone()),
                Err(error) => flaws.push(error),
            }
        }
        let files = [
            ("auth.tokens_file", &config.tokens_file, LoginFileKind::Tokens),
            ("auth.users_file", &config.users_file, LoginFileKind::Users),
        ];
        for (key, path, kind) in files {
            let Some(path) = path else { continue };
            match LoginFile::read(path, kind) {
                Ok(lines) => {
                    flaws.extend(
                        lines
                            .wrong
                            .into_iter()
                            .map(|(line, problem)| wrong_line(path, line, &problem)),
                    );
                    for line in lines.lines {
                        known.add(line);
                    }
                }
                Err(error) => flaws.push(unreadable(key, path, error)),
            }
        }
        (known, flaws)
    }

    fn add(&mut self, line: LoginLine) {
        match line.secret {
            LoginSecret::Token(hash) => self.add_token(line.name, hash, line.roles),
            LoginSecret::Password(hash) => {
                let user = LoginEntry {
                    name: line.name.clone(),
                    hash,
                    roles: line.roles,
                    ended: CancellationToken::new(),
                };
                self.users.insert(line.name, user);
            }
        }
    }

    fn add_token(&mut self, name: String, hash: [u8; 32], roles: Vec<Role>) {
        self.tokens.push(LoginEntry {
            name,
            hash,
            roles,
            ended: CancellationToken::new(),
        });
    }

    /// Takes over from the previous registry: unchanged logins continue, and open requests of the others end.
    pub fn succeed(&mut self, before: &LoginRegistry) {
        let mut kept: HashSet<*const CancellationToken> = HashSet::new();
        for token in &mut self.tokens {
            let same = |old: &&LoginEntry<[u8; 32]>| {
                old.name == token.name && old.hash == token.hash && old.roles == token.roles
            };
            if let Some(old) = before.tokens.iter().find(same) {
                token.ended = old.ended.clone();
                kept.insert(&raw const old.ended);
            }
        }
        for (name, user) in &mut self.users {
            let old = before.users.get(name);
            if let Some(old) = old.filter(|old| old.hash == user.hash && old.roles == user.roles) {
                user.ended = old.ended.clone();
                kept.insert(&raw const old.ended);
            }
        }
        let all = before.tokens.iter().map(|old| &old.ended);
        let all = all.chain(before.users.values().map(|old| &old.ended));
        all.filter(|ended| !kept.contains(&(&raw const **ended)))
            .for_each(CancellationToken::cancel);
    }

    /// Compares with every token, so that the time reveals nothing. With `name`, only the token of that name matches.
    pub fn token(&self, presented: &str, name: Option<&str>) -> Option<Identity> {
        let hash = sha256(presented);
        let mut found = None;
        for token in &self.tokens {
            let fits = bool::from(token.hash.ct_eq(&hash));
            if fits && found.is_none() && name.is_none_or(|name| name == token.name) {
                found = Some(token);
            }
        }
        found.map(LoginEntry::identity)
    }

    pub fn user(&self, name: &str) -> Option<Identity> {
        self.users.get(name).map(LoginEntry::identity)
    }

    /// Takes tens of milliseconds. An unknown name takes as long as a wrong password, so that the time does not reveal
    /// which users exist.
    pub fn check_password(&self, name: &str, password: &str) -> bool {
        let Some((user, is_known)) = self.user_to_check(name) else {
            return false;
        };
        let right = Argon2::default()
            .verify_password(password.as_bytes(), &user.hash.password_hash())
            .is_ok();
        right && is_known
    }

    /// The user whose hash a password is compared with, and whether the name is known.
    fn user_to_check(&self, name: &str) -> Option<(&UserEntry, bool)> {
        match self.users.get(name) {
            Some(user) => Some((user, true)),
            None => self.users.values().next().map(|user| (user, false)),
        }
    }

    pub fn remembers(&self, fingerprint: &[u8; 32]) -> bool {
        self.remembered.lock().get(fingerprint).is_some()
    }

    pub fn remember(&self, fingerprint: [u8; 32]) {
        self.remembered.lock().insert(fingerprint, (), 0);
    }
}

/// The files whose changes affect the logins.
pub fn files(config: &AuthConfig) -> Vec<PathBuf> {
    let of_tokens = config.tokens.iter().filter_map(|token| match &token.secret {
        TokenSecret::File(path) => Some(path.clone()),
        TokenSecret::Sha256(_) => None,
    });
    let lists = [&config.tokens_file, &config.users_file];
    of_tokens.chain(lists.into_iter().flatten().cloned()).collect()
}

fn secret_of(token: &TokenConfig) -> Result<[u8; 32], ProtectionError> {
    let path = match &token.secret {
        TokenSecret::Sha256(hash) => return Ok(*hash),
        TokenSecret::File(path) => path,
    };
    let text = std::fs::read_to_string(path).map_err(|error| ProtectionError::Unreadable {
        key: "auth.tokens",
        path: path.clone(),
        error,
    })?;
    let text = text.trim();
    if text.is_empty() {
        let (name, path) = (&token.name, path.display());
        let problem = format!("auth.tokens: the file {path} of token \"{name}\" is empty; write the token into it");
        return Err(ProtectionError::Auth { problem });
    }
    Ok(sha256(text))
}

fn wrong_line(path: &Path, line: usize, problem: &str) -> ProtectionError {
    let problem = format!("{}:{line}: {problem}", path.display());
    ProtectionError::Auth { problem }
}

fn unreadable(key: &'static str, path: &Path, error: std::io::Error) -> ProtectionError {
    ProtectionError::Unreadable {
        key,
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(lines: &[(&str, &str)]) -> LoginRegistry {
        let mut known = LoginRegistry::default();
        for (name, token) in lines {
            known.add_token((*name).to_owned(), sha256(token), vec![Role::Read]);
        }
        known
    }

    #[test]
    fn the_password_of_an_unknown_user_is_compared_with_a_hash_too_and_is_never_right() {
        use argon2::password_hash::{PasswordHashString, PasswordHasher as _, SaltString};
        let salt = SaltString::from_b64("c2FsdHNhbHQ").unwrap();
        let cheap = argon2::Params::new(64, 1, 1, None).unwrap();
        let argon = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cheap);
        let hash: PasswordHashString = argon.hash_password(b"pump", &salt).unwrap().into();
        let ada = UserEntry {
            name: "ada".to_owned(),
            hash,
            roles: vec![Role::Read],
            ended: CancellationToken::new(),
        };
        let known = LoginRegistry {
            users: BTreeMap::from([("ada".to_owned(), ada)]),
            ..LoginRegistry::default()
        };
        let checked = |name: &str| {
            known
                .user_to_check(name)
                .map(|(user, is_own)| (user.name.clone(), is_own))
        };
        assert_eq!(checked("ada"), Some(("ada".to_owned(), true)));
        assert_eq!(checked("nobody"), Some(("ada".to_owned(), false)));
        assert!(known.check_password("ada", "pump") && !known.check_password("ada", "Pump"));
        assert!(
            !known.check_password("nobody", "pump"),
            "though it is the password of another"
        );
        assert!(LoginRegistry::default().user_to_check("nobody").is_none());
    }

    #[test]
    fn what_is_the_same_goes_on_and_what_is_not_ends() {
        let before = known(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let held: Vec<Identity> = ["1", "2", "3"]
            .iter()
            .map(|token| before.token(token, None).unwrap())
            .collect();
        let mut after = known(&[("c", "3"), ("b", "other")]);
        after.tokens[0].roles = vec![Role::Read];
        after.succeed(&before);
        let ended: Vec<bool> = held.iter().map(|identity| identity.ended.is_cancelled()).collect();
        assert_eq!(ended, [true, true, false]);
        let mut roles = known(&[("c", "3")]);
        roles.tokens[0].roles = vec![Role::Write];
        roles.succeed(&after);
        assert!(held[2].ended.is_cancelled(), "it may do something else now");
        assert!(!roles.token("3", None).unwrap().ended.is_cancelled());
    }
}
