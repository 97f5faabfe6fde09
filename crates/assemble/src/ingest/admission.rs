//! Decides who may send to the receivers.

use axum::http::HeaderMap;
use thalweg_config::Role;
use thalweg_http::auth::{AuthorizationError, Authorizer};
use thalweg_lake::entry::BoxFuture;
use thalweg_otlp::{Admission, AdmissionError};

/// Uses the logins of the process; a sender needs the role `write`.
pub(super) struct WriteRoleAdmission(pub Authorizer);

impl Admission for WriteRoleAdmission {
    fn admit<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<(), AdmissionError>> {
        Box::pin(async move {
            self.0.admit(headers, Role::Write).await.map_err(|denied| match denied {
                AuthorizationError::Busy => AdmissionError::Busy,
                AuthorizationError::Stranger(why) => AdmissionError::NotAuthenticated(why),
                AuthorizationError::Lacks(why) => AdmissionError::NotAuthorized(why),
            })
        })
    }
}
