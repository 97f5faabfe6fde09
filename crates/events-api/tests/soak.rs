//! Creates, uses and removes namespaces, tokens, subscriptions, streams, rules, snapshots and subscribers again and
//! again; nothing of them must stay in memory. A separate program, because it counts the live bytes of the process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../src/rpc/methods.rs"]
mod methods;

use std::alloc::System;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_events::{DEFAULT, EmbeddedStore, EventsOptions, NewNamespace, Scopes, Store as _, Token};
use thalweg_events_api::{EventsApiOptions, EventsApiServer};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_telemetry::Metrics;
use thalweg_telemetry::alloc::{CountingAllocator, live};
use thalweg_tests::Api;
use thalweg_tests::soak::{Kind, covers, soak};
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);

const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";
const SUBSCRIBE: &str = "GET /subscribe";

const KINDS: &[Kind<Scene>] = &[
    Kind {
        name: "a namespace with one of everything",
        requests: &["ns.create", "ns.delete"],
        leaves_bytes: 0,
        round: namespace,
    },
    Kind {
        name: "a token",
        requests: &["token.create", "token.revoke"],
        leaves_bytes: 0,
        round: token,
    },
    Kind {
        name: "a token that ends",
        requests: &["token.create"],
        leaves_bytes: 0,
        round: token_that_ends,
    },
    Kind {
        name: "a persistent subscription",
        requests: &[
            "sub.create",
            "sub.update",
            "sub.delete",
            "sub.fetch",
            "sub.ack",
            "sub.nack",
            "sub.replay",
            "sub.reset",
        ],
        leaves_bytes: 0,
        round: subscription,
    },
    Kind {
        name: "a stream",
        requests: &["stream.write", "stream.append", "stream.appendMany", "stream.delete"],
        leaves_bytes: 0,
        round: stream,
    },
    Kind {
        name: "a rule",
        requests: &["retention.set"],
        leaves_bytes: 0,
        round: rule,
    },
    Kind {
        name: "a snapshot",
        requests: &["snapshot.put"],
        leaves_bytes: 0,
        round: snapshot,
    },
    Kind {
        name: "a subscriber",
        requests: &[SUBSCRIBE],
        leaves_bytes: 0,
        round: subscriber,
    },
];

const MAKES_NOTHING: [&str; 19] = [
    "stream.get",
    "stream.last",
    "stream.version",
    "category.get",
    "message.get",
    "ns.list",
    "ns.info",
    "ns.streams",
    "ns.categories",
    "token.list",
    "retention.get",
    "sub.list",
    "sub.info",
    "sub.parked",
    "snapshot.get",
    "sys.version",
    "sys.health",
    "sys.scavenge",
    "sys.verify",
];

struct Scene {
    api: Api,
    store: Arc<EmbeddedStore>,
    runtime: Runtime,
}

impl Scene {
    fn new(folder: &Path) -> Scene {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let disk = |name: &str| {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            Arc::new(FolderDisk::open(&folder).unwrap())
        };
        let settings = LogOptions {
            file_bytes: 4 << 20,
            first_file_bytes: 1 << 20,
            min_free_bytes: Some(0),
            spare: 1,
            // The read cache grows up to its limit whatever is removed.
            tail_bytes_max: 0,
            index_bytes_max: 64 << 10,
            ..LogOptions::default()
        };
        let log = EmbeddedLog::open(disk("log"), 1, &settings).unwrap();
        let options = EventsOptions {
            durability: Durability::Os,
            in_memory: false,
            indexes: Some(disk("events")),
            index_memory: 4 << 20,
            keep_deleted: false,
            accept_loss: false,
        };
        let store = runtime.block_on(EmbeddedStore::open(Arc::new(log), options)).unwrap();
        let store = Arc::new(store);
        let new = NewNamespace {
            name: DEFAULT.to_owned(),
            description: String::new(),
            metadata: None,
            digest: *Token::parse(TOKEN).unwrap().digest(),
            scopes: Scopes::ALL,
        };
        runtime.block_on(store.create(new)).unwrap();
        let server = {
            // The server spawns tasks.
            let _within = runtime.enter();
            EventsApiServer::new(
                store.clone(),
                EventsApiOptions::default(),
                Arc::new(Metrics::new(false)),
            )
        };
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let api = Api::at_root(&listener.local_addr().unwrap().to_string()).with_token(TOKEN);
        let router = server.router();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Scene { api, store, runtime }
    }

    fn call(&self, call: Value) -> Value {
        called(&self.api, call)
    }

    /// Flushes the index memory first, as happens by itself once it is large enough.
    fn live(&self) -> u64 {
        self.runtime.block_on(self.store.flush_indexes()).unwrap();
        live()
    }
}

fn called(api: &Api, call: Value) -> Value {
    let answer = api.send("POST", "/rpc", &[], &call.to_string());
    assert_eq!(answer.status, 200, "{call}: {answer:?}");
    answer.json
}

fn message(number: u64) -> Value {
    json!({"type": "T", "data": {"n": number, "text": "x".repeat(200)}})
}

/// Subscribes for a moment.
fn listen(api: &Api, query: &str) {
    let mut response = api.open("GET", &format!("/subscribe?{query}"), &[], "").unwrap();
    assert_eq!(response.status(), 200, "{query}");
    let mut first = [0; 9];
    response.body_mut().as_reader().read_exact(&mut first).unwrap();
    assert_eq!(&first, b": ready\n\n");
}

fn leases(fetched: &Value) -> Vec<Value> {
    let messages = fetched.as_array().unwrap().iter();
    messages.map(|one| one["lease"].clone()).collect()
}

fn namespace(scene: &Scene, number: u64) {
    let name = format!("n-{number}");
    let made = scene.call(json!(["ns.create", name, {"description": "for a while"}]));
    let api = scene.api.with_token(made["token"].as_str().unwrap());
    let call = |call: Value| called(&api, call);
    for n in 0..5 {
        call(json!(["stream.write", format!("a-{n}"), message(n)]));
    }
    scene.call(json!(["token.create", name, {"scopes": ["read"]}]));
    call(json!(["sub.create", "s", {"category": "a"}]));
    let fetched = call(json!(["sub.fetch", "s", {"max": 3}]));
    call(json!(["sub.nack", "s", leases(&fetched), {"action": "park"}]));
    call(json!(["snapshot.put", "a-1", {"version": 0, "type": "T", "data": {}}]));
    call(json!(["retention.set", {"category": "a"}, {"maxCount": 1000}]));
    call(json!(["stream.delete", "a-2"]));
    listen(&api, "all=true");
    scene.call(json!(["ns.info", name]));
    scene.call(json!(["ns.delete", name]));
}

fn token(scene: &Scene, _: u64) {
    let made = scene.call(json!(["token.create", DEFAULT, {"scopes": ["read"], "description": "for a while"}]));
    called(
        &scene.api.with_token(made["token"].as_str().unwrap()),
        json!(["stream.version", "a-1"]),
    );
    scene.call(json!(["token.revoke", DEFAULT, made["id"]]));
}

fn token_that_ends(scene: &Scene, number: u64) {
    const LIVES: Duration = Duration::from_secs(2);
    let ends = thalweg_events::time::now() + LIVES.as_micros() as i64;
    let ends = thalweg_events::time::text(ends);
    scene.call(json!(["token.create", DEFAULT, {"scopes": ["read"], "expiresAt": ends}]));
    // Lets some of the tokens expire.
    if number % 50 == 49 {
        std::thread::sleep(LIVES);
    }
}

fn subscription(scene: &Scene, number: u64) {
    let name = format!("s-{number}");
    let place = scene.call(json!(["stream.write", "work-1", message(number)]));
    let from = place["globalPosition"].as_u64().unwrap();
    scene.call(json!(["sub.create", name, {"category": "work", "from": from}]));
    let fetched =
        scene.call(json!(["sub.fetch", name, {"consumer": format!("c-{number}"), "max": 10, "waitMs": 5000}]));
    scene.call(json!(["sub.nack", name, leases(&fetched), {"action": "park", "reason": format!("{number}")}]));
    scene.call(json!(["sub.replay", name]));
    let fetched = scene.call(json!(["sub.fetch", name, {"max": 10}]));
    scene.call(json!(["sub.ack", name, leases(&fetched)]));
    scene.call(json!(["sub.update", name, {"maxAttempts": 7}]));
    scene.call(json!(["sub.reset", name, {"from": "end"}]));
    scene.call(json!(["sub.delete", name]));
}

fn stream(scene: &Scene, number: u64) {
    let name = format!("stream-{number}");
    scene.call(json!(["stream.write", name, message(number)]));
    scene.call(json!(["stream.append", name, [message(number), message(number)]]));
    scene.call(json!(["stream.appendMany", [{"stream": name, "messages": [message(number)]}]]));
    scene.call(json!(["stream.delete", name]));
}

fn rule(scene: &Scene, number: u64) {
    let target = json!({"category": format!("rule{number}")});
    scene.call(json!(["retention.set", target, {"maxCount": 10}]));
    scene.call(json!(["retention.set", target, null]));
}

fn snapshot(scene: &Scene, number: u64) {
    let snapshot = json!({"version": number, "type": "T", "data": {"text": "x".repeat(1000)}});
    scene.call(json!(["snapshot.put", "snapshot-1", snapshot]));
}

fn subscriber(scene: &Scene, number: u64) {
    let query = match number % 3 {
        0 => "all=true".to_owned(),
        1 => format!("category=c{number}&data=true"),
        _ => format!("stream=s-{number}"),
    };
    listen(&scene.api, &query);
}

/// The only test of the program: a second one would be counted too.
#[test]
fn every_call_has_its_soak_and_nothing_is_left_in_memory_of_what_is_removed() {
    covers(KINDS, &MAKES_NOTHING, methods::METHODS.into_iter().chain([SUBSCRIBE]));
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::new(folder.path());
    soak(&scene, KINDS, || scene.live());
}
