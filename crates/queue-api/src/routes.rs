//! The table of all requests. The router, the access rules and the OpenAPI document are generated from it, so they
//! cannot disagree.

use axum::http::Method;
use axum::response::Response;
use futures::future::BoxFuture;
use thalweg_queue::QueueErrorKind::{
    self, DurabilityUnavailable, GroupExists, GroupNotFound, MessageNotFound, MessageTooLarge, NotAuthorized,
    OffsetGap, Paused, QueueExists, QueueFull, QueueNotFound,
};
use thalweg_telemetry::Access;

use crate::problem::{Problem, Result};
use crate::request::ApiRequest;
use crate::{admin, batch, browse, claim, dead_letters, events, groups, openapi, produce, settle};

/// Prefix of every path of the table.
pub const BASE: &str = "/api/v1";

/// All paths of the table are at or below one of these.
pub const QUEUES: &str = "/api/v1/queues";
pub const DOCUMENT: &str = "/api/v1/openapi.json";

pub type Handler = fn(ApiRequest) -> BoxFuture<'static, Result<Response>>;

/// One kind of request.
pub struct Endpoint {
    pub method: Method,
    /// As in the document; names in braces, an action after a colon.
    pub path: &'static str,
    pub id: &'static str,
    pub about: &'static str,
    pub access: Access,
    /// Names of query parameters, as in the document.
    pub query: &'static [&'static str],
    /// Names of headers with a meaning.
    pub headers: &'static [&'static str],
    pub body: EndpointBody,
    /// Success statuses, each with the schema of its body.
    pub answers: &'static [(u16, &'static str)],
    /// Errors beyond those that every request can have.
    pub errors: &'static [QueueErrorKind],
    pub handler: Handler,
}

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointBody {
    None,
    /// Any bytes.
    Payload,
    /// Lines of this schema.
    Lines(&'static str),
    /// This schema; required or not.
    Json(&'static str, bool),
}

impl Endpoint {
    /// The path for the router, without an action after a name, because that is no segment of its own.
    pub fn route(&self) -> &'static str {
        self.path.split_once("}:").map_or(self.path, |(route, _)| {
            // The brace belongs to the route.
            self.path.get(..route.len() + 1).unwrap_or(route)
        })
    }

    /// The part after the name and its colon.
    pub fn action(&self) -> Option<&'static str> {
        self.path.split_once("}:").map(|(_, action)| action)
    }

    /// Whether a path, as a client wrote it, is this action. Escaped colons are not recognised: such a request needs
    /// the access of the strictest action of the path.
    fn is_action(&self, method: &Method, path: &str) -> bool {
        let (Some(action), Some(path)) = (self.action(), path.strip_prefix(BASE)) else {
            return false;
        };
        let Some(path) = path.strip_suffix(action).and_then(|path| path.strip_suffix(':')) else {
            return false;
        };
        let (known, given): (Vec<&str>, Vec<&str>) = (self.route().split('/').collect(), path.split('/').collect());
        let fits = |(known, given): (&&str, &&str)| match known.starts_with('{') {
            true => !given.is_empty() && !given.contains([':', '%']),
            false => known == given,
        };
        self.method == *method && known.len() == given.len() && known.iter().zip(&given).all(fits)
    }

    /// Whether the answer is a stream of messages. A HEAD request would take messages for nobody.
    pub fn is_stream(&self) -> bool {
        self.answers.iter().any(|(_, schema)| *schema == "Events")
    }

    /// A request that changes something runs to its end when its client disconnects, so that it is not half done. One
    /// that only waits or reads ends with its client.
    pub fn outlives_client(&self) -> bool {
        self.method != Method::GET && self.id != "claim"
    }
}

/// The access that an action requires, where it is less than that of the strictest action of its path.
pub fn access(method: &Method, path: &str) -> Option<Access> {
    let found = ENDPOINTS.iter().find(|endpoint| endpoint.is_action(method, path));
    found.map(|endpoint| endpoint.access)
}

/// Wraps the handler of an endpoint.
macro_rules! handler {
    ($handler:path) => {
        |call| Box::pin($handler(call))
    };
}

/// Defaults of a row: a read without parameters or body.
const GET: Endpoint = Endpoint {
    method: Method::GET,
    path: "",
    id: "",
    about: "",
    access: Access::Read,
    query: &[],
    headers: &[],
    body: EndpointBody::None,
    answers: &[],
    errors: &[],
    handler: handler!(unserved),
};

/// Changes require admin access, unless the row says otherwise.
const POST: Endpoint = Endpoint {
    method: Method::POST,
    access: Access::Admin,
    ..GET
};
const PUT: Endpoint = Endpoint {
    method: Method::PUT,
    ..POST
};
const PATCH: Endpoint = Endpoint {
    method: Method::PATCH,
    ..POST
};
const DELETE: Endpoint = Endpoint {
    method: Method::DELETE,
    ..POST
};

/// Placeholder for a row that forgot its handler.
async fn unserved(_: ApiRequest) -> Result<Response> {
    Err(Problem::internal())
}

pub static ENDPOINTS: &[Endpoint] = &[
    // Messages.
    Endpoint {
        path: "/queues/{queue}/messages",
        id: "produce",
        about: "Produce one message; the body is its payload. The answer names the durability that the message has.",
        access: Access::ReadWrite,
        headers: &["X-Key", "X-Delay", "X-Deliver-At", "X-TTL", "X-Dedup-Id"],
        body: EndpointBody::Payload,
        answers: &[(201, "Produced"), (200, "Produced")],
        errors: &[QueueNotFound, NotAuthorized, MessageTooLarge, QueueFull, Paused],
        handler: handler!(produce::one),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/messages:batch",
        id: "produceBatch",
        about: "Produce up to 10,000 messages, one JSON object per line: all or none, or each on its own with \
                atomic=false.",
        access: Access::ReadWrite,
        query: &["atomic"],
        body: EndpointBody::Lines("NewMessage"),
        answers: &[(201, "ProducedAll"), (200, "ProducedEach")],
        errors: &[QueueNotFound, NotAuthorized, MessageTooLarge, QueueFull, Paused],
        handler: handler!(batch::produce),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/messages",
        id: "browse",
        about: "Read messages without claiming them.",
        query: &["partition", "from", "limit"],
        answers: &[(200, "Messages")],
        errors: &[QueueNotFound],
        handler: handler!(browse::browse),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}/messages/{id}",
        id: "message",
        about: "Read one message without claiming it.",
        answers: &[(200, "Message")],
        errors: &[QueueNotFound, MessageNotFound],
        handler: handler!(browse::one),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}/claim",
        id: "claim",
        about: "Claim messages for a consumer; waits if there are none. A missing group is created.",
        access: Access::Read,
        body: EndpointBody::Json("Claim", false),
        answers: &[(200, "Claimed"), (204, "")],
        errors: &[QueueNotFound, NotAuthorized, Paused, OffsetGap],
        handler: handler!(claim::claim),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}/events",
        id: "events",
        about: "Messages as server-sent events, up to max_in_flight unsettled ones. A missing group is created.",
        query: &["consumer", "max_in_flight"],
        headers: &["Last-Event-ID"],
        answers: &[(200, "Events")],
        errors: &[QueueNotFound, NotAuthorized, Paused],
        handler: handler!(events::events),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}/settle",
        id: "settle",
        about: "Settle messages: ack, nack, reject, or extend their leases.",
        access: Access::Read,
        query: &["wait"],
        body: EndpointBody::Json("Settle", true),
        answers: &[(200, "Settled")],
        errors: &[QueueNotFound, GroupNotFound, NotAuthorized, MessageTooLarge],
        handler: handler!(settle::settle),
        ..POST
    },
    // Queues.
    Endpoint {
        path: "/queues",
        id: "listQueues",
        about: "All queues.",
        answers: &[(200, "Queues")],
        handler: handler!(admin::list),
        ..GET
    },
    Endpoint {
        path: "/queues",
        id: "createQueue",
        about: "Create a queue.",
        body: EndpointBody::Json("NamedSettings", true),
        answers: &[(201, "Queue")],
        errors: &[NotAuthorized, QueueExists, DurabilityUnavailable],
        handler: handler!(admin::create),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}",
        id: "showQueue",
        about: "A queue and its settings.",
        answers: &[(200, "Queue")],
        errors: &[QueueNotFound],
        handler: handler!(admin::show),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}",
        id: "putQueue",
        about: "Create a queue, or replace its settings; missing fields get their defaults.",
        body: EndpointBody::Json("Settings", false),
        answers: &[(200, "Queue"), (201, "Queue")],
        errors: &[NotAuthorized, DurabilityUnavailable],
        handler: handler!(admin::put),
        ..PUT
    },
    Endpoint {
        path: "/queues/{queue}",
        id: "patchQueue",
        about: "Change the given settings of a queue; null restores the default.",
        body: EndpointBody::Json("Settings", false),
        answers: &[(200, "Queue")],
        errors: &[QueueNotFound, NotAuthorized],
        handler: handler!(admin::patch),
        ..PATCH
    },
    Endpoint {
        path: "/queues/{queue}",
        id: "deleteQueue",
        about: "Delete a queue; a non-empty one only with force=true.",
        query: &["force"],
        answers: &[(204, "")],
        errors: &[QueueNotFound, NotAuthorized],
        handler: handler!(admin::delete),
        ..DELETE
    },
    Endpoint {
        path: "/queues/{queue}:purge",
        id: "purgeQueue",
        about: "Drop all messages of a queue.",
        body: EndpointBody::Json("Nothing", false),
        answers: &[(200, "Purged")],
        errors: &[QueueNotFound, NotAuthorized],
        handler: handler!(admin::purge),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}:pause",
        id: "pauseQueue",
        about: "Refuse producers, consumers or both until resumed.",
        body: EndpointBody::Json("What", false),
        answers: &[(200, "Paused")],
        errors: &[QueueNotFound, NotAuthorized],
        handler: handler!(admin::pause),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}:resume",
        id: "resumeQueue",
        about: "Undo pause.",
        body: EndpointBody::Json("What", false),
        answers: &[(200, "Paused")],
        errors: &[QueueNotFound, NotAuthorized],
        handler: handler!(admin::resume),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/stats",
        id: "queueStats",
        about: "Depth, bytes, age; per group all states, lag and assignment.",
        answers: &[(200, "Stats")],
        errors: &[QueueNotFound],
        handler: handler!(admin::stats),
        ..GET
    },
    // Groups.
    Endpoint {
        path: "/queues/{queue}/groups",
        id: "listGroups",
        about: "The groups of a queue.",
        answers: &[(200, "Groups")],
        errors: &[QueueNotFound],
        handler: handler!(groups::list),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}",
        id: "showGroup",
        about: "A group and its progress.",
        answers: &[(200, "Group")],
        errors: &[QueueNotFound, GroupNotFound],
        handler: handler!(groups::show),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}",
        id: "putGroup",
        about: "Declare a group; it does not expire.",
        body: EndpointBody::Json("GroupSettings", false),
        answers: &[(200, "Group"), (201, "Group")],
        errors: &[QueueNotFound, NotAuthorized, GroupExists],
        handler: handler!(groups::put),
        ..PUT
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}",
        id: "deleteGroup",
        about: "Delete a group and its progress.",
        answers: &[(204, "")],
        errors: &[QueueNotFound, GroupNotFound, NotAuthorized],
        handler: handler!(groups::delete),
        ..DELETE
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}:commit",
        id: "commit",
        about: "Set the committed offset of a stream group in one partition.",
        access: Access::Read,
        body: EndpointBody::Json("Commit", true),
        answers: &[(200, "Group")],
        errors: &[QueueNotFound, GroupNotFound, NotAuthorized],
        handler: handler!(groups::commit),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}:seek",
        id: "seek",
        about: "Move a group to another position: earliest, latest, offset:N or time:T.",
        body: EndpointBody::Json("Seek", true),
        answers: &[(200, "Group")],
        errors: &[QueueNotFound, GroupNotFound, NotAuthorized],
        handler: handler!(groups::seek),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}:pause",
        id: "pauseGroup",
        about: "Refuse claims of a group until resumed.",
        body: EndpointBody::Json("Nothing", false),
        answers: &[(200, "Group")],
        errors: &[QueueNotFound, GroupNotFound, NotAuthorized],
        handler: handler!(groups::pause),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/groups/{group}:resume",
        id: "resumeGroup",
        about: "Undo pause.",
        body: EndpointBody::Json("Nothing", false),
        answers: &[(200, "Group")],
        errors: &[QueueNotFound, GroupNotFound, NotAuthorized],
        handler: handler!(groups::resume),
        ..POST
    },
    // Dead letters.
    Endpoint {
        path: "/queues/{queue}/dlq",
        id: "listDeadLetters",
        about: "Dead letters of a queue, oldest first.",
        query: &["group", "reason", "key", "since", "until", "property", "after", "limit"],
        answers: &[(200, "Messages")],
        errors: &[QueueNotFound],
        handler: handler!(dead_letters::list),
        ..GET
    },
    Endpoint {
        path: "/queues/{queue}/dlq:resend",
        id: "resendDeadLetters",
        about: "Resend dead letters, to the group in which they died or to another queue.",
        body: EndpointBody::Json("Resend", true),
        answers: &[(200, "Resent")],
        errors: &[QueueNotFound, MessageNotFound, QueueFull, NotAuthorized],
        handler: handler!(dead_letters::resend),
        ..POST
    },
    Endpoint {
        path: "/queues/{queue}/dlq:purge",
        id: "purgeDeadLetters",
        about: "Purge dead letters.",
        body: EndpointBody::Json("Select", true),
        answers: &[(200, "Purged")],
        errors: &[QueueNotFound, MessageNotFound, NotAuthorized],
        handler: handler!(dead_letters::purge),
        ..POST
    },
    // This document.
    Endpoint {
        path: "/openapi.json",
        id: "openapi",
        about: "This interface as an OpenAPI 3.1 document.",
        answers: &[(200, "Document")],
        handler: handler!(openapi::serve),
        ..GET
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_has_its_own_access_and_only_where_the_router_finds_it() {
        for (path, expected) in [
            ("/queues/q/groups/g:commit", Some(Access::Read)),
            ("/queues/q/groups/g:seek", Some(Access::Admin)),
            ("/queues/q:purge", Some(Access::Admin)),
            ("/queues/q/groups/g%3Acommit", None),
            ("/queues/q/groups/g:seek:commit", None),
            ("/queues/q/groups/g%3Aseek:commit", None),
            ("/queues/q/groups/:commit", None),
            ("/queues/q:commit", None),
            ("/queues/q/groups/g/x:commit", None),
            ("/queues/q/groups/g", None),
        ] {
            assert_eq!(access(&Method::POST, &format!("{BASE}{path}")), expected, "{path}");
        }
        assert_eq!(access(&Method::PUT, "/api/v1/queues/q/groups/g:commit"), None);
    }

    #[test]
    fn every_path_is_where_refusals_are_problems() {
        for endpoint in ENDPOINTS {
            let path = format!("{BASE}{}", endpoint.path);
            assert!(
                path == DOCUMENT || path == QUEUES || path.starts_with(&format!("{QUEUES}/")),
                "{path}"
            );
        }
    }
}
