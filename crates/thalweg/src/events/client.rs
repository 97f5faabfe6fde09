//! Requests to an event store: sends a call and returns its result, or the error as `CODE: message`.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use serde_json::value::RawValue;
use ureq::http::Response;
use ureq::{AsSendBody, Body};

use super::args::EventsEndpoint;
use super::json_array::JsonArrayReader;
use crate::http::{self, HttpClient, HttpTarget};

/// Limit for an answer that is read as a whole: more than any single answer has.
const ANSWER_MAX: u64 = 64 << 20;

/// Longer than a server takes for any call that does not scan all stored data.
const ANSWER_BEGINS: Duration = Duration::from_secs(120);

pub struct EventsClient(HttpClient);

impl EventsClient {
    /// A client whose answers have to begin soon, but may take any time to end.
    pub fn new(server: &EventsEndpoint) -> Result<EventsClient> {
        EventsClient::with(server, None, Some(ANSWER_BEGINS))
    }

    /// A client without timeouts.
    pub fn patient(server: &EventsEndpoint) -> Result<EventsClient> {
        EventsClient::with(server, None, None)
    }

    /// A client whose requests end after a time, with whatever part of the answer has arrived.
    pub fn with_timeout(server: &EventsEndpoint, timeout: Duration) -> Result<EventsClient> {
        EventsClient::with(server, Some(timeout), None)
    }

    fn with(server: &EventsEndpoint, timeout: Option<Duration>, answer: Option<Duration>) -> Result<EventsClient> {
        let token = http::token(server.token.as_ref(), server.token_file.as_ref())?;
        let target = HttpTarget {
            url: &server.url,
            token: token.as_deref().filter(|token| !token.is_empty()),
            ca_file: server.ca_file.as_deref(),
            timeout,
            answer,
        };
        HttpClient::new(target).map(EventsClient)
    }

    /// The text of the result.
    pub fn call(&self, call: &str) -> Result<String> {
        let mut response = self.rpc(call)?;
        let text = response.body_mut().with_config().limit(ANSWER_MAX).read_to_string();
        let mut text = text.with_context(|| format!("the answer of {} was cut off", self.0.base()))?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    /// The result as JSON.
    pub fn value<T: serde::de::DeserializeOwned>(&self, call: &Value) -> Result<T> {
        let text = self.call(&call.to_string())?;
        let base = self.0.base();
        serde_json::from_str(&text).with_context(|| format!("{base} answered {call} in an unknown format"))
    }

    /// The elements of the result as they arrive.
    pub fn elements(&self, call: &Value) -> Result<JsonArrayReader<impl Read + use<>>> {
        let body = self.rpc(&call.to_string())?.into_body();
        Ok(JsonArrayReader::new(body.into_with_config().limit(u64::MAX).reader()))
    }

    fn rpc(&self, call: &str) -> Result<Response<Body>> {
        self.ask("POST", "/rpc", &[("content-type", "application/json")], call)
    }

    /// Returns a response with status 200 whose body is unread.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsSendBody,
    ) -> Result<Response<Body>> {
        let mut response = self.0.send(method, path, headers, body)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.body_mut().with_config().limit(ANSWER_MAX).read_to_string();
        Err(ServerRefusal {
            status: status.as_u16(),
            text: refusal(&text.unwrap_or_default(), status.as_u16()),
        }
        .into())
    }
}

/// The server understood the request and refused it.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ServerRefusal {
    pub status: u16,
    text: String,
}

/// `CODE: message`, or what is available of it.
fn refusal(body: &str, status: u16) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let error = &json["error"];
    match (error["code"].as_str(), error["message"].as_str()) {
        (Some("AUTH_REQUIRED"), Some(message)) => {
            format!("AUTH_REQUIRED: {message}; give a token with --token or --token-file")
        }
        (Some(code), Some(message)) => format!("{code}: {message}{}", details(&error["details"], message)),
        _ => format!("status {status}: {}", body.trim()),
    }
}

/// Details that the message does not already mention.
fn details(details: &Value, message: &str) -> String {
    let Some(details) = details.as_object() else {
        return String::new();
    };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let told = details.iter().map(|(name, value)| (name, plain(value)));
    let told = told.filter(|(_, value)| !message.contains(value.as_str()));
    let told: Vec<String> = told.map(|(name, value)| format!("{name} {value}")).collect();
    match told.is_empty() {
        true => String::new(),
        false => format!(" ({})", told.join(", ")),
    }
}

/// Parses a text that must be a JSON object and keeps it as written.
pub fn object(flag: &str, text: &str) -> Result<Box<RawValue>> {
    let raw: Box<RawValue> = serde_json::from_str(text).with_context(|| format!("{flag} is not JSON"))?;
    match raw.get().starts_with('{') {
        true => Ok(raw),
        false => bail!("{flag} is JSON, but not an object"),
    }
}

/// Encodes a query value.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_with_their_codes() {
        let conflict =
            r#"{"error":{"code":"STREAM_VERSION_CONFLICT","message":"Expected version 5, stream is at version 1"}}"#;
        assert_eq!(
            refusal(conflict, 409),
            "STREAM_VERSION_CONFLICT: Expected version 5, stream is at version 1"
        );
        let taken = r#"{"error":{"code":"MESSAGE_ID_CONFLICT","message":"Message id is used by another message",
            "details":{"stream":"a-1","position":7}}}"#;
        assert_eq!(
            refusal(taken, 409),
            "MESSAGE_ID_CONFLICT: Message id is used by another message (position 7, stream a-1)"
        );
        let nobody = r#"{"error":{"code":"AUTH_REQUIRED","message":"Token required"}}"#;
        assert!(refusal(nobody, 401).contains("--token"));
        assert_eq!(refusal("gone\n", 502), "status 502: gone");
    }

    #[test]
    fn an_object_keeps_its_text() {
        let text = r#"{"b": 1.10, "a": 12345678901234567890}"#;
        assert_eq!(object("--data", text).unwrap().get(), text);
        assert!(
            object("--data", "[1]")
                .unwrap_err()
                .to_string()
                .contains("--data is JSON, but not an object")
        );
        assert!(object("--data", "{").is_err());
    }

    #[test]
    fn values_of_a_query_are_encoded() {
        assert_eq!(encoded("order-7+a&b é"), "order-7%2Ba%26b%20%C3%A9");
    }
}
