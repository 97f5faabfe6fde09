//! Measures the memory of an idle subscriber in this crate: its cursor and its pending events.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use axum::body::Body;
use axum::extract::Request;
use futures::StreamExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use thalweg_events::{DEFAULT, EmbeddedStore, EventsOptions, NewNamespace, Scopes, Store as _, Token};
use thalweg_events_api::{EventsApiOptions, EventsApiServer};
use thalweg_log::disk::RamDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_telemetry::Metrics;

const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";
const SUBSCRIBERS: i64 = 10_000;

struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: forwarded unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: forwarded unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_subscribers_take_little_each() {
    let settings = LogOptions {
        folder: "memory".to_owned(),
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    let log = EmbeddedLog::open(Arc::new(RamDisk::new(1 << 30)), 1, &settings).unwrap();
    let in_memory = EventsOptions {
        durability: Durability::Os,
        in_memory: true,
        indexes: None,
        index_memory: 64 << 20,
        keep_deleted: false,
        accept_loss: false,
    };
    let store = Arc::new(EmbeddedStore::open(Arc::new(log), in_memory).await.unwrap());
    let new = NewNamespace {
        name: DEFAULT.to_owned(),
        description: String::new(),
        metadata: None,
        digest: *Token::parse(TOKEN).unwrap().digest(),
        scopes: Scopes::ALL,
    };
    store.create(new).await.unwrap();
    let options = EventsApiOptions {
        test_mode: true,
        ..EventsApiOptions::default()
    };
    let server = EventsApiServer::new(store, options, Arc::new(Metrics::new(false)));
    let router = TowerToHyperService::new(server.router());
    let mut open = Vec::with_capacity(SUBSCRIBERS as usize);
    let before = HELD.load(Relaxed);
    for n in 0..SUBSCRIBERS {
        let query = match n % 3 {
            0 => "all=true".to_owned(),
            1 => "category=order&position=0".to_owned(),
            _ => format!("stream=order-{n}"),
        };
        let request = Request::get(format!("/subscribe?{query}")).body(Body::empty()).unwrap();
        let mut body = router.call(request).await.unwrap().into_body().into_data_stream();
        assert_eq!(&body.next().await.unwrap().unwrap()[..], b": ready\n\n");
        // From here on the subscriber sleeps until there is a message.
        assert!(futures::poll!(body.next()).is_pending());
        open.push(body);
    }
    let each = (HELD.load(Relaxed) - before) / SUBSCRIBERS;
    assert!(
        each < 8 << 10,
        "{each} bytes each; half of what a connection may take is for its buffers"
    );
}
