//! The lease of a lake on an object store: it ensures that one process writes the lake.
//!
//! A lease is a numbered object below `_thalweg/lease/`; the highest number counts. A process takes it by creating the
//! next number, which succeeds only once, so the store needs nothing but put-if-absent. The lease is free when its
//! holder released it, when it was not renewed for [`HELD_FOR`] by the clock of the store, and for a process with the
//! same data folder: a data folder has one process at a time, so the previous holder is gone.
//!
//! A holder that could not renew in time commits nothing until it has renewed, and never again once a higher number
//! exists. If it was just committing at that moment, the commit is stored under the next version or not at all, as
//! always.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;

use super::fault::{FaultKind, fault_kind};
use super::{StorePath, fault_text};
use crate::codes::DeltaCode;
use thalweg_kit::{clock, clock::unix_ms, random};

/// How long a lease lasts after a renewal.
pub(crate) const HELD_FOR: Duration = Duration::from_secs(30);
const RENEWED_EVERY: Duration = Duration::from_secs(10);
const DIGITS: usize = 20;
const PROBE: &str = "probe-";

/// The content of a lease object.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LeaseHolder {
    /// The id of the data folder.
    pub id: String,
    pub host: String,
    pub process: u32,
    pub data_dir: String,
    pub renewed_unix_ms: i64,
    /// Released: any process may take it at once.
    #[serde(default)]
    pub is_released: bool,
}

impl std::fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {} ({})", self.process, self.host, self.data_dir)
    }
}

/// Why a lake cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error(
        "{code}: {lake} takes the same name twice, so two writers could undo each other's commits; use an object store \
         that has conditional put (If-None-Match), or turn it on there",
        code = DeltaCode::NoConditionalPut
    )]
    NoConditionalPut { lake: String },
    #[error(
        "{code}: {lake} is written by {holder}, which renewed its lease {seconds} s ago; stop it, or set another \
         lake.url; if it has died, the lake is free {} s after its last renewal",
        HELD_FOR.as_secs(),
        code = DeltaCode::Held
    )]
    Held {
        lake: String,
        holder: LeaseHolder,
        seconds: u64,
    },
    #[error("{lake} cannot be used: {}", fault_text(.source))]
    Store { lake: String, source: object_store::Error },
}

impl LeaseError {
    pub fn kind(&self) -> FaultKind {
        match self {
            LeaseError::Store { source, .. } => fault_kind(source),
            LeaseError::NoConditionalPut { .. } | LeaseError::Held { .. } => FaultKind::Held,
        }
    }
}

/// See the module.
pub(crate) struct Lease {
    /// The location, for messages.
    lake: String,
    store: Arc<dyn ObjectStore>,
    folder: StorePath,
    /// This process. It is determined on first use, because that creates a file.
    own: LazyLock<LeaseHolder, Box<dyn FnOnce() -> LeaseHolder + Send>>,
    /// How long a lease lasts, and how often it is renewed.
    times: (Duration, Duration),
    /// Serializes changes in the store, so that a concurrent renewal cannot undo a release.
    changing: tokio::sync::Mutex<()>,
    state: Mutex<LeaseState>,
}

#[derive(Debug, Default)]
struct LeaseState {
    number: Option<u64>,
    /// When the last successful renewal was sent.
    renewed: Option<Instant>,
    lost: Option<String>,
    /// Why the last renewal failed.
    trouble: Option<String>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.lake)
    }
}

impl Lease {
    /// `lake` is the location of the lake for messages.
    pub fn new(
        lake: &str,
        store: Arc<dyn ObjectStore>,
        prefix: &StorePath,
        own: impl FnOnce() -> LeaseHolder + Send + 'static,
    ) -> Arc<Lease> {
        Lease::with_times(lake, store, prefix, own, (HELD_FOR, RENEWED_EVERY))
    }

    pub fn with_times(
        lake: &str,
        store: Arc<dyn ObjectStore>,
        prefix: &StorePath,
        own: impl FnOnce() -> LeaseHolder + Send + 'static,
        times: (Duration, Duration),
    ) -> Arc<Lease> {
        Arc::new(Lease {
            lake: lake.to_owned(),
            store,
            folder: prefix.clone().join("_thalweg").join("lease"),
            own: LazyLock::new(Box::new(own)),
            times,
            changing: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// Takes the lease unless this process has it, and renews it while this object exists.
    pub async fn claim(self: &Arc<Lease>) -> Result<(), LeaseError> {
        if self.state.lock().number.is_some() {
            // Do not wait for a renewal in progress.
            return Ok(());
        }
        let _one_at_a_time = self.changing.lock().await;
        if self.state.lock().number.is_some() {
            return Ok(());
        }
        let failed = |source| self.failed(source);
        let probe = self.folder.clone().join(format!("{PROBE}{}", random::uuid()));
        self.look_for_conditional_put(&probe).await?;
        let found = self.list().await.map_err(failed)?;
        let now = found.others.get(&probe).copied();
        let _ = self.store.delete(&probe).await;
        if let (Some((number, at)), Some(now)) = (found.newest, now)
            && let Some(holder) = self.read(number).await.map_err(failed)?
        {
            let age = Duration::from_millis((now - at).max(0).unsigned_abs());
            let is_free = holder.is_released || holder.id == self.own.id || age >= self.times.0;
            if !is_free {
                return Err(self.held(holder, age));
            }
        }
        let number = found.newest.map_or(1, |(number, _)| number + 1);
        let sent = clock::now();
        match self.put(number, PutMode::Create).await {
            Ok(()) => {}
            Err(error) if fault_kind(&error) == FaultKind::Exists => {
                let holder = self.read(number).await.map_err(failed)?;
                // It may be our own attempt whose response was lost.
                match holder {
                    Some(holder) if holder == self.own_since(holder.renewed_unix_ms) => {}
                    Some(holder) => return Err(self.held(holder, Duration::ZERO)),
                    None => return Err(failed(error)),
                }
            }
            Err(error) => return Err(failed(error)),
        }
        *self.state.lock() = LeaseState {
            number: Some(number),
            renewed: Some(sent),
            ..LeaseState::default()
        };
        // Start before the next await: the caller may drop this future there, and a held lease must be renewed.
        tokio::spawn(renew(Arc::downgrade(self), self.times.1));
        tracing::info!(lake = self.lake, number, "this process writes the lake");
        self.forget(found, number).await;
        Ok(())
    }

    /// Whether this process may commit. The error has the reason, and whether it is permanent.
    pub fn check(&self) -> Result<(), (String, bool)> {
        let state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err((lost.clone(), true));
        }
        match state.renewed {
            Some(renewed) if renewed.elapsed() < self.times.0 => Ok(()),
            // The cause that prevented the renewal also prevents other requests, so it is reported in the same words.
            Some(_) => {
                let still = || {
                    format!(
                        "the lease of {} was not renewed because this process stalled",
                        self.lake
                    )
                };
                Err((state.trouble.clone().unwrap_or_else(still), false))
            }
            None => Err((format!("{} is not held by this process", self.lake), false)),
        }
    }

    /// Releases the lake for other processes.
    pub async fn release(&self) {
        // Stop committing at once, however long the rest takes.
        let number = {
            let mut state = self.state.lock();
            state.renewed = None;
            state.number.take()
        };
        let _one_at_a_time = self.changing.lock().await;
        if let Some(number) = number {
            let mut own = self.own_since(unix_ms());
            own.is_released = true;
            // If this fails, the next process waits until the lease expires.
            let _ = self.store.put(&self.path(number), document(&own)).await;
        }
    }

    /// The current holder, and the seconds since its last renewal by this machine's clock.
    pub async fn holder(&self) -> object_store::Result<Option<(LeaseHolder, u64)>> {
        let Some((number, _)) = self.list().await?.newest else {
            return Ok(None);
        };
        let holder = self.read(number).await?.filter(|holder| !holder.is_released);
        Ok(holder.map(|holder| {
            let age = unix_ms().saturating_sub(holder.renewed_unix_ms).max(0) / 1000;
            (holder, age.unsigned_abs())
        }))
    }

    /// Checks that the store refuses an existing name. A store that accepts it would also replace commits.
    async fn look_for_conditional_put(&self, probe: &StorePath) -> Result<(), LeaseError> {
        let no = || LeaseError::NoConditionalPut {
            lake: self.lake.clone(),
        };
        let options = || PutOptions::from(PutMode::Create);
        let is_unknown = |error: &object_store::Error| {
            let text = fault_text(error);
            matches!(error, object_store::Error::NotImplemented { .. }) || text.contains("NotImplemented")
        };
        match self
            .store
            .put_opts(probe, PutPayload::from_static(b"1"), options())
            .await
        {
            Ok(_) => {}
            // The response to an earlier attempt was lost.
            Err(error) if fault_kind(&error) == FaultKind::Exists => {}
            Err(error) if is_unknown(&error) => return Err(no()),
            Err(error) => return Err(self.failed(error)),
        }
        match self
            .store
            .put_opts(probe, PutPayload::from_static(b"2"), options())
            .await
        {
            Ok(_) => {
                let _ = self.store.delete(probe).await;
                Err(no())
            }
            Err(error) if fault_kind(&error) == FaultKind::Exists => Ok(()),
            Err(error) if is_unknown(&error) => Err(no()),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn renew_once(&self) {
        let _one_at_a_time = self.changing.lock().await;
        let Some(number) = self.state.lock().number else { return };
        let sent = clock::now();
        // Lists all numbers: the process that took the next number may be gone and replaced by another.
        let renewed = async {
            match self.list().await?.newest {
                Some((newest, _)) if newest > number => {
                    let other = self.read(newest).await?;
                    Ok(Some(other.unwrap_or_else(unknown)))
                }
                _ => self.put(number, PutMode::Overwrite).await.map(|()| None),
            }
        };
        let renewed = renewed.await;
        let mut state = self.state.lock();
        if state.number != Some(number) {
            // Released meanwhile.
            return;
        }
        match renewed {
            Ok(None) => {
                state.renewed = Some(sent);
                state.trouble = None;
            }
            Ok(Some(other)) => {
                let code = DeltaCode::Held;
                let text = format!(
                    "{code}: {} is written by {other} now, because this process could not renew its lease in time; \
                     nothing more is committed here until a restart, and the log keeps what is received",
                    self.lake
                );
                tracing::error!("{text}");
                state.lost = Some(text);
            }
            Err(error) => state.trouble = Some(fault_text(&error)),
        }
    }

    async fn list(&self) -> object_store::Result<LeaseListing> {
        let mut found = LeaseListing::default();
        let mut objects = self.store.list(Some(&self.folder));
        while let Some(object) = objects.try_next().await? {
            let name = object.location.filename().unwrap_or_default();
            match name.strip_suffix(".json").and_then(|digits| digits.parse().ok()) {
                Some(number) => {
                    found.older.push(object.location.clone());
                    found.newest = found
                        .newest
                        .max(Some((number, object.last_modified.timestamp_millis())));
                }
                None => {
                    found
                        .others
                        .insert(object.location, object.last_modified.timestamp_millis());
                }
            }
        }
        Ok(found)
    }

    /// Deletes outdated leases and probes.
    async fn forget(&self, found: LeaseListing, number: u64) {
        let newest = found.others.values().max().copied().unwrap_or_default();
        let is_old = |at: &i64| Duration::from_millis((newest - at).max(0).unsigned_abs()) >= self.times.0;
        let probes = found.others.into_iter().filter(|(_, at)| is_old(at));
        let own = self.path(number);
        let leases = found.older.into_iter().filter(|path| *path != own);
        for path in probes.map(|(path, _)| path).chain(leases) {
            let _ = self.store.delete(&path).await;
        }
    }

    async fn read(&self, number: u64) -> object_store::Result<Option<LeaseHolder>> {
        match self.store.get(&self.path(number)).await {
            Ok(found) => {
                let bytes = found.bytes().await?;
                Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| unknown())))
            }
            Err(error) if fault_kind(&error) == FaultKind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn put(&self, number: u64, mode: PutMode) -> object_store::Result<()> {
        let own = self.own_since(unix_ms());
        let path = self.path(number);
        self.store.put_opts(&path, document(&own), mode.into()).await.map(drop)
    }

    fn own_since(&self, renewed_unix_ms: i64) -> LeaseHolder {
        LeaseHolder {
            renewed_unix_ms,
            ..(*self.own).clone()
        }
    }

    fn path(&self, number: u64) -> StorePath {
        self.folder.clone().join(format!("{number:0DIGITS$}.json"))
    }

    fn held(&self, holder: LeaseHolder, age: Duration) -> LeaseError {
        LeaseError::Held {
            lake: self.lake.clone(),
            holder,
            seconds: age.as_secs(),
        }
    }

    fn failed(&self, source: object_store::Error) -> LeaseError {
        LeaseError::Store {
            lake: self.lake.clone(),
            source,
        }
    }
}

#[derive(Default)]
struct LeaseListing {
    /// The highest number, and when the store last received it, in milliseconds since 1970.
    newest: Option<(u64, i64)>,
    older: Vec<StorePath>,
    others: BTreeMap<StorePath, i64>,
}

/// The holder of a lease that cannot be parsed.
fn unknown() -> LeaseHolder {
    LeaseHolder {
        id: String::new(),
        host: "another machine".to_owned(),
        process: 0,
        data_dir: "unknown".to_owned(),
        renewed_unix_ms: 0,
        is_released: false,
    }
}

fn document(holder: &LeaseHolder) -> PutPayload {
    // Serializing these fields cannot fail.
    Bytes::from(serde_json::to_vec(holder).unwrap_or_default()).into()
}

async fn renew(lease: std::sync::Weak<Lease>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(lease) = lease.upgrade() else { return };
        if lease.state.lock().number.is_none() || lease.state.lock().lost.is_some() {
            return;
        }
        lease.renew_once().await;
    }
}

#[cfg(test)]
mod tests;
