//! Finds what a start would refuse: unusable login and TLS files, unprotected addresses that other hosts reach, invalid
//! origins and paths. It uses the same functions as the start, so the two agree. Nothing is bound; files are only read.

use thalweg_config::{
    AuthConfig, HttpConfig, ListenerConfig, ListenerNames, Pos, Protection, exposure, literal_address,
};

use crate::auth::{Logins, flaws};
use crate::tls::{Tls, TlsFiles, TlsNames};
use crate::{StartError, listen, routes};

/// What is refused, in one sentence with the cure.
#[derive(Debug, PartialEq, Eq)]
pub struct VerifyError {
    pub place: ConfigLocation,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigLocation {
    /// A field such as `http.cors.allowed_origins`.
    Field(String),
    Pos(Pos),
}

/// Verifies the listener of the section `http`, if it is enabled, the other listeners, and the logins. An address with
/// a host name is checked when it is bound.
pub fn verify(http: &HttpConfig, auth: &AuthConfig, doors: &[&ListenerConfig]) -> Vec<VerifyError> {
    let mut found = verify_logins(http, auth);
    if http.enabled {
        found.extend(verify_http(http, auth));
    }
    for door in doors.iter().filter(|door| door.enabled) {
        found.extend(verify_door(door, auth));
    }
    found
}

fn at(field: &str) -> impl Fn(StartError) -> VerifyError {
    let place = ConfigLocation::Field(field.to_owned());
    move |error| VerifyError {
        place: place.clone(),
        text: error.to_string(),
    }
}

/// Each file separately, so that every mistake is reported at its position.
fn verify_logins(http: &HttpConfig, auth: &AuthConfig) -> Vec<VerifyError> {
    let nobody = AuthConfig::default;
    let mut found = Vec::new();
    for token in &auth.tokens {
        let only = AuthConfig {
            tokens: vec![token.clone()],
            ..nobody()
        };
        found.extend(flaws(&only).into_iter().map(|error| VerifyError {
            place: ConfigLocation::Pos(token.pos),
            text: error.to_string(),
        }));
    }
    let tokens_file = AuthConfig {
        tokens_file: auth.tokens_file.clone(),
        ..nobody()
    };
    let users_file = AuthConfig {
        users_file: auth.users_file.clone(),
        ..nobody()
    };
    found.extend(flaws(&tokens_file).into_iter().map(at("auth.tokens_file")));
    found.extend(flaws(&users_file).into_iter().map(at("auth.users_file")));
    let basic = Logins::load(&nobody(), http.basic_auth.as_ref());
    found.extend(basic.err().map(at("http.basic_auth")));
    found
}

fn verify_http(http: &HttpConfig, auth: &AuthConfig) -> Vec<VerifyError> {
    let mut found = Vec::new();
    if let Err(error) = Tls::load(http) {
        let field = match &error {
            StartError::Unreadable { key, .. } => key,
            _ => "http.cert_file",
        };
        found.push(at(field)(error));
    }
    if let Err(error) = routes::origins(http, &[]) {
        let field = match &error {
            StartError::RootPath { .. } => "http.root_path",
            _ => "http.cors.allowed_origins",
        };
        found.push(at(field)(error));
    }
    if let Some(address) = literal_address(&http.address) {
        let login = auth.is_given() || http.basic_auth.is_some();
        let judged = listen::check_address(http, address, login, has_tls(&http.cert_file, &http.key_file));
        found.extend(judged.err().map(at("http.address")));
    }
    found
}

fn verify_door(door: &ListenerConfig, auth: &AuthConfig) -> Vec<VerifyError> {
    let section = door.section;
    let mut found = Vec::new();
    if let (Some(cert), Some(key)) = (door.cert_file.clone(), door.key_file.clone()) {
        let names = TlsNames {
            cert: "cert_file",
            key: "key_file",
            client_ca: "client_ca_file",
        };
        let files = TlsFiles {
            cert,
            key,
            client_ca: None,
            names,
        };
        if let Err(error) = Tls::open(files) {
            let field = match &error {
                StartError::Unreadable { key, .. } => key,
                _ => "cert_file",
            };
            found.push(VerifyError {
                place: ConfigLocation::Field(format!("{section}.{field}")),
                text: format!("{section}.{error}"),
            });
        }
    }
    if let Some(address) = literal_address(&door.address) {
        let protection = Protection {
            has_tls: has_tls(&door.cert_file, &door.key_file),
            has_login: auth.is_given(),
            is_insecure: door.insecure,
        };
        if let Err(exposed) = exposure(address.ip(), protection) {
            found.push(VerifyError {
                place: ConfigLocation::Field(format!("{section}.address")),
                text: exposed.explain(address, &ListenerNames::of_section(section)),
            });
        }
    }
    found
}

/// Unusable files are a mistake by themselves, and no reason for a second one.
fn has_tls<T>(cert: &Option<T>, key: &Option<T>) -> bool {
    cert.is_some() && key.is_some()
}
