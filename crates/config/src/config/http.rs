//! The HTTP listener and who may use it.

use std::path::PathBuf;

use crate::diagnostics::Diagnostics;
use crate::fields::Fields;
use crate::kind;
use crate::names::nearest;
use crate::node::Node;
use crate::source::Pos;

#[derive(Debug, Clone)]
pub struct HttpConfig {
    pub enabled: bool,
    /// `host:port`.
    pub address: String,
    /// A second prefix for the reference system's paths.
    pub root_path: String,
    pub debug_endpoints: bool,
    /// Both files or neither.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub cors: CorsConfig,
    /// Allows listeners beyond loopback without TLS and authentication.
    pub insecure: bool,
    /// Maximum open connections; `None`: the usual number for the services of this listener.
    pub max_connections: Option<usize>,
    /// An additional user with all roles, from files of the reference system.
    pub basic_auth: Option<BasicAuth>,
}

#[derive(Debug, Clone, Default)]
pub struct CorsConfig {
    pub enabled: bool,
    pub allowed_origins: Vec<String>,
}

impl CorsConfig {
    pub(super) fn read(mut f: Fields<'_>) -> CorsConfig {
        let cors = CorsConfig {
            enabled: f.bool("enabled", false),
            allowed_origins: f.string_list("allowed_origins"),
        };
        f.finish();
        cors
    }

    /// The origins that are let in: none unless that is enabled.
    pub fn allowed(&self) -> &[String] {
        match self.enabled {
            true => &self.allowed_origins,
            false => &[],
        }
    }
}

/// A user of the reference system's `http.basic_auth`.
#[derive(Clone, PartialEq, Eq)]
pub struct BasicAuth {
    pub username: String,
    /// Base64 of the hash.
    pub password_hash: String,
    /// `sha256`; the other algorithms of the reference system are errors.
    pub algorithm: String,
}

impl std::fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicAuth")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl HttpConfig {
    pub(super) fn read(mut f: Fields<'_>) -> HttpConfig {
        let enabled = f.bool("enabled", true);
        let address = f.string("address", "127.0.0.1:4195");
        if !is_address(&address) {
            let got = f.mapping().get("address").map(Node::describe).unwrap_or_default();
            f.error(
                "address",
                format!("expected host:port such as 127.0.0.1:4195, got {got}"),
            );
        }
        let root_path = f.string("root_path", "/benthos");
        if !root_path.starts_with('/') {
            f.error("root_path", "a path begins with \"/\", for example /benthos");
        }
        let debug_endpoints = f.bool("debug_endpoints", false);
        let (cert_file, key_file) = tls_files(&mut f);
        let cors = CorsConfig::read(f.fields("cors"));
        let insecure = f.bool("insecure", false);
        // Read even if it is not given, because only fields that were read are listed as valid names.
        let connections = max_connections(&mut f);
        let max_connections = f.has("max_connections").then_some(connections);
        let effect = "is read as a further user of auth with all roles; move the user to auth.users_file";
        let legacy = f.legacy("basic_auth", effect);
        let basic_auth = legacy.and_then(|node| BasicAuth::read(&node, f.diags()));
        f.finish();
        HttpConfig {
            enabled,
            address,
            root_path,
            debug_endpoints,
            cert_file,
            key_file,
            cors,
            insecure,
            max_connections,
            basic_auth,
        }
    }
}

/// The usual number without an event store.
pub const CONNECTIONS_USUAL: usize = 16_384;

pub(super) fn max_connections(f: &mut Fields<'_>) -> usize {
    let most = f.int_in("max_connections", CONNECTIONS_USUAL as i64, 16..=1_000_000);
    usize::try_from(most).unwrap_or(CONNECTIONS_USUAL)
}

/// `cert_file` and `key_file`: both or neither.
pub(super) fn tls_files(f: &mut Fields<'_>) -> (Option<PathBuf>, Option<PathBuf>) {
    let cert_file = f.opt_string("cert_file").filter(|path| !path.is_empty());
    let key_file = f.opt_string("key_file").filter(|path| !path.is_empty());
    if cert_file.is_some() != key_file.is_some() {
        let (given, missing) = if cert_file.is_some() {
            ("cert_file", "key_file")
        } else {
            ("key_file", "cert_file")
        };
        f.error(given, format!("TLS needs cert_file and key_file; add {missing}"));
    }
    (cert_file.map(PathBuf::from), key_file.map(PathBuf::from))
}

/// `host:port`; an empty host means all interfaces.
pub(super) fn is_address(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| port.parse::<u16>().is_ok())
}

impl BasicAuth {
    fn read(node: &Node, diags: &Diagnostics) -> Option<BasicAuth> {
        let mut f = Fields::new(node, diags);
        let enabled = f.bool("enabled", false);
        f.string("realm", "restricted");
        let user = BasicAuth {
            username: f.string("username", ""),
            password_hash: f.string("password_hash", ""),
            algorithm: f
                .one_of("algorithm", &["md5", "sha256", "bcrypt", "scrypt"], "sha256")
                .to_owned(),
        };
        f.string("salt", "");
        if enabled && user.algorithm != "sha256" {
            let message = format!(
                "this version checks sha256 only, not {}; give the password's SHA-256 in base64, or move the user to \
                 auth.users_file, which takes argon2id",
                user.algorithm
            );
            f.error("algorithm", message);
        } else if enabled && !user.password_hash.is_empty() && !is_base64_of_sha256(&user.password_hash) {
            f.error(
                "password_hash",
                "expected the base64 of the password's SHA-256: 44 characters, the last one =",
            );
        }
        if enabled && (user.username.is_empty() || user.password_hash.is_empty()) {
            let message = format!("{} needs username and password_hash", node.path());
            diags.error_at(node.pos(), message);
        }
        f.finish();
        enabled.then_some(user)
    }
}

/// 32 bytes are 43 characters and one of padding.
fn is_base64_of_sha256(text: &str) -> bool {
    let digit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let digits = text.strip_suffix('=').unwrap_or_default();
    digits.len() == 43 && digits.bytes().all(digit)
}

/// The role of a token or user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Read,
    Write,
    Admin,
}

impl Role {
    pub const NAMES: [&'static str; 3] = ["read", "write", "admin"];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        }
    }

    /// Admin includes write, and write includes read.
    pub fn includes(self, needed: Role) -> bool {
        self >= needed
    }

    pub fn parse(name: &str) -> Option<Role> {
        [Role::Read, Role::Write, Role::Admin]
            .into_iter()
            .find(|role| role.as_str() == name)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthConfig {
    pub tokens: Vec<TokenConfig>,
    /// Lines `name:sha256:role,…`.
    pub tokens_file: Option<PathBuf>,
    /// Lines `user:argon2id-hash:role,…`.
    pub users_file: Option<PathBuf>,
}

impl AuthConfig {
    /// Whether authentication is required.
    pub fn is_given(&self) -> bool {
        !self.tokens.is_empty() || self.tokens_file.is_some() || self.users_file.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenConfig {
    pub name: String,
    pub secret: TokenSecret,
    pub roles: Vec<Role>,
    /// Position of the token.
    pub pos: Pos,
}

/// How a token is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSecret {
    /// The SHA-256 of the token's text.
    Sha256([u8; 32]),
    /// A file that contains the token's text.
    File(PathBuf),
}

impl AuthConfig {
    pub(super) fn read(mut f: Fields<'_>) -> AuthConfig {
        let diags = f.diags();
        let mut tokens: Vec<TokenConfig> = Vec::new();
        for entry in f.list("tokens") {
            let Some(token) = TokenConfig::read(&entry, diags) else {
                continue;
            };
            if let Some(first) = tokens.iter().find(|first| first.name == token.name) {
                let name = &token.name;
                let message = format!("duplicate token \"{name}\", first defined on line {}", first.pos.line);
                diags.error(&entry, message);
            }
            tokens.push(token);
        }
        let mut file = |key| f.opt_string(key).filter(|path| !path.is_empty()).map(PathBuf::from);
        let (tokens_file, users_file) = (file("tokens_file"), file("users_file"));
        f.finish();
        AuthConfig {
            tokens,
            tokens_file,
            users_file,
        }
    }
}

impl TokenConfig {
    fn read(entry: &Node, diags: &Diagnostics) -> Option<TokenConfig> {
        let mut f = Fields::new(entry, diags);
        let name = f.required_string("name");
        let hash = f.opt_string("sha256");
        let file = f.opt_string("file");
        let roles = f.node("roles", &kind::list_of(&Role::NAMES));
        let secret = match (&hash, file) {
            (Some(hex), None) => {
                let decoded = sha256_from_hex(hex);
                if decoded.is_none() {
                    f.error("sha256", "expected the 64 hexadecimal digits of the token's SHA-256");
                }
                decoded.map(TokenSecret::Sha256)
            }
            (None, Some(file)) => Some(TokenSecret::File(PathBuf::from(file))),
            _ => {
                if !diags.is_describing() {
                    diags.error(entry, "a token needs either sha256 or file");
                }
                None
            }
        };
        f.finish();
        let roles = read_roles(entry, roles, diags);
        let given = entry.get("name").is_some();
        if given && !is_login_name(&name) {
            let text = "a name has 1 to 128 characters, none of them a colon, a space or a control character";
            diags.error(entry, text);
        }
        given.then_some(TokenConfig {
            name,
            secret: secret?,
            roles,
            pos: entry.pos(),
        })
    }
}

/// Whether a name can be used in a line of a file and in a login.
pub fn is_login_name(name: &str) -> bool {
    let plain = |c: char| !c.is_control() && !c.is_whitespace() && c != ':';
    (1..=128).contains(&name.chars().count()) && name.chars().all(plain) && !name.starts_with('#')
}

fn read_roles(entry: &Node, node: Option<Node>, diags: &Diagnostics) -> Vec<Role> {
    let items = match node.as_ref().map(Node::expect_seq) {
        Some(Ok(items)) => items,
        Some(Err(message)) => {
            if let Some(node) = &node {
                diags.error(node, message);
            }
            return Vec::new();
        }
        None => &[],
    };
    if items.is_empty() {
        diags.error(entry, "a token needs roles, for example roles: [read]");
    }
    let mut roles = Vec::new();
    for item in items {
        match item.scalar_text().and_then(Role::parse) {
            Some(role) => roles.push(role),
            None => {
                let hint = nearest(item.scalar_text().unwrap_or_default(), Role::NAMES);
                diags.error(item, format!("{} is not a role{hint}", item.describe()));
            }
        }
    }
    roles.sort_unstable();
    roles.dedup();
    roles
}

/// The bytes of a SHA-256 that is written as 64 hexadecimal digits of any case. `None`: it is something else.
pub fn sha256_from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    });
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}
