//! A listener for an interface with its own protocol, such as a telemetry receiver, with the process's logins.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use thalweg_config::{ListenerConfig, ListenerNames, Protection, Role, exposure};
use thalweg_telemetry::{HostNames, OriginPolicy};
use tokio::net::TcpListener;

use crate::auth::{AuthFailure, Credentials, Logins};
use crate::tls::{Tls, TlsFiles, TlsNames};
use crate::{StartError, listen};

/// A bound address, and who may use it.
pub struct BoundListener {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub tls: Option<Arc<Tls>>,
    pub admission: Authorizer,
    pub(crate) origins: Arc<OriginPolicy>,
    pub(crate) connections_max: usize,
}

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

impl BoundListener {
    /// Binds the address. Without TLS and logins it must be a loopback address, unless the configuration says otherwise
    /// ([`exposure`]).
    pub async fn open(config: &ListenerConfig, logins: &Logins) -> Result<BoundListener, StartError> {
        let credentials = logins.of_all_listeners();
        let tls = match (config.cert_file.clone(), config.key_file.clone()) {
            (Some(cert), Some(key)) => Some(Arc::new(Tls::open(TlsFiles {
                cert,
                key,
                client_ca: None,
                names: TlsNames {
                    cert: "cert_file",
                    key: "key_file",
                    client_ca: "client_ca_file",
                },
            })?)),
            _ => None,
        };
        let (listener, address) = listen::bind(config.section, &config.address).await?;
        let protection = Protection {
            has_tls: tls.is_some(),
            has_login: credentials.is_some(),
            is_insecure: config.insecure,
        };
        exposure(address.ip(), protection).map_err(|exposed| StartError::Exposed {
            text: exposed.explain(address, &ListenerNames::of_section(config.section)),
        })?;
        // Without logins, either everybody is allowed, or only this machine can connect.
        let names = match credentials.is_none() && !config.insecure {
            true => HostNames::Own,
            false => HostNames::Any,
        };
        let origins = Arc::new(OriginPolicy {
            names,
            ..OriginPolicy::of_own_machine(&config.address)
        });
        Ok(BoundListener {
            listener,
            address,
            tls,
            admission: Authorizer(credentials),
            origins,
            connections_max: config.max_connections,
        })
    }
}

impl Authorizer {
    /// Whether the sender of these headers has a role.
    pub async fn admit(&self, headers: &HeaderMap, role: Role) -> Result<(), AuthorizationError> {
        let Some(credentials) = &self.0 else { return Ok(()) };
        let identity = credentials.identify(headers).await.map_err(|why| {
            let stranger = |text: &str| AuthorizationError::Stranger(text.to_owned());
            match why {
                AuthFailure::Silent => stranger("send a token of auth (Authorization: Bearer …)"),
                AuthFailure::Wrong => stranger("the token, or the user and password, are wrong"),
                AuthFailure::Busy => AuthorizationError::Busy,
            }
        })?;
        if identity.may(role) {
            return Ok(());
        }
        let (name, role) = (identity.name, role.as_str());
        Err(AuthorizationError::Lacks(format!(
            "\"{name}\" lacks the role {role} that this request needs; add it in auth"
        )))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};
    use sha2::{Digest as _, Sha256};
    use thalweg_config::{AuthConfig, Pos, TokenConfig, TokenSecret};

    use super::*;

    fn config(address: &str) -> ListenerConfig {
        ListenerConfig {
            section: "ingest.otlp.grpc",
            enabled: true,
            address: address.to_owned(),
            cert_file: None,
            key_file: None,
            insecure: false,
            max_connections: 1024,
        }
    }

    fn logins(roles: &[Role]) -> Logins {
        let token = TokenConfig {
            name: "edge".to_owned(),
            secret: TokenSecret::Sha256(Sha256::digest(b"secret").into()),
            roles: roles.to_vec(),
            pos: Pos::WHOLE_FILE,
        };
        let auth = AuthConfig {
            tokens: vec![token],
            ..AuthConfig::default()
        };
        Logins::load(&auth, None).unwrap()
    }

    #[tokio::test]
    async fn without_protection_only_this_machine_is_served() {
        let open =
            |address: &'static str, logins: Logins| async move { BoundListener::open(&config(address), &logins).await };
        let none = Logins::none();
        assert!(open("127.0.0.1:0", none.clone()).await.is_ok());
        let in_the_clear = open("0.0.0.0:0", logins(&[Role::Write]))
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(
            in_the_clear.contains("without TLS; set it to 127.0.0.1:"),
            "{in_the_clear}"
        );
        let error = open("0.0.0.0:0", none).await.err().unwrap().to_string();
        assert!(error.starts_with("ingest.otlp.grpc.address 0.0.0.0:"), "{error}");
        assert!(
            error.ends_with("or allow it with ingest.otlp.grpc.insecure: true"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_role_is_needed_where_there_are_logins() {
        let door = BoundListener::open(&config("127.0.0.1:0"), &logins(&[Role::Write]))
            .await
            .unwrap();
        let mut headers = HeaderMap::new();
        let silent = door.admission.admit(&headers, Role::Write).await.unwrap_err();
        assert!(matches!(silent, AuthorizationError::Stranger(_)));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        assert_eq!(door.admission.admit(&headers, Role::Write).await, Ok(()));
        assert_eq!(door.admission.admit(&headers, Role::Read).await, Ok(()));
        let lacks = door.admission.admit(&headers, Role::Admin).await.unwrap_err();
        assert!(matches!(lacks, AuthorizationError::Lacks(text) if text.starts_with("\"edge\" lacks the role admin")));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        assert!(door.admission.admit(&headers, Role::Write).await.is_err());
    }
}
