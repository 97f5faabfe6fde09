//! A server with a store behind it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_console::{Console, HttpLimits, ResponseStyle, RunningListener};
use thalweg_events_api::{EventsApiOptions, EventsApiServer, refusal};
use thalweg_telemetry::{Metrics, OriginPolicy};
use tokio::net::TcpListener;

use crate::client::{Answer, Client, Pokes};
use crate::double::Double;

/// A token of `default` with all scopes.
pub const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";

pub struct Face {
    pub address: String,
    pub server: Arc<EventsApiServer>,
    pub store: Arc<Double>,
    pub metrics: Arc<Metrics>,
    pub running: Vec<RunningListener>,
}

pub fn limits() -> HttpLimits {
    HttpLimits {
        connections_max: 4096,
        request_stall_max: Some(Duration::from_secs(30)),
        http2_in_clear: false,
        stop_grace: Duration::from_secs(1),
        ..HttpLimits::default()
    }
}

impl Face {
    pub async fn start() -> Face {
        Face::with(EventsApiOptions::default()).await
    }

    pub async fn with(options: EventsApiOptions) -> Face {
        Face::within(options, limits()).await
    }

    pub async fn within(options: EventsApiOptions, limits: HttpLimits) -> Face {
        let metrics = Arc::new(Metrics::new(false));
        let store = Double::open().await;
        let server = EventsApiServer::new(store.clone(), options, metrics.clone());
        let (running, address) = serve(&server, limits, &metrics).await;
        Face {
            address,
            server,
            store,
            metrics,
            running,
        }
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.address).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.client().await.send(method, path, headers, body).await
    }

    /// Status and text of a call, without the final newline.
    pub async fn rpc(&self, call: &str) -> (u16, String) {
        self.rpc_as(TOKEN, call).await
    }

    pub async fn rpc_as(&self, token: &str, call: &str) -> (u16, String) {
        let header = format!("authorization: Bearer {token}\r\n");
        let answer = self.send("POST", "/rpc", &header, call.as_bytes()).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{answer:?}");
        let text = answer.text.strip_suffix('\n').expect("a newline ends every answer");
        (answer.status, text.to_owned())
    }

    pub async fn call(&self, call: Value) -> Value {
        let (status, text) = self.rpc(&call.to_string()).await;
        assert_eq!(status, 200, "{call}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Status, code and message.
    pub async fn refusal(&self, call: &str) -> (u16, String, String) {
        let (status, text) = self.rpc(call).await;
        let json: Value = serde_json::from_str(&text).unwrap();
        let of = |name: &str| json["error"][name].as_str().unwrap_or_default().to_owned();
        (status, of("code"), of("message"))
    }

    pub async fn write(&self, stream: &str) -> u64 {
        let place = self
            .call(json!(["stream.write", stream, {"type": "t", "data": {}}]))
            .await;
        place["globalPosition"].as_u64().unwrap()
    }

    pub async fn subscribe(&self, query: &str) -> Pokes {
        self.subscribe_as(TOKEN, query, "").await
    }

    pub async fn subscribe_as(&self, token: &str, query: &str, headers: &str) -> Pokes {
        Pokes::open(
            &self.address,
            query,
            &format!("authorization: Bearer {token}\r\n{headers}"),
        )
        .await
    }
}

pub async fn serve(
    server: &Arc<EventsApiServer>,
    limits: HttpLimits,
    metrics: &Metrics,
) -> (Vec<RunningListener>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let manners = ResponseStyle {
        server: "Thalweg/1.2.3".parse().ok(),
        refusal: Some(refusal),
    };
    let running = Console::serve(
        None,
        vec![listener],
        &server.router(),
        limits,
        &manners,
        OriginPolicy::default(),
        metrics,
    )
    .unwrap();
    server.count_connections(running[0].connections());
    (running, address)
}
