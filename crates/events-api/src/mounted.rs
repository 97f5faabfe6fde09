//! The paths of a server that is part of a larger process and shares its listener. They require tokens of namespaces
//! only and limit bodies themselves; the process itself serves `/ready`, `/metrics`, `/version` and unknown paths.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::any;
use thalweg_telemetry::{Access, HttpRoutes, Mount};

use crate::{EventsApiServer, backup, import, json, rpc, subscribe};

const PATHS: [(&str, &str); 5] = [
    ("/rpc", "Calls of the event store: POST [\"method\", …]."),
    ("/subscribe", "New messages of the event store, as server-sent events."),
    (
        "/import",
        "Imports messages with their positions into the event store, as NDJSON.",
    ),
    (
        backup::PATH,
        "A backup of the whole event store, for `thalweg events restore`.",
    ),
    ("/health", "Answers {\"status\":\"ok\"} while the process runs."),
];

/// The routes for the listener of the process.
pub fn routes_within(server: &Arc<EventsApiServer>) -> impl HttpRoutes + use<> {
    MountedRoutes(server.clone())
}

struct MountedRoutes(Arc<EventsApiServer>);

impl HttpRoutes for MountedRoutes {
    fn mounts(&self) -> Vec<Mount> {
        let (rpc, subscribe, import, backup) = (self.0.clone(), self.0.clone(), self.0.clone(), self.0.clone());
        let router = Router::new()
            .route("/rpc", any(move |request: Request| rpc::answer(rpc.clone(), request)))
            .route(
                "/subscribe",
                any(move |request: Request| subscribe::answer(subscribe.clone(), request)),
            )
            .route(
                "/import",
                any(move |request: Request| import::answer(import.clone(), request)),
            )
            .route(
                backup::PATH,
                any(move |request: Request| backup::answer(backup.clone(), request)),
            )
            .route("/health", any(|| async { json("{\"status\":\"ok\"}\n".to_owned()) }));
        vec![Mount {
            router,
            access: Access::Own,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        let own = |(path, about): (&str, &str)| (path.to_owned(), about.to_owned());
        PATHS.into_iter().map(own).collect()
    }

    fn tokens_in_address(&self) -> Vec<String> {
        self.0.tokens_in_address()
    }

    fn acting_reads(&self) -> Vec<String> {
        self.0.acting_reads()
    }

    fn own_body_limits(&self) -> Vec<&'static str> {
        vec!["/rpc", "/import"]
    }
}
