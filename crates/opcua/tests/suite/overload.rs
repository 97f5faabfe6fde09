//! Servers for which creating items is too much or too early: checks the size of the calls afterwards.

use std::time::Duration;

use opcua::types::{CreateMonitoredItemsRequest, StatusCode};

use crate::harness::{Collector, Plant, SimulatorOptions, collect, open};
use crate::proxy::{self, Proxy, Verdict};

const PER_CALL: usize = 10;

/// A plant that accepts few items per call, and a proxy in front of it; `judge` decides on those calls by their number,
/// from 1.
async fn plant(tags: u32, mut judge: impl FnMut(usize) -> Verdict + Send + 'static) -> (Plant, Proxy) {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: tags,
        max_items_per_call: PER_CALL as u32,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let mut calls = 0;
    proxy.judge(move |request| {
        if request.kind != proxy::CREATE_ITEMS {
            return Verdict::Pass;
        }
        calls += 1;
        judge(calls)
    });
    (plant, proxy)
}

/// Returns the number of items of each call so far.
fn sizes(proxy: &Proxy) -> Vec<usize> {
    let calls = proxy.seen(proxy::CREATE_ITEMS);
    let items = calls.iter().map(|call| {
        let request: CreateMonitoredItemsRequest = call.decoded();
        request.items_to_create.map_or(0, |items| items.len())
    });
    items.collect()
}

/// Checks that all tags are monitored by one item each and send values.
async fn all_is_well(collector: &Collector, plant: &Plant, tags: u32) {
    collector.until_served(tags as usize).await;
    let there = async {
        while plant.monitored_items().await != u64::from(tags) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), there).await.unwrap();
    collector.forget();
    collector
        .until("values of all tags", |c| c.latest().len() == tags as usize)
        .await;
    assert_eq!(collector.metric("items_failed"), 0.0);
}

/// The server never responds to one of the calls. It is unknown whether its items exist, so all items of its
/// subscription are recreated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_not_answered_makes_calls_smaller_and_they_grow_again() {
    const TAGS: u32 = 700;
    let (plant, proxy) = plant(TAGS, |call| match call {
        3 => Verdict::Swallow,
        _ => Verdict::Pass,
    })
    .await;
    let collector = collect(&proxy.endpoint(), "subscribeEnabled: true").await;
    // All items are then queued at once, so no call is small because only few are queued yet.
    let grew_again = |sizes: &[usize]| {
        let mut alike = sizes.chunk_by(|a, b| a == b);
        let halved = alike.any(|calls| calls.first() == Some(&(PER_CALL / 2)) && calls.len() >= 64);
        halved && alike.any(|calls| calls.first() == Some(&PER_CALL))
    };
    collector
        .until("many smaller calls, and larger ones again", |_| {
            grew_again(&sizes(&proxy))
        })
        .await;
    all_is_well(&collector, &plant, TAGS).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_halted_for_a_while_gets_the_same_calls_again() {
    const TAGS: u32 = 200;
    let (plant, proxy) = plant(TAGS, |call| match call {
        3..=8 => Verdict::Refuse(StatusCode::BadServerHalted),
        _ => Verdict::Pass,
    })
    .await;
    let collector = collect(&proxy.endpoint(), "subscribeEnabled: true").await;
    all_is_well(&collector, &plant, TAGS).await;
    let sizes = sizes(&proxy);
    let (refused, after) = (&sizes[2..8], &sizes[8..]);
    let asked = TAGS as usize + refused.iter().sum::<usize>();
    assert_eq!(sizes.iter().sum::<usize>(), asked, "{sizes:?}");
    assert!(after.contains(&PER_CALL), "{sizes:?}");
    assert_eq!(collector.metric("reconnects_total"), 0.0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_gone_while_items_are_created_is_made_anew() {
    const TAGS: u32 = 200;
    let (plant, proxy) = plant(TAGS, |call| match call {
        6 => Verdict::Refuse(StatusCode::BadSessionIdInvalid),
        _ => Verdict::Pass,
    })
    .await;
    let collector = collect(&proxy.endpoint(), "subscribeEnabled: true").await;
    collector
        .until("a connection again", |c| c.metric("reconnects_total") >= 1.0)
        .await;
    all_is_well(&collector, &plant, TAGS).await;
    // During the browse only few may be queued at a time; in the new session all are queued at once.
    let sizes = sizes(&proxy);
    let largest = sizes.iter().rev().take(TAGS as usize / PER_CALL / 2).max();
    assert_eq!(largest, Some(&PER_CALL), "{sizes:?}");
    collector.stop().await;
    plant.stop().await;
}
