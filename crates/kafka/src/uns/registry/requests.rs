//! The requests that are made of a schema registry. Each blocks, for a bounded time.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::uns::schema::Schema;

const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Of one contract. Some of them alone would refuse what the others allow, so a contract that has more is not checked.
pub(super) const SUBJECTS_MAX: usize = 1000;
/// A registry that takes longer for all schemas of a contract does not answer: each keeps others from being asked for.
const QUESTION_MAX: Duration = Duration::from_secs(60);

/// A schema by which messages of a contract are checked.
pub struct Subject {
    pub name: String,
    pub schema: Schema,
    fetched: Instant,
}

/// `answer`: how long one request may take.
pub fn agent(url: &str, answer: Duration) -> ureq::Agent {
    let mut config = ureq::Agent::config_builder()
        .http_status_as_error(true)
        .timeout_global(Some(answer))
        .proxy(None);
    if url.starts_with("https://") {
        config = config.tls_config(tls());
    }
    config.build().into()
}

/// What a registry has of a contract.
#[derive(Default)]
pub struct ContractSubjects {
    pub found: Vec<Arc<Subject>>,
    /// A subject that is there and of another kind.
    pub others: Option<String>,
}

pub enum RegistryError {
    /// Nothing can be asked of it now.
    Silence(String),
    /// This cannot be asked of it now.
    Refusal(String),
    Schema(String),
}

#[derive(Deserialize)]
struct SchemaVersion {
    schema: String,
    #[serde(rename = "schemaType")]
    kind: Option<String>,
}

/// `before`: what was fetched before, which is not fetched again for a while.
pub fn subjects(
    agent: &ureq::Agent,
    url: &str,
    contract: &str,
    before: &[Arc<Subject>],
    lasts: Duration,
) -> Result<ContractSubjects, RegistryError> {
    let begun = Instant::now();
    let all: Vec<String> = get(agent, &format!("{url}/subjects"))?;
    let prefix = format!("{contract}-");
    let mut subjects = ContractSubjects::default();
    let names: Vec<String> = all.into_iter().filter(|name| name.starts_with(&prefix)).collect();
    if names.len() > SUBJECTS_MAX {
        let count = names.len();
        return Err(RegistryError::Schema(format!(
            "{contract} has {count} subjects, and {SUBJECTS_MAX} can be checked; remove those that are not needed"
        )));
    }
    for name in names {
        let known = before.iter().find(|known| known.name == name);
        if let Some(known) = known.filter(|known| known.fetched.elapsed() < lasts) {
            subjects.found.push(known.clone());
            continue;
        }
        if begun.elapsed() > QUESTION_MAX {
            let (count, seconds) = (subjects.found.len(), QUESTION_MAX.as_secs());
            return Err(RegistryError::Silence(format!(
                "{url}: only {count} schemas of {contract} came within {seconds} s"
            )));
        }
        let version: SchemaVersion = get(agent, &format!("{url}/subjects/{}/versions/latest", escaped(&name)))?;
        // Registries leave the kind out where it is their first one.
        let kind = version.kind.as_deref().unwrap_or("AVRO");
        if kind != "JSON" {
            subjects.others = Some(format!("the schema of {name} is of type {kind}"));
            continue;
        }
        let schema = Schema::parse(&version.schema);
        let schema =
            schema.map_err(|why| RegistryError::Schema(format!("the schema of {name} cannot be checked: {why}")))?;
        let fetched = Instant::now();
        subjects.found.push(Arc::new(Subject { name, schema, fetched }));
    }
    Ok(subjects)
}

fn get<T: for<'de> Deserialize<'de>>(agent: &ureq::Agent, url: &str) -> Result<T, RegistryError> {
    let silent = |error: &dyn std::fmt::Display| RegistryError::Silence(format!("{url}: {error}"));
    let refused = |error: &dyn std::fmt::Display| RegistryError::Refusal(format!("{url}: {error}"));
    let mut response = agent.get(url).call().map_err(|error| match error {
        ureq::Error::StatusCode(_) => refused(&error),
        _ => silent(&error),
    })?;
    let mut body = Vec::new();
    let read = response
        .body_mut()
        .as_reader()
        .take(ANSWER_BYTES_MAX + 1)
        .read_to_end(&mut body);
    read.map_err(|error| silent(&error))?;
    if body.len() as u64 > ANSWER_BYTES_MAX {
        return Err(refused(&"its answer is larger than 16 MiB"));
    }
    serde_json::from_slice(&body).map_err(|error| refused(&error))
}

/// A subject as a segment of a path.
pub(super) fn escaped(name: &str) -> String {
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
