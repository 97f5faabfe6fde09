//! Schemas of contracts, asked of a schema registry and remembered.
//!
//! | what the registry says | messages of the contract | it is asked again |
//! |---|---|---|
//! | subjects that begin with `<contract>-` | are checked | never |
//! | none of these | pass | after 10 minutes |
//! | a schema that cannot be checked | pass | after 10 minutes |
//! | an error | pass | after 10 seconds |
//! | nothing | pass, as those of all contracts of which nothing is known | after 10 seconds, for whatever contract |
//!
//! It is asked in the background. The first messages of a contract wait for it, for a second at most and not at all after it was
//! silent, since all messages behind them wait, too.

use std::collections::{BTreeSet, HashMap};
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use thalweg_record::Text;
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::schema::Schema;

/// Contracts without a schema that are remembered; those that have one are as many as the registry has.
const MISSES_MAX: usize = 10_000;
/// Contracts that wait to be asked for. Messages of more pass unchecked, as long as nothing is known of them.
const ASKED_MAX: usize = 1000;
const ANSWER_BYTES: u64 = 16 << 20;
const SUBJECTS_MAX: usize = 1000;
/// Contracts that are asked for at a time: each keeps a thread.
const QUESTIONS_MAX: usize = 4;

/// How long what is waited for.
#[derive(Clone, Copy)]
struct Patience {
    /// One request, with its answer.
    answer: Duration,
    /// Messages, for the first answer about their contract: all others wait behind them.
    messages: Duration,
    /// After there was no answer, until the registry is asked again.
    failure: Duration,
    /// After it had no schema.
    miss: Duration,
}

const PATIENCE: Patience = Patience {
    answer: Duration::from_secs(5),
    messages: Duration::from_secs(1),
    failure: Duration::from_secs(10),
    miss: Duration::from_secs(600),
};

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

impl Entry {
    fn is_fresh(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// Clones share everything.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    url: String,
    agent: ureq::Agent,
    patience: Patience,
    state: Mutex<State>,
    questions: Semaphore,
    answered: Notify,
}

/// Contracts that are remembered are those of a plant: dozens.
#[derive(Default)]
struct State {
    entries: HashMap<Text, Entry>,
    /// Entries that were made for a contract without a schema: at least as many as there are.
    misses: usize,
    /// Contracts that are being asked for, since when.
    asked: HashMap<Text, Instant>,
    /// It did not answer when it was asked last: nobody asks for a while, whatever the contract.
    silent: Option<Silence>,
}

impl State {
    fn is_silent(&self, now: Instant) -> bool {
        self.silent.as_ref().is_some_and(|silent| now < silent.until)
    }

    /// Names of contracts come from messages, so there may be no end to those without a schema.
    fn remember(&mut self, contract: Text, entry: Entry) {
        if entry.until.is_some() && !self.entries.contains_key(&contract) {
            if self.misses >= MISSES_MAX {
                self.entries.retain(|_, entry| entry.until.is_none());
                self.misses = 0;
            }
            self.misses += 1;
        }
        self.entries.insert(contract, entry);
    }
}

struct Silence {
    until: Instant,
    why: Text,
}

impl Registry {
    /// Reads the machine's certificate authorities if the address asks for TLS.
    pub fn new(url: &str) -> Registry {
        Registry::with_patience(url, PATIENCE)
    }

    fn with_patience(url: &str, patience: Patience) -> Registry {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(true)
            .timeout_global(Some(patience.answer))
            .proxy(None);
        if url.starts_with("https://") {
            config = config.tls_config(tls());
        }
        Registry {
            shared: Arc::new(Shared {
                url: url.trim_end_matches('/').to_owned(),
                agent: config.build().into(),
                patience,
                state: Mutex::default(),
                questions: Semaphore::new(QUESTIONS_MAX),
                answered: Notify::new(),
            }),
        }
    }

    /// What was learned of a contract last, however long ago.
    pub fn known(&self, contract: &str) -> Known {
        let state = self.shared.state.lock();
        if let Some(entry) = state.entries.get(contract) {
            return entry.known.clone();
        }
        let why = match &state.silent {
            Some(silent) => silent.why.clone(),
            None => format!("the schema registry at {} has not answered yet", self.shared.url).into(),
        };
        Known::Bypassed(why)
    }

    /// Asks for contracts of which nothing is known, or nothing that still counts, and waits for the answers, though not for long:
    /// they are asked for in the background. On the runtime.
    pub async fn learn(&self, contracts: &BTreeSet<String>) {
        let unknown: Vec<&String> = contracts.iter().filter(|contract| self.ask_for(contract)).collect();
        if unknown.is_empty() {
            return;
        }
        loop {
            let answered = self.shared.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            let Some(rest) = self.shared.worth_waiting(&unknown) else {
                return;
            };
            // Whether it ended in time is seen from the state.
            let _ = tokio::time::timeout(rest, answered).await;
        }
    }

    /// Has a contract asked for if it has to be. `true`: nothing is known of it.
    fn ask_for(&self, contract: &str) -> bool {
        let mut state = self.shared.state.lock();
        let entry = state.entries.get(contract);
        if entry.is_some_and(Entry::is_fresh) {
            return false;
        }
        let is_unknown = entry.is_none();
        let now = Instant::now();
        let may_ask = !state.is_silent(now) && state.asked.len() < ASKED_MAX;
        if may_ask && !state.asked.contains_key(contract) {
            state.asked.insert(contract.into(), now);
            let (shared, contract) = (self.shared.clone(), Text::from(contract));
            tokio::spawn(ask_in_turn(shared, contract));
        }
        is_unknown
    }
}

async fn ask_in_turn(shared: Arc<Shared>, contract: Text) {
    // Never closed.
    let Ok(_turn) = shared.questions.acquire().await else {
        return;
    };
    let asking = shared.clone();
    let _ = tokio::task::spawn_blocking(move || asking.ask(contract)).await;
}

impl Shared {
    /// So long the messages of contracts may still wait; `None`: for nothing any more. Time runs from the oldest question: while
    /// one is not answered, those that come behind it wait no longer than it does.
    fn worth_waiting(&self, contracts: &[&String]) -> Option<Duration> {
        let state = self.state.lock();
        // Who was waited for in vain is not waited for once more.
        if state.silent.is_some() {
            return None;
        }
        let is_asked = |contract: &&String| state.asked.contains_key(contract.as_str());
        if !contracts.iter().any(is_asked) {
            return None;
        }
        let oldest = state.asked.values().min()?;
        let rest = self.patience.messages.checked_sub(oldest.elapsed())?;
        (!rest.is_zero()).then_some(rest)
    }

    /// Asks for a contract. Blocks.
    fn ask(&self, contract: Text) {
        {
            // Before it was this one's turn, another one may have waited in vain.
            let mut state = self.state.lock();
            if state.is_silent(Instant::now()) {
                state.asked.remove(&contract);
                return;
            }
        }
        let asked = subjects(&self.agent, &self.url, &contract);
        let miss = Some(self.patience.miss);
        let (known, lasts) = match asked {
            Ok(Subjects { found, others }) if found.is_empty() => {
                let why = match others {
                    None => format!("the schema registry has no subject that begins with {contract}-"),
                    Some(other) => format!("the schema registry has no JSON schema for {contract}: {other}"),
                };
                (Known::Bypassed(why.into()), miss)
            }
            Ok(Subjects { found, .. }) => (Known::Subjects(Arc::new(found)), None),
            Err(Trouble::Schema(why)) => (Known::Bypassed(why.into()), miss),
            Err(Trouble::Refusal(why)) => {
                let why = format!("the schema registry at {} refuses to answer: {why}", self.url);
                (Known::Bypassed(why.into()), Some(self.patience.failure))
            }
            Err(Trouble::Silence(why)) => return self.was_silent(&contract, &why),
        };
        let mut state = self.state.lock();
        state.asked.remove(&contract);
        state.silent = None;
        let until = lasts.map(|lasts| Instant::now() + lasts);
        state.remember(contract, Entry { known, until });
        drop(state);
        self.answered.notify_waiters();
    }

    /// What is known of contracts stays.
    fn was_silent(&self, contract: &str, why: &str) {
        let mut state = self.state.lock();
        state.asked.remove(contract);
        state.silent = Some(Silence {
            until: Instant::now() + self.patience.failure,
            why: format!("the schema registry at {} does not answer: {why}", self.url).into(),
        });
        drop(state);
        self.answered.notify_waiters();
    }
}

#[derive(Default)]
struct Subjects {
    found: Vec<Subject>,
    /// A subject that is there and of another kind.
    others: Option<String>,
}

enum Trouble {
    /// Nothing can be asked of it now.
    Silence(String),
    /// This cannot be asked of it now.
    Refusal(String),
    Schema(String),
}

#[derive(Deserialize)]
struct Version {
    schema: String,
    #[serde(rename = "schemaType")]
    kind: Option<String>,
}

fn subjects(agent: &ureq::Agent, url: &str, contract: &str) -> Result<Subjects, Trouble> {
    let all: Vec<String> = get(agent, &format!("{url}/subjects"))?;
    let prefix = format!("{contract}-");
    let mut subjects = Subjects::default();
    for name in all
        .into_iter()
        .filter(|name| name.starts_with(&prefix))
        .take(SUBJECTS_MAX)
    {
        let version: Version = get(agent, &format!("{url}/subjects/{}/versions/latest", escaped(&name)))?;
        // Registries leave the kind out where it is their first one.
        let kind = version.kind.as_deref().unwrap_or("AVRO");
        if kind != "JSON" {
            subjects.others = Some(format!("the schema of {name} is of type {kind}"));
            continue;
        }
        let schema = Schema::parse(&version.schema);
        let schema = schema.map_err(|why| Trouble::Schema(format!("the schema of {name} cannot be checked: {why}")))?;
        subjects.found.push(Subject { name, schema });
    }
    Ok(subjects)
}

fn get<T: for<'de> Deserialize<'de>>(agent: &ureq::Agent, url: &str) -> Result<T, Trouble> {
    let silent = |error: &dyn std::fmt::Display| Trouble::Silence(format!("{url}: {error}"));
    let refused = |error: &dyn std::fmt::Display| Trouble::Refusal(format!("{url}: {error}"));
    let mut response = agent.get(url).call().map_err(|error| match error {
        ureq::Error::StatusCode(_) => refused(&error),
        _ => silent(&error),
    })?;
    let mut body = Vec::new();
    let read = response
        .body_mut()
        .as_reader()
        .take(ANSWER_BYTES)
        .read_to_end(&mut body);
    read.map_err(|error| silent(&error))?;
    serde_json::from_slice(&body).map_err(|error| refused(&error))
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
mod tests;
