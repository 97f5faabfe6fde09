//! The HTTP request that turns a connection into a WebSocket: who may ask, and what is answered.
//!
//! Source: RFC 6455, section 4.2; [MQTT-6.0.0-3], [MQTT-6.0.0-4].

use std::net::{IpAddr, SocketAddr};

use tungstenite::handshake::machine::TryParse as _;
use tungstenite::handshake::server::{Request, create_response, write_response};
use tungstenite::http::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use tungstenite::http::{HeaderMap, StatusCode};

/// Names of MQTT as a subprotocol, the preferred one first.
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// What a request must be like.
#[derive(Clone, Debug)]
pub(in crate::listener) struct UpgradeRule {
    pub path: String,
    pub origins: OriginRule,
}

/// Pages of which origins may connect. Programs that are no browsers have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::listener) enum OriginRule {
    All,
    /// Those from the host of the request. On a loopback address the host must be this machine: another name that leads here
    /// belongs to a page that wants to be taken for one.
    SameHost {
        is_loopback: bool,
    },
    Listed(Vec<String>),
}

impl OriginRule {
    pub fn new(origins: &[String], address: SocketAddr) -> OriginRule {
        if origins.iter().any(|origin| origin == "*") {
            return OriginRule::All;
        }
        match origins.is_empty() {
            true => OriginRule::SameHost {
                is_loopback: address.ip().is_loopback(),
            },
            false => OriginRule::Listed(origins.iter().map(|origin| without_slash(origin).to_owned()).collect()),
        }
    }

    fn allows(&self, origin: &str, host: Option<&str>) -> bool {
        match self {
            OriginRule::All => true,
            OriginRule::Listed(listed) => listed.iter().any(|known| known.eq_ignore_ascii_case(origin)),
            OriginRule::SameHost { is_loopback } => {
                let (Some(page), Some(host)) = (host_of_origin(origin), host.map(host_of)) else {
                    return false;
                };
                page.eq_ignore_ascii_case(host) && (!is_loopback || is_this_machine(host))
            }
        }
    }
}

/// What a request is answered with.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::listener) enum UpgradeAnswer {
    /// From here on there are frames.
    Accepted(Vec<u8>),
    /// The connection is closed behind it.
    Refused(Vec<u8>),
}

impl UpgradeRule {
    /// Answers a request, of which `head` is everything up to the empty line.
    pub fn answer(&self, head: &[u8]) -> UpgradeAnswer {
        let request = match Request::try_parse(head) {
            Ok(Some((_, request))) => request,
            Ok(None) => return refused(StatusCode::BAD_REQUEST, "the request is not complete"),
            Err(error) => {
                return refused(
                    StatusCode::BAD_REQUEST,
                    &format!("this is no WebSocket request: {error}"),
                );
            }
        };
        if request.uri().path() != self.path {
            let text = format!("MQTT is at {}; correct the path of the URL", self.path);
            return refused(StatusCode::NOT_FOUND, &text);
        }
        let host = text_of(request.headers(), "host");
        if request.headers().contains_key("origin") {
            // A header that is no text is an origin that nobody has listed.
            let origin = text_of(request.headers(), "origin").unwrap_or_default();
            if !self.origins.allows(origin, host) {
                let text = format!("pages of {origin} may not connect; add the origin to mqtt.listeners[].origins");
                return refused(StatusCode::FORBIDDEN, &text);
            }
        }
        let mut response = match create_response(&request) {
            Ok(response) => response,
            Err(error) => {
                return refused(
                    StatusCode::BAD_REQUEST,
                    &format!("this is no WebSocket request: {error}"),
                );
            }
        };
        let Some(protocol) = subprotocol(request.headers()) else {
            let text = "the request offers no subprotocol that is spoken here; offer mqtt";
            return refused(StatusCode::BAD_REQUEST, text);
        };
        response
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        let mut bytes = Vec::new();
        match write_response(&mut bytes, &response) {
            Ok(()) => UpgradeAnswer::Accepted(bytes),
            Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

fn refused(status: StatusCode, text: &str) -> UpgradeAnswer {
    let len = text.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{text}\n"
    );
    UpgradeAnswer::Refused(answer.into_bytes())
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The first of ours that the client offers.
fn subprotocol(headers: &HeaderMap) -> Option<&'static str> {
    let offers = |name: &str| {
        let lists = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
        lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .any(|offered| offered.trim() == name)
    };
    SUBPROTOCOLS.into_iter().find(|name| offers(name))
}

fn without_slash(origin: &str) -> &str {
    origin.strip_suffix('/').unwrap_or(origin)
}

fn host_of_origin(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, authority)| host_of(authority))
}

/// A host without its port.
fn host_of(authority: &str) -> &str {
    let port = authority.rsplit_once(':');
    match port {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origins: &[&str], address: &str) -> UpgradeRule {
        let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
        UpgradeRule {
            path: "/mqtt".to_owned(),
            origins: OriginRule::new(&origins, address.parse().unwrap()),
        }
    }

    const HEAD: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost:8083\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    const PROTOCOL: &str = "Sec-WebSocket-Protocol: mqtt\r\n";

    /// The status of the answer, and all of it.
    fn answer(rule: &UpgradeRule, head: &str) -> (u16, String) {
        let (bytes, is_accepted) = match rule.answer(format!("{head}\r\n").as_bytes()) {
            UpgradeAnswer::Accepted(bytes) => (bytes, true),
            UpgradeAnswer::Refused(bytes) => (bytes, false),
        };
        let text = String::from_utf8(bytes).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(status == 101, is_accepted, "{text}");
        (status, text)
    }

    #[test]
    fn one_of_the_offered_subprotocols_is_chosen() {
        let rule = rule(&[], "127.0.0.1:0");
        for (offered, chosen) in [
            ("Sec-WebSocket-Protocol: mqtt\r\n", "mqtt"),
            ("Sec-WebSocket-Protocol: mqttv3.1\r\n", "mqttv3.1"),
            ("Sec-WebSocket-Protocol: chat, mqttv3.1 ,mqtt\r\n", "mqtt"),
            (
                "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: mqtt\r\n",
                "mqtt",
            ),
        ] {
            let (status, text) = answer(&rule, &format!("{HEAD}{offered}"));
            assert_eq!(status, 101, "{text}");
            assert!(
                text.contains(&format!("sec-websocket-protocol: {chosen}\r\n")),
                "{text}"
            );
            // The example of the RFC.
            assert!(
                text.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
                "{text}"
            );
            assert!(!text.contains("extensions"), "{text}");
        }
        for offered in [
            "",
            "Sec-WebSocket-Protocol: chat\r\n",
            "Sec-WebSocket-Protocol: MQTT5\r\n",
        ] {
            assert_eq!(answer(&rule, &format!("{HEAD}{offered}")).0, 400);
        }
    }

    #[test]
    fn other_paths_and_requests_that_are_no_upgrades_are_refused() {
        let rule = rule(&[], "127.0.0.1:0");
        let whole = format!("{HEAD}{PROTOCOL}");
        assert_eq!(answer(&rule, &whole.replace("/mqtt ", "/mqtt?token=x ")).0, 101);
        for path in ["/", "/mqtt/", "/other"] {
            assert_eq!(answer(&rule, &whole.replace("/mqtt ", &format!("{path} "))).0, 404);
        }
        for (from, to) in [
            ("GET", "POST"),
            ("Upgrade: websocket", "Upgrade: h2c"),
            ("Version: 13", "Version: 8"),
            ("dGhlIHNhbXBsZSBub25jZQ==", "short"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("Host", "Ho st"),
        ] {
            let (status, text) = answer(&rule, &whole.replace(from, to));
            assert_eq!(status, 400, "{from}: {text}");
        }
    }

    #[test]
    fn pages_need_an_origin_that_is_allowed() {
        let status = |origins: &[&str], address: &str, host: &str, origin: &str| {
            let head = HEAD.replace("localhost:8083", host);
            answer(
                &rule(origins, address),
                &format!("{head}{PROTOCOL}Origin: {origin}\r\n"),
            )
            .0
        };
        let (local, open) = ("127.0.0.1:0", "0.0.0.0:0");
        for (origins, address, host, origin, expected) in [
            (&[][..], local, "localhost:8083", "http://localhost:3000", 101),
            (&[], local, "[::1]:8083", "http://[::1]", 101),
            (&[], local, "127.0.0.1:8083", "http://evil.example", 403),
            (&[], local, "evil.example:8083", "http://evil.example", 403),
            (&[], open, "plant.example:8083", "https://Plant.example", 101),
            (&[], open, "plant.example", "https://evil.example", 403),
            (&[], open, "plant.example", "null", 403),
            (&["https://plant.example/"], local, "x", "https://plant.example", 101),
            (
                &["https://plant.example"],
                local,
                "plant.example",
                "http://plant.example",
                403,
            ),
            (
                &["https://plant.example"],
                local,
                "x",
                "https://plant.example:8443",
                403,
            ),
            (&["*"], local, "x", "null", 101),
        ] {
            assert_eq!(
                status(origins, address, host, origin),
                expected,
                "{origins:?} {address} {host} {origin}"
            );
        }
        assert_eq!(
            answer(&rule(&["https://plant.example"], local), &format!("{HEAD}{PROTOCOL}")).0,
            101
        );
    }
}
