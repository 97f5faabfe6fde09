//! Answers that refuse a request. Status and `Retry-After` follow from the [`ErrorFacts`] of the error, or from the
//! pause that was computed for this answer; each face writes its own body, or one of the two that several share.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use thalweg_kit::error_facts::ErrorFacts;

pub const JSON: &str = "application/json";
pub const PROBLEM_JSON: &str = "application/problem+json";
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The status of the answer.
pub fn status(facts: ErrorFacts) -> StatusCode {
    StatusCode::from_u16(facts.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The value of `Retry-After`: whole seconds, rounded up, and never zero, which would mean at once.
pub fn retry_seconds(pause: Duration) -> u64 {
    let seconds = pause.as_secs().saturating_add(u64::from(pause.subsec_nanos() > 0));
    seconds.max(1)
}

/// An answer for errors whose pause, if there is one, is always the same.
pub fn refusal(facts: ErrorFacts, media_type: &'static str, body: impl Into<Body>) -> Response {
    refusal_after(facts, facts.retry.after(), media_type, body)
}

/// An answer with the pause after which the client may send the request again.
pub fn refusal_after(
    facts: ErrorFacts,
    pause: Option<Duration>,
    media_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status(facts);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    if let Some(pause) = pause {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_seconds(pause)));
    }
    response
}

/// An answer with the body `{"error": {"code", "message"}}`.
pub fn error_object(facts: ErrorFacts, message: &str) -> Response {
    let body = json!({"error": {"code": facts.code, "message": message}});
    refusal(facts, JSON, body.to_string())
}

/// A body of the type [`PROBLEM_JSON`], as in RFC 9457, with the code as a further member.
pub fn problem(facts: ErrorFacts, detail: &str) -> Value {
    let ErrorFacts { code, status, .. } = facts;
    json!({
        "type": format!("urn:thalweg:error:{code}"),
        "title": code.replace('_', " "),
        "status": status,
        "detail": detail,
        "code": code,
    })
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use thalweg_kit::error_facts::RetryAdvice;

    use super::*;

    fn facts(status: u16, retry: RetryAdvice) -> ErrorFacts {
        ErrorFacts {
            code: "sold_out",
            status,
            retry,
            meaning: "The shelf is empty; come again tomorrow.",
        }
    }

    #[tokio::test]
    async fn an_answer_has_the_status_the_pause_and_the_body_of_its_error() {
        let closed = error_object(facts(503, RetryAdvice::After(60)), "closed \"today\"");
        assert_eq!(closed.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(closed.headers()["content-type"], "application/json");
        assert_eq!(closed.headers()["retry-after"], "60");
        let body = to_bytes(closed.into_body(), usize::MAX).await.unwrap();
        assert_eq!(
            body,
            r#"{"error":{"code":"sold_out","message":"closed \"today\""}}"#.as_bytes()
        );
        for retry in [RetryAdvice::Never, RetryAdvice::Later, RetryAdvice::Computed] {
            let answer = refusal(facts(409, retry), TEXT, "sold out\n");
            assert_eq!(answer.status(), StatusCode::CONFLICT);
            assert!(!answer.headers().contains_key("retry-after"), "{retry:?}");
        }
    }

    #[test]
    fn a_pause_is_rounded_up_and_is_never_no_pause() {
        for (pause, seconds) in [
            (Duration::ZERO, 1),
            (Duration::from_millis(1), 1),
            (Duration::from_secs(1), 1),
            (Duration::from_millis(1001), 2),
            (Duration::new(1, 1), 2),
            (Duration::MAX, u64::MAX),
        ] {
            let answer = refusal_after(facts(429, RetryAdvice::Computed), Some(pause), TEXT, "");
            assert_eq!(answer.headers()["retry-after"], seconds.to_string(), "{pause:?}");
        }
    }

    #[test]
    fn a_problem_has_the_code_in_every_form_that_clients_look_for() {
        let expected = json!({
            "type": "urn:thalweg:error:sold_out",
            "title": "sold out",
            "status": 409,
            "detail": "the last one is gone",
            "code": "sold_out",
        });
        assert_eq!(
            problem(facts(409, RetryAdvice::Never), "the last one is gone"),
            expected
        );
    }
}
