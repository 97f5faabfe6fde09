//! Where the database is, as a URL says it, and how a connection to it is made.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use thalweg_events::{EventsError, Result};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::reason;
use crate::tls::{TlsMode, TlsOptions};

/// Longer than a database in the same network takes to take a connection, with TLS and login, and a name server to answer. A URL may
/// say something else with `connect_timeout`, in seconds.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of a peer that says nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(crate) struct Database {
    /// One for each host, in the order in which they are tried.
    hosts: Vec<Config>,
    connect_timeout: Duration,
    tls: MakeRustlsConnect,
    /// Host and port, for errors.
    pub place: String,
}

/// A connection, and what drives it.
pub(crate) type ConnectedClient = (
    Client,
    Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>,
);

/// What came of it.
pub(crate) struct ConnectAttempt {
    pub connected: std::result::Result<ConnectedClient, ConnectError>,
    /// A host says nothing, whatever another one has answered.
    pub was_silent: bool,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Failed(tokio_postgres::Error),
    Name(std::io::Error),
    /// It takes a connection, or seems to, and says nothing.
    Silent(Duration),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Failed(error) => out.write_str(&reason(error)),
            ConnectError::Name(error) => write!(out, "its address is not found: {error}"),
            ConnectError::Silent(timeout) => write!(out, "it does not answer within {timeout:?}"),
        }
    }
}

impl Database {
    pub fn parse(url: &str) -> Result<Database> {
        let (rest, tls) = without_tls(url)?;
        let mut config: Config = rest.parse().map_err(|_| {
            wrong("it must read postgres://user:password@host:port/database, with special characters percent-encoded")
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

    /// Tries one host after the other, and each of its addresses. Each address has `connect_timeout` for network, TLS and login, and
    /// each name to be found. The driver bounds the network only, and would wait for ever for one who takes a connection and says
    /// nothing.
    pub async fn connect(&self) -> ConnectAttempt {
        let (timeout, mut failure, mut was_silent) = (self.connect_timeout, None, false);
        for config in self.in_order(self.hosts.iter().collect()) {
            let addresses = match tokio::time::timeout(timeout, addresses(config)).await {
                Ok(Ok(addresses)) => addresses,
                Ok(Err(error)) => {
                    failure = Some(ConnectError::Name(error));
                    continue;
                }
                // Of the name server, which says nothing of the database.
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

    /// As the URL wants it, hosts as well as addresses of one.
    fn in_order<T>(&self, mut places: Vec<T>) -> Vec<T> {
        let is_random = |config: &Config| config.get_load_balance_hosts() == LoadBalanceHosts::Random;
        if self.hosts.first().is_some_and(is_random) {
            // Without chance the order of the URL is as good as any.
            places.sort_by_cached_key(|_| getrandom::u32().unwrap_or_default());
        }
        places
    }
}

/// With the address of its host; one for each that the name has.
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

/// The same for each host, since they are tried one by one.
fn each_host(config: &Config) -> Result<Vec<Config>> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    if !addresses.is_empty() && addresses.len() != hosts.len() {
        return Err(wrong("hostaddr has one address for each host, or is left out"));
    }
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(wrong("it has one port for all hosts, or one for each"));
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

/// All but where it is, and how long it has to answer: the driver's own timeout would be a race with the one of all of it.
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

/// The driver knows fewer modes of TLS, and no file of authorities.
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
                    .ok_or_else(|| wrong("sslmode is one of disable, prefer, require, verify-ca, verify-full"))?;
            }
            "sslrootcert" => tls.root_file = Some(value.into_owned()),
            _ => {
                kept.append_pair(&key, &value);
            }
        }
    }
    // The driver decodes percent signs, but no plus.
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

    /// What is not carried over would be lost in silence.
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
        // Its port is nobody else's, and nobody listens.
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
        let silent = ("it does not answer within 1s".to_owned(), true);
        assert_eq!(failure(&ports[..1]).await, silent);
        assert_eq!(failure(&[ports[1], ports[0]]).await, silent);
        // The second one was tried, and that the first one is silent is not forgotten.
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
            ("postgres://me:secret@host/d?sslmode=maybe", "sslmode is one of"),
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
