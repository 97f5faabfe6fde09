//! Login files: one line per login, `name:hash:role,…`; empty lines and lines that begin with `#` are ignored. An
//! invalid line lets nobody in and does not affect the others.

use std::path::Path;

use argon2::password_hash::{PasswordHashString, PasswordHasher as _, SaltString};
use argon2::{Algorithm, Argon2};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use thalweg_config::{Role, is_login_name, nearest, sha256_from_hex};
use thalweg_kit::random::NoRandomness;

use super::{secret, sha256};

/// The stored secret of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginSecret {
    /// The SHA-256 of a token: 64 hexadecimal digits.
    Token([u8; 32]),
    /// The argon2id hash of a password.
    Password(PasswordHashString),
}

impl LoginSecret {
    pub fn of_token(token: &str) -> LoginSecret {
        LoginSecret::Token(sha256(token))
    }

    /// Takes tens of milliseconds and 19 MiB, by design.
    pub fn of_password(password: &str) -> std::io::Result<LoginSecret> {
        let failed = |error: argon2::password_hash::Error| std::io::Error::other(error.to_string());
        let salt = secret().map_err(std::io::Error::other)?;
        let salt = SaltString::encode_b64(&salt[..16]).map_err(failed)?;
        let hash = Argon2::default()
            .hash_password(password.as_bytes(), &salt)
            .map_err(failed)?;
        Ok(LoginSecret::Password(hash.serialize()))
    }
}

impl std::fmt::Display for LoginSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoginSecret::Token(hash) => hash.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            LoginSecret::Password(hash) => write!(f, "{}", hash.as_str()),
        }
    }
}

/// An unguessable token.
pub fn new_token() -> Result<String, NoRandomness> {
    Ok(format!("twg_{}", BASE64_URL_SAFE_NO_PAD.encode(secret()?)))
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginLine {
    pub name: String,
    pub secret: LoginSecret,
    pub roles: Vec<Role>,
}

/// The kind of a login file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginFileKind {
    Tokens,
    Users,
}

/// All valid lines; of the others their numbers and errors.
#[derive(Debug, Default)]
pub struct LoginFile {
    pub lines: Vec<LoginLine>,
    pub wrong: Vec<(usize, String)>,
}

/// A larger file is no login file. A login has 200 bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

impl LoginFile {
    /// On an error, nothing of the file is used.
    pub fn read(path: &Path, kind: LoginFileKind) -> std::io::Result<LoginFile> {
        use std::io::Read as _;
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(std::io::Error::other("it is larger than 16 MiB"));
        }
        Ok(LoginFile::parse(&text, kind))
    }

    pub fn parse(text: &str, kind: LoginFileKind) -> LoginFile {
        let mut found = LoginFile::default();
        let mut names = std::collections::HashSet::new();
        for (number, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            match LoginLine::parse(content, kind) {
                Ok(line) if names.insert(line.name.clone()) => found.lines.push(line),
                Ok(line) => {
                    let problem = format!("the name \"{}\" has two lines; delete one of them", line.name);
                    found.wrong.push((number, problem));
                }
                Err(problem) => found.wrong.push((number, problem)),
            }
        }
        found
    }
}

impl LoginLine {
    /// Parses a trimmed line of a file of this kind.
    pub fn parse(line: &str, kind: LoginFileKind) -> Result<LoginLine, String> {
        let form = match kind {
            LoginFileKind::Tokens => "expected name:sha256:role,role",
            LoginFileKind::Users => "expected user:argon2id-hash:role,role",
        };
        let (name, rest) = line.split_once(':').ok_or(form)?;
        let (hash, roles) = rest.split_once(':').unwrap_or((rest, ""));
        if name.is_empty() {
            return Err("the name before the first colon is missing".to_owned());
        }
        if !is_login_name(name) {
            return Err(format!(
                "{name:?} is not a name; it has 1 to 128 characters, none of them a space"
            ));
        }
        let secret = match kind {
            LoginFileKind::Tokens => {
                let digits = sha256_from_hex(hash.trim());
                let digits = digits
                    .ok_or_else(|| format!("the token of \"{name}\" must be the 64 hexadecimal digits of its SHA-256"));
                LoginSecret::Token(digits?)
            }
            LoginFileKind::Users => {
                let hash = PasswordHashString::new(hash.trim()).ok();
                let hash = hash.filter(|hash| Algorithm::try_from(hash.algorithm()) == Ok(Algorithm::Argon2id));
                let hash = hash
                    .ok_or_else(|| format!("the password of \"{name}\" must be an argon2id hash ($argon2id$v=19$…)"));
                LoginSecret::Password(hash?)
            }
        };
        let mut parsed = Vec::new();
        for role in roles.split(',').map(str::trim).filter(|role| !role.is_empty()) {
            let hint = || nearest(role, Role::NAMES);
            parsed.push(Role::parse(role).ok_or_else(|| format!("\"{role}\" is not a role{}", hint()))?);
        }
        Ok(LoginLine {
            name: name.to_owned(),
            secret,
            roles: parsed,
        })
    }
}

impl std::fmt::Display for LoginLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let roles: Vec<&str> = self.roles.iter().map(|role| role.as_str()).collect();
        write!(f, "{}:{}:{}", self.name, self.secret, roles.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$N8zPpDSJqVkYQ7MBRRPXgTyUhXNvKZUHLjWQzmjFYbk";

    #[test]
    fn lines_with_comments_and_roles_are_read_and_written_as_they_are() {
        let digits = "ab".repeat(32);
        let text = format!("# who\n\n edge:{digits}:write \nops:{digits}:read,admin\nnone:{digits}\n");
        let found = LoginFile::parse(&text, LoginFileKind::Tokens);
        assert_eq!(found.wrong, []);
        let written: Vec<String> = found.lines.iter().map(ToString::to_string).collect();
        let expected = [
            format!("edge:{digits}:write"),
            format!("ops:{digits}:read,admin"),
            format!("none:{digits}:"),
        ];
        assert_eq!(written, expected);
        let user = format!("ada:{PASSWORD}:read");
        let found = LoginFile::parse(&user, LoginFileKind::Users);
        assert_eq!(found.lines.first().map(ToString::to_string), Some(user));
    }

    #[test]
    fn a_file_that_is_larger_than_any_of_logins_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let mut text = vec![b'\n'; usize::try_from(FILE_BYTES_MAX).unwrap()];
        std::fs::write(&path, &text).unwrap();
        LoginFile::read(&path, LoginFileKind::Users).unwrap();
        text.push(b'\n');
        std::fs::write(&path, &text).unwrap();
        let error = LoginFile::read(&path, LoginFileKind::Users).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 16 MiB");
    }

    #[test]
    fn each_mistake_names_its_line_and_the_cure_and_leaves_the_others() {
        let digits = "ab".repeat(32);
        for (kind, wrong, part) in [
            (
                LoginFileKind::Tokens,
                "edge".to_owned(),
                "expected name:sha256:role,role",
            ),
            (
                LoginFileKind::Tokens,
                "edge:abc:read".to_owned(),
                "64 hexadecimal digits",
            ),
            (
                LoginFileKind::Tokens,
                format!("edge:{}:read", "é".repeat(64)),
                "64 hexadecimal digits",
            ),
            (LoginFileKind::Tokens, format!("a b:{digits}:read"), "is not a name"),
            (LoginFileKind::Tokens, format!("good:{digits}:read"), "has two lines"),
            (
                LoginFileKind::Users,
                "ada".to_owned(),
                "expected user:argon2id-hash:role,role",
            ),
            (
                LoginFileKind::Users,
                "ada:secret".to_owned(),
                "must be an argon2id hash",
            ),
            (
                LoginFileKind::Users,
                format!("ada:{PASSWORD}:reed"),
                "\"reed\" is not a role, did you mean \"read\"?",
            ),
            (
                LoginFileKind::Users,
                format!(":{PASSWORD}"),
                "the name before the first colon is missing",
            ),
        ] {
            let good = match kind {
                LoginFileKind::Tokens => format!("good:{digits}:read"),
                LoginFileKind::Users => format!("good:{PASSWORD}:read"),
            };
            let found = LoginFile::parse(&format!("{good}\n{wrong}\n"), kind);
            assert_eq!(found.lines.len(), 1, "{wrong}");
            let [(line, problem)] = &found.wrong[..] else {
                panic!("{wrong}: {:?}", found.wrong)
            };
            assert_eq!(*line, 2);
            assert!(problem.contains(part), "{problem}");
        }
    }
}
