//! Exports from servers that do less than they are asked for, or something else.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use super::*;
use crate::events::args::EventsEndpoint;

/// A server with messages in one category at every second global position.
#[derive(Clone, Copy)]
struct Peer {
    messages: u64,
    knows_direction: bool,
    knows_position: bool,
    page_max: u64,
    /// It returns nothing after this many messages.
    ends_at: u64,
}

const HONEST: Peer = Peer {
    messages: 2500,
    knows_direction: true,
    knows_position: true,
    page_max: 10_000,
    ends_at: u64::MAX,
};

impl Peer {
    fn answer(&self, call: &Value) -> Value {
        let options = &call[2];
        let backward = self.knows_direction && options["direction"] == "backward";
        let from = options["position"]
            .as_u64()
            .filter(|_| self.knows_position)
            .unwrap_or(1);
        let size = options["batchSize"].as_u64().unwrap_or(1000).min(self.page_max) as usize;
        let row = |n: u64| json!(["id", "s-1", "T", n, 2 * n + 1, {}, null, "2026-01-15T10:00:00Z"]);
        let rows: Vec<Value> = match backward {
            true => (0..self.messages).rev().take(size).map(row).collect(),
            false => {
                let shown = (0..self.messages.min(self.ends_at)).filter(|n| 2 * n + 1 >= from);
                shown.take(size).map(row).collect()
            }
        };
        Value::Array(rows)
    }

    fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || while self.one(&stream).is_some() {});
            }
        });
        url
    }

    /// Answers one request; `None` at the end of the connection.
    fn one(&self, mut stream: &TcpStream) -> Option<()> {
        let mut request = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            match request.read_line(&mut line).ok()? {
                0 => return None,
                1 | 2 => break,
                _ => {}
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut call = vec![0; length];
        request.read_exact(&mut call).ok()?;
        let body = self.answer(&serde_json::from_slice(&call).ok()?).to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()
    }

    fn export(self, categories: &[&str]) -> Result<u64> {
        let options = EventsExport {
            server: EventsEndpoint {
                url: self.serve(),
                token: None,
                token_file: None,
                ca_file: None,
            },
            categories: categories.iter().map(|name| (*name).to_owned()).collect(),
            since: None,
            until: None,
            gzip: false,
            output: None,
        };
        let mut export = Exporter::new(&options)?;
        let mut out = Vec::new();
        export.all(&options, &mut out)?;
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count() as u64, export.count);
        Ok(export.count)
    }
}

#[test]
fn all_messages_come_from_servers_that_give_less_than_they_are_asked_for() {
    let peers = [
        HONEST,
        Peer {
            knows_direction: false,
            ..HONEST
        },
        Peer { page_max: 7, ..HONEST },
        Peer {
            knows_direction: false,
            page_max: 999,
            ..HONEST
        },
        Peer {
            messages: 1000,
            ..HONEST
        },
        Peer {
            messages: 1,
            knows_direction: false,
            ..HONEST
        },
        Peer { messages: 0, ..HONEST },
    ];
    for peer in peers {
        assert_eq!(peer.export(&[]).unwrap(), peer.messages);
        assert_eq!(peer.export(&["s"]).unwrap(), peer.messages);
    }
}

#[test]
fn a_server_that_does_not_go_on_or_ends_early_fails_the_export() {
    let stuck = Peer {
        knows_position: false,
        ..HONEST
    };
    for (peer, told) in [
        (stuck, "it does not advance from a position"),
        (
            Peer {
                knows_direction: false,
                ..stuck
            },
            "it does not advance from a position",
        ),
        (
            Peer {
                ends_at: 1200,
                ..HONEST
            },
            "the export is not complete: the server's pages ended at position 2399, and it has messages up to 4999",
        ),
    ] {
        let error = peer.export(&[]).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}
