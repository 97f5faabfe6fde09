//! `opc.tcp://host:port/path`: parses and formats it, with the host and port that the user wrote.

use std::fmt;

/// The OPC UA port if a URL names none.
const DEFAULT_PORT: u16 = 4840;

const SCHEME: &str = "opc.tcp://";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointUrl {
    /// A name or an address; an IPv6 address keeps its brackets.
    pub host: String,
    pub port: u16,
    /// With its leading slash; empty if there is none.
    pub path: String,
}

impl EndpointUrl {
    /// Errors are sentences for the operator.
    pub fn parse(text: &str) -> Result<EndpointUrl, String> {
        let wrong = |why: &str| format!("endpoint \"{text}\" {why}; write opc.tcp://host:port");
        let scheme = text.get(..SCHEME.len()).unwrap_or_default();
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(wrong("does not begin with opc.tcp://"));
        }
        let rest = text.get(SCHEME.len()..).unwrap_or_default();
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let host_end = match authority.rfind(']') {
            Some(bracket) => bracket + 1,
            None => authority.find(':').unwrap_or(authority.len()),
        };
        let (host, port) = authority.split_at(host_end);
        if host.is_empty() {
            return Err(wrong("names no host"));
        }
        if host.contains(|c: char| c.is_whitespace() || matches!(c, '@' | '?' | '#')) {
            return Err(wrong("has a host with characters that a host name cannot have"));
        }
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => DEFAULT_PORT,
            Some(digits) => digits
                .parse()
                .map_err(|_| wrong("has a port that is not a number from 1 to 65535"))?,
            None => return Err(wrong("has something other than a port after its host")),
        };
        Ok(EndpointUrl {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }

    /// Returns another URL on the same machine: the host in a server's announcement is often unreachable from here, so
    /// only its path is used.
    pub fn with_path_of(&self, announced: &str) -> EndpointUrl {
        let path = EndpointUrl::parse(announced).map_or_else(|_| self.path.clone(), |url| url.path);
        EndpointUrl { path, ..self.clone() }
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}:{}{}", self.host, self.port, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        for (text, host, port, path) in [
            ("opc.tcp://plc:4841/a/b", "plc", 4841, "/a/b"),
            ("opc.tcp://10.0.0.1", "10.0.0.1", 4840, ""),
            ("OPC.TCP://[::1]:1/", "[::1]", 1, "/"),
        ] {
            let url = EndpointUrl::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port, url.path.as_str()), (host, port, path));
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, part) in [
            ("http://x", "does not begin with opc.tcp://"),
            ("", "does not begin"),
            ("opc.tcp://", "names no host"),
            ("opc.tcp://:4840", "names no host"),
            ("opc.tcp://x:99999", "port that is not a number"),
            ("opc.tcp://a b:1", "characters"),
        ] {
            let error = EndpointUrl::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_announced_address_gives_only_its_path() {
        let configured = EndpointUrl::parse("opc.tcp://10.0.0.1:4841").unwrap();
        let url = configured.with_path_of("opc.tcp://plc-internal:4840/UA/server");
        assert_eq!(url.to_string(), "opc.tcp://10.0.0.1:4841/UA/server");
        assert_eq!(configured.with_path_of("nonsense"), configured);
    }
}
