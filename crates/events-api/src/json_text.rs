//! Writes results as JSON text. JSON that clients stored is returned unchanged.

use thalweg_events::event::{EventRef, IdRef};
use thalweg_events::{StoredEvent, time};

/// Writes a JSON string.
pub(crate) fn text(out: &mut String, value: &str) {
    out.push('"');
    let mut plain = 0;
    for (at, byte) in value.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(value.get(plain..at).unwrap_or_default());
        plain = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            other => {
                const DIGITS: [char; 16] = [
                    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
                ];
                out.push_str("\\u00");
                out.extend([usize::from(other >> 4), usize::from(other & 15)].map(|digit| DIGITS[digit]));
            }
        }
    }
    out.push_str(value.get(plain..).unwrap_or_default());
    out.push('"');
}

pub(crate) fn number(out: &mut String, value: u64) {
    out.push_str(itoa::Buffer::new().format(value));
}

/// Writes a time, or `null`.
pub(crate) fn instant(out: &mut String, value: Option<i64>) {
    match value {
        Some(value) => text(out, &time::text(value)),
        None => out.push_str("null"),
    }
}

/// Writes `[id, type, position, globalPosition, data, metadata, time]`, with the stream after the id on request.
pub(crate) fn row(out: &mut String, stored: &StoredEvent, with_stream: bool) {
    let event = stored.event();
    out.push('[');
    id(out, &event);
    if with_stream {
        out.push(',');
        text(out, event.stream);
    }
    out.push(',');
    text(out, event.kind);
    out.push(',');
    number(out, event.position);
    out.push(',');
    number(out, event.global);
    out.push(',');
    out.push_str(event.data);
    out.push(',');
    out.push_str(event.metadata.unwrap_or("null"));
    out.push(',');
    instant(out, Some(event.time));
    out.push(']');
}

fn id(out: &mut String, event: &EventRef<'_>) {
    match event.id {
        IdRef::Uuid(uuid) => {
            out.push('"');
            out.push_str(std::str::from_utf8(&uuid.text()).unwrap_or_default());
            out.push('"');
        }
        IdRef::Text(id) => text(out, id),
    }
}

pub(crate) fn array<T>(items: &[T], write: impl Fn(&mut String, &T)) -> String {
    let mut out = String::from("[");
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        write(&mut out, item);
    }
    out.push(']');
    out
}
