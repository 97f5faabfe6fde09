//! Decides for each request whether it may go on: by what the path asks for ([`Access`]), by who asks (credentials), and,
//! when there are none, by where the request comes from.
//!
//! A browser on the operator's machine carries requests of any web page it shows. So requests that change something
//! must not come from pages of another origin, and without a login the console answers only to names that no outsider
//! can point at this machine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use thalweg_config::{HttpConfig, Role};
use thalweg_telemetry::Access;

use crate::StartError;
use crate::auth::{Credentials, Stranger};
use crate::listen::Trust;
use crate::refusal::refusal;

/// The other end of the connection, put into each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// What a group of paths asks for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub access: Access,
    /// The reference system has these paths, too, and gives them to anyone.
    pub of_reference: bool,
}

pub struct Guard {
    credentials: Option<Credentials>,
    trust: Trust,
    /// The host of `http.address`, if it is a name.
    own_name: Option<String>,
    /// Origins of `http.cors`; `*` is all.
    origins: Vec<String>,
}

/// A refusal: its status and a sentence with the cure.
#[derive(Debug, PartialEq, Eq)]
struct Refusal(StatusCode, String);

impl Guard {
    pub fn new(http: &HttpConfig, credentials: Option<Credentials>, trust: Trust) -> Result<Arc<Guard>, StartError> {
        let origins = if http.cors.enabled {
            http.cors.allowed_origins.clone()
        } else {
            Vec::new()
        };
        if let Some(origin) = origins.iter().find(|origin| HeaderValue::from_str(origin).is_err()) {
            return Err(StartError::Origin { origin: origin.clone() });
        }
        let own_name = host_of(&http.address).map(str::to_ascii_lowercase);
        Ok(Arc::new(Guard {
            credentials,
            trust,
            own_name,
            origins,
        }))
    }

    pub fn origins(&self) -> &[String] {
        &self.origins
    }

    /// Middleware around the paths of one demand.
    pub async fn check(self: Arc<Guard>, demand: Demand, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        match self.judge(&parts, demand).await {
            Ok(()) => next.run(Request::from_parts(parts, body)).await,
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn judge(&self, request: &Parts, demand: Demand) -> Result<(), Refusal> {
        if demand.access == Access::Own {
            return Ok(());
        }
        if changes_something(&request.method) {
            self.same_origin(request)?;
        }
        match &self.credentials {
            Some(_) if demand.access == Access::Open => Ok(()),
            Some(credentials) => self.permit(credentials, request, demand.access).await,
            None => self.permit_without_login(request, demand),
        }
    }

    async fn permit(&self, credentials: &Credentials, request: &Parts, access: Access) -> Result<(), Refusal> {
        let identity = credentials.identify(&request.headers).await.map_err(|stranger| {
            let text = match stranger {
                Stranger::Silent => "this path needs a login; send a token of auth.tokens (Authorization: Bearer …) or a user of auth.users_file",
                Stranger::Wrong => "the token, or the user and password, are wrong",
            };
            Refusal(StatusCode::UNAUTHORIZED, text.to_owned())
        })?;
        let role = match access {
            Access::Admin => Role::Admin,
            Access::Read => Role::Read,
            _ if changes_something(&request.method) => Role::Write,
            _ => Role::Read,
        };
        if identity.roles.contains(&role) {
            return Ok(());
        }
        let (name, role) = (identity.name, role.as_str());
        Err(Refusal(
            StatusCode::FORBIDDEN,
            format!("\"{name}\" lacks the role {role} that this request needs; add it in auth"),
        ))
    }

    fn permit_without_login(&self, request: &Parts, demand: Demand) -> Result<(), Refusal> {
        if self.trust == Trust::Everyone {
            return Ok(());
        }
        let refused = |text: &str| Err(Refusal(StatusCode::FORBIDDEN, text.to_owned()));
        let local = is_local(request);
        let open_to_all = demand.of_reference && demand.access != Access::Admin;
        match self.trust {
            _ if open_to_all => Ok(()),
            Trust::Encrypted if demand.access != Access::Admin => Ok(()),
            _ if !local => refused(
                "this path is open only to the machine itself; configure a login in auth.tokens, or open it to everyone with http.insecure: true",
            ),
            _ if !self.is_own_name(request) => refused(
                "without a login this path answers only under localhost, an IP address or the host of http.address; use one of them, or configure a login in auth.tokens",
            ),
            _ => Ok(()),
        }
    }

    /// Web pages of other origins may send requests, but not change anything with them unless `http.cors` says so.
    fn same_origin(&self, request: &Parts) -> Result<(), Refusal> {
        let Some(origin) = request.headers.get(header::ORIGIN) else {
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or_default();
        let own = origin
            .split_once("://")
            .is_some_and(|(_, host)| Some(host) == authority(request));
        if own || self.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return Ok(());
        }
        let text = format!("a page of {origin} may not send this; add its origin to http.cors.allowed_origins");
        Err(Refusal(StatusCode::FORBIDDEN, text))
    }

    /// A name with a dot can be made to mean this machine by whoever owns its domain, so those are not ours.
    fn is_own_name(&self, request: &Parts) -> bool {
        let Some(name) = authority(request).map(|authority| host_of(authority).unwrap_or(authority)) else {
            return true;
        };
        let name = name.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        let is_address = name.parse::<IpAddr>().is_ok();
        is_address || !name.contains('.') || name.ends_with(".localhost") || Some(&name) == self.own_name.as_ref()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, text) = self;
        let code = match status {
            StatusCode::UNAUTHORIZED => "not_authenticated",
            _ => "not_authorized",
        };
        let mut response = refusal(status, code, text);
        if status == StatusCode::UNAUTHORIZED {
            let headers = response.headers_mut();
            headers.append(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"thalweg\""),
            );
            // Browsers ask for a name and a password on this one, and a token's name and text are that, too.
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

/// From this machine itself, and not passed on by a proxy on it.
fn is_local(request: &Parts) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for", "via"]
        .iter()
        .any(|name| request.headers.contains_key(*name));
    let peer = request.extensions.get::<Peer>();
    !forwarded && peer.is_some_and(|Peer(address)| address.ip().to_canonical().is_loopback())
}

/// `host:port` as the client wrote it.
fn authority(request: &Parts) -> Option<&str> {
    fn from_header(headers: &HeaderMap) -> Option<&str> {
        headers.get(header::HOST)?.to_str().ok()
    }
    request
        .uri
        .authority()
        .map(|authority| authority.as_str())
        .or_else(|| from_header(&request.headers))
}

/// The host of `host:port`.
fn host_of(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    (port.parse::<u16>().is_ok() && !host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests;
