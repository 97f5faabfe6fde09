//! The PROXY header with which a load balancer says whose connection it passes on, in version 1 (text) and 2 (binary). The bytes
//! come in pieces; the header is read to its end and not a byte further.
//!
//! Source: The PROXY protocol, versions 1 & 2, HAProxy Technologies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProxyHeader {
    /// Where the connection comes from. `None`: from the load balancer itself, or from something without an address.
    pub source: Option<SocketAddr>,
    /// Bytes of the header.
    pub len: usize,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ProxyHeaderError(&'static str);

type Parsed = Result<Option<ProxyHeader>, ProxyHeaderError>;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const TEXT: &[u8; 6] = b"PROXY ";
/// Bytes of the longest header of version 1, with its end of line.
const TEXT_MAX: usize = 107;
/// Bytes in front of the addresses of version 2.
const FIXED: usize = 16;
/// Bytes behind them: addresses and some hundred bytes of extensions.
const REST_MAX: usize = 4096;

impl ProxyHeader {
    /// `None`: more bytes are needed.
    pub fn parse(bytes: &[u8]) -> Parsed {
        let begins = |with: &[u8]| {
            let len = bytes.len().min(with.len());
            bytes.get(..len) == with.get(..len)
        };
        if begins(TEXT) {
            parse_text(bytes)
        } else if begins(SIGNATURE) {
            parse_binary(bytes)
        } else {
            Err(ProxyHeaderError("the connection does not begin with a PROXY header"))
        }
    }
}

fn parse_text(bytes: &[u8]) -> Parsed {
    let Some(end) = bytes.iter().take(TEXT_MAX).position(|byte| *byte == b'\n') else {
        return match bytes.len() < TEXT_MAX {
            true => Ok(None),
            false => Err(ProxyHeaderError("the PROXY header of version 1 has no end")),
        };
    };
    let line = bytes.get(TEXT.len()..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").and_then(|line| std::str::from_utf8(line).ok());
    let Some(line) = line else {
        return Err(ProxyHeaderError("the PROXY header of version 1 is no line of text"));
    };
    let mut fields = line.split(' ');
    let source = match fields.next() {
        Some("TCP4") => Some(text_source::<Ipv4Addr>(fields)?),
        Some("TCP6") => Some(text_source::<Ipv6Addr>(fields)?),
        Some("UNKNOWN") => None,
        _ => {
            return Err(ProxyHeaderError(
                "the PROXY header of version 1 names an unknown protocol",
            ));
        }
    };
    Ok(Some(ProxyHeader { source, len: end + 1 }))
}

fn text_source<'a, A: FromStr + Into<IpAddr>>(
    mut fields: impl Iterator<Item = &'a str>,
) -> Result<SocketAddr, ProxyHeaderError> {
    let mut read = || {
        let source = fields.next()?.parse::<A>().ok()?;
        let _destination = fields.next()?.parse::<A>().ok()?;
        let port = text_port(fields.next()?)?;
        let _port = text_port(fields.next()?)?;
        fields.next().is_none().then(|| SocketAddr::new(source.into(), port))
    };
    read().ok_or(ProxyHeaderError(
        "the PROXY header of version 1 has wrong addresses or ports",
    ))
}

/// A number without sign and leading zeros.
fn text_port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn parse_binary(bytes: &[u8]) -> Parsed {
    let Some(&[command, family, high, low]) = bytes.get(SIGNATURE.len()..FIXED) else {
        return Ok(None);
    };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    if rest > REST_MAX {
        return Err(ProxyHeaderError("the PROXY header of version 2 is too long"));
    }
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyHeaderError("the PROXY header is of an unknown version or command")),
    };
    let len = FIXED + rest;
    let Some(addresses) = bytes.get(FIXED..len) else {
        return Ok(None);
    };
    let short = ProxyHeaderError("the PROXY header of version 2 is too short for its addresses");
    let source = match family {
        _ if is_local => None,
        // Addresses of source and destination, then their ports.
        0x11 => match addresses {
            [a, b, c, d, _, _, _, _, high, low, _, _, ..] => {
                let port = u16::from_be_bytes([*high, *low]);
                Some(SocketAddr::new(Ipv4Addr::new(*a, *b, *c, *d).into(), port))
            }
            _ => return Err(short),
        },
        0x21 => {
            let source = addresses.first_chunk::<16>().ok_or(short)?;
            let Some(&[high, low, _, _]) = addresses.get(32..36) else {
                return Err(short);
            };
            let port = u16::from_be_bytes([high, low]);
            Some(SocketAddr::new(Ipv6Addr::from(*source).into(), port))
        }
        // Unspecified, or a socket of the same machine.
        0x00 | 0x31 => None,
        _ => {
            return Err(ProxyHeaderError(
                "the PROXY header of version 2 names another protocol than TCP",
            ));
        }
    };
    Ok(Some(ProxyHeader { source, len }))
}

/// Reads bytes as a header, whole and in growing pieces: what a piece says, the whole says too.
pub(super) fn fuzz(data: &[u8]) {
    let whole = ProxyHeader::parse(data);
    for len in 0..data.len().min(FIXED + REST_MAX + 1) {
        match ProxyHeader::parse(data.get(..len).unwrap_or_default()) {
            Ok(None) => {}
            decided => return assert_eq!(decided, whole, "{len}"),
        }
    }
    if let Ok(Some(header)) = whole {
        assert_eq!(header.len, data.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    /// A header of version 2.
    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    /// Addresses of version 2, and extensions behind them.
    fn addresses(source: SocketAddr, extensions: &[u8]) -> (u8, Vec<u8>) {
        let mut rest = Vec::new();
        let family = match source.ip() {
            IpAddr::V4(address) => {
                rest.extend(address.octets());
                rest.extend([127, 0, 0, 1]);
                0x11
            }
            IpAddr::V6(address) => {
                rest.extend(address.octets());
                rest.extend(Ipv6Addr::LOCALHOST.octets());
                0x21
            }
        };
        rest.extend(source.port().to_be_bytes());
        rest.extend(1883_u16.to_be_bytes());
        rest.extend(extensions);
        (family, rest)
    }

    #[test]
    fn headers_of_version_1_name_the_source() {
        let cases = [
            (
                "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
                source("192.168.0.1:56324"),
            ),
            ("PROXY TCP6 2001:db8::1 ::1 65535 0\r\n", source("[2001:db8::1]:65535")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ffff:: ffff:: 65535 65535 what else\r\n", None),
        ];
        for (text, source) in cases {
            let behind = format!("{text}\x10\x0c");
            let len = text.len();
            assert_eq!(
                ProxyHeader::parse(behind.as_bytes()),
                Ok(Some(ProxyHeader { source, len })),
                "{text}"
            );
        }
    }

    #[test]
    fn broken_headers_are_refused() {
        let long = format!("PROXY UNKNOWN {}", "f".repeat(100));
        for text in [
            "",
            "GET / HTTP/1.1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY \r\n",
            "PROXY TCP4 \u{e9}\r\n",
            &long,
        ] {
            let parsed = ProxyHeader::parse(text.as_bytes());
            match text.is_empty() {
                true => assert_eq!(parsed, Ok(None)),
                false => assert!(parsed.is_err(), "{text}: {parsed:?}"),
            }
        }
        let (_, rest) = addresses("1.2.3.4:5".parse().unwrap(), &[]);
        for bytes in [
            binary(0x11, 0x11, &rest),
            binary(0x22, 0x11, &rest),
            binary(0x21, 0x12, &rest),
            binary(0x21, 0x11, &rest[..11]),
            binary(0x21, 0x21, &[0; 35]),
            binary(0x21, 0x11, &[0; REST_MAX + 1]),
        ] {
            assert!(ProxyHeader::parse(&bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_has_no_source_is_the_load_balancer_itself() {
        let (_, rest) = addresses("1.2.3.4:5".parse().unwrap(), &[]);
        for bytes in [
            binary(0x20, 0x11, &rest),
            binary(0x20, 0x00, &[]),
            binary(0x21, 0x00, &[1, 2, 3]),
            binary(0x21, 0x31, &[0; 216]),
        ] {
            let len = bytes.len();
            assert_eq!(ProxyHeader::parse(&bytes), Ok(Some(ProxyHeader { source: None, len })));
        }
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written_whatever_follows(
            source: SocketAddr,
            extensions in prop::collection::vec(any::<u8>(), 0..64),
            behind in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let (family, rest) = addresses(source, &extensions);
            let protocol = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let text = format!("PROXY {protocol} {0} {0} {1} 1883\r\n", source.ip(), source.port());
            // The scope of an address is not in a header.
            let source = Some(SocketAddr::new(source.ip(), source.port()));
            for mut bytes in [binary(0x21, family, &rest), text.into_bytes()] {
                let len = bytes.len();
                bytes.extend(&behind);
                prop_assert_eq!(ProxyHeader::parse(&bytes), Ok(Some(ProxyHeader { source, len })));
                for cut in 0..len {
                    prop_assert_eq!(ProxyHeader::parse(&bytes[..cut]), Ok(None));
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..64), begin in 0..3) {
            let begin: &[u8] = match begin { 0 => SIGNATURE, 1 => TEXT, _ => b"" };
            fuzz(&[begin, &data].concat());
        }
    }
}
