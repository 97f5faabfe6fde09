//! The status page: files of `web/`, embedded in the binary and served with ETags, so that a browser fetches each once
//! per version. The security policy keeps the page from loading or sending anything elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! web {
    ($name:literal) => {
        include_bytes!(concat!("../../../web/", $name))
    };
}

const FILES: &[(&str, &str, &[u8])] = &[
    ("/", HTML, web!("index.html")),
    ("/console/style.css", CSS, web!("style.css")),
    ("/console/mark.svg", SVG, web!("mark.svg")),
    ("/console/main.js", SCRIPT, web!("main.js")),
    ("/console/balance.js", SCRIPT, web!("balance.js")),
    ("/console/dom.js", SCRIPT, web!("dom.js")),
    ("/console/flow.js", SCRIPT, web!("flow.js")),
    ("/console/format.js", SCRIPT, web!("format.js")),
    ("/console/graph.js", SCRIPT, web!("graph.js")),
    ("/console/poll.js", SCRIPT, web!("poll.js")),
    ("/console/rates.js", SCRIPT, web!("rates.js")),
    ("/console/river.js", SCRIPT, web!("river.js")),
    ("/console/spark.js", SCRIPT, web!("spark.js")),
    ("/console/sql.js", SCRIPT, web!("sql.js")),
    ("/console/tables.js", SCRIPT, web!("tables.js")),
    ("/console/vitals.js", SCRIPT, web!("vitals.js")),
];

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub fn router() -> Router {
    FILES.iter().fold(Router::new(), |router, (path, kind, content)| {
        let tag = fingerprint(content);
        router.route(
            path,
            get(move |headers: HeaderMap| async move { answer(&headers, kind, content, &tag) }),
        )
    })
}

fn fingerprint(content: &[u8]) -> Arc<str> {
    let hash = Sha256::digest(content);
    let hex: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // Weak, because the same file is sent compressed and plain.
    format!("W/\"{hex}\"").into()
}

fn answer(request: &HeaderMap, kind: &'static str, content: &'static [u8], tag: &str) -> Response {
    let known = request.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    let known = known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag || one.trim() == "*"));
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, kind)], content).into_response(),
    };
    let headers = response.headers_mut();
    let tag = HeaderValue::from_str(tag).expect("a fingerprint is hexadecimal digits");
    headers.insert(header::ETAG, tag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new module that is not listed here would work in the tests of `web/` and be missing in the binary.
    #[test]
    fn every_file_of_the_front_end_is_in_the_binary_and_nothing_else() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");
        let entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut served: Vec<String> = entries
            .filter(|name| !name.ends_with(".test.js") && name != "package.json")
            .map(|name| {
                if name == "index.html" {
                    "/".to_owned()
                } else {
                    format!("/console/{name}")
                }
            })
            .collect();
        served.sort();
        let mut listed: Vec<&str> = FILES.iter().map(|(path, ..)| *path).collect();
        listed.sort_unstable();
        assert_eq!(served, listed);
    }

    #[test]
    fn a_browser_that_has_the_file_gets_no_content() {
        let tag = fingerprint(b"content");
        let fresh = answer(&HeaderMap::new(), HTML, b"content", &tag);
        assert_eq!(fresh.status(), StatusCode::OK);
        let etag = fresh.headers().get(header::ETAG).unwrap().clone();
        let again = answer(
            &HeaderMap::from_iter([(header::IF_NONE_MATCH, etag)]),
            HTML,
            b"content",
            &tag,
        );
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        let other = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("W/\"0\""))]);
        assert_eq!(answer(&other, HTML, b"content", &tag).status(), StatusCode::OK);
    }
}
