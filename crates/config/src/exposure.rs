//! The exposure rule for all listeners: an address that other hosts reach needs TLS and a login, or the operator's
//! explicit consent (`insecure: true`) to have neither. Loopback needs nothing.
//!
//! The rule is a function of the bound address, so that `run` applies it to the socket and `check` to a literal address
//! in the file.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The protection of a listener against other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    pub has_tls: bool,
    /// Whether clients must present a token, user or certificate.
    pub has_login: bool,
    /// The operator allows missing protection.
    pub is_insecure: bool,
}

/// Why an address must not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExposureError {
    Unprotected,
    /// Tokens and data would cross the network in the clear.
    NoTls,
    /// Everybody who reaches the port would be let in.
    NoLogin,
}

/// The names of a listener's settings as its operator writes them: fields of a file or options of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerNames {
    pub address: String,
    /// The settings for TLS, such as `http.cert_file and http.key_file`.
    pub tls: String,
    /// The settings for a login, such as `auth.tokens`.
    pub login: String,
    /// The setting that accepts the exposure, such as `http.insecure: true`.
    pub insecure: String,
}

/// Whether an address may be served with this protection.
pub fn exposure(ip: IpAddr, protection: Protection) -> Result<(), ExposureError> {
    if is_loopback(ip) || protection.is_insecure {
        return Ok(());
    }
    match (protection.has_tls, protection.has_login) {
        (true, true) => Ok(()),
        (true, false) => Err(ExposureError::NoLogin),
        (false, true) => Err(ExposureError::NoTls),
        (false, false) => Err(ExposureError::Unprotected),
    }
}

/// Also true for IPv4 addresses that an IPv6 socket shows as `::ffff:127.0.0.1`.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// The literal address in `host:port`. An empty host means all addresses; a host name has none before it is resolved.
pub fn literal_address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix(':') {
        Some(port) => Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port.parse().ok()?)),
        None => text.parse().ok(),
    }
}

impl ExposureError {
    /// One sentence with the cure. `address` is the bound address, or the one that would be bound.
    pub fn explain(self, address: SocketAddr, names: &ListenerNames) -> String {
        let ListenerNames {
            address: name,
            tls,
            login,
            insecure,
        } = names;
        let (lacks, cure) = match self {
            ExposureError::Unprotected => ("TLS and a login", format!("{tls}, and {login}")),
            ExposureError::NoTls => ("TLS", tls.clone()),
            ExposureError::NoLogin => ("a login", login.clone()),
        };
        let port = address.port();
        format!(
            "{name} {address} can be reached by other hosts without {lacks}; set it to 127.0.0.1:{port}, or add {cure}, or allow it with {insecure}"
        )
    }
}

impl ListenerNames {
    /// For a section of the file with `address`, `cert_file`, `key_file` and `insecure`, and the logins of `auth`.
    pub fn of_section(section: &str) -> ListenerNames {
        ListenerNames {
            address: format!("{section}.address"),
            tls: format!("{section}.cert_file and {section}.key_file"),
            login: "auth.tokens or auth.users_file".to_owned(),
            insecure: format!("{section}.insecure: true"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: [&str; 5] = ["127.0.0.1", "127.255.0.3", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"];
    const REACHED: [&str; 9] = [
        "0.0.0.0",
        "::",
        "192.0.2.7",
        "10.0.0.1",
        "169.254.1.1",
        "fe80::1",
        "2001:db8::1",
        "::ffff:192.0.2.7",
        "::ffff:0.0.0.0",
    ];

    /// Every combination.
    fn all_protections() -> impl Iterator<Item = Protection> {
        (0..8).map(|bits| Protection {
            has_tls: bits & 1 != 0,
            has_login: bits & 2 != 0,
            is_insecure: bits & 4 != 0,
        })
    }

    #[test]
    fn loopback_needs_nothing() {
        for protection in all_protections() {
            for ip in LOOPBACK {
                assert_eq!(exposure(ip.parse().unwrap(), protection), Ok(()), "{ip} {protection:?}");
            }
        }
    }

    #[test]
    fn what_other_hosts_reach_needs_tls_and_a_login_or_the_word_of_the_operator() {
        for protection in all_protections() {
            for ip in REACHED {
                let allowed = exposure(ip.parse().unwrap(), protection).is_ok();
                let Protection {
                    has_tls,
                    has_login,
                    is_insecure,
                } = protection;
                assert_eq!(allowed, is_insecure || (has_tls && has_login), "{ip} {protection:?}");
            }
        }
    }

    #[test]
    fn the_refusal_names_what_is_missing_and_only_that() {
        let names = ListenerNames::of_section("ingest.otlp.grpc");
        let address: SocketAddr = "0.0.0.0:4317".parse().unwrap();
        let end = ", or allow it with ingest.otlp.grpc.insecure: true";
        let tls = "ingest.otlp.grpc.cert_file and ingest.otlp.grpc.key_file";
        let login = "auth.tokens or auth.users_file";
        for ((has_tls, has_login), lacks, cure) in [
            ((false, false), "TLS and a login", format!("{tls}, and {login}")),
            ((false, true), "TLS", tls.to_owned()),
            ((true, false), "a login", login.to_owned()),
        ] {
            let protection = Protection {
                has_tls,
                has_login,
                is_insecure: false,
            };
            let refused = exposure(address.ip(), protection).unwrap_err();
            assert_eq!(
                refused.explain(address, &names),
                format!(
                    "ingest.otlp.grpc.address 0.0.0.0:4317 can be reached by other hosts without {lacks}; set it to \
                     127.0.0.1:4317, or add {cure}{end}"
                )
            );
        }
    }

    #[test]
    fn only_an_address_that_is_written_out_is_known_before_it_is_bound() {
        for (text, expected) in [
            ("127.0.0.1:4195", Some("127.0.0.1:4195")),
            ("[::1]:80", Some("[::1]:80")),
            (":4195", Some("[::]:4195")),
            ("0.0.0.0:0", Some("0.0.0.0:0")),
            ("localhost:4195", None),
            ("plant:4195", None),
            (":99999", None),
            ("", None),
        ] {
            let found = literal_address(text).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{text:?}");
        }
    }
}
