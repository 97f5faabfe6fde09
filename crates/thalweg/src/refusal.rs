//! Errors of a process that refuses a request of a shell command.

use serde_json::Value;

/// `code: message` of an error body, or what is available of it.
pub fn refusal(body: &str, status: u16) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let error = if json["error"].is_object() {
        &json["error"]
    } else {
        &json
    };
    match (error["code"].as_str(), error["message"].as_str()) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ if status == 401 => "not authenticated: give a token with --token or --token-file".to_owned(),
        _ if status == 403 => "not allowed: the token needs the role admin".to_owned(),
        _ if status == 404 => "the process runs a version without this; restart it with this version".to_owned(),
        _ => format!("status {status}: {}", body.trim()),
    }
}
