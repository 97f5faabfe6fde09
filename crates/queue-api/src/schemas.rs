//! The schemas of the OpenAPI document: parameters, bodies and answers.

use serde_json::{Value, json};
use thalweg_queue::QueueErrorKind;

use crate::problem::{ProblemKind, RequestErrorKind};

/// Errors that every request can have.
pub const ANY_REQUEST: &[ProblemKind] = &[
    ProblemKind::Queue(QueueErrorKind::InvalidConfig),
    ProblemKind::Queue(QueueErrorKind::NotAuthenticated),
    ProblemKind::Queue(QueueErrorKind::NotAuthorized),
    ProblemKind::Request(RequestErrorKind::NotFound),
    ProblemKind::Request(RequestErrorKind::RequestTimeout),
    ProblemKind::Queue(QueueErrorKind::TooManyPending),
    ProblemKind::Queue(QueueErrorKind::LogPoisoned),
    ProblemKind::Queue(QueueErrorKind::DiskFull),
    ProblemKind::Queue(QueueErrorKind::UnknownOutcome),
    ProblemKind::Queue(QueueErrorKind::Corrupt),
    ProblemKind::Queue(QueueErrorKind::NewerFormat),
];

/// Patterns of formatted texts. Some accepted alternatives are not documented, because one form is enough.
const DURATION: &str = r"^([0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|h|d))+$";
const DURATION_HEADER: &str = r"^([0-9]{1,12}|([0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|h|d))+)$";
const SIZE: &str = r"^[0-9]{1,20}(\.[0-9]{1,9})?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?$";
const INSTANT: &str = concat!(
    r"^([0-9]{1,15}|",
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2}))$"
);
const NAME: &str = "^[A-Za-z0-9_.-]{1,128}$";
const MESSAGE: &str = "^[A-Za-z0-9_.-]{1,128}:[0-9]{1,9}:[0-9]{1,18}$";
/// Receipts of earlier versions end with the delivery; they are parsed and echoed, but are all stale.
const RECEIPT: &str = concat!(
    "^[A-Za-z0-9_.-]{1,128}:[0-9]{1,9}:[0-9]{1,18}:[1-9][0-9]{0,8}",
    r"(:[0-9]{1,9}\.[0-9]{1,9}\.(0|[1-9a-f][0-9a-f]{0,15}))?$"
);
const RECEIPT_FORM: &str = "<queue>:<partition>:<offset>:<delivery>:<number>.<group>.<lease>";
const START: &str = "^(earliest|latest|offset:[0-9]{1,18}|time:[0-9].*)$";
const START_FORM: &str = "earliest, latest, offset:N or time:T";
const PROPERTY: &str = "^[^=]+=.*$";

pub fn about_status(status: u16) -> &'static str {
    match status {
        201 => "Created and durable.",
        204 => "Done; the body is empty.",
        _ => "Done.",
    }
}

pub fn in_path(name: &str) -> Value {
    match name {
        "id" => text(MESSAGE),
        _ => text(NAME),
    }
}

pub fn in_query(name: &str) -> (Value, &'static str) {
    let offset = || json!({"type": "integer", "minimum": 0});
    match name {
        "atomic" => (json!({"type": "boolean", "default": true}), "All lines or none."),
        "wait" => (json!({"type": "boolean", "default": true}), "Answer after the commit."),
        "force" => (json!({"type": "boolean", "default": false}), "With all its messages."),
        "consumer" => (consumer(), "Who listens."),
        "max_in_flight" => (
            json!({"type": "integer", "minimum": 1, "maximum": 1_000_000}),
            "Unsettled messages at a time.",
        ),
        "partition" => (
            json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
            "This partition only.",
        ),
        "from" => (offset(), "From this offset on."),
        "after" => (
            json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
            "The `next` of the previous page.",
        ),
        "limit" => (
            json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
            "Messages in the answer.",
        ),
        "since" => (instant(), "Died then or later."),
        "until" => (instant(), "Died before."),
        "property" => (text(PROPERTY), "With this property: name=value."),
        "group" => (json!({"type": "string"}), "Died in this group."),
        "reason" => (json!({"type": "string"}), "Died for this reason."),
        _ => (json!({"type": "string"}), "With this key."),
    }
}

pub fn in_header(name: &str) -> (Value, &'static str) {
    match name {
        "X-Key" => (json!({"type": "string"}), "Messages of one key keep their order."),
        "X-Delay" => (
            text(DURATION_HEADER),
            "Not delivered before this time has passed: 30s, or milliseconds.",
        ),
        "X-Deliver-At" => (
            text(INSTANT),
            "Not delivered before: RFC 3339, or milliseconds since 1970.",
        ),
        "X-TTL" => (text(DURATION_HEADER), "Lifetime: 10m, or milliseconds."),
        "X-Dedup-Id" => (
            json!({"type": "string"}),
            "A duplicate within dedup_window is not stored. X-Prop-<name> is a property.",
        ),
        _ => (
            json!({"type": "string"}),
            "Continue after this event; in stream groups.",
        ),
    }
}

fn text(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

fn consumer() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 256, "default": "default"})
}

fn instant() -> Value {
    json!({"type": "string", "pattern": INSTANT, "description": "RFC 3339, or milliseconds since 1970."})
}

fn duration() -> Value {
    json!({
        "type": ["string", "integer"], "pattern": DURATION, "minimum": 0,
        "description": "A duration such as 30s, or milliseconds.",
    })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

fn named(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub fn all() -> Value {
    let mut all = json!({});
    if let Value::Object(all) = &mut all {
        for part in [messages(), verdicts(), queues(), settings(), groups(), dead_letters()] {
            if let Value::Object(part) = part {
                all.extend(part);
            }
        }
    }
    all
}

fn messages() -> Value {
    let place =
        || json!({"id": {"type": "string"}, "partition": count(), "offset": count(), "repeated": {"type": "boolean"}});
    let mut produced = place();
    produced["durability"] = json!({"type": "string"});
    let mut line = place();
    for name in ["type", "title", "detail", "code"] {
        line[name] = json!({"type": "string"});
    }
    line["status"] = count();
    line["line"] = json!({"type": "integer", "minimum": 1});
    let message = json!({
        "id": {"type": "string"},
        "partition": count(),
        "offset": count(),
        "enqueued_at": {"type": "string", "format": "date-time"},
        "deliver_at": {"type": "string", "format": "date-time"},
        "ttl_ms": count(),
        "key": {"type": "string"},
        "key_base64": {"type": "string"},
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        "text": {"type": "string"},
        "json": {},
        "base64": {"type": "string", "contentEncoding": "base64"},
    });
    let mut delivery = message.clone();
    delivery["receipt"] = json!({"type": "string"});
    delivery["delivery"] = json!({"type": "integer", "minimum": 1});
    delivery["deadline"] = json!({"type": "string", "format": "date-time"});
    json!({
        "Produced": object(&["id", "partition", "offset", "durability"], produced),
        "ProducedAll": object(
            &["durability", "messages"],
            json!({"durability": {"type": "string"}, "messages": list(object(&["id", "partition", "offset"], place()))}),
        ),
        "ProducedEach": object(
            &["durability", "results"],
            json!({"durability": {"type": "string"}, "results": list(object(&["line"], line))}),
        ),
        "NewMessage": object(&[], json!({
            "text": {"type": "string"},
            "json": {},
            "base64": {"type": "string"},
            "key": {"type": "string"},
            "key_base64": {"type": "string"},
            "delay": duration(),
            "deliver_at": {"type": ["string", "integer"], "pattern": INSTANT, "minimum": 0},
            "ttl": duration(),
            "dedup_id": {"type": "string"},
            "content_type": {"type": "string"},
            "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        })),
        "Message": object(&["id", "partition", "offset", "enqueued_at", "properties"], message),
        "Messages": object(&["messages"], json!({"messages": list(named("Message")), "next": count()})),
        "Delivery": object(&["receipt", "id", "partition", "offset", "delivery", "properties"], delivery),
        "Claimed": object(&["messages"], json!({"messages": list(named("Delivery"))})),
        "Claim": object(&[], json!({
            "consumer": consumer(),
            "max": {"type": "integer", "minimum": 1, "maximum": 10_000},
            "max_bytes": {"type": "integer", "minimum": 1},
            "wait": duration(),
            "visibility": duration(),
        })),
        "Events": {"type": "string", "description": "Events `message`, their data a Delivery."},
        "Problem": object(&["type", "title", "status", "detail", "code"], json!({
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string"},
        })),
        "Document": {"type": "object"},
    })
}

fn verdicts() -> Value {
    let receipt = || json!({"type": "string", "pattern": RECEIPT, "description": RECEIPT_FORM});
    let reason = || json!({"type": "string", "maxLength": 1024});
    let entry = |properties: Value| json!({"oneOf": [receipt(), object(&["r"], properties)]});
    let failed = json!({"r": receipt(), "code": {"type": "string"}, "detail": {"type": "string"}});
    json!({
        "Settle": object(&[], json!({
            "ack": list(receipt()),
            "nack": list(entry(json!({"r": receipt(), "delay": duration(), "reason": reason()}))),
            "reject": list(entry(json!({"r": receipt(), "reason": reason()}))),
            "extend": list(entry(json!({"r": receipt(), "visibility": duration()}))),
        })),
        "Settled": object(
            &["settled", "failed"],
            json!({"settled": count(), "failed": list(object(&["r", "code", "detail"], failed))}),
        ),
    })
}

fn queues() -> Value {
    let paused = || {
        object(
            &["produce", "consume"],
            json!({"produce": {"type": "boolean"}, "consume": {"type": "boolean"}}),
        )
    };
    let mut summary = json!({
        "name": {"type": "string"},
        "durability": {"type": "string"},
        "depth": count(),
        "bytes": count(),
        "paused": paused(),
    });
    let mut shown = summary.clone();
    shown["settings"] = named("Settings");
    summary["partitions"] = count();
    summary["groups"] = count();
    json!({
        "Queues": object(&["queues"], json!({"queues": list(object(&["name", "depth", "bytes"], summary))})),
        "Queue": object(&["name", "durability", "depth", "bytes", "paused", "settings"], shown),
        "Stats": {"type": "object", "required": ["name", "depth", "bytes", "partitions", "groups"]},
        "Purged": object(&["purged"], json!({"purged": count()})),
        "Paused": object(&["paused"], json!({"paused": paused()})),
        "Nothing": object(&[], json!({})),
        "What": object(&[], json!({"what": {"enum": ["produce", "consume", "both"], "default": "both"}})),
    })
}

fn settings() -> Value {
    let size = || {
        json!({
            "type": ["string", "integer"], "pattern": SIZE, "minimum": 0,
            "description": "A size such as 1MiB, or bytes.",
        })
    };
    let long = || json!({"type": "string", "pattern": DURATION, "description": "A duration such as 30s."});
    let number = |low: u64, high: u64| json!({"type": "integer", "minimum": low, "maximum": high});
    let flag = || json!({"type": "boolean"});
    let word = |words: &[&str]| json!({"enum": words});
    let properties = json!({
        "partitions": number(1, 1000),
        "ordering": word(&["none", "partition", "strict"]),
        "lane_window": number(1, 1000),
        "topics": list(json!({"type": "string"})),
        "default_group": {"type": "string"},
        "durability": word(&["fsync", "interval", "os", "memory"]),
        "max_message_size": size(),
        "max_depth": number(0, i64::MAX as u64),
        "max_bytes": size(),
        "overflow": word(&["reject", "block", "drop-oldest"]),
        "block_timeout": long(),
        "ttl": long(),
        "visibility_timeout": long(),
        "claim_batch": number(1, 10_000),
        "max_in_flight": number(1, 1_000_000),
        "max_pending": number(1, 1 << 22),
        "retry": object(&[], json!({
            "max_retries": number(0, 1_000_000),
            "initial_backoff": long(),
            "max_backoff": long(),
            "multiplier": {"type": "number", "minimum": 1},
            "jitter": {"type": "number", "minimum": 0, "maximum": 1},
            "total_timeout": long(),
        })),
        "consumer_timeout": long(),
        "dedup_window": long(),
        "dlq": object(&[], json!({
            "enabled": flag(), "on_expire": flag(), "on_overflow": flag(),
            "webhook": {"type": "string", "format": "uri", "pattern": "^https?://"},
        })),
        "group_expiry": long(),
        "retention": object(&[], json!({
            "mode": word(&["settled", "policy"]),
            "max_age": long(),
            "max_bytes": size(),
            "max_messages": number(0, i64::MAX as u64),
            "protect_streams": flag(),
        })),
        "compaction": object(&[], json!({
            "enabled": flag(), "lag": long(), "interval": long(), "tombstone_age": long(),
        })),
        "groups": list(named("DeclaredGroup")),
    });
    let mut with_name = properties.clone();
    with_name["name"] = text(NAME);
    json!({"Settings": object(&[], properties), "NamedSettings": object(&["name"], with_name)})
}

fn groups() -> Value {
    let settings = json!({
        "mode": {"enum": ["work", "stream"], "default": "work"},
        "start": {"type": "string", "pattern": START, "default": "earliest", "description": START_FORM},
        "filter": {"type": "string", "description": "An MQTT filter over routing keys."},
    });
    let mut declared = settings.clone();
    declared["name"] = text(NAME);
    json!({
        "GroupSettings": object(&[], settings),
        "DeclaredGroup": object(&["name"], declared),
        "Group": {"type": "object", "required": ["name", "mode", "backlog", "positions", "consumers"]},
        "Groups": object(&["groups"], json!({"groups": list(named("Group"))})),
        "Commit": object(&["partition", "offset"], json!({"partition": count(), "offset": count()})),
        "Seek": object(&["to"], json!({
            "to": {"type": "string", "pattern": START, "description": START_FORM},
            "partition": count(),
        })),
    })
}

fn dead_letters() -> Value {
    let ids = || json!({"type": "array", "items": text(MESSAGE), "maxItems": 10_000});
    json!({
        "DeadFilter": object(&[], json!({
            "group": {"type": "string"},
            "reason": {"type": "string"},
            "key": {"type": "string"},
            "since": instant(),
            "until": instant(),
            "property": text(PROPERTY),
        })),
        "Select": object(&[], json!({"ids": ids(), "filter": named("DeadFilter")})),
        "Resend": object(&[], json!({
            "ids": ids(),
            "filter": named("DeadFilter"),
            "to": {"type": "string", "description": "Another queue; without it, the source of each."},
            "delay": duration(),
        })),
        "Resent": object(&["resent"], json!({"resent": count()})),
    })
}
