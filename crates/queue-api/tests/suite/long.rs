//! Large requests and answers do not hold up others: whoever has something to do on the same thread has its turn while they are
//! read and written.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use serde_json::json;
use thalweg_log::Durability;
use thalweg_log::disk::Ram;
use thalweg_queue::NewMessage;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

use crate::support::Server;

/// How often other tasks were polled, and how often of that within a poll of a request.
#[derive(Default)]
struct Turns {
    all: AtomicU64,
    within_requests: AtomicU64,
}

/// A request, and what happens on its thread while it is polled.
struct Polled<F> {
    request: Pin<Box<F>>,
    turns: Arc<Turns>,
}

impl<F: Future> Future for Polled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let before = self.turns.all.load(Ordering::SeqCst);
        let polled = self.request.as_mut().poll(context);
        let meanwhile = self.turns.all.load(Ordering::SeqCst) - before;
        self.turns.within_requests.fetch_add(meanwhile, Ordering::SeqCst);
        polled
    }
}

/// A listener with one thread, on which another task asks for its turn all the time.
fn busy() -> (Server, Arc<Turns>) {
    let turns = Arc::new(Turns::default());
    let watched = turns.clone();
    let layer = move |router: Router| {
        router.layer(from_fn(move |request: Request, next: Next| {
            let (turns, request) = (watched.clone(), Box::pin(next.run(request)));
            async move { Polled::<_> { request, turns }.await as Response }
        }))
    };
    let server = Server::on_one_thread(Arc::new(Ram::new(1 << 30)), layer);
    let asking = turns.clone();
    server.runtime.spawn(async move {
        loop {
            asking.all.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    (server, turns)
}

/// Some megabytes of messages, in memory, so that nothing but the text of answers takes long.
fn filled(server: &Server, messages: usize, bytes: usize) {
    let settings = QueueSettings {
        partitions: 1,
        durability: Some(Durability::Memory),
        max_bytes: 0,
        max_message_size: 24 << 20,
        groups: vec![GroupSettings::new("g", GroupMode::Work)],
        ..QueueSettings::default()
    };
    server.create_with("q", settings);
    let queue = server.queues.get("q").unwrap();
    server.runtime.block_on(async {
        for _ in 0..messages {
            queue.produce(NewMessage::of(vec![b'"'; bytes])).await.unwrap();
        }
    });
}

/// Within polls of this request. A machine that is busy may not get to the others in time, so it is tried again; a request
/// that holds them up never lets them.
fn turns_within(turns: &Turns, mut request: impl FnMut()) -> u64 {
    for _ in 0..5 {
        let before = turns.within_requests.load(Ordering::SeqCst);
        request();
        let within = turns.within_requests.load(Ordering::SeqCst) - before;
        if within > 0 {
            return within;
        }
    }
    0
}

#[test]
fn others_have_their_turn_while_a_large_answer_is_written() {
    for (messages, bytes) in [(400, 50_000), (1, 20 << 20)] {
        let (server, turns) = busy();
        filled(&server, messages, bytes);
        let first = server.first("q");
        let paths = ["/queues/q/messages?limit=1000".to_owned(), format!("/queues/q/messages/q:0:{first}")];
        for path in paths.iter().filter(|path| messages == 1 || path.contains("limit")) {
            let within = turns_within(&turns, || assert_eq!(server.get(path).status, 200));
            assert!(within > 0, "{path}, {messages} messages");
        }
        let within = turns_within(&turns, || {
            let claimed = server.claim_receipts("q", "g");
            assert!(!claimed.is_empty());
            let back: Vec<_> = claimed.iter().map(|receipt| json!({"r": receipt, "delay": "0s"})).collect();
            let path = "/queues/q/groups/g/settle";
            assert_eq!(server.post(path, &json!({"nack": back})).status, 200);
        });
        assert!(within > 0, "a claim of {messages} messages");
    }
}

#[test]
fn others_have_their_turn_while_a_large_batch_is_read() {
    for query in ["", "?atomic=false"] {
        let (server, turns) = busy();
        filled(&server, 0, 0);
        let line = format!("{{\"text\": \"{}\"}}\n", "\\u0041".repeat(400));
        let batch = line.repeat(9000);
        let within = turns_within(&turns, || {
            let path = format!("/queues/q/messages:batch{query}");
            let produced = server.send("POST", &path, &[], &batch);
            assert!([200, 201].contains(&produced.status), "{}", produced.status);
        });
        assert!(within > 0, "{query}");
    }
}
