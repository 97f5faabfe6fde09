//! Authorization for listeners that have a protocol of their own and check each request themselves.

use std::sync::Arc;

use axum::http::HeaderMap;
use thalweg_config::Role;

use super::Credentials;

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
    async fn without_logins_everybody_may_do_everything() {
        let admission = Logins::none().authorizer();
        assert!(!admission.has_logins());
        assert_eq!(admission.admit(&HeaderMap::new(), Role::Admin).await, Ok(()));
    }
}
