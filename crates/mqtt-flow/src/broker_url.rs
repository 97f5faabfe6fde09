//! The address of a broker as a URL.

use std::fmt;

/// Where a broker is, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    pub host: String,
    pub port: u16,
    pub is_encrypted: bool,
    /// The path of a WebSocket.
    pub path: Option<String>,
}

impl BrokerUrl {
    /// Reads `scheme://host:port`. Without a scheme it is `tcp`, and each scheme has its usual port. The error says what to
    /// write instead.
    pub fn parse(text: &str) -> Result<BrokerUrl, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        let (is_encrypted, usual, is_websocket) = match scheme.to_ascii_lowercase().as_str() {
            "tcp" | "mqtt" => (false, 1883, false),
            "ssl" | "tls" | "mqtts" => (true, 8883, false),
            "ws" => (false, 80, true),
            "wss" => (true, 443, true),
            _ => {
                return Err(format!(
                    "\"{text}\": the scheme is not one of tcp, mqtt, ssl, tls, mqtts, ws and wss"
                ));
            }
        };
        let (rest, path) = match rest.find('/') {
            Some(slash) if is_websocket => rest.split_at(slash),
            _ => (rest.strip_suffix('/').unwrap_or(rest), "/"),
        };
        if rest.contains('@') {
            return Err("a login does not belong into the URL; set user and password".to_owned());
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !rest.ends_with(']') => (host, port.parse().ok().filter(|port| *port > 0)),
            _ => (rest, Some(usual)),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |host: &str| {
            let is_part = |c: char| !c.is_ascii_control() && !":/?#[] ".contains(c);
            !host.is_empty() && host.chars().all(is_part)
        };
        let is_host = bare.map_or_else(|| is_name(host), |bare| bare.parse::<std::net::Ipv6Addr>().is_ok())
            && path.bytes().all(|byte| byte.is_ascii_graphic());
        match port {
            Some(port) if is_host => Ok(BrokerUrl {
                host: bare.unwrap_or(host).to_owned(),
                port,
                is_encrypted,
                path: is_websocket.then(|| path.to_owned()),
            }),
            _ => Err(format!(
                "expected scheme://host:port, such as tcp://broker:1883, got \"{text}\""
            )),
        }
    }
}

impl BrokerUrl {
    /// Host and port as one text.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.is_encrypted, self.path.is_some()) {
            (false, false) => "tcp",
            (true, false) => "ssl",
            (false, true) => "ws",
            (true, true) => "wss",
        };
        let path = self.path.as_deref().unwrap_or_default();
        write!(f, "{scheme}://{}{path}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_has_its_port() {
        for (text, url) in [
            ("tcp://a:1", "tcp://a:1"),
            ("mqtt://a.b", "tcp://a.b:1883"),
            ("a", "tcp://a:1883"),
            ("a:7", "tcp://a:7"),
            ("SSL://a", "ssl://a:8883"),
            ("tls://a/", "ssl://a:8883"),
            ("mqtts://10.0.0.1:443", "ssl://10.0.0.1:443"),
            ("tcp://[::1]", "tcp://[::1]:1883"),
            ("tcp://[::1]:7", "tcp://[::1]:7"),
            ("ws://a", "ws://a:80/"),
            ("wss://a/mqtt?x=/y", "wss://a:443/mqtt?x=/y"),
            ("ws://[::1]:8083/mqtt", "ws://[::1]:8083/mqtt"),
        ] {
            assert_eq!(BrokerUrl::parse(text).unwrap().to_string(), url, "{text}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_cure() {
        for (text, error) in [
            (
                "http://a",
                "\"http://a\": the scheme is not one of tcp, mqtt, ssl, tls, mqtts, ws and wss",
            ),
            (
                "tcp://u:p@a",
                "a login does not belong into the URL; set user and password",
            ),
            (
                "tcp://",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://\"",
            ),
            (
                "tcp://a:0",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://a:0\"",
            ),
            (
                "tcp://a:b",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://a:b\"",
            ),
            (
                "tcp://::1",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://::1\"",
            ),
            (
                "tcp://a/b",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://a/b\"",
            ),
            (
                "ws://a/b c",
                "expected scheme://host:port, such as tcp://broker:1883, got \"ws://a/b c\"",
            ),
            (
                "tcp://[x]:1",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://[x]:1\"",
            ),
        ] {
            assert_eq!(BrokerUrl::parse(text).unwrap_err(), error);
        }
    }
}
