//! Encodes response messages by hand: there are three, with a few fields each.

use thalweg_http::answer::retry_seconds;
use thalweg_kit::wire::WireWriter;
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
            let mut out = WireWriter::new();
            if partial.rejected > 0 {
                out.message(1, |inner| {
                    inner.number(1, partial.rejected.into());
                    inner.bytes(2, partial.why.as_bytes());
                });
            }
            out.finish()
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
            let mut out = WireWriter::new();
            out.number(1, grpc as u64);
            out.bytes(2, text.as_bytes());
            detail(&mut out, ERROR_INFO, |info| {
                info.bytes(1, code.as_bytes());
                info.bytes(2, DOMAIN.as_bytes());
            });
            if let Some(pause) = refusal.retry_after {
                detail(&mut out, RETRY_INFO, |info| {
                    info.message(1, |delay| {
                        delay.number(1, pause.as_secs());
                        delay.number(2, pause.subsec_nanos().into());
                    });
                });
            }
            out.finish()
        }
        PayloadEncoding::Json => {
            let text = json_text(&text);
            let retry = refusal.retry_after.map_or_else(String::new, |pause| {
                format!(
                    ",{{\"@type\":\"{RETRY_INFO}\",\"retryDelay\":\"{}s\"}}",
                    retry_seconds(pause)
                )
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

const DOMAIN: &str = "thalweg";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Adds a detail of a status: a message with the name of its type.
fn detail(status: &mut WireWriter, name: &str, write: impl FnOnce(&mut WireWriter)) {
    status.message(3, |any| {
        any.bytes(1, name.as_bytes());
        any.message(2, write);
    });
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
