//! Reads server-sent events from a body. An event is complete only with the blank line after it, so an event that was
//! cut off is requested again after the last complete one.

use std::io::{self, BufRead};

/// More than the largest message.
const LINE_MAX: u64 = 64 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `message` if the event does not name its type.
    pub kind: String,
    pub id: Option<String>,
    pub data: String,
}

pub struct SseReader<R>(R);

impl<R: BufRead> SseReader<R> {
    pub fn new(source: R) -> SseReader<R> {
        SseReader(source)
    }

    /// Returns `None` at the end of the body. Comments are skipped.
    pub fn next(&mut self) -> io::Result<Option<SseEvent>> {
        let mut event = SseEvent::default();
        let mut line = String::new();
        loop {
            line.clear();
            let count = io::Read::take(&mut self.0, LINE_MAX).read_line(&mut line)?;
            if count as u64 == LINE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an event is too large"));
            }
            if !line.ends_with('\n') {
                return Ok(None);
            }
            let text = line.trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                if event.data.is_empty() {
                    continue;
                }
                if event.kind.is_empty() {
                    event.kind.push_str("message");
                }
                return Ok(Some(event));
            }
            let (field, value) = text.split_once(':').unwrap_or((text, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => event.kind = value.to_owned(),
                "id" => event.id = Some(value.to_owned()),
                "data" => {
                    if !event.data.is_empty() {
                        event.data.push('\n');
                    }
                    event.data.push_str(value);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_events_count() {
        let text = ": ready\n\nevent: message\nid: 7\ndata: {\"a\":1}\n\n: hb\n\ndata:b\r\n\r\nevent: message\nid: 8\ndata: cut";
        let mut events = SseReader::new(text.as_bytes());
        let first = events.next().unwrap().unwrap();
        assert_eq!(
            (first.kind.as_str(), first.id.as_deref(), first.data.as_str()),
            ("message", Some("7"), "{\"a\":1}")
        );
        let second = events.next().unwrap().unwrap();
        assert_eq!(
            (second.kind.as_str(), second.id, second.data.as_str()),
            ("message", None, "b")
        );
        assert_eq!(events.next().unwrap(), None);
        let mut cut = SseReader::new("id: 8\ndata: x\n".as_bytes());
        assert_eq!(cut.next().unwrap(), None);
    }
}
