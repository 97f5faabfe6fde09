//! The fingerprint of a span: the id of a group of spans that do the same.
//!
//! XXH3-64 with seed 0, read as signed, over parts, each its length in four little-endian bytes and its bytes: service
//! name, kind, then those of the first group of which the span has an attribute, under its current or its previous
//! name: messaging (system, operation, destination), database (system, namespace, operation, collection), HTTP (method,
//! route), RPC (system, service, method). Spans without any of these use the span name.

use xxhash_rust::xxh3::xxh3_64;

/// The name of a group, and per part the attribute names in order of preference.
type SpanAttributeGroup = (&'static str, &'static [&'static [&'static str]]);

const GROUPS: [SpanAttributeGroup; 4] = [
    (
        "messaging",
        &[
            &["messaging.system"],
            &["messaging.operation.type", "messaging.operation"],
            &["messaging.destination.name", "messaging.destination"],
        ],
    ),
    (
        "db",
        &[
            &["db.system.name", "db.system"],
            &["db.namespace", "db.name"],
            &["db.operation.name", "db.operation"],
            &["db.collection.name", "db.sql.table"],
        ],
    ),
    (
        "http",
        &[&["http.request.method", "http.method"], &["http.route", "url.template"]],
    ),
    ("rpc", &[&["rpc.system"], &["rpc.service"], &["rpc.method"]]),
];

/// `attribute` returns the text of a span attribute.
pub fn fingerprint<'a>(
    service: &str,
    kind: &str,
    name: &str,
    attribute: impl Fn(&str) -> Option<&'a [u8]>,
    bytes: &mut Vec<u8>,
) -> i64 {
    bytes.clear();
    put(bytes, service.as_bytes());
    put(bytes, kind.as_bytes());
    let begin = bytes.len();
    for (group, parts) in GROUPS {
        put(bytes, group.as_bytes());
        let mut is_there = false;
        for names in parts {
            let text = names.iter().find_map(|name| attribute(name));
            is_there |= text.is_some();
            put(bytes, text.unwrap_or_default());
        }
        if is_there {
            return xxh3_64(bytes) as i64;
        }
        bytes.truncate(begin);
    }
    put(bytes, name.as_bytes());
    xxh3_64(bytes) as i64
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, name: &str, attributes: &[(&str, &str)]) -> i64 {
        let find = |wanted: &str| {
            attributes
                .iter()
                .find(|(name, _)| *name == wanted)
                .map(|(_, text)| text.as_bytes())
        };
        fingerprint("shop", kind, name, find, &mut Vec::new())
    }

    #[test]
    fn spans_that_do_the_same_have_one_number() {
        let get = of(
            "server",
            "GET /a/1",
            &[("http.request.method", "GET"), ("http.route", "/a/{id}"), ("user", "1")],
        );
        assert_eq!(
            get,
            of(
                "server",
                "GET /a/2",
                &[("http.method", "GET"), ("http.route", "/a/{id}")]
            )
        );
        assert_ne!(
            get,
            of(
                "client",
                "GET /a/2",
                &[("http.method", "GET"), ("http.route", "/a/{id}")]
            )
        );
        assert_ne!(get, of("server", "GET /a/2", &[("http.method", "GET")]));
        let read = of(
            "client",
            "x",
            &[
                ("db.system", "postgresql"),
                ("db.operation", "SELECT"),
                ("http.method", "GET"),
            ],
        );
        assert_eq!(
            read,
            of(
                "client",
                "y",
                &[("db.system.name", "postgresql"), ("db.operation.name", "SELECT")]
            )
        );
        assert_ne!(of("internal", "a", &[]), of("internal", "b", &[]));
    }
}
