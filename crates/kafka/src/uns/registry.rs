//! Schemas of contracts, asked of a schema registry and remembered.
//!
//! | what the registry says | messages of the contract | it is asked again |
//! |---|---|---|
//! | subjects that begin with `<contract>-` | are checked | after 10 seconds, for subjects that are new |
//! | none of these | pass | after 10 seconds |
//! | a schema that cannot be checked | pass | after 10 minutes |
//! | an error | are checked as before; pass, or wait, if nothing is known | after 10 seconds |
//! | nothing | as after an error, for all contracts | after 10 seconds, for whatever contract |
//!
//! It is asked in the background. The first messages of a contract wait for it, for a second at most and not at all after it was
//! silent, since all messages behind them wait, too. Where messages must not pass while it fails, they wait for as long as it does.

mod requests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_flow::Component;
use thalweg_record::Text;
use tokio::sync::{Notify, Semaphore};

use super::bypass::{Bypass, BypassReason};
use requests::{ContractSubjects, RegistryError, subjects};

pub use requests::Subject;

/// Contracts without a schema that are remembered; those that have one are as many as the registry has.
const MISSES_MAX: usize = 10_000;
/// Contracts that wait to be asked for. Messages of more pass unchecked, as long as nothing is known of them.
const ASKED_MAX: usize = 1000;
/// Contracts that are asked for at a time: each keeps a thread.
const QUESTIONS_MAX: usize = 4;
/// While messages wait for an answer, it is looked so often whether to ask again.
const LOOK: Duration = Duration::from_secs(1);

/// How long what is waited for.
#[derive(Clone, Copy)]
struct RegistryTimeouts {
    /// One request, with its answer.
    answer: Duration,
    /// Messages, for the first answer about their contract: all others wait behind them.
    messages: Duration,
    /// After there was no answer, until the registry is asked again.
    failure: Duration,
    /// After an answer, until it is looked for new subjects.
    hit: Duration,
    /// After a schema was fetched, or could not be checked, until it is fetched again.
    schema: Duration,
}

const PATIENCE: RegistryTimeouts = RegistryTimeouts {
    answer: Duration::from_secs(5),
    messages: Duration::from_secs(1),
    failure: Duration::from_secs(10),
    hit: Duration::from_secs(10),
    schema: Duration::from_secs(600),
};

/// What is known of a contract.
#[derive(Clone)]
pub enum ContractLookup {
    /// A message has to satisfy one of these.
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

    /// The registry has said what it has.
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
        Instant::now() < self.until
    }
}

/// Clones share everything.
#[derive(Clone)]
pub struct SchemaRegistryClient {
    shared: Arc<RegistryClientInner>,
}

struct RegistryClientInner {
    component: Component,
    /// Messages wait while it fails.
    holds: bool,
    url: String,
    agent: ureq::Agent,
    patience: RegistryTimeouts,
    state: Mutex<ContractCache>,
    questions: Semaphore,
    answered: Notify,
}

/// Contracts that are remembered are those of a plant: dozens.
#[derive(Default)]
struct ContractCache {
    entries: HashMap<Text, CachedContract>,
    /// Entries that were made for a contract without a schema: at least as many as there are.
    misses: usize,
    /// Contracts that are being asked for, since when.
    asked: HashMap<Text, Instant>,
    /// It did not answer when it was asked last: nobody asks for a while, whatever the contract.
    silent: Option<RegistryOutage>,
    /// It was told that messages do not wait for its answer any more.
    is_slow: bool,
    /// Why messages wait.
    held: Option<Text>,
}

impl ContractCache {
    fn is_silent(&self, now: Instant) -> bool {
        self.silent.as_ref().is_some_and(|silent| now < silent.until)
    }

    /// Names of contracts come from messages, so there may be no end to those without a schema.
    fn remember(&mut self, contract: Text, entry: CachedContract) {
        let is_hit = |entry: &CachedContract| matches!(entry.known, ContractLookup::Subjects(_));
        if !is_hit(&entry) && self.entries.get(&contract).is_none_or(is_hit) {
            if self.misses >= MISSES_MAX {
                self.entries.retain(|_, entry| is_hit(entry));
                self.misses = 0;
            }
            self.misses += 1;
        }
        self.entries.insert(contract, entry);
    }
}

struct RegistryOutage {
    until: Instant,
    why: Text,
}

impl SchemaRegistryClient {
    /// Reads the machine's certificate authorities if the address asks for TLS.
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

    /// What was learned of a contract last, however long ago.
    pub fn known(&self, contract: &str) -> ContractLookup {
        let state = self.shared.state.lock();
        if let Some(entry) = state.entries.get(contract) {
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

    /// As [`SchemaRegistryClient::learn`], and then waits until it has answered for each contract, however long that takes.
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
            // Whether it ended in time is seen from the state.
            let _ = tokio::time::timeout(LOOK, answered).await;
        }
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
                return self.shared.tell_if_slow(&unknown);
            };
            // Whether it ended in time is seen from the state.
            let _ = tokio::time::timeout(rest, answered).await;
        }
    }

    /// Has a contract asked for if it has to be. `true`: nothing is known of it.
    fn ask_for(&self, contract: &str) -> bool {
        let mut state = self.shared.state.lock();
        let entry = state.entries.get(contract);
        if entry.is_some_and(CachedContract::is_fresh) {
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

async fn ask_in_turn(shared: Arc<RegistryClientInner>, contract: Text) {
    // Never closed.
    let Ok(_turn) = shared.questions.acquire().await else {
        return;
    };
    let asking = shared.clone();
    let _ = tokio::task::spawn_blocking(move || asking.ask(contract)).await;
}

impl RegistryClientInner {
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
        let before = match self.state.lock().entries.get(&contract) {
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
        let until = Instant::now() + lasts;
        let before = state.entries.get_mut(&contract);
        let reason_before = before.as_ref().map(|before| before.known.reason());
        match before {
            // What it said when it answered still counts.
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

    /// Checking of a contract begins or ends. `before`: what was known of it, if anything was.
    fn tell_change(&self, contract: &Text, known: &ContractLookup, before: Option<Option<BypassReason>>) {
        let is_kept = |before: Option<BypassReason>| !before.is_some_and(BypassReason::is_registry_failure);
        match (known, before) {
            (ContractLookup::Subjects(_), Some(Some(_))) => self.component.warn_limited("contract_checked", 1, || {
                format!("messages of the contract {contract} are checked from now on")
            }),
            (ContractLookup::Bypassed(bypass), before) if before != Some(Some(bypass.reason)) => {
                let then = match bypass.reason.is_registry_failure() {
                    true if before.is_some_and(is_kept) => "is as it was last answered",
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

    /// Nobody waits for an answer any more that has not come. It is told once, until one comes.
    fn tell_if_slow(&self, contracts: &[&String]) {
        let mut state = self.state.lock();
        let is_open = |contract: &&&String| !state.entries.contains_key(contract.as_str());
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
                "{}; until it does, messages of {open} and of all contracts that are not known {then}",
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

    /// What is known of contracts stays.
    fn was_silent(&self, contract: &str, why: &str) {
        let why = Text::from(format!("the schema registry at {} does not answer: {why}", self.url));
        let mut state = self.state.lock();
        state.asked.remove(contract);
        let silence = RegistryOutage {
            until: Instant::now() + self.patience.failure,
            why: why.clone(),
        };
        let is_news = state.silent.replace(silence).is_none();
        drop(state);
        self.answered.notify_waiters();
        if is_news {
            self.component.warn_limited("registry_silent", 1, || {
                format!(
                    "{why}; until it does, messages of contracts that are not known {}",
                    self.then()
                )
            });
        }
    }
}

#[cfg(test)]
mod tests;
