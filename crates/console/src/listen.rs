//! Binds the address, and decides from what was bound whom to trust before any request is seen.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use thalweg_config::{HttpConfig, ListenerNames, Protection, exposure};
use tokio::net::TcpListener;

use crate::StartError;

/// What a client may do before it proves anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTrust {
    /// Nothing: there are credentials.
    Nobody,
    /// The same, but other hosts come in the clear, and get only the paths of the reference system with them.
    Unencrypted,
    /// This machine everything, other hosts only the paths of the reference system.
    ThisMachine,
    /// Everyone everything, as `http.insecure` says.
    Everyone,
}

/// An empty host means all addresses. Port 0 takes a free one. `section` is where the address is configured.
pub async fn bind(section: &'static str, address: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let result = match address.strip_prefix(':') {
        // IPv6 sockets take IPv4 as well, where the machine has IPv6 at all.
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

/// What other hosts reach needs TLS and a login ([`exposure`]). All addresses at once are bound without, too, because the
/// reference system listens that way by default, but then other hosts get no more than they got there.
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

/// Where a browser on this machine finds the console.
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
