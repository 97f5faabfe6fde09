//! Cross-origin resource sharing: from the origins that a configuration allows to the headers by which browsers let their
//! pages send requests and read the responses, preflight requests included. Whether a request is answered at all is
//! decided before, by the [`OriginPolicy`](thalweg_telemetry::OriginPolicy) with the same origins.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use thalweg_config::{CorsConfig, ListenerConfig};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::StartError;

/// How long a browser may remember the response to a preflight request, which it would otherwise send before almost every
/// request. A request of an origin that is no longer allowed is refused whatever the browser remembers.
const PREFLIGHT_KEPT: Duration = Duration::from_secs(600);

/// The place in the log or the queue, for a page that waits until queries see what it has sent.
const POSITION: HeaderName = HeaderName::from_static("thalweg-position");

/// The field that lists the allowed origins of the listener of a section.
pub fn setting(section: &str) -> String {
    format!("{section}.cors.allowed_origins")
}

/// The allowed origins. One that no browser sends is an error, because it would allow nothing.
pub fn allowed(setting: &str, cors: &CorsConfig) -> Result<Vec<String>, StartError> {
    match cors.allowed().iter().find(|origin| !is_origin(origin)) {
        None => Ok(cors.allowed().to_vec()),
        Some(origin) => Err(StartError::Origin {
            setting: setting.to_owned(),
            origin: origin.clone(),
        }),
    }
}

/// The setting of a listener and its allowed origins. The setting is empty if its protocol is not one that pages speak.
pub fn of_listener(config: &ListenerConfig) -> Result<(String, Vec<String>), StartError> {
    let Some(cors) = &config.cors else {
        return Ok((String::new(), Vec::new()));
    };
    let setting = setting(config.section);
    let allowed = allowed(&setting, cors)?;
    Ok((setting, allowed))
}

/// `*`, or an origin as browsers write it: a scheme and a host, perhaps a port, without a path, in lower case.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return text == "*";
    };
    let is_scheme = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"+-.".contains(&c);
    let is_host = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-._:[]".contains(&c);
    !scheme.is_empty() && scheme.bytes().all(is_scheme) && !host.is_empty() && host.bytes().all(is_host)
}

/// Adds the headers, and the responses to preflight requests, if any origin is allowed.
pub fn around(router: Router, allowed: &[String]) -> Router {
    if allowed.is_empty() {
        return router;
    }
    let origins = match allowed.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(allowed.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
    ];
    // Clients choose the names after X-Prop-, so there is no list of all headers; only the origin matters. A wildcard
    // would not cover Authorization.
    let told = [
        header::LOCATION,
        header::RETRY_AFTER,
        header::WWW_AUTHENTICATE,
        POSITION,
    ];
    router.layer(
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods(methods)
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(told)
            .max_age(PREFLIGHT_KEPT),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send_or_refused_at_start() {
        for origin in [
            "*",
            "https://portal.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "https://xn--grfx-5qa.example",
            "chrome-extension://abcdefgh",
        ] {
            assert!(is_origin(origin), "{origin}");
        }
        for wrong in [
            "",
            "portal.example",
            "https://portal.example/",
            "https://portal.example/path",
            "https://Portal.example",
            "https://*.portal.example",
            "https://a\nb",
            "https://",
            "://a",
            "https://größe.example",
        ] {
            assert!(!is_origin(wrong), "{wrong}");
            let cors = |enabled| CorsConfig {
                enabled,
                allowed_origins: vec!["*".to_owned(), wrong.to_owned()],
            };
            let error = allowed("ingest.otlp.http.cors.allowed_origins", &cors(true)).unwrap_err();
            let expected = format!(
                "ingest.otlp.http.cors.allowed_origins: {wrong:?} is not an origin; write it like https://example.org, or * for all"
            );
            assert_eq!(error.to_string(), expected);
            assert!(allowed("", &cors(false)).unwrap().is_empty(), "it is off");
        }
    }
}
