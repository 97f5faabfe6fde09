//! Finds what a start would refuse: unusable login and TLS files, unprotected addresses that other hosts reach, invalid
//! origins and paths. It uses the same functions as the start, so the two agree. Nothing is bound; files are only read.

use std::fmt::Display;

use thalweg_config::{
    AuthConfig, HttpConfig, ListenerConfig, ListenerNames, Pos, Protection, exposure, literal_address,
};
use thalweg_http::auth::{Logins, file_errors};
use thalweg_http::tls_server::ServerTls;

use crate::{StartError, cors, listen, routes};

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

fn at(field: &str, error: impl Display) -> VerifyError {
    VerifyError {
        place: ConfigLocation::Field(field.to_owned()),
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
        found.extend(file_errors(&only).into_iter().map(|error| VerifyError {
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
    for (field, file) in [("auth.tokens_file", &tokens_file), ("auth.users_file", &users_file)] {
        found.extend(file_errors(file).into_iter().map(|error| at(field, error)));
    }
    let basic = Logins::load(&nobody(), http.basic_auth.as_ref());
    found.extend(basic.err().map(|error| at("http.basic_auth", error)));
    found
}

fn verify_http(http: &HttpConfig, auth: &AuthConfig) -> Vec<VerifyError> {
    let mut found = Vec::new();
    if let Err(error) = ServerTls::of_http(http) {
        found.push(at(error.unreadable_key().unwrap_or("http.cert_file"), error));
    }
    if let Err(error) = routes::origins(http, &[]) {
        let field = match &error {
            StartError::RootPath { .. } => "http.root_path",
            _ => "http.cors.allowed_origins",
        };
        found.push(at(field, error));
    }
    if let Some(address) = literal_address(&http.address) {
        let login = auth.is_given() || http.basic_auth.is_some();
        let judged = listen::check_address(http, address, login, has_tls(&http.cert_file, &http.key_file));
        found.extend(judged.err().map(|error| at("http.address", error)));
    }
    found
}

fn verify_door(door: &ListenerConfig, auth: &AuthConfig) -> Vec<VerifyError> {
    let section = door.section;
    let mut found = Vec::new();
    if let Err(error) = ServerTls::of_listener(door) {
        let field = error.unreadable_key().unwrap_or("cert_file");
        found.push(at(&format!("{section}.{field}"), format!("{section}.{error}")));
    }
    if let Err(error) = cors::of_listener(door) {
        found.push(at(&cors::setting(section), error));
    }
    if let Some(address) = literal_address(&door.address) {
        let protection = Protection {
            has_tls: has_tls(&door.cert_file, &door.key_file),
            has_login: auth.is_given(),
            is_insecure: door.insecure,
        };
        if let Err(exposed) = exposure(address.ip(), protection) {
            let text = exposed.explain(address, &ListenerNames::of_section(section));
            found.push(at(&format!("{section}.address"), text));
        }
    }
    found
}

/// Unusable files are a mistake by themselves, and no reason for a second one.
fn has_tls<T>(cert: &Option<T>, key: &Option<T>) -> bool {
    cert.is_some() && key.is_some()
}
