//! Parses the URL of the database and connects to it.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use thalweg_events::{EventsError, Result};
use thalweg_kit::random;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::reason;
use crate::tls::{TlsMode, TlsOptions};

/// Longer than a database in the same network needs for a connection with TLS and login, and longer than a name lookup
/// takes. A URL can override it with `connect_timeout`, in seconds.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for a peer that is completely silent.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(crate) struct Database {
    /// One per host, in the order of the attempts.
    hosts: Vec<Config>,
    connect_timeout: Duration,
    tls: MakeRustlsConnect,
    /// Host and port, for errors.
    pub place: String,
}

/// A connection and the future that drives it.
pub(crate) type ConnectedClient = (
    Client,
    Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>,
);

/// The result of an attempt to connect.
pub(crate) struct ConnectAttempt {
    pub connected: std::result::Result<ConnectedClient, ConnectError>,
    /// At least one host did not respond, even if another answered.
    pub was_silent: bool,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Failed(tokio_postgres::Error),
    Name(std::io::Error),
    /// The host accepts a connection, or seems to, and then sends nothing.
    Silent(Duration),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Failed(error) => out.write_str(&reason(error)),
            ConnectError::Name(error) => write!(out, "its address was not found: {error}"),
            ConnectError::Silent(timeout) => write!(out, "it did not answer within {timeout:?}"),
        }
    }
}

impl Database {
    pub fn parse(url: &str) -> Result<Database> {
        let (rest, tls) = without_tls(url)?;
        let mut config: Config = rest.parse().map_err(|_| {
            wrong("it must be postgres://user:password@host:port/database, with special characters percent-encoded")
        })?;
        config
            .ssl_mode(tls.mode.of_driver())
            .tcp_user_timeout(SILENCE_MAX)
            .keepalives_idle(SILENCE_MAX)
            .keepalives_interval(SILENCE_MAX / 3)
            .keepalives_retries(3);
        if config.get_application_name().is_none() {
            config.application_name("thalweg");
        }
        if config.get_user().is_none() {
            return Err(wrong("it names no user"));
        }
        let place = place(&config).ok_or_else(|| wrong("it names no host"))?;
        Ok(Database {
            tls: tls.connector()?,
            hosts: each_host(&config)?,
            connect_timeout: config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT),
            place,
        })
    }

    /// Tries each host in turn, and each of its addresses. Every address gets `connect_timeout` for network, TLS and
    /// login; so does every name lookup. The driver limits the network part only and would wait forever for a host that
    /// accepts a connection and sends nothing.
    pub async fn connect(&self) -> ConnectAttempt {
        let (timeout, mut failure, mut was_silent) = (self.connect_timeout, None, false);
        for config in self.in_order(self.hosts.iter().collect()) {
            let addresses = match tokio::time::timeout(timeout, addresses(config)).await {
                Ok(Ok(addresses)) => addresses,
                Ok(Err(error)) => {
                    failure = Some(ConnectError::Name(error));
                    continue;
                }
                // The name server timed out, which says nothing about the database.
                Err(_) => {
                    failure = Some(ConnectError::Name(std::io::ErrorKind::TimedOut.into()));
                    continue;
                }
            };
            for config in self.in_order(addresses) {
                match tokio::time::timeout(timeout, config.connect(self.tls.clone())).await {
                    Ok(Ok(connected)) => {
                        let connected = Ok(connected);
                        return ConnectAttempt { connected, was_silent };
                    }
                    Ok(Err(error)) => failure = Some(ConnectError::Failed(error)),
                    Err(_) => {
                        was_silent = true;
                        failure = Some(ConnectError::Silent(timeout));
                    }
                }
            }
        }
        let failure = failure.unwrap_or_else(|| ConnectError::Name(std::io::ErrorKind::NotFound.into()));
        let connected = Err(failure);
        ConnectAttempt { connected, was_silent }
    }

    /// Orders hosts, or the addresses of a host, as the URL asks.
    fn in_order<T>(&self, mut places: Vec<T>) -> Vec<T> {
        let is_random = |config: &Config| config.get_load_balance_hosts() == LoadBalanceHosts::Random;
        if self.hosts.first().is_some_and(is_random) {
            // Without random numbers the order of the URL is as good as any.
            places.sort_by_cached_key(|_| random::number().unwrap_or_default());
        }
        places
    }
}

/// One configuration for each address of the host's name.
async fn addresses(config: &Config) -> std::io::Result<Vec<Config>> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let name = match config.get_hosts() {
        [Host::Tcp(name)] if config.get_hostaddrs().is_empty() => name.as_str(),
        _ => return Ok(vec![config.clone()]),
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in tokio::net::lookup_host((name, port)).await? {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    let with = |address: &IpAddr| {
        let mut config = config.clone();
        config.hostaddr(*address);
        config
    };
    Ok(addresses.iter().map(with).collect())
}

/// One configuration per host, because hosts are tried one by one.
fn each_host(config: &Config) -> Result<Vec<Config>> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    if !addresses.is_empty() && addresses.len() != hosts.len() {
        return Err(wrong("hostaddr must have one address for each host, or be omitted"));
    }
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(wrong("it must have one port for all hosts, or one for each"));
    }
    let each = hosts.iter().enumerate().map(|(n, host)| {
        let mut own = without_hosts(config);
        match host {
            Host::Tcp(name) => own.host(name),
            #[cfg(unix)]
            Host::Unix(folder) => own.host_path(folder),
        };
        if let Some(address) = addresses.get(n) {
            own.hostaddr(*address);
        }
        own.port(ports.get(n).or(ports.first()).copied().unwrap_or(5432));
        own
    });
    Ok(each.collect())
}

/// Everything except the hosts and the connect timeout: the driver's own timeout would race with the overall one.
fn without_hosts(config: &Config) -> Config {
    let mut own = Config::new();
    own.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    if let Some(user) = config.get_user() {
        own.user(user);
    }
    if let Some(password) = config.get_password() {
        own.password(password);
    }
    if let Some(name) = config.get_dbname() {
        own.dbname(name);
    }
    if let Some(options) = config.get_options() {
        own.options(options);
    }
    if let Some(name) = config.get_application_name() {
        own.application_name(name);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        own.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        own.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        own.keepalives_retries(retries);
    }
    own
}

fn wrong(what: &str) -> EventsError {
    EventsError::Unavailable(format!("the URL of the database is wrong: {what}"))
}

/// The driver knows fewer TLS modes and no root certificate file.
fn without_tls(url: &str) -> Result<(String, TlsOptions)> {
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(wrong("it must begin with postgres://"));
    }
    let mut tls = TlsOptions::default();
    let Some((rest, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), tls));
    };
    let mut kept = url::form_urlencoded::Serializer::new(String::new());
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "sslmode" => {
                tls.mode = TlsMode::parse(&value)
                    .ok_or_else(|| wrong("sslmode must be one of disable, prefer, require, verify-ca, verify-full"))?;
            }
            "sslrootcert" => tls.root_file = Some(value.into_owned()),
            _ => {
                kept.append_pair(&key, &value);
            }
        }
    }
    // The driver decodes percent escapes, but not plus signs.
    let kept = kept.finish().replace('+', "%20");
    Ok((
        if kept.is_empty() {
            rest.to_owned()
        } else {
            format!("{rest}?{kept}")
        },
        tls,
    ))
}

fn place(config: &Config) -> Option<String> {
    let ports = config.get_ports();
    let places = config.get_hosts().iter().enumerate().map(|(n, host)| {
        let port = ports.get(n).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(host) => format!("{host}:{port}"),
            #[cfg(unix)]
            Host::Unix(folder) => format!("{}:{port}", folder.display()),
        }
    });
    Some(places.collect::<Vec<_>>().join(",")).filter(|place| !place.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_the_database_is_and_how_it_is_reached() {
        let database = Database::parse("postgres://me:secret@db.example:5433/events?sslmode=require").unwrap();
        assert_eq!(database.place, "db.example:5433");
        assert_eq!(database.hosts[0].get_dbname(), Some("events"));
        let (rest, tls) =
            without_tls("postgres://h/d?sslmode=verify-full&sslrootcert=%2Fa%20b&options=-c%20x").unwrap();
        assert_eq!(rest, "postgres://h/d?options=-c%20x");
        assert_eq!((tls.mode, tls.root_file.as_deref()), (TlsMode::Verify, Some("/a b")));
        let several = Database::parse("postgres://me@one,two:5433/events").unwrap();
        assert_eq!(several.place, "one:5432,two:5433");
    }

    /// A setting that is not copied would be lost silently.
    #[test]
    fn each_host_has_all_that_the_url_says() {
        let url = "postgres://me:secret@one:1,two:2/events?options=-cgeqo%3Doff&application_name=a&sslmode=require&\
                   sslnegotiation=direct&connect_timeout=7&tcp_user_timeout=8&keepalives=0&keepalives_idle=9&\
                   keepalives_interval=10&keepalives_retries=11&target_session_attrs=read-write&channel_binding=require&\
                   load_balance_hosts=random";
        let whole: Config = url.parse().unwrap();
        let [one, two] = each_host(&whole).unwrap().try_into().unwrap();
        let mut again = without_hosts(&one);
        again.host("one").host("two").port(1).port(2);
        again.connect_timeout(Duration::from_secs(7));
        assert!(again == whole, "{again:?} is not {whole:?}");
        assert_eq!(
            (two.get_hosts(), two.get_ports()),
            (&[Host::Tcp("two".to_owned())][..], &[2][..])
        );
        assert_eq!(Database::parse(url).unwrap().connect_timeout, Duration::from_secs(7));
        let firsts = |url: &str| {
            let database = Database::parse(url).unwrap();
            let first = || database.in_order(database.hosts.iter().collect::<Vec<_>>())[0].get_hosts();
            let firsts: std::collections::HashSet<_> = (0..200).map(|_| format!("{:?}", first())).collect();
            firsts.len()
        };
        assert_eq!(firsts("postgres://me@one,two,three/d?load_balance_hosts=random"), 3);
        assert_eq!(firsts("postgres://me@one,two,three/d"), 1);
    }

    #[tokio::test]
    async fn a_host_that_takes_a_connection_and_says_nothing_is_passed_over_in_time() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // This port is reserved for the test, and nothing listens on it.
        let refuses = tokio::net::TcpSocket::new_v4().unwrap();
        refuses.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let ports = [
            silent.local_addr().unwrap().port(),
            refuses.local_addr().unwrap().port(),
        ];
        let failure = async |ports: &[u16]| {
            let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            let url = format!("postgres://me@{}/d?connect_timeout=1", hosts.join(","));
            let attempt = Database::parse(&url).unwrap().connect().await;
            (attempt.connected.err().unwrap().to_string(), attempt.was_silent)
        };
        let silent = ("it did not answer within 1s".to_owned(), true);
        assert_eq!(failure(&ports[..1]).await, silent);
        assert_eq!(failure(&[ports[1], ports[0]]).await, silent);
        // The second host was tried, and the first one's silence is still reported.
        let (why, was_silent) = failure(&ports).await;
        assert!(why.contains("refused") && was_silent, "{why}");
        let (why, was_silent) = failure(&ports[1..]).await;
        assert!(why.contains("refused") && !was_silent, "{why}");
    }

    #[test]
    fn a_wrong_url_is_told_what_is_wrong_and_its_password_is_not_told() {
        for (url, part) in [
            ("mysql://me:secret@host/d", "must begin with postgres://"),
            (
                "postgres://me:secret@host:port/d",
                "postgres://user:password@host:port/database",
            ),
            ("postgres://me:secret@host/d?sslmode=maybe", "sslmode must be one of"),
            ("postgres://host/d", "names no user"),
            (
                "postgres://me:secret@one,two/d?hostaddr=127.0.0.1",
                "one address for each host",
            ),
            (
                "postgres://me:secret@one:1,two:2,three:3/d?port=4",
                "one port for all hosts",
            ),
        ] {
            let error = Database::parse(url).err().unwrap().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
