//! The event store over HTTP without the HTTP: its calls, a store in memory, and a clock that does not wait. It is made anew
//! after some inputs, so that what they leave behind takes no more and more memory.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use thalweg_events::json::compact;
use thalweg_events::{DEFAULT, EmbeddedStore, EventsOptions, NewNamespace, Scopes, Store, new_token};
use thalweg_events_api::{EventsApiOptions, EventsApiServer};
use thalweg_log::disk::RamDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_telemetry::Metrics;
use tokio::runtime::Runtime;

const INPUTS: u32 = 2000;
const FILE: u64 = 40 << 20;

struct Fuzzed {
    runtime: Runtime,
    server: Arc<EventsApiServer>,
    log: Arc<EmbeddedLog>,
    inputs: u32,
}

static FUZZED: Mutex<Option<Fuzzed>> = Mutex::new(None);

/// Does something with a server.
pub fn with<F: Future<Output = ()>>(work: impl FnOnce(Arc<EventsApiServer>) -> F) {
    let mut held = FUZZED.lock().unwrap_or_else(PoisonError::into_inner);
    if held.as_ref().is_some_and(|fuzzed| fuzzed.inputs >= INPUTS)
        && let Some(old) = held.take()
    {
        old.server.stop();
        drop(old.server);
        old.runtime.shutdown_background();
        old.log.close();
    }
    let fuzzed = held.get_or_insert_with(start);
    fuzzed.inputs += 1;
    fuzzed.runtime.block_on(work(fuzzed.server.clone()));
}

fn start() -> Fuzzed {
    // Nobody waits half a minute for a message that does not come.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("there is a runtime");
    let settings = LogOptions {
        folder: "memory".to_owned(),
        file_bytes: FILE,
        first_file_bytes: FILE,
        spare: 1,
        min_free_bytes: Some(0),
        tail_bytes_max: 0,
        ..LogOptions::default()
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(512 << 20)), 1, &settings).expect("a log opens"));
    let options = EventsOptions {
        durability: Durability::Os,
        in_memory: true,
        indexes: None,
        index_memory: 8 << 20,
    };
    let store = runtime.block_on(async {
        let store = EmbeddedStore::open(log.clone(), options).await.expect("a store opens");
        let (token, _) = new_token(DEFAULT).expect("there is chance");
        let default = NewNamespace {
            name: DEFAULT.to_owned(),
            description: String::new(),
            metadata: None,
            digest: *token.digest(),
            scopes: Scopes::ALL,
        };
        store.create(default).await.expect("a namespace is made");
        store
    });
    let options = EventsApiOptions {
        test_mode: true,
        ..EventsApiOptions::default()
    };
    Fuzzed {
        server: EventsApiServer::new(Arc::new(store), options, Arc::new(Metrics::new(false))),
        runtime,
        log,
        inputs: 0,
    }
}

/// JSON and a newline, and no failure of the server's own.
#[allow(dead_code, reason = "not every target has answers of calls")]
pub fn check(status: u16, body: &[u8]) {
    let text = String::from_utf8_lossy(body);
    assert!(matches!(status, 200 | 400 | 403 | 404 | 405 | 409), "{status} {text}");
    let json = body.strip_suffix(b"\n").expect("a newline ends every answer");
    let mut compacted = String::new();
    compact(json, &mut compacted).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(status == 200, !compacted.starts_with("{\"error\":"), "{status} {text}");
}
