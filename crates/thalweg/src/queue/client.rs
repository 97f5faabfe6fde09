//! Requests to the process: takes a path and JSON, returns JSON or an error with its code and one sentence.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::args::QueueEndpoint;
use crate::http::{self, HttpClient, HttpTarget};

/// Longer than any claim waits.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The prefix of all paths.
const API: &str = "/api/v1";

pub struct QueueClient(HttpClient);

impl QueueClient {
    pub fn new(server: &QueueEndpoint) -> Result<QueueClient> {
        let token = http::token(server.token.as_ref(), server.token_file.as_ref())?;
        let target = HttpTarget {
            url: &server.url,
            token: token.as_deref(),
            ca_file: server.ca_file.as_deref(),
            timeout: Some(TIMEOUT),
            answer: None,
        };
        HttpClient::new(target).map(QueueClient)
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", path, Some(("application/json", body.to_string())))
    }

    /// Posts a body of lines.
    pub fn post_lines(&self, path: &str, lines: String) -> Result<Value> {
        self.ask("POST", path, Some(("application/x-ndjson", lines)))
    }

    /// Returns the text of the answer, so that no digit is lost; empty for an answer without a body.
    pub fn post_for_text(&self, path: &str, body: &Value) -> Result<String> {
        self.text("POST", path, Some(("application/json", body.to_string())))
    }

    /// Returns `null` for an answer without a body.
    fn ask(&self, method: &str, path: &str, body: Option<(&str, String)>) -> Result<Value> {
        let text = self.text(method, path, body)?;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        let base = self.0.base();
        serde_json::from_str(&text).with_context(|| format!("{base}{API}{path} sent no JSON; is --url correct?"))
    }

    fn text(&self, method: &str, path: &str, body: Option<(&str, String)>) -> Result<String> {
        let at = format!("{API}{path}");
        let mut response = match body {
            Some((content_type, body)) => self.0.send(method, &at, &[("content-type", content_type)], body)?,
            None => self.0.send(method, &at, &[], ())?,
        };
        let status = response.status();
        let body = response.body_mut().with_config().limit(1 << 30).read_to_string();
        let text = body.with_context(|| format!("the answer of {}{at} was cut off", self.0.base()))?;
        if !status.is_success() {
            bail!("{}", error_text(&text, status.as_u16()));
        }
        Ok(text)
    }
}

/// `code: detail` of a problem, or what is available of it.
fn error_text(body: &str, status: u16) -> String {
    let problem: Value = serde_json::from_str(body).unwrap_or_default();
    match (problem["code"].as_str(), problem["detail"].as_str()) {
        (Some(code), Some(detail)) => format!("{code}: {detail}"),
        _ if status == 401 => "not authenticated: give a token with --token or --token-file".to_owned(),
        _ => format!("status {status}: {}", body.trim()),
    }
}

/// Encodes a name for a path segment or a query value.
pub fn segment(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    name.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_part_of_a_path() {
        assert_eq!(segment("pumps-1.a_b"), "pumps-1.a_b");
        assert_eq!(segment("a/b c?ü"), "a%2Fb%20c%3F%C3%BC");
    }

    #[test]
    fn errors_are_told_with_their_codes() {
        let problem = r#"{"code": "queue_full", "detail": "queue q is full"}"#;
        assert_eq!(error_text(problem, 429), "queue_full: queue q is full");
        assert!(error_text("", 401).contains("--token"));
        assert_eq!(error_text("gone\n", 502), "status 502: gone");
    }
}
