//! `GET /openapi.json`: the table of requests as an OpenAPI 3.1 document, with the schemas of `schemas.rs`.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use thalweg_queue::QueueErrorKind;
use thalweg_telemetry::Access;

use crate::examples;
use crate::problem::{ProblemKind, RequestErrorKind, Result};
use crate::request::ApiRequest;
use crate::response;
use crate::routes::{BASE, ENDPOINTS, Endpoint, EndpointBody};
use crate::schemas;

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

pub async fn serve(_: ApiRequest) -> Result<Response> {
    Ok(response::raw(StatusCode::OK, DOCUMENT.as_str().into()))
}

fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Thalweg queues",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable queues with groups, leases, retries and dead letters. Every error is application/problem+json \
                with a code that never changes. Durations are texts such as 30s, or milliseconds.",
        },
        "servers": [{"url": BASE}],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "user": {"type": "http", "scheme": "basic"},
            },
        },
        // A process without an auth section requires none.
        "security": [{}, {"token": []}, {"user": []}],
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut operation = json!({
        "operationId": endpoint.id,
        "summary": endpoint.about,
        "description": format!("Needs role `{}`.", role(endpoint)),
        "responses": responses(endpoint),
    });
    let in_path = endpoint.path.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let in_path = in_path
        .map(|(name, _)| json!({"name": name, "in": "path", "required": true, "schema": schemas::in_path(name), "example": examples::in_path(name)}));
    let in_query = endpoint.query.iter().map(|name| {
        let (schema, about) = schemas::in_query(name);
        json!({"name": name, "in": "query", "schema": schema, "description": about})
    });
    let in_headers = endpoint.headers.iter().map(|name| {
        let (schema, about) = schemas::in_header(name);
        json!({"name": name, "in": "header", "schema": schema, "description": about})
    });
    let parameters: Vec<Value> = in_path.chain(in_query).chain(in_headers).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(mut body) = request_body(endpoint.body) {
        if let (Some(example), Some(content)) = (examples::request(endpoint.id), body["content"].as_object_mut()) {
            content
                .values_mut()
                .for_each(|content| content["example"] = example.clone());
        }
        operation["requestBody"] = body;
    }
    operation
}

fn role(endpoint: &Endpoint) -> &'static str {
    match endpoint.access {
        Access::Own | Access::Open => "none",
        Access::Read => "read",
        // All requests with this access change something.
        Access::ReadWrite => "write",
        Access::Admin => "admin",
    }
}

fn request_body(body: EndpointBody) -> Option<Value> {
    Some(match body {
        EndpointBody::None => return None,
        EndpointBody::Payload => json!({
            "description": "The payload, as it is. Its media type is kept as property content-type.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }),
        EndpointBody::Lines(schema) => json!({
            "description": format!("One JSON object per line, each as {schema}."),
            "required": true,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
        }),
        EndpointBody::Json(schema, required) => json!({
            "required": required,
            "content": {"application/json": {"schema": reference(schema)}},
        }),
    })
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    for (status, schema) in endpoint.answers {
        let mut response = json!({"description": schemas::about_status(*status)});
        if !schema.is_empty() {
            let media_type = if *schema == "Events" {
                "text/event-stream"
            } else {
                "application/json"
            };
            let mut content = json!({"schema": reference(schema)});
            if let Some(example) = examples::answer(schema) {
                content["example"] = example;
            }
            response["content"] = json!({media_type: content});
        }
        responses.insert(status.to_string(), response);
    }
    responses.extend(refusals(endpoint));
    responses.into()
}

/// The error answers of a request, by status; the description of each lists its codes.
fn refusals(endpoint: &Endpoint) -> Map<String, Value> {
    let too_large = QueueErrorKind::MessageTooLarge;
    let has_body = endpoint.body != EndpointBody::None;
    let is_added = has_body && !endpoint.errors.contains(&too_large);
    let unread = ProblemKind::Request(RequestErrorKind::UnsupportedEncoding);
    let own = endpoint.errors.iter().chain(is_added.then_some(&too_large));
    let kinds = own
        .copied()
        .map(ProblemKind::Queue)
        .chain(has_body.then_some(unread))
        .chain(schemas::ANY_REQUEST.iter().copied());
    let mut by_status: Map<String, Value> = Map::new();
    for facts in kinds.map(ProblemKind::facts) {
        let answer = by_status.entry(facts.status.to_string()).or_insert_with(|| {
            json!({
                "description": "",
                "content": {"application/problem+json": {"schema": reference("Problem")}},
            })
        });
        answer["description"] = match answer["description"].as_str() {
            None | Some("") => facts.code.into(),
            Some(others) => format!("{others}, {}", facts.code).into(),
        };
        if facts.retry.is_timed() {
            answer["headers"] = json!({"Retry-After": {"schema": {"type": "integer", "minimum": 1}}});
        }
    }
    by_status
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use thalweg_queue::settings::QueueSettings;

    use super::*;

    #[test]
    fn every_reference_leads_to_a_shape_and_every_shape_is_used() {
        let document = document();
        let text = document.to_string();
        let used: BTreeSet<&str> = text
            .split("#/components/schemas/")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let known: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
        // Named only in prose, because OpenAPI has no schema for lines.
        let used: BTreeSet<&str> = used.into_iter().chain(["NewMessage"]).collect();
        assert_eq!(used, known);
    }

    /// Checks a value against its schema: required members exist, and there are no unknown ones.
    fn fits(document: &Value, schema: &Value, value: &Value, place: &str) {
        let named = schema["$ref"]
            .as_str()
            .and_then(|name| document.pointer(name.strip_prefix('#')?));
        let schema = named.unwrap_or(schema);
        if let Some(choices) = schema["oneOf"].as_array() {
            let is = |choice: &&Value| choice["type"] == "object" || named.is_some();
            let choice = choices.iter().find(|choice| is(choice) == value.is_object());
            return fits(
                document,
                choice.unwrap_or_else(|| panic!("{place}: {value}")),
                value,
                place,
            );
        }
        let types = match &schema["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            Value::String(only) => vec![only.as_str()],
            _ => Vec::new(),
        };
        let is = |name: &str| match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_u64(),
            "boolean" => value.is_boolean(),
            _ => value.is_number(),
        };
        assert!(
            types.is_empty() || value.is_null() || types.into_iter().any(is),
            "{place}: {value} is no {schema}"
        );
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            assert!(value.get(name).is_some(), "{place} has no {name}");
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            match schema["properties"].get(name) {
                Some(inner) => fits(document, inner, value, &format!("{place}.{name}")),
                None => assert_ne!(schema["additionalProperties"], false, "{place}.{name} is unknown"),
            }
        }
        for value in value.as_array().into_iter().flatten() {
            fits(document, &schema["items"], value, place);
        }
    }

    #[test]
    fn every_request_and_every_answer_with_a_body_has_an_example_that_fits() {
        let document = document();
        let mut count = 0;
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let answers = operation["responses"].as_object().unwrap().iter();
                let answers = answers.filter(|(status, _)| status.starts_with('2') && path != "/openapi.json");
                let bodies = answers.map(|(_, answer)| answer).chain([&operation["requestBody"]]);
                for content in bodies
                    .filter_map(|body| body["content"].as_object())
                    .flat_map(Map::values)
                {
                    let example = content
                        .get("example")
                        .unwrap_or_else(|| panic!("{method} {path} lacks an example"));
                    fits(&document, &content["schema"], example, &format!("{method} {path}"));
                    count += 1;
                }
            }
        }
        assert!(count > 40, "{count} examples");
    }

    #[test]
    fn ids_of_requests_differ() {
        let ids: BTreeSet<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.id).collect();
        assert_eq!(ids.len(), ENDPOINTS.len());
    }

    #[test]
    fn settings_in_the_document_are_those_that_queues_have() {
        let document = document();
        let described = document["components"]["schemas"]["Settings"]["properties"]
            .as_object()
            .unwrap();
        let mut settings = QueueSettings {
            durability: Some(thalweg_log::Durability::Fsync),
            ..QueueSettings::default()
        };
        settings.dlq.webhook = Some("https://ops.example".into());
        let real = settings.to_json();
        let real = real.as_object().unwrap();
        let names = |map: &Map<String, Value>| map.keys().cloned().collect::<BTreeSet<String>>();
        assert_eq!(names(described), names(real));
        for (name, value) in real.iter().filter(|(_, value)| value.is_object()) {
            let inner = described[name]["properties"].as_object().unwrap();
            assert_eq!(names(inner), names(value.as_object().unwrap()), "{name}");
        }
    }

    #[test]
    fn error_answers_are_those_of_the_kinds_that_a_request_has() {
        let document = document();
        let answers = &document["paths"]["/queues/{queue}/messages"]["post"]["responses"];
        for (status, codes, is_timed) in [
            ("404", "queue_not_found, not_found", false),
            ("413", "message_too_large", false),
            ("429", "queue_full, too_many_pending", true),
            ("500", "corrupt, newer_format", false),
            ("503", "paused, log_poisoned, unknown_outcome", true),
            ("507", "disk_full", true),
        ] {
            assert_eq!(answers[status]["description"], codes, "{status}");
            assert_eq!(answers[status]["headers"].is_object(), is_timed, "{status}");
        }
    }
}
