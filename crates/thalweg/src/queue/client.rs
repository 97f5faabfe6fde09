//! Requests to the process: paths and JSON in, JSON or one sentence with the code out.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::args::Server;

/// Longer than any claim waits.
const TIMEOUT: Duration = Duration::from_secs(120);

pub struct Client {
    agent: ureq::Agent,
    base: String,
    authorization: Option<String>,
}

impl Client {
    pub fn new(server: &Server) -> Result<Client> {
        let url = server.url.trim_end_matches('/');
        let encrypted = url.starts_with("https://");
        anyhow::ensure!(
            encrypted || url.starts_with("http://"),
            "--url {url}: expected http://host:port or https://host:port"
        );
        anyhow::ensure!(
            encrypted || server.ca_file.is_none(),
            "--ca-file is for https:// only, --url is {url}"
        );
        let token = match (&server.token, &server.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("cannot read the token in {}", file.display()))?;
                Some(text.trim().to_owned())
            }
            (None, None) => None,
        };
        // The address says where the process is, whatever HTTP_PROXY says.
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .proxy(None);
        if encrypted {
            config = config.tls_config(thalweg_assemble::tls_client(server.ca_file.as_deref())?);
        }
        Ok(Client {
            agent: config.build().into(),
            base: format!("{url}/api/v1"),
            authorization: token.map(|token| format!("Bearer {token}")),
        })
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", path, Some(("application/json", body.to_string())))
    }

    /// A body of lines.
    pub fn post_lines(&self, path: &str, lines: String) -> Result<Value> {
        self.ask("POST", path, Some(("application/x-ndjson", lines)))
    }

    /// The answer as it is written, for what must not lose a digit; empty for one without a body.
    pub fn post_for_text(&self, path: &str, body: &Value) -> Result<String> {
        self.text("POST", path, Some(("application/json", body.to_string())))
    }

    fn no_answer(&self, error: ureq::Error) -> anyhow::Error {
        let base = &self.base;
        let about_tls = match &error {
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
            // What the other side sent is no TLS, or its certificate is from nobody known.
            ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        let cure = match about_tls && base.starts_with("https:") {
            true => "name the certificate to trust with --ca-file, or use http:// if there is no TLS",
            false => "is thalweg running there?",
        };
        anyhow::Error::new(error).context(format!("cannot ask {base}; {cure}"))
    }

    /// Nothing (`null`) for an answer without a body.
    fn ask(&self, method: &str, path: &str, body: Option<(&str, String)>) -> Result<Value> {
        let text = self.text(method, path, body)?;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        let base = &self.base;
        serde_json::from_str(&text).with_context(|| format!("{base}{path} answers no JSON; is --url right?"))
    }

    fn text(&self, method: &str, path: &str, body: Option<(&str, String)>) -> Result<String> {
        let url = format!("{}{path}", self.base);
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let asked = match body {
            Some((content_type, body)) => {
                let request = request.header("content-type", content_type).body(body);
                self.agent
                    .run(request.context("the address or the token cannot be sent")?)
            }
            None => {
                let request = request.body(());
                self.agent
                    .run(request.context("the address or the token cannot be sent")?)
            }
        };
        let mut response = asked.map_err(|error| self.no_answer(error))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(1 << 30).read_to_string();
        let text = body.with_context(|| format!("the answer of {url} was cut off"))?;
        if !status.is_success() {
            bail!("{}", error_text(&text, status.as_u16()));
        }
        Ok(text)
    }
}

/// `code: detail` of a problem, or what there is of it.
fn error_text(body: &str, status: u16) -> String {
    let problem: Value = serde_json::from_str(body).unwrap_or_default();
    match (problem["code"].as_str(), problem["detail"].as_str()) {
        (Some(code), Some(detail)) => format!("{code}: {detail}"),
        _ if status == 401 => "not authenticated: give a token with --token or --token-file".to_owned(),
        _ => format!("status {status}: {}", body.trim()),
    }
}

/// A name as one part of a path or a value in an address.
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
