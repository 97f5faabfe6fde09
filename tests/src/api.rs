//! A client of the HTTP interfaces that exposes the raw response: status, headers, text.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Longer than any claim waits.
const TIMEOUT: Duration = Duration::from_secs(80);

pub struct Api {
    address: String,
    /// Prefix of every path.
    base: &'static str,
    token: Option<String>,
    agent: ureq::Agent,
}

/// A response with its body; `json` is null if the body is not JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
    pub json: Value,
}

impl Api {
    pub fn new(address: &str) -> Api {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .proxy(None)
            .timeout_global(Some(TIMEOUT));
        Api {
            address: address.to_owned(),
            base: "/api/v1",
            token: None,
            agent: config.build().into(),
        }
    }

    /// For a server without a path prefix.
    pub fn at_root(address: &str) -> Api {
        Api {
            base: "",
            ..Api::new(address)
        }
    }

    /// `host:port` of the server.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn with_token(&self, token: &str) -> Api {
        Api {
            address: self.address.clone(),
            base: self.base,
            token: Some(token.to_owned()),
            agent: self.agent.clone(),
        }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.send("POST", path, &json, &body.to_string())
    }

    /// Sends a request and reads the whole response.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> Answer {
        self.try_send(method, path, headers, body).unwrap()
    }

    /// The same for a server that may be gone before it has responded.
    pub fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<Answer> {
        let mut response = self.open(method, path, headers, body)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let limit = response.body_mut().with_config().limit(1 << 30);
        // Not all bodies are text.
        let text = String::from_utf8_lossy(&limit.read_to_vec()?).into_owned();
        let json = serde_json::from_str(&text).unwrap_or_default();
        Ok(Answer {
            status,
            headers,
            text,
            json,
        })
    }

    /// A response with a body that is still being sent.
    pub fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{}{path}", self.address, self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = body.as_ref();
        if body.is_empty() && matches!(method, "GET" | "DELETE") {
            return Ok(self.agent.run(request.body(())?)?);
        }
        Ok(self.agent.run(request.body(body.to_vec())?)?)
    }

    /// Sends exactly these bytes and returns everything until the server closes.
    pub fn raw(&self, request: &[u8]) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// A request with a path that is not normalised.
    pub fn raw_path(&self, method: &str, path: &str) -> Result<Answer> {
        Answer::parse(
            &self.raw(
                format!(
                    "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                )
                .as_bytes(),
            )?,
        )
    }
}

impl Answer {
    /// Parsed from everything until the server closed.
    pub fn parse(text: &str) -> Result<Answer> {
        let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
        let mut headers = ureq::http::HeaderMap::new();
        for line in head.lines().skip(1) {
            let (name, value) = line.split_once(':').context("no header")?;
            let name: ureq::http::HeaderName = name.parse()?;
            headers.insert(name, value.trim().parse()?);
        }
        Ok(Answer {
            status: head
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .unwrap_or(0),
            headers,
            text: body.to_owned(),
            json: serde_json::from_str(body).unwrap_or_default(),
        })
    }

    /// Expects this success status.
    #[track_caller]
    pub fn ok(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json
    }

    /// Expects an error in the common form whose sentence contains all of these words.
    #[track_caller]
    pub fn is_problem(&self, status: u16, code: &str, words: &[&str]) {
        let found = (self.status, self.json["code"].as_str());
        assert_eq!(found, (status, Some(code)), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(self.json["status"], status, "{self:?}");
        assert_eq!(self.json["type"], format!("urn:thalweg:error:{code}"), "{self:?}");
        let detail = self.detail();
        assert!(!detail.is_empty() && self.json["title"].is_string(), "{self:?}");
        for word in words {
            assert!(detail.contains(word), "{word:?} is missing in {detail:?}");
        }
        let retry = self.headers.contains_key("retry-after");
        assert_eq!(retry, [429, 503, 507].contains(&status), "{self:?}");
    }

    /// The sentence of an error.
    pub fn detail(&self) -> &str {
        self.json["detail"].as_str().unwrap_or_default()
    }
}
