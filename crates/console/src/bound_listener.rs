//! A listener for an interface with its own protocol, such as a telemetry receiver, with the process's logins.

use std::net::SocketAddr;
use std::sync::Arc;

use thalweg_config::{ListenerConfig, ListenerNames, Protection, exposure};
use thalweg_http::auth::{Authorizer, Logins};
use thalweg_http::tls_server::ServerTls;
use thalweg_telemetry::{HostNames, OriginPolicy};
use tokio::net::TcpListener;

use crate::{StartError, cors, listen};

/// A bound address, and who may use it.
pub struct BoundListener {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub tls: Option<Arc<ServerTls>>,
    pub admission: Authorizer,
    pub(crate) origins: Arc<OriginPolicy>,
    pub(crate) connections_max: usize,
}

impl BoundListener {
    /// Binds the address. Without TLS and logins it must be a loopback address, unless the configuration says otherwise
    /// ([`exposure`]).
    pub async fn open(config: &ListenerConfig, logins: &Logins) -> Result<BoundListener, StartError> {
        let admission = logins.authorizer();
        let tls = ServerTls::of_listener(config)?.map(Arc::new);
        let (setting, allowed) = cors::of_listener(config)?;
        let (listener, address) = listen::bind(config.section, &config.address).await?;
        let protection = Protection {
            has_tls: tls.is_some(),
            has_login: admission.has_logins(),
            is_insecure: config.insecure,
        };
        exposure(address.ip(), protection).map_err(|exposed| StartError::Exposed {
            text: exposed.explain(address, &ListenerNames::of_section(config.section)),
        })?;
        // Without logins, either everybody is allowed, or only this machine can connect.
        let names = match !admission.has_logins() && !config.insecure {
            true => HostNames::Own,
            false => HostNames::Any,
        };
        let origins = Arc::new(OriginPolicy {
            names,
            allowed,
            setting,
            ..OriginPolicy::of_own_machine(&config.address)
        });
        Ok(BoundListener {
            listener,
            address,
            tls,
            admission,
            origins,
            connections_max: config.max_connections,
        })
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};
    use thalweg_config::{AuthConfig, Pos, Role, TokenConfig, TokenSecret};

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
            cors: None,
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
}
