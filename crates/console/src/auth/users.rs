//! `auth.users_file`: one user per line, `user:argon2id-hash[:role,…]`; empty lines and lines that begin with `#` are
//! skipped. A user without roles may exist (for protocols with rules of their own) but may do nothing over HTTP.

use std::collections::BTreeMap;
use std::path::Path;

use argon2::password_hash::{PasswordHashString, PasswordVerifier};
use argon2::{Algorithm, Argon2};
use thalweg_config::{Role, nearest};

use super::Identity;
use crate::StartError;

#[derive(Default)]
pub struct Users {
    by_name: BTreeMap<String, User>,
}

struct User {
    hash: PasswordHashString,
    roles: Vec<Role>,
}

impl Users {
    pub fn read(path: &Path) -> Result<Users, StartError> {
        let text = std::fs::read_to_string(path).map_err(|error| StartError::Unreadable {
            key: "auth.users_file",
            path: path.to_owned(),
            error,
        })?;
        Users::parse(&text).map_err(|(line, problem)| StartError::Auth {
            problem: format!("{}:{line}: {problem}", path.display()),
        })
    }

    fn parse(text: &str) -> Result<Users, (usize, String)> {
        let mut users = Users::default();
        for (line, content) in text.lines().enumerate() {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let (name, user) = parse_line(content).map_err(|problem| (line + 1, problem))?;
            if users.by_name.insert(name.clone(), user).is_some() {
                return Err((
                    line + 1,
                    format!("the user \"{name}\" has a line already; delete one of them"),
                ));
            }
        }
        Ok(users)
    }

    pub fn identity(&self, name: &str) -> Option<Identity> {
        self.by_name.get(name).map(|user| Identity {
            name: name.to_owned(),
            roles: user.roles.clone(),
        })
    }

    /// Takes tens of milliseconds. An unknown name takes as long as a wrong password, so that it does not tell who exists.
    pub fn check(&self, name: &str, password: &str) -> bool {
        let known = self.by_name.get(name);
        let Some(user) = known.or_else(|| self.by_name.values().next()) else {
            return false;
        };
        let right = Argon2::default()
            .verify_password(password.as_bytes(), &user.hash.password_hash())
            .is_ok();
        right && known.is_some()
    }
}

fn parse_line(line: &str) -> Result<(String, User), String> {
    let (name, rest) = line.split_once(':').ok_or("expected user:argon2id-hash:role,role")?;
    let (hash, roles) = rest.split_once(':').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err("the name before the first colon is missing".to_owned());
    }
    let hash = PasswordHashString::new(hash.trim()).ok();
    let hash = hash.filter(|hash| Algorithm::try_from(hash.algorithm()) == Ok(Algorithm::Argon2id));
    let hash = hash.ok_or_else(|| format!("the password of \"{name}\" must be an argon2id hash ($argon2id$v=19$…)"))?;
    let mut parsed = Vec::new();
    for role in roles.split(',').map(str::trim).filter(|role| !role.is_empty()) {
        let hint = || nearest(role, ["read", "write", "admin"]);
        parsed.push(Role::parse(role).ok_or_else(|| format!("\"{role}\" is no role{}", hint()))?);
    }
    Ok((name.to_owned(), User { hash, roles: parsed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password `pump`.
    pub const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$";

    fn hash(password: &str) -> String {
        use argon2::password_hash::{PasswordHasher, SaltString};
        let cheap = argon2::Params::new(64, 1, 1, None).unwrap();
        let salt = SaltString::from_b64("c2FsdHNhbHQ").unwrap();
        let argon = Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, cheap);
        argon.hash_password(password.as_bytes(), &salt).unwrap().to_string()
    }

    #[test]
    fn users_with_comments_and_roles_are_read_and_checked() {
        let hash = hash("pump");
        assert!(hash.starts_with(HASH));
        let users = Users::parse(&format!("# who\n\nada:{hash}:read,write\nbob:{hash}\n")).unwrap();
        assert!(users.check("ada", "pump"));
        assert!(!users.check("ada", "pumps"));
        assert!(!users.check("eve", "pump"));
        assert_eq!(users.identity("ada").unwrap().roles, [Role::Read, Role::Write]);
        assert!(users.identity("bob").unwrap().roles.is_empty());
        assert!(!Users::default().check("ada", "pump"));
    }

    #[test]
    fn each_mistake_names_its_line_and_the_cure() {
        let hash = hash("pump");
        let cases = [
            ("ada".to_owned(), (1, "expected user:argon2id-hash:role,role")),
            ("\nada:secret".to_owned(), (2, "must be an argon2id hash")),
            (
                format!("ada:{hash}:reed"),
                (1, "\"reed\" is no role, did you mean \"read\"?"),
            ),
            (format!("ada:{hash}\nada:{hash}"), (2, "has a line already")),
            (format!(":{hash}"), (1, "the name before the first colon is missing")),
        ];
        for (text, (line, part)) in cases {
            let Err((at, problem)) = Users::parse(&text) else {
                panic!("{text} was accepted")
            };
            assert_eq!(at, line, "{problem}");
            assert!(problem.contains(part), "{problem}");
        }
    }
}
