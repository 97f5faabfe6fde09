//! Binds the address, and derives from it whom to trust before any request is read.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use thalweg_config::{HttpConfig, ListenerNames, Protection, exposure};
use tokio::net::TcpListener;

use crate::StartError;

/// What a client may do without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTrust {
    /// Nothing: there are credentials.
    Nobody,
    /// Also nothing, but other hosts connect in the clear, and their credentials give access only to the paths of the
    /// reference system.
    Unencrypted,
    /// This machine may do everything, other hosts may use only the paths of the reference system.
    ThisMachine,
    /// Everybody may do everything, because of `http.insecure`.
    Everyone,
}

/// An empty host means all addresses. Port 0 selects a free one. `section` is where the address is configured.
pub async fn bind(section: &'static str, address: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let result = match address.strip_prefix(':') {
        // IPv6 sockets accept IPv4 as well, if the machine has IPv6 at all.
        Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
            Err(error) if error.kind() != ErrorKind::AddrInUse => TcpListener::bind(format!("0.0.0.0:{port}")).await,
            result => result,
        },
        None => TcpListener::bind(address).await,
    };
    let bound = result.and_then(|listener| listener.local_addr().map(|local| (listener, local)));
    bound.map_err(|error| {
        let address = address.to_owned();
        match error.kind() {
            ErrorKind::AddrInUse => StartError::Taken { section, address },
            ErrorKind::PermissionDenied => StartError::Forbidden { section, address },
            ErrorKind::AddrNotAvailable => StartError::NoSuchAddress { section, address },
            _ => StartError::Listen {
                section,
                address,
                error,
            },
        }
    })
}

/// Addresses that other hosts reach need TLS and a login ([`exposure`]). The wildcard address is bound without them
/// too, because the reference system listens that way by default, but then other hosts get no more than they did there.
pub fn trust(http: &HttpConfig, bound: SocketAddr, login: bool, tls: bool) -> Result<ClientTrust, StartError> {
    check_address(http, bound, login, tls)?;
    match exposure(bound.ip(), protection_of(http, login, tls)) {
        Ok(()) if login => Ok(ClientTrust::Nobody),
        Ok(()) if http.insecure => Ok(ClientTrust::Everyone),
        Ok(()) => Ok(ClientTrust::ThisMachine),
        Err(_) => {
            tracing::warn!(
                address = %bound,
                "other hosts can connect without TLS and a login and get only /ping, /ready, /version, /endpoints, /metrics and /stats; add http.cert_file, http.key_file and auth.tokens, or set http.insecure: true, for more"
            );
            Ok(match login {
                true => ClientTrust::Unencrypted,
                false => ClientTrust::ThisMachine,
            })
        }
    }
}

/// Whether an address may be bound at all.
pub fn check_address(http: &HttpConfig, address: SocketAddr, login: bool, tls: bool) -> Result<(), StartError> {
    match exposure(address.ip(), protection_of(http, login, tls)) {
        Err(exposed) if !address.ip().to_canonical().is_unspecified() => {
            let text = exposed.explain(address, &ListenerNames::of_section("http"));
            Err(StartError::Exposed { text })
        }
        _ => Ok(()),
    }
}

fn protection_of(http: &HttpConfig, has_login: bool, has_tls: bool) -> Protection {
    Protection {
        has_tls,
        has_login,
        is_insecure: http.insecure,
    }
}

/// The URL of the console for a browser on this machine.
pub fn local_url(bound: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    match bound.ip().to_canonical().is_unspecified() {
        true => format!("{scheme}://{}:{}", Ipv4Addr::LOCALHOST, bound.port()),
        false => format!("{scheme}://{bound}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(insecure: bool) -> HttpConfig {
        HttpConfig {
            insecure,
            ..thalweg_config::Config::default().http
        }
    }

    #[test]
    fn nothing_but_loopback_is_open_without_protection() {
        let cases = [
            ("127.0.0.1:1", false, false, false, Some(ClientTrust::ThisMachine)),
            ("[::1]:1", false, false, false, Some(ClientTrust::ThisMachine)),
            ("127.0.0.1:1", false, true, false, Some(ClientTrust::Nobody)),
            ("127.0.0.1:1", false, false, true, Some(ClientTrust::ThisMachine)),
            ("0.0.0.0:1", false, false, false, Some(ClientTrust::ThisMachine)),
            ("[::]:1", false, false, false, Some(ClientTrust::ThisMachine)),
            ("[::]:1", false, false, true, Some(ClientTrust::ThisMachine)),
            ("[::]:1", false, true, false, Some(ClientTrust::Unencrypted)),
            ("[::]:1", false, true, true, Some(ClientTrust::Nobody)),
            ("[::]:1", true, true, false, Some(ClientTrust::Nobody)),
            ("[::]:1", true, false, false, Some(ClientTrust::Everyone)),
            ("192.0.2.7:1", false, false, false, None),
            ("192.0.2.7:1", false, true, false, None),
            ("192.0.2.7:1", false, false, true, None),
            ("192.0.2.7:1", false, true, true, Some(ClientTrust::Nobody)),
            ("192.0.2.7:1", true, false, false, Some(ClientTrust::Everyone)),
            ("192.0.2.7:1", true, true, true, Some(ClientTrust::Nobody)),
        ];
        for (address, insecure, login, tls, expected) in cases {
            let trust = trust(&http(insecure), address.parse().unwrap(), login, tls);
            assert_eq!(
                trust.ok(),
                expected,
                "{address} insecure {insecure} login {login} tls {tls}"
            );
        }
    }

    #[test]
    fn a_refused_address_comes_with_the_cure() {
        let error = trust(&http(false), "192.0.2.7:4195".parse().unwrap(), false, false).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("set it to 127.0.0.1:4195, or add http.cert_file and http.key_file, and auth.tokens"),
            "{error}"
        );
    }

    #[test]
    fn a_listener_on_all_addresses_is_shown_by_one_that_opens() {
        assert_eq!(local_url("0.0.0.0:80".parse().unwrap(), false), "http://127.0.0.1:80");
        assert_eq!(local_url("[::1]:80".parse().unwrap(), true), "https://[::1]:80");
    }
}
