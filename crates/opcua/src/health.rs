//! Decides when the input counts as connected: the first browse is complete, every connection is up, and at least one
//! item is currently monitored or read. Updates the flow's [`Connection`] and the metric together.

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_flow::Connection;
use thalweg_telemetry::IntGauge;

const NOTHING: &str = "no valid nodes selected";
const CREATING: &str = "creating monitored items";

/// Clones share the state.
#[derive(Clone)]
pub(crate) struct Health {
    inner: Arc<HealthInner>,
}

struct HealthInner {
    connection: Connection,
    gauge: IntGauge,
    state: Mutex<HealthState>,
}

struct HealthState {
    links: Vec<ConnectionState>,
    browsed: bool,
    served: bool,
    /// Why nothing is served although the browse is complete.
    unserved: String,
}

#[derive(Clone)]
enum ConnectionState {
    Down(String),
    Up,
}

impl Health {
    pub fn new(connection: Connection, gauge: IntGauge, links: usize) -> Health {
        let state = HealthState {
            links: vec![ConnectionState::Down("connecting".to_owned()); links],
            browsed: false,
            served: false,
            unserved: CREATING.to_owned(),
        };
        Health {
            inner: Arc::new(HealthInner {
                connection,
                gauge,
                state: Mutex::new(state),
            }),
        }
    }

    pub fn link_up(&self, link: usize) {
        self.change(|state| {
            if let Some(link) = state.links.get_mut(link) {
                *link = ConnectionState::Up;
            }
        });
    }

    /// An attempt to connect failed.
    pub fn link_failed(&self, link: usize, why: &str) {
        self.down(link, why);
        self.inner.connection.failed(why);
        self.inner.gauge.set(0);
    }

    /// An established connection was lost.
    pub fn link_lost(&self, link: usize, why: &str) {
        self.down(link, why);
        self.inner.connection.lost(why);
        self.inner.gauge.set(0);
    }

    fn down(&self, link: usize, why: &str) {
        if let Some(link) = self.inner.state.lock().links.get_mut(link) {
            *link = ConnectionState::Down(why.to_owned());
        }
    }

    pub fn browsed(&self) {
        self.change(|state| state.browsed = true);
    }

    /// An item is monitored or was read.
    pub fn served(&self) {
        if !self.inner.state.lock().served {
            self.change(|state| state.served = true);
        }
    }

    /// Takes the periodic counts of the node table: whether an item is monitored or read, and whether some are pending;
    /// otherwise `why` returns the server's objections.
    pub fn counted(&self, served: bool, pending: bool, why: impl FnOnce() -> Option<String>) {
        let unserved = match (served || pending, why) {
            (true, _) => CREATING.to_owned(),
            (false, why) => why().map_or_else(|| NOTHING.to_owned(), |why| format!("{NOTHING}: {why}")),
        };
        let is_known = {
            let state = self.inner.state.lock();
            state.served == served && state.unserved == unserved
        };
        if !is_known {
            self.change(|state| (state.served, state.unserved) = (served, unserved));
        }
    }

    fn change(&self, change: impl FnOnce(&mut HealthState)) {
        let mut state = self.inner.state.lock();
        change(&mut state);
        let down = state.links.iter().find_map(|link| match link {
            ConnectionState::Down(why) => Some(why.clone()),
            ConnectionState::Up => None,
        });
        let why_not = match (down, state.browsed, state.served) {
            (Some(why), _, _) => why,
            (None, false, _) => "browsing the server".to_owned(),
            (None, true, false) => state.unserved.clone(),
            (None, true, true) => {
                self.inner.gauge.set(1);
                return self.inner.connection.up();
            }
        };
        self.inner.gauge.set(0);
        self.inner.connection.progress(&why_not);
    }
}
