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
    use axum::Router;
    use axum::routing::post;
    use sha2::{Digest as _, Sha256};
    use thalweg_config::{AuthConfig, CorsConfig, Pos, Role, TokenConfig, TokenSecret};
    use thalweg_telemetry::Metrics;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{Console, HttpLimits, INGEST_LISTENERS};

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

    /// The whole response to a request.
    async fn answer(address: SocketAddr, head: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("{head}\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response.to_ascii_lowercase()
    }

    #[tokio::test]
    async fn pages_of_listed_origins_ask_before_they_send_and_read_the_answer() {
        let open = ListenerConfig {
            section: "ingest.otlp.http",
            cors: Some(CorsConfig {
                enabled: true,
                allowed_origins: vec!["https://portal.example".to_owned()],
            }),
            ..config("127.0.0.1:0")
        };
        let door = BoundListener::open(&open, &Logins::none()).await.unwrap();
        let address = door.address;
        let router = Router::new().route("/v1/logs", post(async || "{}"));
        let metrics = Metrics::default();
        let doors = Console::serve_doors(&INGEST_LISTENERS, vec![(door, router)], HttpLimits::default(), &metrics);
        let asks = "OPTIONS /v1/logs HTTP/1.1\r\nAccess-Control-Request-Method: POST\r\n\
                    Access-Control-Request-Headers: content-type,x-tenant";
        let friend = "Origin: https://portal.example";
        let preflight = answer(address, &format!("{asks}\r\n{friend}")).await;
        for line in [
            "http/1.1 200 ok",
            "access-control-allow-origin: https://portal.example",
            "access-control-allow-headers: content-type,x-tenant",
            "access-control-max-age: 600",
        ] {
            assert!(preflight.contains(line), "{line}: {preflight}");
        }
        let sent = answer(address, &format!("POST /v1/logs HTTP/1.1\r\n{friend}")).await;
        assert!(sent.starts_with("http/1.1 200 ok") && sent.ends_with("{}"), "{sent}");
        assert!(
            sent.contains("access-control-allow-origin: https://portal.example"),
            "{sent}"
        );
        for head in [asks, "POST /v1/logs HTTP/1.1"] {
            let refused = answer(address, &format!("{head}\r\nOrigin: https://other.example")).await;
            assert!(refused.starts_with("http/1.1 403 "), "{refused}");
            assert!(
                refused.contains("add its origin to ingest.otlp.http.cors.allowed_origins"),
                "{refused}"
            );
            assert!(!refused.contains("access-control-allow-origin"), "{refused}");
        }
        for door in doors {
            door.stop().await;
        }
    }
}
