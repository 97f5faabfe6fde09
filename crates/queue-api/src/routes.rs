//! The one table of all requests. The router, the access rules and the OpenAPI document are made of it, so none can say
//! what another does not.

use axum::http::Method;
use axum::response::Response;
use futures::future::BoxFuture;
use thalweg_telemetry::Access;

use crate::call::Call;
use crate::problem::Result;
use crate::{batch, claim, produce, settle};

/// Before every path of the table.
pub const BASE: &str = "/api/v1";

pub type Handler = fn(Call) -> BoxFuture<'static, Result<Response>>;

/// One kind of request.
pub struct Endpoint {
    pub method: Method,
    /// As in the document; names in braces, an action after a colon.
    pub path: &'static str,
    pub id: &'static str,
    pub about: &'static str,
    pub access: Access,
    /// Parameters in the address, by their names in the document.
    pub query: &'static [&'static str],
    /// Names of headers with a meaning.
    pub headers: &'static [&'static str],
    pub body: Body,
    /// Statuses when it goes well, each with the schema of its body.
    pub answers: &'static [(u16, &'static str)],
    /// Codes of errors beyond those that every request can have.
    pub errors: &'static [&'static str],
    pub handler: Handler,
}

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// Any bytes.
    Payload,
    /// Lines of this schema.
    Lines(&'static str),
    /// This schema; required or not.
    Json(&'static str, bool),
}

impl Endpoint {
    /// The path as the router knows it, without an action after a name: that is no segment of its own.
    pub fn route(&self) -> &'static str {
        self.path.split_once("}:").map_or(self.path, |(route, _)| {
            // The brace belongs to the route.
            self.path.get(..route.len() + 1).unwrap_or(route)
        })
    }

    /// What follows the name and its colon.
    pub fn action(&self) -> Option<&'static str> {
        self.path.split_once("}:").map(|(_, action)| action)
    }

    /// A request that changes something goes on when its client leaves, so that it is not half done. One that only waits or
    /// reads ends with its client.
    pub fn outlives_client(&self) -> bool {
        self.method != Method::GET && self.id != "claim"
    }
}

/// Makes the handler of an endpoint.
macro_rules! handler {
    ($handler:path) => {
        |call| Box::pin($handler(call))
    };
}

pub static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Method::POST,
        path: "/queues/{queue}/messages",
        id: "produce",
        about: "Produce one message: the body is its payload. The answer comes when it is as durable as it says.",
        access: Access::ReadWrite,
        query: &[],
        headers: &["X-Key", "X-Delay", "X-Deliver-At", "X-TTL", "X-Dedup-Id"],
        body: Body::Payload,
        answers: &[(201, "Produced"), (200, "Produced")],
        errors: &["queue_not_found", "message_too_large", "queue_full", "paused"],
        handler: handler!(produce::one),
    },
    Endpoint {
        method: Method::POST,
        path: "/queues/{queue}/messages:batch",
        id: "produceBatch",
        about: "Produce up to 10,000 messages, one JSON object per line: all or none, or with atomic=false each by itself.",
        access: Access::ReadWrite,
        query: &["atomic"],
        headers: &[],
        body: Body::Lines("NewMessage"),
        answers: &[(201, "ProducedAll"), (200, "ProducedEach")],
        errors: &["queue_not_found", "message_too_large", "queue_full", "paused"],
        handler: handler!(batch::produce),
    },
    Endpoint {
        method: Method::POST,
        path: "/queues/{queue}/groups/{group}/claim",
        id: "claim",
        about: "Claim messages for a consumer; waits for some if there are none. A group that is not there is made.",
        access: Access::Read,
        query: &[],
        headers: &[],
        body: Body::Json("Claim", false),
        answers: &[(200, "Claimed"), (204, "")],
        errors: &["queue_not_found", "too_many_pending", "paused", "offset_gap"],
        handler: handler!(claim::claim),
    },
    Endpoint {
        method: Method::POST,
        path: "/queues/{queue}/groups/{group}/settle",
        id: "settle",
        about: "Say what became of messages: done, again later, never again, or not yet.",
        access: Access::Read,
        query: &["wait"],
        headers: &[],
        body: Body::Json("Settle", true),
        answers: &[(200, "Settled")],
        errors: &["queue_not_found", "group_not_found", "message_too_large"],
        handler: handler!(settle::settle),
    },
];
