//! The address of a broker as a URL.

use std::fmt;

/// Where a broker is, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    pub host: String,
    pub port: u16,
    pub is_encrypted: bool,
}

impl BrokerUrl {
    /// Reads `scheme://host:port`. Without a scheme it is `tcp`, and each scheme has its usual port. The error says what to
    /// write instead.
    pub fn parse(text: &str) -> Result<BrokerUrl, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        let (is_encrypted, usual) = match scheme.to_ascii_lowercase().as_str() {
            "tcp" | "mqtt" => (false, 1883),
            "ssl" | "tls" | "mqtts" => (true, 8883),
            "ws" | "wss" => {
                return Err(format!(
                    "\"{text}\": this version has no MQTT over WebSocket; use tcp:// or ssl://, and the port of the broker for it"
                ));
            }
            _ => {
                return Err(format!(
                    "\"{text}\": the scheme is not one of tcp, mqtt, ssl, tls and mqtts"
                ));
            }
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err("a login does not belong into the URL; set user and password".to_owned());
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !rest.ends_with(']') => (host, port.parse().ok().filter(|port| *port > 0)),
            _ => (rest, Some(usual)),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |host: &str| !host.is_empty() && !host.contains([':', '/', '?', '#', '[', ']', ' ']);
        let is_host = bare.map_or_else(|| is_name(host), |bare| bare.parse::<std::net::Ipv6Addr>().is_ok());
        match port {
            Some(port) if is_host => Ok(BrokerUrl {
                host: bare.unwrap_or(host).to_owned(),
                port,
                is_encrypted,
            }),
            _ => Err(format!(
                "expected scheme://host:port, such as tcp://broker:1883, got \"{text}\""
            )),
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "ssl" } else { "tcp" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
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
        ] {
            assert_eq!(BrokerUrl::parse(text).unwrap().to_string(), url, "{text}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_cure() {
        for (text, error) in [
            (
                "http://a",
                "\"http://a\": the scheme is not one of tcp, mqtt, ssl, tls and mqtts",
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
                "tcp://[x]:1",
                "expected scheme://host:port, such as tcp://broker:1883, got \"tcp://[x]:1\"",
            ),
        ] {
            assert_eq!(BrokerUrl::parse(text).unwrap_err(), error);
        }
        let error = BrokerUrl::parse("wss://a/mqtt").unwrap_err();
        assert!(
            error.starts_with("\"wss://a/mqtt\": this version has no MQTT over WebSocket"),
            "{error}"
        );
    }
}
