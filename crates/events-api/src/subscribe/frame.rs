//! Encodes server-sent events; each ends with a blank line.

use bytes::Bytes;
use thalweg_events::event::EventRef;
use thalweg_events::{Gap, StoredEvent, names};

use crate::json_text::{number, row, text};

pub(super) const READY: &[u8] = b": ready\n\n";
pub(super) const HEARTBEAT: &[u8] = b": hb\n\n";

/// Announces a message.
pub(super) fn poke(event: &EventRef<'_>) -> Bytes {
    let mut out = String::with_capacity(96 + event.stream.len());
    out.push_str("event: poke\nid: ");
    number(&mut out, event.global);
    out.push_str("\ndata: {\"stream\":");
    text(&mut out, event.stream);
    out.push_str(",\"position\":");
    number(&mut out, event.position);
    out.push_str(",\"globalPosition\":");
    number(&mut out, event.global);
    out.push_str("}\n\n");
    Bytes::from(out)
}

/// A whole message.
pub(super) fn message(stored: &StoredEvent) -> String {
    let mut out = String::with_capacity(256 + stored.bytes());
    out.push_str("event: message\nid: ");
    number(&mut out, stored.event().global);
    out.push_str("\ndata: ");
    row(&mut out, stored, true);
    out.push_str("\n\n");
    out
}

/// Announces that messages were removed before they were read. It has no id: a client that resumes gets it again.
pub(super) fn gap(gap: Gap) -> Bytes {
    let mut out = String::with_capacity(80);
    out.push_str("event: gap\ndata: {\"from\":");
    number(&mut out, gap.from);
    out.push_str(",\"to\":");
    number(&mut out, gap.to);
    out.push_str("}\n\n");
    Bytes::from(out)
}

/// The category of the stream that the metadata name as the correlation.
pub(super) fn correlation(event: &EventRef<'_>) -> Option<Box<str>> {
    names::correlation(event.metadata).map(Into::into)
}
