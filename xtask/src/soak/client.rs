//! Typical clients: one that requests and waits for the response, one that disconnects in the middle, one that listens.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use ureq::Agent;

/// Longer than any request here may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Client {
    agent: Agent,
    base: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub json: Value,
}

impl Client {
    pub fn new(address: &str) -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(PATIENCE));
        Client {
            agent: config.build().into(),
            base: format!("http://{address}"),
        }
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        self.send(method, path, "application/json", None, body)
    }

    /// The raw response of a path.
    pub fn text(&self, path: &str) -> Result<String> {
        let mut answer = self.agent.get(format!("{}{path}", self.base)).call()?;
        Ok(answer.body_mut().read_to_string()?)
    }

    /// A query, whose result is read to its end.
    pub fn sql(&self, query: &str) -> Result<Answer> {
        self.send("POST", "/api/sql?format=json", "text/plain", None, query)
    }

    /// An event-store call that must succeed.
    pub fn rpc(&self, token: &str, call: &Value) -> Result<Value> {
        let answer = self.send("POST", "/rpc", "application/json", Some(token), &call.to_string())?;
        ensure!(answer.status == 200, "{call}: {} {}", answer.status, answer.json);
        Ok(answer.json)
    }

    fn send(&self, method: &str, path: &str, kind: &str, token: Option<&str>, body: &str) -> Result<Answer> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", kind);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut answer = self
            .agent
            .run(request.body(body)?)
            .with_context(|| format!("{method} {path}"))?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(1 << 30)
            .read_to_string()
            .with_context(|| format!("{method} {path}: the response is incomplete"))?;
        Ok(Answer {
            status: answer.status().as_u16(),
            json: serde_json::from_str(&text).unwrap_or(Value::Null),
        })
    }
}

/// A client that sends a request and disconnects before the response.
pub fn leave(address: &str, path: &str, body: &str) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // Nothing checks whether the server handled it.
    let _ = stream.write_all(request.as_bytes());
}

/// A client that listens to server-sent events for a while and disconnects. Passes each data line to `see`.
pub fn listen(
    address: &str,
    path: &str,
    token: Option<&str>,
    length: Duration,
    mut see: impl FnMut(&str),
) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let authorization = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes())?;
    let (until, mut lines, mut line) = (Instant::now() + length, BufReader::new(stream), Vec::new());
    let mut is_first = true;
    while Instant::now() < until {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                ensure!(!is_first || text.starts_with("HTTP/1.1 200"), "GET {path}: {text}");
                is_first = false;
                if let Some(data) = text.strip_prefix("data: ") {
                    see(data.trim_end());
                }
                line.clear();
            }
            // A partial line is kept for the next read.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
