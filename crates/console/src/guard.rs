//! Authorizes each request: by the access that the path requires ([`Access`]), by the credentials, and, if there are
//! none, by the origin of the request.
//!
//! Cross-site requests were refused before (`OriginPolicy`). Without a login, the console also answers only to host
//! names that no outsider can point at this machine.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use thalweg_config::{Role, is_loopback};
use thalweg_http::auth::{AuthorizationError, Credentials, Identity};
use thalweg_telemetry::{Access, OriginPolicy};

use crate::listen::ClientTrust;
use crate::refusal::{ListenerErrorKind, refusal};
use crate::revocation;

/// The client's address, added to each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// What a group of paths requires.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequirement {
    pub access: Access,
    /// The reference system has these paths too, and allows everybody.
    pub of_reference: bool,
}

pub struct AccessGuard {
    credentials: Option<Arc<Credentials>>,
    trust: ClientTrust,
    origins: Arc<OriginPolicy>,
}

/// A refusal: its kind and a sentence with the cure.
#[derive(Debug, PartialEq, Eq)]
struct AccessRefusal(ListenerErrorKind, String);

impl AccessGuard {
    pub fn new(
        credentials: Option<Arc<Credentials>>,
        trust: ClientTrust,
        origins: Arc<OriginPolicy>,
    ) -> Arc<AccessGuard> {
        Arc::new(AccessGuard {
            credentials,
            trust,
            origins,
        })
    }

    pub fn origins(&self) -> &OriginPolicy {
        &self.origins
    }

    /// Middleware around the paths with one requirement.
    pub async fn check(self: Arc<AccessGuard>, demand: AccessRequirement, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        let identity = match self.judge(&parts, demand).await {
            Ok(identity) => identity,
            Err(refusal) => return refusal.into_response(),
        };
        let answer = next.run(Request::from_parts(parts, body));
        let Some(Identity { ended, .. }) = identity else {
            return answer.await;
        };
        tokio::select! {
            response = answer => revocation::until(ended, response),
            () = ended.cancelled() => {
                let text = "the token or user of this request was revoked".to_owned();
                AccessRefusal(ListenerErrorKind::NotAuthenticated, text).into_response()
            }
        }
    }

    /// The identity, if authentication is required.
    async fn judge(&self, request: &Parts, demand: AccessRequirement) -> Result<Option<Identity>, AccessRefusal> {
        let open_to_all = demand.of_reference && demand.access != Access::Admin;
        let limited = match demand.access {
            Access::Own => matches!(self.trust, ClientTrust::Unencrypted | ClientTrust::ThisMachine),
            _ => self.trust == ClientTrust::Unencrypted,
        };
        // A proxy on this machine may have terminated TLS.
        if limited && !open_to_all && !is_from_loopback(request) {
            let text = "this path is open to other hosts only over TLS; add http.cert_file and http.key_file, or allow it in the clear with http.insecure: true";
            return Err(AccessRefusal(ListenerErrorKind::NotAuthorized, text.to_owned()));
        }
        match &self.credentials {
            _ if demand.access == Access::Own => Ok(None),
            Some(_) if demand.access == Access::Open => Ok(None),
            Some(credentials) => self.permit(credentials, request, demand.access).await.map(Some),
            None => self.permit_without_login(request, demand).map(|()| None),
        }
    }

    async fn permit(
        &self,
        credentials: &Credentials,
        request: &Parts,
        access: Access,
    ) -> Result<Identity, AccessRefusal> {
        let role = match access {
            Access::Admin => Role::Admin,
            Access::Read => Role::Read,
            _ if changes_something(&request.method) => Role::Write,
            _ => Role::Read,
        };
        let silent = "this path needs a login; send a token of auth.tokens (Authorization: Bearer …) or a user of auth.users_file";
        let admitted = credentials.admit(&request.headers, role, silent).await;
        admitted.map_err(|denied| match denied {
            AuthorizationError::Stranger(text) => AccessRefusal(ListenerErrorKind::NotAuthenticated, text),
            AuthorizationError::Lacks(text) => AccessRefusal(ListenerErrorKind::NotAuthorized, text),
            AuthorizationError::Busy => {
                let text = "many passwords are being checked; try again, or use a token";
                AccessRefusal(ListenerErrorKind::TooManyPending, text.to_owned())
            }
        })
    }

    fn permit_without_login(&self, request: &Parts, demand: AccessRequirement) -> Result<(), AccessRefusal> {
        if self.trust == ClientTrust::Everyone {
            return Ok(());
        }
        let refused = |text: &str| Err(AccessRefusal(ListenerErrorKind::NotAuthorized, text.to_owned()));
        let local = is_local(request);
        let open_to_all = demand.of_reference && demand.access != Access::Admin;
        match self.trust {
            _ if open_to_all => Ok(()),
            _ if !local => refused(
                "this path is open only to the machine itself; configure a login in auth.tokens, or open it to everyone with http.insecure: true",
            ),
            _ if !self.origins.has_name(host(request)) => refused(
                "without a login this path answers only under localhost, an IP address or the host of http.address; use one of them, or configure a login in auth.tokens",
            ),
            _ => Ok(()),
        }
    }
}

impl IntoResponse for AccessRefusal {
    fn into_response(self) -> Response {
        let AccessRefusal(kind, text) = self;
        let mut response = refusal(kind, text);
        if kind == ListenerErrorKind::NotAuthenticated {
            let headers = response.headers_mut();
            headers.append(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"thalweg\""),
            );
            // Browsers ask for name and password with this scheme, which also accepts a token's name and text.
            headers.append(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"thalweg\", charset=\"UTF-8\""),
            );
        }
        response
    }
}

fn changes_something(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// From this machine itself, and not forwarded by a proxy on it.
fn is_local(request: &Parts) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for", "via"]
        .iter()
        .any(|name| request.headers.contains_key(*name));
    !forwarded && is_from_loopback(request)
}

fn is_from_loopback(request: &Parts) -> bool {
    let peer = request.extensions.get::<Peer>();
    peer.is_some_and(|Peer(address)| is_loopback(address.ip()))
}

/// As the client wrote it.
fn host(request: &Parts) -> Option<&str> {
    let of_header = || request.headers.get(header::HOST)?.to_str().ok();
    let of_address = request.uri.authority().map(|authority| authority.as_str());
    of_address.or_else(of_header)
}

#[cfg(test)]
mod tests;
