//! The requests to a schema registry. Each blocks for a bounded time.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use thalweg_http::tls_client::tls_config_of_machine;
use thalweg_kit::clock;

use crate::uns::schema::Schema;

const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Maximum subjects of one contract. A subset would reject messages that the others allow, so a contract with more is
/// not checked.
pub(super) const SUBJECTS_MAX: usize = 1000;
/// A registry that takes longer for all schemas of a contract counts as unresponsive, because the query blocks others.
const QUESTION_MAX: Duration = Duration::from_secs(60);

/// A schema for messages of a contract.
pub struct Subject {
    pub name: String,
    pub schema: Schema,
    fetched: Instant,
}

/// `answer` is the timeout of one request.
pub fn agent(url: &str, answer: Duration) -> ureq::Agent {
    let mut config = ureq::Agent::config_builder()
        .http_status_as_error(true)
        .timeout_global(Some(answer))
        .proxy(None);
    if url.starts_with("https://") {
        config = config.tls_config(tls_config_of_machine());
    }
    config.build().into()
}

/// The subjects of a contract in the registry.
#[derive(Default)]
pub struct ContractSubjects {
    pub found: Vec<Arc<Subject>>,
    /// Describes a subject with a schema of another type.
    pub others: Option<String>,
}

pub enum RegistryError {
    /// The registry cannot be queried at all.
    Silence(String),
    /// This query failed.
    Refusal(String),
    Schema(String),
}

#[derive(Deserialize)]
struct SchemaVersion {
    schema: String,
    #[serde(rename = "schemaType")]
    kind: Option<String>,
}

/// `before` are the subjects fetched before, which are not fetched again for a while.
pub fn subjects(
    agent: &ureq::Agent,
    url: &str,
    contract: &str,
    before: &[Arc<Subject>],
    lasts: Duration,
) -> Result<ContractSubjects, RegistryError> {
    let begun = clock::now();
    let all: Vec<String> = get(agent, &format!("{url}/subjects"))?;
    let prefix = format!("{contract}-");
    let mut subjects = ContractSubjects::default();
    let names: Vec<String> = all.into_iter().filter(|name| name.starts_with(&prefix)).collect();
    if names.len() > SUBJECTS_MAX {
        let count = names.len();
        return Err(RegistryError::Schema(format!(
            "{contract} has {count} subjects, and at most {SUBJECTS_MAX} can be checked; remove unneeded ones"
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
                "{url}: only {count} schemas of {contract} arrived within {seconds} s"
            )));
        }
        let version: SchemaVersion = get(agent, &format!("{url}/subjects/{}/versions/latest", escaped(&name)))?;
        // Registries omit the default type, which is Avro.
        let kind = version.kind.as_deref().unwrap_or("AVRO");
        if kind != "JSON" {
            subjects.others = Some(format!("the schema of {name} is of type {kind}"));
            continue;
        }
        let schema = Schema::parse(&version.schema);
        let schema =
            schema.map_err(|why| RegistryError::Schema(format!("the schema of {name} cannot be checked: {why}")))?;
        let fetched = clock::now();
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

/// Escapes a subject as a path segment.
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
