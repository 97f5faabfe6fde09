//! Schemas of contracts, fetched from a schema registry and cached.
//!
//! | the registry returns | messages of the contract | it is queried again |
//! |---|---|---|
//! | subjects that begin with `<contract>-` | are checked | after 10 seconds, for new subjects |
//! | none of these | pass | after 10 seconds |
//! | a schema that cannot be checked | pass | after 10 minutes |
//! | an error | are checked as before; pass, or wait, if nothing is cached | after 10 seconds |
//! | no response | as after an error, for all contracts | after 10 seconds, for any contract |
//!
//! It is queried in the background. The first messages of a contract wait for it, at most one second and not at all
//! after a timeout, because all later messages wait too. Where messages must not pass while it fails, they wait for as
//! long as it does.

mod requests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_flow::Component;
use thalweg_kit::{blocking, clock};
use thalweg_record::{CacheLimits, Remembered, Text};
use tokio::sync::{Notify, Semaphore};

use super::bypass::{Bypass, BypassReason};
use requests::{ContractSubjects, RegistryError, subjects};

pub use requests::Subject;

/// Limits of the cached contracts without a schema; the number of those with one is bounded by the registry.
const MISSES: CacheLimits = CacheLimits {
    entries_max: 10_000,
    bytes_max: 64 << 20,
};
/// Maximum contracts queued for a query. Messages of further ones pass unchecked while nothing is cached.
const ASKED_MAX: usize = 1000;
/// Maximum concurrent queries, each of which occupies a thread.
const QUESTIONS_MAX: usize = 4;
/// While messages wait for a response, the interval of the checks whether to query again.
const LOOK: Duration = Duration::from_secs(1);

/// The timeouts and intervals.
#[derive(Clone, Copy)]
struct RegistryTimeouts {
    /// One request with its response.
    answer: Duration,
    /// The wait of messages for the first response about their contract: all others wait behind them.
    messages: Duration,
    /// After a missing response, until the registry is queried again.
    failure: Duration,
    /// After a response, until the next query for new subjects.
    hit: Duration,
    /// After a schema was fetched or could not be checked, until it is fetched again.
    schema: Duration,
}

const PATIENCE: RegistryTimeouts = RegistryTimeouts {
    answer: Duration::from_secs(5),
    messages: Duration::from_secs(1),
    failure: Duration::from_secs(10),
    hit: Duration::from_secs(10),
    schema: Duration::from_secs(600),
};

/// What is known about a contract.
#[derive(Clone)]
pub enum ContractLookup {
    /// A message must satisfy one of these.
    Subjects(Arc<Vec<Arc<Subject>>>),
    /// Messages are not checked, for this reason.
    Bypassed(Bypass),
}

impl ContractLookup {
    fn reason(&self) -> Option<BypassReason> {
        match self {
            ContractLookup::Subjects(_) => None,
            ContractLookup::Bypassed(bypass) => Some(bypass.reason),
        }
    }

    /// Whether this is the registry's own answer.
    fn is_answer(&self) -> bool {
        !self.reason().is_some_and(BypassReason::is_registry_failure)
    }
}

struct CachedContract {
    known: ContractLookup,
    until: Instant,
}

impl CachedContract {
    fn is_fresh(&self) -> bool {
        clock::now() < self.until
    }
}

/// Clones share everything.
#[derive(Clone)]
pub struct SchemaRegistryClient {
    shared: Arc<RegistryClientInner>,
}

struct RegistryClientInner {
    component: Component,
    /// Whether messages wait while it fails.
    holds: bool,
    url: String,
    agent: ureq::Agent,
    patience: RegistryTimeouts,
    state: Mutex<ContractCache>,
    questions: Semaphore,
    answered: Notify,
}

/// A plant has dozens of contracts.
struct ContractCache {
    /// Contracts with a schema.
    hits: HashMap<Text, CachedContract>,
    /// Contracts without one, which are not in `hits`. Names of contracts come from messages, so there is no end of
    /// them.
    misses: Remembered<Text, CachedContract>,
    /// Contracts that are being queried, since when.
    asked: HashMap<Text, Instant>,
    /// The last query got no response: no contract is queried for a while.
    silent: Option<RegistryOutage>,
    /// Whether it was logged that messages do not wait for its response any more.
    is_slow: bool,
    /// Why messages wait.
    held: Option<Text>,
}

impl Default for ContractCache {
    fn default() -> ContractCache {
        ContractCache {
            hits: HashMap::new(),
            misses: Remembered::within(MISSES),
            asked: HashMap::new(),
            silent: None,
            is_slow: false,
            held: None,
        }
    }
}

impl ContractCache {
    fn is_silent(&self, now: Instant) -> bool {
        self.silent.as_ref().is_some_and(|silent| now < silent.until)
    }

    fn get(&self, contract: &str) -> Option<&CachedContract> {
        self.hits.get(contract).or_else(|| self.misses.get(contract))
    }

    fn get_mut(&mut self, contract: &str) -> Option<&mut CachedContract> {
        match self.hits.get_mut(contract) {
            Some(hit) => Some(hit),
            None => self.misses.get_mut(contract),
        }
    }

    fn remember(&mut self, contract: Text, entry: CachedContract) {
        match &entry.known {
            ContractLookup::Subjects(_) => {
                self.misses.remove(&contract);
                self.hits.insert(contract, entry);
            }
            ContractLookup::Bypassed(bypass) => {
                self.hits.remove(&contract);
                let bytes = contract.len() + bypass.why.len();
                self.misses.insert(contract, entry, bytes);
            }
        }
    }
}

struct RegistryOutage {
    until: Instant,
    why: Text,
}

impl SchemaRegistryClient {
    /// Reads the machine's certificate authorities if the URL uses TLS.
    pub fn new(url: &str, holds: bool, component: Component) -> SchemaRegistryClient {
        SchemaRegistryClient::with_patience(url, holds, component, PATIENCE)
    }

    fn with_patience(url: &str, holds: bool, component: Component, patience: RegistryTimeouts) -> SchemaRegistryClient {
        SchemaRegistryClient {
            shared: Arc::new(RegistryClientInner {
                component,
                holds,
                url: url.trim_end_matches('/').to_owned(),
                agent: requests::agent(url, patience.answer),
                patience,
                state: Mutex::default(),
                questions: Semaphore::new(QUESTIONS_MAX),
                answered: Notify::new(),
            }),
        }
    }

    /// Returns the last known result for a contract, however old.
    pub fn known(&self, contract: &str) -> ContractLookup {
        let state = self.shared.state.lock();
        if let Some(entry) = state.get(contract) {
            return entry.known.clone();
        }
        ContractLookup::Bypassed(match &state.silent {
            Some(silent) => Bypass::new(BypassReason::RegistrySilent, silent.why.clone()),
            None => Bypass::new(BypassReason::RegistrySlow, self.shared.has_not_answered()),
        })
    }

    /// Whether messages wait while it fails.
    pub fn holds(&self) -> bool {
        self.shared.holds
    }

    /// Why messages wait for it now.
    pub fn held(&self) -> Option<Text> {
        self.shared.state.lock().held.clone()
    }

    /// As [`SchemaRegistryClient::learn`], and then waits until it has responded for each contract, however long that
    /// takes.
    pub async fn wait_for(&self, contracts: &BTreeSet<String>) {
        loop {
            let answered = self.shared.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            self.learn(contracts).await;
            let failing = contracts.iter().find_map(|contract| match self.known(contract) {
                ContractLookup::Bypassed(bypass) if bypass.reason.is_registry_failure() => Some(bypass.why),
                _ => None,
            });
            self.shared.state.lock().held.clone_from(&failing);
            if failing.is_none() {
                return;
            }
            // The state shows whether it ended in time.
            let _ = tokio::time::timeout(LOOK, answered).await;
        }
    }

    /// Queries contracts with no or expired results in the background, and waits a limited time for the responses. Must
    /// run on the runtime.
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
                return self.shared.tell_if_slow(&unknown);
            };
            // The state shows whether it ended in time.
            let _ = tokio::time::timeout(rest, answered).await;
        }
    }

    /// Starts a query for a contract if needed. Returns `true` if nothing is cached.
    fn ask_for(&self, contract: &str) -> bool {
        let mut state = self.shared.state.lock();
        let entry = state.get(contract);
        if entry.is_some_and(CachedContract::is_fresh) {
            return false;
        }
        let is_unknown = entry.is_none();
        let now = clock::now();
        let may_ask = !state.is_silent(now) && state.asked.len() < ASKED_MAX;
        if may_ask && !state.asked.contains_key(contract) {
            state.asked.insert(contract.into(), now);
            let (shared, contract) = (self.shared.clone(), Text::from(contract));
            tokio::spawn(ask_in_turn(shared, contract));
        }
        is_unknown
    }
}

async fn ask_in_turn(shared: Arc<RegistryClientInner>, contract: Text) {
    // Never closed.
    let Ok(_turn) = shared.questions.acquire().await else {
        return;
    };
    let asking = shared.clone();
    let _ = blocking::spawn(move || asking.ask(contract)).await;
}

impl RegistryClientInner {
    /// Returns how long messages of these contracts may still wait; `None` if there is nothing to wait for. The time
    /// counts from the oldest query: while one is unanswered, later ones wait no longer than it does.
    fn worth_waiting(&self, contracts: &[&String]) -> Option<Duration> {
        let state = self.state.lock();
        // After one timeout, nothing waits again.
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

    /// Queries a contract. Blocks.
    fn ask(&self, contract: Text) {
        {
            // Another query may have timed out before this one's turn.
            let mut state = self.state.lock();
            if state.is_silent(clock::now()) {
                state.asked.remove(&contract);
                return;
            }
        }
        let before = match self.state.lock().hits.get(&contract) {
            Some(CachedContract {
                known: ContractLookup::Subjects(subjects),
                ..
            }) => subjects.clone(),
            _ => Arc::default(),
        };
        let asked = subjects(&self.agent, &self.url, &contract, &before, self.patience.schema);
        let bypassed = |reason, why: String| ContractLookup::Bypassed(Bypass::new(reason, why));
        let (known, lasts) = match asked {
            Ok(ContractSubjects { found, others }) if found.is_empty() => {
                let known = match others {
                    None => bypassed(
                        BypassReason::NoSubject,
                        format!("the schema registry has no subject that begins with {contract}-"),
                    ),
                    Some(other) => bypassed(
                        BypassReason::OtherType,
                        format!("the schema registry has no JSON schema for {contract}: {other}"),
                    ),
                };
                (known, self.patience.hit)
            }
            Ok(ContractSubjects { found, .. }) => (ContractLookup::Subjects(Arc::new(found)), self.patience.hit),
            Err(RegistryError::Schema(why)) => (bypassed(BypassReason::UnsupportedSchema, why), self.patience.schema),
            Err(RegistryError::Refusal(why)) => {
                let why = format!("the schema registry at {} refuses to answer: {why}", self.url);
                (bypassed(BypassReason::RegistryRefuses, why), self.patience.failure)
            }
            Err(RegistryError::Silence(why)) => return self.was_silent(&contract, &why),
        };
        self.answered(contract, known, lasts);
    }

    fn answered(&self, contract: Text, known: ContractLookup, lasts: Duration) {
        let mut state = self.state.lock();
        state.asked.remove(&contract);
        state.is_slow = false;
        let was_silent = state.silent.take().is_some();
        let until = clock::now() + lasts;
        let before = state.get_mut(&contract);
        let reason_before = before.as_ref().map(|before| before.known.reason());
        match before {
            // Its last real answer remains valid.
            Some(before) if !known.is_answer() && before.known.is_answer() => before.until = until,
            _ => {
                let known = known.clone();
                state.remember(contract.clone(), CachedContract { known, until });
            }
        }
        drop(state);
        self.answered.notify_waiters();
        if was_silent {
            self.component.warn_limited("registry_answers", 1, || {
                format!("the schema registry at {} answers again", self.url)
            });
        }
        self.tell_change(&contract, &known, reason_before);
    }

    /// Logs that checking of a contract starts or stops. `before` is the previous result, if there was one.
    fn tell_change(&self, contract: &Text, known: &ContractLookup, before: Option<Option<BypassReason>>) {
        let is_kept = |before: Option<BypassReason>| !before.is_some_and(BypassReason::is_registry_failure);
        match (known, before) {
            (ContractLookup::Subjects(_), Some(Some(_))) => self.component.warn_limited("contract_checked", 1, || {
                format!("messages of the contract {contract} are checked from now on")
            }),
            (ContractLookup::Bypassed(bypass), before) if before != Some(Some(bypass.reason)) => {
                let then = match bypass.reason.is_registry_failure() {
                    true if before.is_some_and(is_kept) => "keeps its last answer",
                    true if self.holds => "makes its messages wait",
                    _ => "is not checked, its messages pass",
                };
                self.component.warn_limited("contract_unchecked", 1, || {
                    format!("the contract {contract} {then}: {}", bypass.why)
                });
            }
            _ => {}
        }
    }

    fn has_not_answered(&self) -> String {
        format!("the schema registry at {} has not answered yet", self.url)
    }

    /// Messages no longer wait for a missing response. Logged once until a response arrives.
    fn tell_if_slow(&self, contracts: &[&String]) {
        let mut state = self.state.lock();
        let is_open = |contract: &&&String| state.get(contract).is_none();
        let Some(open) = contracts.iter().find(is_open) else {
            return;
        };
        if state.silent.is_some() || std::mem::replace(&mut state.is_slow, true) {
            return;
        }
        drop(state);
        self.component.warn_limited("registry_slow", 1, || {
            let then = self.then();
            format!(
                "{}; until it does, messages of {open} and of all other unknown contracts {then}",
                self.has_not_answered()
            )
        });
    }

    fn then(&self) -> &'static str {
        match self.holds {
            true => "wait",
            false => "pass unchecked",
        }
    }

    /// The registry did not respond. Cached results stay.
    fn was_silent(&self, contract: &str, why: &str) {
        let why = Text::from(format!("the schema registry at {} does not answer: {why}", self.url));
        let mut state = self.state.lock();
        state.asked.remove(contract);
        let silence = RegistryOutage {
            until: clock::now() + self.patience.failure,
            why: why.clone(),
        };
        let is_news = state.silent.replace(silence).is_none();
        drop(state);
        self.answered.notify_waiters();
        if is_news {
            self.component.warn_limited("registry_silent", 1, || {
                format!("{why}; until it does, messages of unknown contracts {}", self.then())
            });
        }
    }
}

#[cfg(test)]
mod tests;
