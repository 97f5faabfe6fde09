//! Where the database is, as a URL says it.

use std::time::Duration;

use thalweg_events::{EventsError, Result};
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::tls::{Mode, Tls};

/// Longer than a database in the same network takes to answer a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of a peer that says nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(crate) struct Database {
    pub config: Config,
    pub tls: MakeRustlsConnect,
    /// Host and port, for errors.
    pub place: String,
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
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("thalweg");
        }
        if config.get_user().is_none() {
            return Err(wrong("it names no user"));
        }
        let place = place(&config).ok_or_else(|| wrong("it names no host"))?;
        Ok(Database {
            tls: tls.connector()?,
            config,
            place,
        })
    }
}

fn wrong(what: &str) -> EventsError {
    EventsError::Unavailable(format!("the URL of the database is wrong: {what}"))
}

/// The driver knows fewer modes of TLS, and no file of authorities.
fn without_tls(url: &str) -> Result<(String, Tls)> {
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(wrong("it must begin with postgres://"));
    }
    let mut tls = Tls::default();
    let Some((rest, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), tls));
    };
    let mut kept = url::form_urlencoded::Serializer::new(String::new());
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "sslmode" => {
                tls.mode = Mode::parse(&value)
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
        assert_eq!(database.config.get_dbname(), Some("events"));
        let (rest, tls) =
            without_tls("postgres://h/d?sslmode=verify-full&sslrootcert=%2Fa%20b&options=-c%20x").unwrap();
        assert_eq!(rest, "postgres://h/d?options=-c%20x");
        assert_eq!((tls.mode, tls.root_file.as_deref()), (Mode::Verify, Some("/a b")));
        let several = Database::parse("postgres://me@one,two:5433/events").unwrap();
        assert_eq!(several.place, "one:5432,two:5433");
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
        ] {
            let error = Database::parse(url).err().unwrap().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
