//! Queues over HTTP and JSON, under `/api/v1` of the process's one listener.
//!
//! Each request is validated as a whole before anything happens and is passed to [`thalweg_queue`]; the result is an
//! answer or an `application/problem+json` error. One table lists all requests (`routes.rs`); the router, the access
//! rules and the OpenAPI document are generated from it. A 2xx answer is sent after the commit, so it is as durable as
//! the queue promises.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod admin;
mod batch;
mod browse;
mod claim;
mod dead_letters;
mod events;
mod examples;
mod groups;
mod json;
mod openapi;
mod payload;
mod portable_json;
mod problem;
mod produce;
mod request;
mod response;
mod router;
mod routes;
mod schemas;
mod settle;

use std::sync::Arc;

use axum::http::Method;
use thalweg_queue::{Message, Queue, Queues};
use thalweg_telemetry::{Access, HttpRoutes, Mount};

pub use problem::RequestErrorKind;

/// The largest body of a request: a payload, or a batch of them. The listener must accept it.
pub const BODY_BYTES_MAX: usize = 24 << 20;

/// The memory limit for the bodies of all requests.
pub const BODIES_BYTES_MAX: usize = 256 << 20;

/// The routes of queues.
pub fn routes(queues: Queues) -> impl HttpRoutes {
    routes_within(queues, BODIES_BYTES_MAX)
}

/// Like `routes`, with another memory limit for all bodies; it is at least that of the largest body.
pub fn routes_within(queues: Queues, bodies_bytes_max: usize) -> impl HttpRoutes {
    let bodies_bytes_max = bodies_bytes_max.clamp(BODY_BYTES_MAX, BODIES_BYTES_MAX);
    QueueRoutes {
        shared: request::ApiState::new(queues, bodies_bytes_max),
    }
}

/// A stored message as the API shows it: one JSON object.
pub fn message_json(queue: &Queue, partition: u32, message: &Message) -> String {
    let mut out = String::new();
    payload::stored(&mut out, queue, partition, message);
    out
}

struct QueueRoutes {
    shared: Arc<request::ApiState>,
}

impl HttpRoutes for QueueRoutes {
    fn mounts(&self) -> Vec<Mount> {
        router::mounts(&self.shared)
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        let path = |endpoint: &routes::Endpoint| {
            let path = format!("{}{}", routes::BASE, endpoint.path);
            (path, endpoint.about.to_owned())
        };
        routes::ENDPOINTS.iter().map(path).collect()
    }

    fn access(&self, method: &Method, path: &str) -> Option<Access> {
        routes::access(method, path)
    }

    fn acting_reads(&self) -> Vec<String> {
        let acting = routes::ENDPOINTS.iter().filter(|endpoint| endpoint.is_stream());
        acting
            .map(|endpoint| format!("{}{}", routes::BASE, endpoint.path))
            .collect()
    }

    fn problem_paths(&self) -> Vec<&'static str> {
        vec![routes::QUEUES, routes::DOCUMENT]
    }
}
