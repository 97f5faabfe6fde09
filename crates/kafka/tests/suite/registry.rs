//! A schema registry with the two requests that the output uses.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

pub struct SchemaRegistry {
    pub url: String,
    requests: Arc<AtomicUsize>,
}

impl SchemaRegistry {
    pub fn start(subjects: &[(&str, &str)]) -> SchemaRegistry {
        SchemaRegistry::start_at("http://127.0.0.1:0", subjects)
    }

    /// Listens at an address that is free.
    pub fn start_at(url: &str, subjects: &[(&str, &str)]) -> SchemaRegistry {
        let listener = TcpListener::bind(url.trim_start_matches("http://")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let subjects: BTreeMap<String, String> = subjects
            .iter()
            .map(|(name, schema)| ((*name).to_owned(), (*schema).to_owned()))
            .collect();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = answer(stream.unwrap(), &subjects);
            }
        });
        SchemaRegistry { url, requests }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn answer(stream: TcpStream, subjects: &BTreeMap<String, String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let subject = path
        .strip_prefix("/subjects/")
        .and_then(|rest| rest.strip_suffix("/versions/latest"));
    let found = match subject {
        None if path == "/subjects" => Some(json!(subjects.keys().collect::<Vec<_>>())),
        None => None,
        Some(name) => subjects
            .get(name)
            .map(|schema| json!({"subject": name, "version": 1, "schemaType": "JSON", "schema": schema})),
    };
    let (status, body) = match found {
        Some(body) => ("200 OK", body.to_string()),
        None => ("404 Not Found", "{}".to_owned()),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let stream = reader.get_mut();
    stream.write_all((head + &body).as_bytes())
}
