//! Schemas of contracts, asked of a schema registry and remembered.
//!
//! | what the registry says | messages of the contract | it is asked again |
//! |---|---|---|
//! | subjects that begin with `<contract>-` | are checked | never |
//! | none of these | pass | after 10 minutes |
//! | a schema that cannot be checked | pass | after 10 minutes |
//! | nothing, or an error | pass | after 10 seconds |

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use thalweg_record::Text;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::schema::Schema;

const MISS: Duration = Duration::from_secs(600);
const FAILURE: Duration = Duration::from_secs(10);
/// One request, with its answer.
const ANSWER: Duration = Duration::from_secs(5);
const ANSWER_BYTES: u64 = 16 << 20;
const SUBJECTS_MAX: usize = 1000;
/// Contracts that are remembered. A plant has dozens.
const CONTRACTS_MAX: usize = 10_000;

/// A schema by which messages of a contract are checked.
pub struct Subject {
    pub name: String,
    pub schema: Schema,
}

/// What is known of a contract.
#[derive(Clone)]
pub enum Known {
    /// A message has to satisfy one of these.
    Subjects(Arc<Vec<Subject>>),
    /// Messages are not checked, for this reason.
    Bypassed(Text),
}

struct Entry {
    known: Known,
    until: Option<Instant>,
}

pub struct Registry {
    url: String,
    agent: Arc<ureq::Agent>,
    entries: Mutex<HashMap<Text, Entry>>,
}

impl Registry {
    /// Reads the machine's certificate authorities if the address asks for TLS.
    pub fn new(url: &str) -> Registry {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(true)
            .timeout_global(Some(ANSWER))
            .proxy(None);
        if url.starts_with("https://") {
            config = config.tls_config(tls());
        }
        Registry {
            url: url.trim_end_matches('/').to_owned(),
            agent: Arc::new(config.build().into()),
            entries: Mutex::default(),
        }
    }

    /// What was learned of a contract last, however long ago.
    pub fn known(&self, contract: &str) -> Known {
        let entries = self.entries.lock();
        let entry = entries.get(contract).map(|entry| entry.known.clone());
        entry.unwrap_or_else(|| Known::Bypassed("the schema registry was not asked".into()))
    }

    /// Asks for a contract of which nothing is known, or nothing that still counts.
    pub async fn learn(&self, contract: &str) {
        if self.is_fresh(contract) {
            return;
        }
        let (agent, url, name) = (self.agent.clone(), self.url.clone(), contract.to_owned());
        let asked = tokio::task::spawn_blocking(move || subjects(&agent, &url, &name)).await;
        let (known, lasts) = match asked {
            Ok(Ok(subjects)) if subjects.is_empty() => {
                let why = format!("the schema registry has no subject that begins with {contract}-");
                (Known::Bypassed(why.into()), Some(MISS))
            }
            Ok(Ok(subjects)) => (Known::Subjects(Arc::new(subjects)), None),
            Ok(Err(Trouble::Schema(why))) => (Known::Bypassed(why.into()), Some(MISS)),
            Ok(Err(Trouble::Answer(why))) => {
                let why = format!("the schema registry at {} does not answer: {why}", self.url);
                (Known::Bypassed(why.into()), Some(FAILURE))
            }
            Err(_) => (Known::Bypassed("the process is stopping".into()), Some(FAILURE)),
        };
        let mut entries = self.entries.lock();
        if entries.len() >= CONTRACTS_MAX {
            entries.clear();
        }
        let until = lasts.map(|lasts| Instant::now() + lasts);
        entries.insert(contract.into(), Entry { known, until });
    }

    fn is_fresh(&self, contract: &str) -> bool {
        let entries = self.entries.lock();
        let entry = entries.get(contract);
        entry.is_some_and(|entry| entry.until.is_none_or(|until| Instant::now() < until))
    }
}

enum Trouble {
    Answer(String),
    Schema(String),
}

#[derive(Deserialize)]
struct Version {
    schema: String,
    #[serde(rename = "schemaType")]
    kind: Option<String>,
}

fn subjects(agent: &ureq::Agent, url: &str, contract: &str) -> Result<Vec<Subject>, Trouble> {
    let all: Vec<String> = get(agent, &format!("{url}/subjects"))?;
    let prefix = format!("{contract}-");
    let mut found = Vec::new();
    for name in all
        .into_iter()
        .filter(|name| name.starts_with(&prefix))
        .take(SUBJECTS_MAX)
    {
        let version: Version = get(agent, &format!("{url}/subjects/{}/versions/latest", escaped(&name)))?;
        if version.kind.as_deref().is_some_and(|kind| kind != "JSON") {
            continue;
        }
        let schema = Schema::parse(&version.schema);
        let schema = schema.map_err(|why| Trouble::Schema(format!("the schema of {name} cannot be checked: {why}")))?;
        found.push(Subject { name, schema });
    }
    Ok(found)
}

fn get<T: for<'de> Deserialize<'de>>(agent: &ureq::Agent, url: &str) -> Result<T, Trouble> {
    let answered = |error: &dyn std::fmt::Display| Trouble::Answer(format!("{url}: {error}"));
    let mut response = agent.get(url).call().map_err(|error| answered(&error))?;
    let mut body = Vec::new();
    let read = response
        .body_mut()
        .as_reader()
        .take(ANSWER_BYTES)
        .read_to_end(&mut body);
    read.map_err(|error| answered(&error))?;
    serde_json::from_slice(&body).map_err(|error| answered(&error))
}

/// A subject as a segment of a path.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

fn tls() -> TlsConfig {
    let machine = rustls_native_certs::load_native_certs().certs;
    let trusted: Vec<Certificate<'static>> = machine
        .iter()
        .map(|der| Certificate::from_der(der).to_owned())
        .collect();
    TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_one_segment_of_a_path() {
        assert_eq!(escaped("_pump_v1-timeseries/ä"), "_pump_v1-timeseries%2F%C3%A4");
    }
}
