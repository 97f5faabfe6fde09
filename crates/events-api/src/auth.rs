//! Who asks: a token in the address or in a header names its namespace and opens it.

use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use thalweg_events::{DEFAULT, EventsError, Namespace, Scopes, Store, Token};

use crate::problem::{Problem, Result};

/// Whoever asks, and what for.
pub(crate) struct Caller {
    pub name: String,
    /// In test mode a token may name one that does not exist.
    namespace: Option<Arc<dyn Namespace>>,
    scopes: Scopes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Read,
    Write,
    Admin,
}

impl Caller {
    pub fn may(&self, need: Need) -> Result<()> {
        let (has, name) = match need {
            Need::Read => (self.scopes.read, "read"),
            Need::Write => (self.scopes.write, "write"),
            Need::Admin => (self.scopes.admin, "admin"),
        };
        match has {
            true => Ok(()),
            false => Err(unauthorized(format!("Token lacks scope '{name}'")).with("required", name)),
        }
    }

    pub fn is_admin(&self) -> bool {
        self.scopes.admin
    }

    pub fn namespace(&self) -> Result<&Arc<dyn Namespace>> {
        self.namespace.as_ref().ok_or_else(|| Problem::no_namespace(&self.name))
    }
}

fn unauthorized(message: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "AUTH_UNAUTHORIZED", message)
}

/// `query` is the token in the address, which wins if it is not empty.
pub(crate) async fn authenticate(
    store: &dyn Store,
    test_mode: bool,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Caller> {
    let token = match query.filter(|token| !token.is_empty()) {
        Some(token) => parse(token),
        None => from_header(headers).and_then(parse),
    };
    if test_mode {
        return as_anyone(store, token.ok().as_ref().map_or(DEFAULT, Token::namespace)).await;
    }
    let token = token?;
    let grant = store.authorize(&token).await.map_err(Problem::of("get namespace"))?;
    match grant {
        Some(grant) => Ok(Caller {
            name: token.namespace().to_owned(),
            namespace: Some(grant.namespace),
            scopes: grant.scopes,
        }),
        None => {
            let problem = unauthorized("Token not authorized for namespace".to_owned());
            Err(problem.with("namespace", token.namespace()))
        }
    }
}

async fn as_anyone(store: &dyn Store, name: &str) -> Result<Caller> {
    let namespace = match store.namespace(name).await {
        Ok(namespace) => Some(namespace),
        Err(EventsError::NamespaceNotFound(_)) => None,
        Err(error) => return Err(Problem::of("get namespace")(error)),
    };
    Ok(Caller {
        name: name.to_owned(),
        namespace,
        scopes: Scopes::ALL,
    })
}

fn parse(token: &str) -> Result<Token> {
    Token::parse(token).map_err(|error| {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "AUTH_INVALID_TOKEN", "Invalid token format");
        problem.with("error", &error.to_string())
    })
}

fn from_header(headers: &HeaderMap) -> Result<&str> {
    let required = |message| Problem::new(StatusCode::UNAUTHORIZED, "AUTH_REQUIRED", message);
    let Some(header) = headers.get(AUTHORIZATION) else {
        return Err(required("Authorization header required"));
    };
    let bearer = header.to_str().ok().and_then(|header| header.strip_prefix("Bearer "));
    match bearer {
        None => Err(required("Authorization header must use Bearer scheme")),
        Some("") => Err(required("Token required")),
        Some(token) => Ok(token),
    }
}
