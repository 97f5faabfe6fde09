//! Examples for each request of the OpenAPI document and each answer with a body. They tell one story about the queue
//! `pumps`, whose work group `alarms` processes its messages and whose stream group `live` reads them.

use serde_json::{Value, json};

/// Example of a name in a path.
pub fn in_path(name: &str) -> &'static str {
    match name {
        "queue" => "pumps",
        "group" => "alarms",
        _ => "pumps:0:17",
    }
}

/// Example of a request body; a text where it is not JSON.
pub fn request(id: &str) -> Option<Value> {
    Some(match id {
        "produce" => json!("pressure low"),
        "produceBatch" => json!(
            "{\"text\": \"12.5\", \"key\": \"pump-1\"}\n{\"json\": {\"bar\": 7.25}, \"key\": \"pump-2\", \"ttl\": \"10m\"}\n"
        ),
        "claim" => json!({"consumer": "worker-1", "max": 10, "wait": "1s", "visibility": "30s"}),
        "settle" => json!({
            "ack": ["pumps:0:17:1:16.1.6927a51e"],
            "nack": [{"r": "pumps:0:18:1:16.1.6927a51e", "delay": "5s", "reason": "valve busy"}],
            "reject": [{"r": "pumps:0:19:1:16.1.6927a51e", "reason": "no such pump"}],
            "extend": [{"r": "pumps:0:20:1:16.1.6927a51e", "visibility": "2m"}],
        }),
        "createQueue" => json!({
            "name": "valves", "partitions": 4, "ttl": "72h", "retry": {"max_retries": 8},
            "groups": [{"name": "alarms"}, {"name": "live", "mode": "stream", "start": "latest"}],
        }),
        "putQueue" => json!({"partitions": 1, "max_depth": 5_000_000, "groups": [{"name": "alarms"}]}),
        "patchQueue" => json!({"ttl": "24h", "dlq": {"webhook": null}}),
        "pauseQueue" | "resumeQueue" => json!({"what": "consume"}),
        "purgeQueue" | "pauseGroup" | "resumeGroup" => json!({}),
        "putGroup" => json!({"mode": "work", "start": "earliest", "filter": "plant/+/pump/#"}),
        "commit" => json!({"partition": 0, "offset": 18}),
        "seek" => json!({"to": "time:2026-03-01T06:00:00Z"}),
        "resendDeadLetters" => json!({"filter": {"reason": "rejected"}, "delay": "1m"}),
        "purgeDeadLetters" => json!({"ids": ["dlq.pumps:0:3"]}),
        _ => return None,
    })
}

/// Example of an answer body with this schema.
pub fn answer(schema: &str) -> Option<Value> {
    Some(match schema {
        "Produced" => json!({"id": "pumps:0:17", "partition": 0, "offset": 17, "durability": "fsync"}),
        "ProducedAll" => json!({
            "durability": "fsync",
            "messages": [
                {"id": "pumps:0:17", "partition": 0, "offset": 17},
                {"id": "pumps:0:18", "partition": 0, "offset": 18},
            ],
        }),
        "ProducedEach" => json!({
            "durability": "fsync",
            "results": [
                {"line": 1, "id": "pumps:0:17", "partition": 0, "offset": 17},
                {
                    "line": 2, "type": "urn:thalweg:error:invalid_config", "title": "invalid config", "status": 400,
                    "code": "invalid_config", "detail": "line 2: no payload: give text, json or base64",
                },
            ],
        }),
        "Messages" => json!({"messages": [message()], "next": 18}),
        "Message" => message(),
        "Claimed" => json!({"messages": [delivery()]}),
        "Events" => json!(format!(
            "event: message\nid: pumps:0:17:1:16.1.6927a51e\ndata: {}\n\n",
            delivery()
        )),
        "Settled" => json!({
            "settled": 3,
            "failed": [{
                "r": "pumps:0:20:1:16.1.6927a51e", "code": "lease_lost",
                "detail": "the lease pumps:0:20:1:16.1.6927a51e has ended; settle within visibility_timeout or extend \
                 it",
            }],
        }),
        "Queues" => json!({"queues": [{
            "name": "pumps", "partitions": 1, "durability": "fsync", "depth": 3, "bytes": 36, "groups": 2,
            "paused": {"produce": false, "consume": false},
        }]}),
        "Queue" => json!({
            "name": "pumps", "durability": "fsync", "depth": 3, "bytes": 36,
            "paused": {"produce": false, "consume": false}, "settings": {"partitions": 1, "ttl": "24h"},
        }),
        "Stats" => json!({
            "name": "pumps", "depth": 3, "bytes": 36, "partitions": [{"partition": 0, "first": 17, "next": 20}],
            "groups": [group()],
        }),
        "Group" => group(),
        "Groups" => json!({"groups": [group()]}),
        "Purged" => json!({"purged": 3}),
        "Paused" => json!({"paused": {"produce": false, "consume": true}}),
        "Resent" => json!({"resent": 2}),
        "Problem" => json!({
            "type": "urn:thalweg:error:queue_not_found", "title": "queue not found", "status": 404,
            "code": "queue_not_found", "detail": "there is no queue pumps; create it, or set queues.auto_create",
        }),
        _ => return None,
    })
}

fn message() -> Value {
    json!({
        "id": "pumps:0:17", "partition": 0, "offset": 17, "enqueued_at": "2026-03-01T06:00:00Z", "ttl_ms": 86_400_000,
        "key": "pump-1", "properties": {"unit": "bar"}, "text": "12.5",
    })
}

fn delivery() -> Value {
    json!({
        "receipt": "pumps:0:17:1:16.1.6927a51e", "id": "pumps:0:17", "partition": 0, "offset": 17, "delivery": 1,
        "deadline": "2026-03-01T06:00:30Z", "enqueued_at": "2026-03-01T06:00:00Z", "key": "pump-1",
        "properties": {"unit": "bar"}, "text": "12.5",
    })
}

fn group() -> Value {
    json!({
        "name": "alarms", "mode": "work", "start": "earliest", "backlog": 3, "positions": [17],
        "consumers": [{"id": "worker-1", "partitions": [0]}],
    })
}
