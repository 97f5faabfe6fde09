//! Encodes response messages by hand: there are three, with a few fields each.

use std::time::Duration;

use thalweg_kit::varint;
use thalweg_lake::Signal;
use thalweg_lake::entry::PayloadEncoding;

use crate::refusal::Refusal;

/// How many records of an accepted request were rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialSuccess {
    pub rejected: u32,
    /// Why, in one sentence; empty if nothing was rejected.
    pub why: String,
}

/// An export response. Without rejected records it is empty, as the protocol requires.
pub fn success(signal: Signal, partial: &PartialSuccess, encoding: PayloadEncoding) -> Vec<u8> {
    match encoding {
        PayloadEncoding::Proto => {
            let mut out = Vec::new();
            if partial.rejected > 0 {
                let mut inner = Vec::new();
                number(&mut inner, 1, partial.rejected.into());
                bytes(&mut inner, 2, partial.why.as_bytes());
                bytes(&mut out, 1, &inner);
            }
            out
        }
        PayloadEncoding::Json if partial.rejected == 0 => b"{}".to_vec(),
        PayloadEncoding::Json => {
            let name = match signal {
                Signal::Logs => "rejectedLogRecords",
                Signal::Metrics => "rejectedDataPoints",
                Signal::Traces => "rejectedSpans",
            };
            let PartialSuccess { rejected, why } = partial;
            let why = json_text(why);
            format!("{{\"partialSuccess\":{{\"{name}\":\"{rejected}\",\"errorMessage\":{why}}}}}").into_bytes()
        }
    }
}

/// `google.rpc.Status`, with the reason for programs and the retry delay if there is one.
pub fn status(refusal: &Refusal, encoding: PayloadEncoding) -> Vec<u8> {
    let (grpc, code) = (refusal.kind.grpc(), refusal.code());
    let text = message(refusal);
    match encoding {
        PayloadEncoding::Proto => {
            let mut out = Vec::new();
            number(&mut out, 1, grpc as u64);
            bytes(&mut out, 2, text.as_bytes());
            let mut info = Vec::new();
            bytes(&mut info, 1, code.as_bytes());
            bytes(&mut info, 2, DOMAIN.as_bytes());
            bytes(&mut out, 3, &any(ERROR_INFO, &info));
            if let Some(pause) = refusal.retry_after {
                let (mut delay, mut info) = (Vec::new(), Vec::new());
                number(&mut delay, 1, pause.as_secs());
                number(&mut delay, 2, pause.subsec_nanos().into());
                bytes(&mut info, 1, &delay);
                bytes(&mut out, 3, &any(RETRY_INFO, &info));
            }
            out
        }
        PayloadEncoding::Json => {
            let text = json_text(&text);
            let retry = refusal.retry_after.map_or_else(String::new, |pause| {
                format!(",{{\"@type\":\"{RETRY_INFO}\",\"retryDelay\":\"{}s\"}}", seconds(pause))
            });
            let code_number = grpc as u8;
            format!(
                "{{\"code\":{code_number},\"message\":{text},\"details\":[{{\"@type\":\"{ERROR_INFO}\",\"reason\":\"{code}\",\
                 \"domain\":\"{DOMAIN}\"}}{retry}]}}"
            )
            .into_bytes()
        }
    }
}

/// The code and the text.
pub fn message(refusal: &Refusal) -> String {
    format!("{}: {}", refusal.code(), refusal.text)
}

/// Whole seconds, rounded up.
pub fn seconds(pause: Duration) -> u64 {
    pause.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

const DOMAIN: &str = "thalweg";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

fn any(name: &str, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, name.as_bytes());
    bytes(&mut out, 2, message);
    out
}

/// Writes a varint field unless it is zero.
fn number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        out.push(field << 3);
        varint::put(out, number);
    }
}

fn bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A quoted JSON string.
fn json_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
