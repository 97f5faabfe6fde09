//! A message that is deleted while it waits for a client is not sent.

use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use futures::StreamExt as _;
use thalweg_events::Namespace as _;
use thalweg_events::test_double::{NamespaceDouble, StoreDouble};
use thalweg_events::token_text;
use thalweg_telemetry::Metrics;

use crate::{EventsApiOptions, EventsApiServer, subscribe};

async fn listen(double: &Arc<NamespaceDouble>, query: &str) -> BodyDataStream {
    let store = Arc::new(StoreDouble(double.clone()));
    let server = EventsApiServer::new(store, EventsApiOptions::default(), Arc::new(Metrics::new(false)));
    let token = token_text("default", [1; 32]);
    let request = Request::builder().uri(format!("/subscribe?{query}&token={token}"));
    let response = subscribe::answer(server, request.body(Body::empty()).unwrap()).await;
    let mut events = response.into_body().into_data_stream();
    assert_eq!(next(&mut events).await, ": ready\n\n");
    events
}

/// Nothing is read for the client before it asks.
async fn next(events: &mut BodyDataStream) -> String {
    let event = events.next().await.unwrap().unwrap();
    String::from_utf8(event.to_vec()).unwrap()
}

/// The id of the next message; gap events before it are skipped.
async fn next_id(events: &mut BodyDataStream) -> u64 {
    let mut event = next(events).await;
    while event.starts_with("event: gap") {
        event = next(events).await;
    }
    let id = event.split("\nid: ").nth(1).and_then(|rest| rest.split('\n').next());
    id.unwrap_or_else(|| panic!("{event}")).parse().unwrap()
}

const QUERIES: [&str; 3] = ["stream=a-1", "category=a", "all=true&catchup=true"];

#[tokio::test]
async fn of_a_page_that_was_read_from_the_store() {
    for query in QUERIES {
        let double = Arc::new(NamespaceDouble::new("default"));
        for _ in 0..8 {
            double.write("a-1", "T", None).await;
        }
        let mut events = listen(&double, &format!("{query}&data=true")).await;
        // By now a page has several messages.
        for global in 1..5 {
            assert_eq!(next_id(&mut events).await, global, "{query}");
        }
        for gone in [5, 6, 8] {
            double.hide(gone);
        }
        assert_eq!(next_id(&mut events).await, 7, "{query}");
        double.write("a-1", "T", None).await;
        assert_eq!(next_id(&mut events).await, 9, "{query}: what comes next");
    }
}

#[tokio::test]
async fn of_what_is_kept_for_all_who_listen() {
    for query in QUERIES {
        let double = Arc::new(NamespaceDouble::new("default"));
        let mut events = listen(&double, &format!("{query}&data=true")).await;
        double.write("a-1", "T", None).await;
        assert_eq!(next_id(&mut events).await, 1, "{query}");
        for _ in 0..6 {
            double.write("a-1", "T", None).await;
        }
        assert_eq!(next_id(&mut events).await, 2, "{query}");
        for gone in [3, 4, 7] {
            double.hide(gone);
        }
        assert_eq!(next_id(&mut events).await, 5, "{query}");
        assert_eq!(next_id(&mut events).await, 6, "{query}");
        double.write("a-1", "T", None).await;
        assert_eq!(next_id(&mut events).await, 8, "{query}: what comes next");
    }
}

#[tokio::test]
async fn of_a_namespace_that_is_cleared() {
    for query in QUERIES {
        let double = Arc::new(NamespaceDouble::new("default"));
        for _ in 0..8 {
            double.write("a-1", "T", None).await;
        }
        let mut events = listen(&double, &format!("{query}&data=true")).await;
        for global in 1..5 {
            assert_eq!(next_id(&mut events).await, global, "{query}");
        }
        double.clear().await.unwrap();
        double.write("a-2", "T", None).await;
        double.write("a-1", "T", None).await;
        let expected = if query.starts_with("stream") { 2 } else { 1 };
        assert_eq!(next_id(&mut events).await, expected, "{query}: it begins anew");
    }
}
