//! Authentication: a token in the address or in a header names its namespace and grants access while it is valid.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use thalweg_events::{DEFAULT, EventsError, Namespace, Scopes, Store, Token, time};
use tokio::sync::watch;

use crate::error_kind::EventsApiErrorKind;
use crate::problem::{Problem, Result};
use crate::{EventsApiServer, query_value};

/// An expired token is noticed at most this late.
const LOOK: Duration = Duration::from_secs(10);

/// The sender of a request, with its scopes.
pub(crate) struct Caller {
    pub name: String,
    /// In test mode a token may name a namespace that does not exist.
    namespace: Option<Arc<dyn Namespace>>,
    scopes: Scopes,
    /// Ends when the token is revoked. `None` in test mode, where no token can be revoked.
    valid: Option<watch::Receiver<()>>,
    /// The expiry of the token in wall-clock time, if it has one.
    expires: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredScope {
    /// Any valid token is enough.
    Nothing,
    Read,
    Write,
    Admin,
}

impl Caller {
    pub fn may(&self, need: RequiredScope) -> Result<()> {
        let (has, name) = match need {
            RequiredScope::Nothing => return Ok(()),
            RequiredScope::Read => (self.scopes.read, "read"),
            RequiredScope::Write => (self.scopes.write, "write"),
            RequiredScope::Admin => (self.scopes.admin, "admin"),
        };
        if has {
            return Ok(());
        }
        let message = format!("Token lacks scope '{name}'");
        Err(Problem::new(EventsApiErrorKind::AuthUnauthorized, message).with("required", name))
    }

    pub fn is_admin(&self) -> bool {
        self.scopes.admin
    }

    pub fn namespace(&self) -> Result<&Arc<dyn Namespace>> {
        self.namespace.as_ref().ok_or_else(|| Problem::no_namespace(&self.name))
    }

    /// Returns when the token is no longer valid.
    pub fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (valid, expires) = (self.valid.clone(), self.expires);
        Box::pin(async move {
            tokio::select! {
                () = revoked(valid) => {}
                () = expired(expires) => {}
            }
        })
    }
}

async fn revoked(valid: Option<watch::Receiver<()>>) {
    match valid {
        Some(mut valid) => while valid.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

/// Polls, because the clock may be set past the expiry.
async fn expired(expires: Option<i64>) {
    let Some(expires) = expires else {
        return std::future::pending().await;
    };
    loop {
        let left = expires.saturating_sub(time::now());
        if left <= 0 {
            return;
        }
        tokio::time::sleep(Duration::from_micros(left.unsigned_abs()).min(LOOK)).await;
    }
}

/// Authenticates the caller and checks that the path accepts the method.
pub(crate) async fn admit(server: &EventsApiServer, request: &Parts, method: &Method) -> Result<Caller> {
    server.must_go_on()?;
    let token = token_of(request);
    let caller = match server.options.test_mode {
        true => {
            let name = token.as_ref().map_or(DEFAULT, Token::namespace);
            as_anyone(server.opened_store().await?.as_ref(), name).await?
        }
        // Without one that can be a token there is nothing to wait for.
        false => authenticate(token?, server).await?,
    };
    match request.method == *method {
        true => Ok(caller),
        false => Err(Problem::method(method)),
    }
}

/// The token in the address takes precedence unless it is empty.
fn token_of(request: &Parts) -> Result<Token> {
    match query_value(request.uri.query(), "token").filter(|token| !token.is_empty()) {
        Some(token) => parse(&token),
        None => from_header(&request.headers).and_then(parse),
    }
}

async fn authenticate(token: Token, server: &EventsApiServer) -> Result<Caller> {
    let store = server.opened_store().await?;
    let grant = store.authorize(&token).await.map_err(Problem::of("get namespace"))?;
    let Some(grant) = grant else {
        return Err(Problem::unauthorized(token.namespace()));
    };
    Ok(Caller {
        name: token.namespace().to_owned(),
        namespace: Some(grant.namespace),
        scopes: grant.scopes,
        valid: Some(grant.valid),
        expires: grant.expires_at,
    })
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
        valid: None,
        expires: None,
    })
}

fn parse(token: &str) -> Result<Token> {
    Token::parse(token).map_err(|error| {
        let problem = Problem::new(EventsApiErrorKind::AuthInvalidToken, "Invalid token format");
        problem.with("error", &error.to_string())
    })
}

fn from_header(headers: &HeaderMap) -> Result<&str> {
    let required = |message| Problem::new(EventsApiErrorKind::AuthRequired, message);
    let Some(header) = headers.get(AUTHORIZATION) else {
        return Err(required("Authorization header required"));
    };
    let bearer = header.to_str().ok().and_then(|header| header.strip_prefix("Bearer"));
    // The space after the scheme is missing or stripped when there is no token.
    match bearer.and_then(|rest| {
        if rest.is_empty() {
            Some("")
        } else {
            rest.strip_prefix(' ')
        }
    }) {
        None => Err(required("Authorization header must use Bearer scheme")),
        Some("") => Err(required("Token required")),
        Some(token) => Ok(token),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_header_without_a_token_is_told_what_it_lacks() {
        for (value, message) in [
            (None, Err("Authorization header required")),
            (Some("Basic x"), Err("Authorization header must use Bearer scheme")),
            (Some("bearer x"), Err("Authorization header must use Bearer scheme")),
            (Some("Bearerx"), Err("Authorization header must use Bearer scheme")),
            (Some(""), Err("Authorization header must use Bearer scheme")),
            (Some("Bearer"), Err("Token required")),
            (Some("Bearer "), Err("Token required")),
            (Some("Bearer x"), Ok("x")),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            }
            let found = from_header(&headers).map_err(|problem| problem.message);
            assert_eq!(found, message.map_err(str::to_owned), "{value:?}");
        }
    }

    #[tokio::test]
    async fn a_token_ends_when_it_is_revoked_or_when_its_time_is_over() {
        let caller = |valid, expires| Caller {
            name: String::new(),
            namespace: None,
            scopes: Scopes::ALL,
            valid,
            expires,
        };
        let (sender, valid) = watch::channel(());
        let mut ended = caller(Some(valid), None).ended();
        assert!(futures::poll!(ended.as_mut()).is_pending());
        sender.send_replace(());
        assert!(futures::poll!(ended.as_mut()).is_pending(), "a change is no end");
        drop(sender);
        ended.await;
        caller(None, Some(time::now() + 1000)).ended().await;
        caller(None, Some(0)).ended().await;
        assert!(futures::poll!(caller(None, Some(i64::MAX)).ended()).is_pending());
        assert!(futures::poll!(caller(None, None).ended()).is_pending());
    }
}
