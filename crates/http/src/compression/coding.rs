//! The headers that name a coding: `Content-Encoding` of a request, and `Accept-Encoding`.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName};

/// A way to compress a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    Gzip,
    Zstd,
}

/// A request body has a coding that cannot be read, or several codings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Content-Encoding is \"{0}\"; send gzip, zstd or none")]
pub struct UnknownCoding(String);

/// The longest part of a header that an error repeats.
const SHOWN_MAX: usize = 64;

impl ContentCoding {
    pub fn name(self) -> &'static str {
        match self {
            ContentCoding::Gzip => "gzip",
            ContentCoding::Zstd => "zstd",
        }
    }

    fn named(name: &str) -> Option<ContentCoding> {
        match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(ContentCoding::Gzip),
            "zstd" => Some(ContentCoding::Zstd),
            _ => None,
        }
    }
}

/// The coding of a request's body; `None` if it is not compressed.
pub fn body_coding(headers: &HeaderMap) -> Result<Option<ContentCoding>, UnknownCoding> {
    let given = list(headers, &CONTENT_ENCODING);
    let names = given.split(',').map(str::trim);
    let mut coded = names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"));
    let Some(first) = coded.next() else {
        return Ok(None);
    };
    match (ContentCoding::named(first), coded.next()) {
        (Some(coding), None) => Ok(Some(coding)),
        _ => Err(UnknownCoding(given.chars().take(SHOWN_MAX).collect())),
    }
}

/// The coding for the response to this request; `None` if the client accepts none, or prefers a plain response. Of two
/// codings that are accepted equally, zstd costs less. It must be named, though: some clients send `*` without knowing it.
pub fn accepted_coding(headers: &HeaderMap) -> Option<ContentCoding> {
    if !headers.contains_key(ACCEPT_ENCODING) {
        return None;
    }
    let (mut gzip, mut zstd, mut identity, mut any) = (None, None, None, None);
    for entry in list(headers, &ACCEPT_ENCODING).split(',') {
        let (name, parameters) = entry.split_once(';').unwrap_or((entry, ""));
        let name = name.trim();
        let weight = match ContentCoding::named(name) {
            Some(ContentCoding::Gzip) => &mut gzip,
            Some(ContentCoding::Zstd) => &mut zstd,
            None if name.eq_ignore_ascii_case("identity") => &mut identity,
            None if name == "*" => &mut any,
            None => continue,
        };
        weight.get_or_insert_with(|| weight_of(parameters));
    }
    let gzip = gzip.or(any).unwrap_or(0.0);
    let zstd = zstd.unwrap_or(0.0);
    let least = identity.unwrap_or(0.0);
    match (zstd, gzip) {
        _ if zstd.max(gzip) <= 0.0 || zstd.max(gzip) < least => None,
        _ if zstd >= gzip => Some(ContentCoding::Zstd),
        _ => Some(ContentCoding::Gzip),
    }
}

/// `q` of the parameters, from 0 to 1; 1 without it. A value that is no number accepts nothing.
fn weight_of(parameters: &str) -> f32 {
    let mut named = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    match named.find(|(name, _)| name.trim().eq_ignore_ascii_case("q")) {
        None => 1.0,
        Some((_, value)) => value
            .trim()
            .parse()
            .ok()
            .filter(|q| (0.0..=1.0).contains(q))
            .unwrap_or(0.0),
    }
}

/// The values of a header that is a list, which may be sent in several lines.
fn list(headers: &HeaderMap, name: &HeaderName) -> String {
    let lines = headers.get_all(name).iter();
    let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    lines.join(",")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: HeaderName, lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name.clone(), HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn a_body_has_one_coding_that_is_known_or_none() {
        for (lines, coding) in [
            (&[][..], None),
            (&[""], None),
            (&["identity"], None),
            (&["gzip"], Some(ContentCoding::Gzip)),
            (&[" GZip "], Some(ContentCoding::Gzip)),
            (&["x-gzip"], Some(ContentCoding::Gzip)),
            (&["zstd"], Some(ContentCoding::Zstd)),
            (&["identity, zstd"], Some(ContentCoding::Zstd)),
            (&["identity", "gzip"], Some(ContentCoding::Gzip)),
        ] {
            assert_eq!(body_coding(&headers(CONTENT_ENCODING, lines)), Ok(coding), "{lines:?}");
        }
        for lines in [
            &["br"][..],
            &["deflate"],
            &["gzip, zstd"],
            &["gzip", "gzip"],
            &["gzip;q=1"],
        ] {
            let refused = body_coding(&headers(CONTENT_ENCODING, lines)).unwrap_err().to_string();
            assert!(refused.ends_with("; send gzip, zstd or none"), "{refused}");
        }
        let long = headers(
            CONTENT_ENCODING,
            &[concat!(
                "0123456789012345678901234567890123456789",
                "0123456789012345678901234567890123456789"
            )],
        );
        assert!(body_coding(&long).unwrap_err().to_string().len() < 140);
    }

    #[test]
    fn a_response_has_the_coding_that_the_client_prefers() {
        let (gzip, zstd) = (Some(ContentCoding::Gzip), Some(ContentCoding::Zstd));
        for (lines, coding) in [
            (&[][..], None),
            (&[""], None),
            (&["identity"], None),
            (&["br"], None),
            (&["gzip"], gzip),
            (&["gzip, deflate, br"], gzip),
            (&["gzip, deflate, br, zstd"], zstd),
            (&["br", "GZIP"], gzip),
            (&["gzip;q=1.0, zstd;q=0.5"], gzip),
            (&["gzip;q=0.5, zstd;q=0.8"], zstd),
            (&["gzip ; Q=0"], None),
            (&["gzip;q=0, *"], None),
            (&["*"], gzip),
            (&["*;q=0"], None),
            (&["zstd, *;q=0"], zstd),
            (&["identity, gzip;q=0.5"], None),
            (&["identity;q=0.5, gzip;q=0.5"], gzip),
            (&["gzip;q=many"], None),
            (&["gzip;q=NaN"], None),
            (&["gzip;q=2"], None),
        ] {
            assert_eq!(accepted_coding(&headers(ACCEPT_ENCODING, lines)), coding, "{lines:?}");
        }
    }
}
