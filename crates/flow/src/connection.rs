//! Whether data can flow at one end of a flow, with its counters, its log lines and the details that the component
//! shows.
//!
//! Every component reports its connection here, and this module logs it, so that none can stall silently: a failure
//! immediately, an ongoing outage once a minute, and its end.

mod outage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use thalweg_kit::clock;
use thalweg_telemetry::{IntCounter, StatusDetail};

use self::outage::{Outage, OutageLogLine};
use crate::component::Component;
use crate::metrics::ConnectionCounters;

/// Clones share their state. A component with children is connected while all of them are.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<ConnectionInner>,
}

struct ConnectionInner {
    component: Component,
    connected: AtomicBool,
    why_not: RwLock<String>,
    outage: Mutex<Outage>,
    details: RwLock<Option<DetailsFn>>,
    children: RwLock<Vec<(Component, Connection)>>,
    up: IntCounter,
    failed: IntCounter,
    lost: IntCounter,
}

type DetailsFn = Arc<dyn Fn() -> Vec<StatusDetail> + Send + Sync>;

/// What failed, as the beginning of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionFailure {
    Connect,
    Lost,
    Open,
    Write,
}

impl ConnectionFailure {
    fn text(self) -> &'static str {
        match self {
            ConnectionFailure::Connect => "cannot connect",
            ConnectionFailure::Lost => "connection lost",
            ConnectionFailure::Open => "cannot open",
            ConnectionFailure::Write => "write failed",
        }
    }
}

impl Connection {
    /// `counters` are those of an input, a buffer or an output.
    pub(crate) fn new(component: &Component, counters: &ConnectionCounters) -> Connection {
        let [up, failed, lost] = counters;
        Connection {
            inner: Arc::new(ConnectionInner {
                connected: AtomicBool::new(false),
                why_not: RwLock::new("starting".to_owned()),
                outage: Mutex::default(),
                details: RwLock::new(None),
                children: RwLock::default(),
                up: component.counter(up),
                failed: component.counter(failed),
                lost: component.counter(lost),
                component: component.clone(),
            }),
        }
    }

    /// Data can flow. Counts a connection if it could not before.
    pub fn up(&self) {
        if !self.inner.connected.swap(true, Ordering::Relaxed) {
            self.inner.up.inc();
            let line = self.inner.outage.lock().ended(clock::now());
            self.log(line);
        }
    }

    /// A connection attempt failed and will be retried. `why` is logged and shown by `/ready`.
    pub fn failed(&self, why: &str) {
        self.inner.failed.inc();
        self.trouble(ConnectionFailure::Connect, why);
    }

    /// An attempt to open the destination failed and will be retried.
    pub(crate) fn open_failed(&self, why: &str) {
        self.inner.failed.inc();
        self.trouble(ConnectionFailure::Open, why);
    }

    /// Data cannot flow at the moment. Counts a loss if it could before.
    pub fn lost(&self, why: &str) {
        self.count_loss();
        self.trouble(ConnectionFailure::Lost, why);
    }

    /// A write failed and will be retried.
    pub(crate) fn write_failed(&self, why: &str) {
        self.count_loss();
        self.trouble(ConnectionFailure::Write, why);
    }

    /// Data will not flow any more. The caller logs the reason.
    pub fn given_up(&self, why: &str) {
        match self.inner.connected.load(Ordering::Relaxed) {
            true => self.inner.lost.inc(),
            false => self.inner.failed.inc(),
        }
        *self.inner.outage.lock() = Outage::default();
        self.down(why);
    }

    /// The connection is still being made; `why` says how far it is.
    pub fn progress(&self, why: &str) {
        self.down(why);
    }

    fn count_loss(&self) {
        if self.inner.connected.load(Ordering::Relaxed) {
            self.inner.lost.inc();
        }
    }

    fn trouble(&self, trouble: ConnectionFailure, why: &str) {
        self.down(why);
        let line = self.inner.outage.lock().failed(trouble, why, clock::now());
        self.log(line);
    }

    /// Logs an ongoing outage. To be called about every second.
    pub(crate) fn remind(&self) {
        let line = self.inner.outage.lock().remind(clock::now());
        self.log(line);
    }

    fn log(&self, line: Option<OutageLogLine>) {
        let component = self.inner.component.title();
        match line {
            None => {}
            Some(OutageLogLine::Ended(text)) => tracing::info!(component, "{text}"),
            Some(OutageLogLine::Trouble { text, more: 0 }) => tracing::warn!(component, "{text}"),
            Some(OutageLogLine::Trouble { text, more }) => tracing::warn!(component, more_like_it = more, "{text}"),
        }
    }

    fn down(&self, why: &str) {
        self.inner.connected.store(false, Ordering::Relaxed);
        *self.inner.why_not.write() = why.to_owned();
    }

    pub fn is_up(&self) -> bool {
        self.why_not().is_none()
    }

    /// Why data cannot flow; `None` if it can.
    pub fn why_not(&self) -> Option<String> {
        let children = self.inner.children.read();
        let down = children
            .iter()
            .find_map(|(component, child)| Some(format!("{}: {}", component.title(), child.why_not()?)));
        down.or_else(|| self.own_trouble())
    }

    /// As [`Connection::why_not`], but `None` if a child is down, because the child reports it itself.
    pub(crate) fn told_here(&self) -> Option<String> {
        let children = self.inner.children.read();
        if children.iter().any(|(_, child)| !child.is_up()) {
            return None;
        }
        self.own_trouble()
    }

    fn own_trouble(&self) -> Option<String> {
        let connected = self.inner.connected.load(Ordering::Relaxed);
        (!connected).then(|| self.inner.why_not.read().clone())
    }

    /// From now on this connection is up only while its children are up too.
    pub(crate) fn follow(&self, children: Vec<(Component, Connection)>) {
        *self.inner.children.write() = children;
    }

    /// Sets the details that the console and the terminal show of this component; called about once per second.
    pub fn show(&self, details: impl Fn() -> Vec<StatusDetail> + Send + Sync + 'static) {
        *self.inner.details.write() = Some(Arc::new(details));
    }

    pub fn details(&self) -> Vec<StatusDetail> {
        let details = self.inner.details.read().clone();
        details.map(|details| details()).unwrap_or_default()
    }
}
