//! Databases of a real PostgreSQL: one server for all concurrent tests, with a database for each. The server ends with the last
//! test that uses it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

#[path = "../../crates/events-postgres/tests/suite/server.rs"]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]
pub mod server;

pub use server::Server;

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An empty database.
pub struct Database {
    server: Arc<Server>,
    name: String,
}

impl Database {
    /// Fails the test if PostgreSQL is missing.
    pub fn create() -> Database {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::start());
            *shared = Arc::downgrade(&server);
            server
        });
        drop(shared);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!("CREATE DATABASE {name}"));
        Database { server, name }
    }

    pub fn url(&self) -> String {
        self.server.url().replace("/postgres?", &format!("/{}?", self.name))
    }
}
