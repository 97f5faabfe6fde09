//! Authorization for listeners that have a protocol of their own and check each request themselves.

use std::sync::Arc;

use axum::http::HeaderMap;
use thalweg_config::Role;

use super::{AuthFailure, Credentials, Identity};

/// Authorizes requests. Without logins everything is allowed, because then only this machine can connect, or the
/// configuration allows everybody.
#[derive(Clone)]
pub struct Authorizer(Option<Arc<Credentials>>);

/// Why a request is refused, in one sentence with the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationError {
    /// The client is not authenticated.
    Stranger(String),
    /// The client lacks the role.
    Lacks(String),
    /// Too many passwords are being checked; the client has to retry.
    Busy,
}

impl Authorizer {
    pub(super) fn new(credentials: Option<Arc<Credentials>>) -> Authorizer {
        Authorizer(credentials)
    }

    /// Whether requests need a login.
    pub fn has_logins(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the sender of these headers has a role.
    pub async fn admit(&self, headers: &HeaderMap, role: Role) -> Result<(), AuthorizationError> {
        let Some(credentials) = &self.0 else { return Ok(()) };
        let silent = "send a token of auth (Authorization: Bearer …)";
        credentials.admit(headers, role, silent).await.map(drop)
    }
}

impl Authorizer {
    /// Who logs in with a name and a password, or with a token: as the password, under its name or without a name. `None`: anybody,
    /// because there are no logins.
    pub async fn log_in(&self, name: &str, password: &str) -> Option<Result<Identity, LoginFailure>> {
        let credentials = self.0.as_ref()?;
        Some(
            credentials
                .log_in(name, password)
                .await
                .map_err(|failure| match failure {
                    AuthFailure::Silent | AuthFailure::Wrong => LoginFailure::Wrong,
                    AuthFailure::Busy => LoginFailure::Busy,
                }),
        )
    }

    /// The login of a user whose name is known by other means, such as a certificate.
    pub fn user(&self, name: &str) -> Option<Identity> {
        self.0.as_ref()?.known().user(name)
    }
}

/// Why somebody cannot log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginFailure {
    Wrong,
    /// Too many passwords are being checked; the client has to retry.
    Busy,
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};
    use thalweg_config::{AuthConfig, Pos, TokenConfig, TokenSecret};

    use super::*;
    use crate::auth::{Logins, sha256};

    #[tokio::test]
    async fn a_role_is_needed_where_there_are_logins() {
        let token = TokenConfig {
            name: "edge".to_owned(),
            secret: TokenSecret::Sha256(sha256("secret")),
            roles: vec![Role::Write],
            pos: Pos::WHOLE_FILE,
        };
        let auth = AuthConfig {
            tokens: vec![token],
            ..AuthConfig::default()
        };
        let admission = Logins::load(&auth, None).unwrap().authorizer();
        assert!(admission.has_logins());
        let mut headers = HeaderMap::new();
        let silent = admission.admit(&headers, Role::Write).await.unwrap_err();
        assert!(matches!(silent, AuthorizationError::Stranger(_)));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        assert_eq!(admission.admit(&headers, Role::Write).await, Ok(()));
        assert_eq!(admission.admit(&headers, Role::Read).await, Ok(()));
        let lacks = admission.admit(&headers, Role::Admin).await.unwrap_err();
        assert!(matches!(lacks, AuthorizationError::Lacks(text) if text.starts_with("\"edge\" lacks the role admin")));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        assert!(admission.admit(&headers, Role::Write).await.is_err());
    }

    #[tokio::test]
    async fn a_token_logs_in_under_its_name_or_without_a_name() {
        let token = TokenConfig {
            name: "edge".to_owned(),
            secret: TokenSecret::Sha256(sha256("secret")),
            roles: vec![Role::Write],
            pos: Pos::WHOLE_FILE,
        };
        let auth = AuthConfig {
            tokens: vec![token],
            ..AuthConfig::default()
        };
        let admission = Logins::load(&auth, None).unwrap().authorizer();
        for (name, password, is_right) in [
            ("edge", "secret", true),
            ("", "secret", true),
            ("other", "secret", false),
            ("edge", "wrong", false),
            ("", "", false),
        ] {
            let login = admission.log_in(name, password).await.unwrap();
            assert_eq!(
                login.map(|login| login.name).ok(),
                is_right.then(|| "edge".to_owned()),
                "{name} {password}"
            );
        }
        assert!(Logins::none().authorizer().log_in("edge", "secret").await.is_none());
    }

    #[tokio::test]
    async fn without_logins_everybody_may_do_everything() {
        let admission = Logins::none().authorizer();
        assert!(!admission.has_logins());
        assert_eq!(admission.admit(&HeaderMap::new(), Role::Admin).await, Ok(()));
    }
}
