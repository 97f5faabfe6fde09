//! Queues over HTTP and JSON, under `/api/v1` of the one listener of the process.
//!
//! Requests come in, each is checked as a whole before anything happens, and goes to [`thalweg_queue`]; answers and
//! `application/problem+json` errors go out. One table lists all requests (`routes.rs`): the router, the access rules and
//! the OpenAPI document are made of it. What is said here is as durable as the queue promises: a 2xx comes after the commit.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod batch;
mod body;
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

/// The largest body that a request may have: a payload, or a batch of them. The listener must let it pass.
pub const BODY_BYTES_MAX: usize = 24 << 20;

/// What the bodies of all requests take at most.
pub const BODIES_BYTES_MAX: usize = 256 << 20;

/// The paths of queues.
pub fn routes(queues: Queues) -> impl HttpRoutes {
    routes_within(queues, BODIES_BYTES_MAX)
}

/// The same where the bodies of all requests may take so many bytes together, but always those of the largest.
pub fn routes_within(queues: Queues, bodies_bytes_max: usize) -> impl HttpRoutes {
    let bodies_bytes_max = bodies_bytes_max.clamp(BODY_BYTES_MAX, BODIES_BYTES_MAX);
    QueueRoutes {
        shared: request::ApiState::new(queues, bodies_bytes_max),
    }
}

/// A message that lies in a queue as the interface shows it: one JSON object.
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
