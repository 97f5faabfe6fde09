//! Calls that are cut off, rejected, late or answered wrongly: whatever is lost is repeated, and nothing is done twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opcua::types::{
    BrowseRequest, BrowseResponse, ByteString, CallResponse, CreateMonitoredItemsRequest, DeleteMonitoredItemsRequest,
    StatusCode, VariableId, Variant,
};

use crate::harness::{Collector, Plant, SimulatorOptions, collect, collect_retrying, is_unbroken, meta, open};
use crate::proxy::{self, Fate, Proxy, Verdict, decode, encode};

const SUBSCRIBE: &str = "subscribeEnabled: true";

/// Waits until every tag has sent a new value.
async fn values_of_all(collector: &Collector, tags: usize) {
    collector.forget();
    collector
        .until("values of all tags", |c| c.latest().len() == tags)
        .await;
}

async fn until_items(plant: &Plant, items: u64) {
    let there = async {
        while plant.monitored_items().await != items {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), there).await.unwrap();
}

async fn behind_a_proxy(options: SimulatorOptions) -> (Plant, Proxy) {
    let plant = Plant::start(options).await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    (plant, proxy)
}

/// The connection ends before the nth request, for every n from the first login to values, and again during the
/// reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_before_any_request_is_got_over() {
    let plant = Plant::start(open()).await;
    let mut tests = tokio::task::JoinSet::new();
    for first in 1..=14 {
        let endpoint = plant.endpoint();
        tests.spawn(async move {
            let proxy = Proxy::start(&endpoint).await;
            proxy.judge(move |request| match request.number == first {
                true => Verdict::Cut,
                false => Verdict::Pass,
            });
            let collector = collect(&proxy.endpoint(), SUBSCRIBE).await;
            collector.until_served(10).await;
            // Cuts again during the reconnect.
            let next = proxy.requests() + first;
            proxy.judge(move |request| match request.number == next {
                true => Verdict::Cut,
                false => Verdict::Pass,
            });
            proxy.cut();
            collector
                .until("a connection again", |c| {
                    c.metric("reconnects_total") >= 1.0 && c.not_ready().is_none()
                })
                .await;
            values_of_all(&collector, 10).await;
            assert_eq!(collector.metric("items_monitored"), 10.0);
            collector.stop().await;
        });
    }
    while let Some(ended) = tests.join_next().await {
        ended.unwrap();
    }
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_logins_and_then_hangs_up_is_asked_ever_less_often() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    proxy.judge(|request| match request.kind == proxy::READ {
        true => Verdict::Cut,
        false => Verdict::Pass,
    });
    let collector = collect(&proxy.endpoint(), SUBSCRIBE).await;
    let logins = || proxy.seen(proxy::ACTIVATE_SESSION).len();
    collector.until("a second attempt", |_| logins() >= 2).await;
    // How often something is done shows only over some time.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(logins() <= 5, "{} logins in two seconds", logins());
    proxy.judge(|_| Verdict::Pass);
    collector.until_served(10).await;
    collector.stop().await;
    plant.stop().await;
}

/// The subscription ends while the flow is full. All waiting requests report it; it is recreated once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_ends_while_the_flow_is_full_is_made_anew_once() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 2000,
        fast_rate: 0.05,
        ..open()
    })
    .await;
    let fields = "subscribeEnabled: true, publishingInterval: 50, keepAliveCount: 2, publishRequests: 8";
    let collector = collect(&plant.endpoint(), fields).await;
    collector.until_served(2000).await;
    collector.gate.send(false).unwrap();
    collector
        .until("no request left", |c| c.metric("publish_in_flight") == 0.0)
        .await;
    // Its lifetime is one second.
    let ended = async {
        while plant.monitored_items().await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    ended.expect("the subscription ends");
    collector.gate.send(true).unwrap();
    collector
        .until("the items anew", |c| {
            c.labelled("gaps_total", "reason=\"recreated\"") >= 1.0
        })
        .await;
    values_of_all(&collector, 2000).await;
    values_of_all(&collector, 2000).await;
    assert_eq!(collector.labelled("gaps_total", "reason=\"recreated\""), 1.0);
    assert_eq!(collector.detail("subscriptions"), "1");
    assert_eq!(plant.monitored_items().await, 2000);
    assert_eq!(collector.metric("reconnects_total"), 0.0);
    collector.stop().await;
    plant.stop().await;
}

/// A server that responds to many requests that there is no subscription: the first response recreates it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_refusals_of_one_loss_are_one_loss() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let collector = collect(&proxy.endpoint(), "subscribeEnabled: true, publishRequests: 8").await;
    collector.until_served(10).await;
    // All requests up to the next subscription are rejected, including those already waiting.
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    proxy.tell(move |request, _| match request.kind {
        proxy::PUBLISH if count.fetch_add(1, Ordering::SeqCst) < 8 => {
            let fault = opcua::types::PublishResponse {
                response_header: opcua::types::ResponseHeader::new_service_result(
                    &request.decoded::<opcua::types::RequestHeader>(),
                    StatusCode::BadNoSubscription,
                ),
                ..Default::default()
            };
            Fate::Change(encode(&fault))
        }
        _ => Fate::Pass,
    });
    collector
        .until("all refused", |_| refused.load(Ordering::SeqCst) > 8)
        .await;
    values_of_all(&collector, 10).await;
    assert!(collector.labelled("gaps_total", "reason=\"recreated\"") >= 1.0);
    let made = proxy.seen(proxy::CREATE_SUBSCRIPTION).len();
    assert!(made <= 3, "{made} subscriptions were made");
    assert_eq!(
        (
            collector.detail("subscriptions").as_str(),
            plant.monitored_items().await
        ),
        ("1", 10)
    );
    collector.stop().await;
    plant.stop().await;
}

/// Holds the first response that creates items until it is released. Counts all of them.
fn hold_the_first_creation(proxy: &Proxy) -> Arc<AtomicUsize> {
    let held = Arc::new(AtomicUsize::new(0));
    let count = held.clone();
    proxy.tell(move |request, _| match request.kind {
        proxy::CREATE_ITEMS if count.fetch_add(1, Ordering::SeqCst) == 0 => Fate::Hold,
        _ => Fate::Pass,
    });
    held
}

/// The response that creates items arrives after their subscription was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_says_nothing_about_the_subscription_that_took_the_place() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let held = hold_the_first_creation(&proxy);
    let fields = "subscribeEnabled: true, publishingInterval: 50, keepAliveCount: 10";
    let collector = collect(&proxy.endpoint(), fields).await;
    collector
        .until("a call that waits", |_| held.load(Ordering::SeqCst) == 1)
        .await;
    let mut refused = false;
    proxy.judge(move |request| match request.kind {
        proxy::PUBLISH if !std::mem::replace(&mut refused, true) => Verdict::Refuse(StatusCode::BadNoSubscription),
        _ => Verdict::Pass,
    });
    collector
        .until("another subscription", |_| {
            proxy.seen(proxy::CREATE_SUBSCRIPTION).len() == 2
        })
        .await;
    proxy.release();
    collector.until_served(10).await;
    values_of_all(&collector, 10).await;
    assert_eq!(plant.monitored_items().await, 10);
    collector.stop().await;
    plant.stop().await;
}

/// The heartbeat's item is given up while its creation is in flight; it must not stay on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_is_created_too_late_is_deleted() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    hold_the_first_creation(&proxy);
    let fields = "subscribeEnabled: true, useHeartbeat: true, nodeIDs: [\"ns=3;s=OpcPlc\", \"i=2258\"]";
    let collector = collect(&proxy.endpoint(), fields).await;
    collector.until("browse", |c| c.metric("browse_done") == 1.0).await;
    proxy.release();
    collector.until_served(11).await;
    collector
        .until("the deletion", |_| {
            let deleted = proxy.seen(proxy::DELETE_ITEMS);
            deleted.iter().any(|request| {
                let ids = request.decoded::<DeleteMonitoredItemsRequest>().monitored_item_ids;
                ids.is_some_and(|ids| ids.len() == 1)
            })
        })
        .await;
    values_of_all(&collector, 11).await;
    assert_eq!(plant.monitored_items().await, 11);
    collector.stop().await;
    plant.stop().await;
}

/// A server with few continuation points, and one that loses all of them: every folder is browsed in a single response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_divide_an_answer_is_asked_for_the_whole() {
    for status in [
        StatusCode::BadNoContinuationPoints,
        StatusCode::BadContinuationPointInvalid,
    ] {
        let (plant, proxy) = behind_a_proxy(SimulatorOptions { wide: 300, ..open() }).await;
        proxy.tell(move |request, body| {
            if request.kind != proxy::BROWSE {
                return Fate::Pass;
            }
            let asked: BrowseRequest = request.decoded();
            let mut answer: BrowseResponse = decode(body);
            if asked.requested_max_references_per_node == 0 {
                return Fate::Pass;
            }
            for result in answer.results.iter_mut().flatten() {
                if result
                    .references
                    .as_ref()
                    .is_some_and(|references| references.len() > 100)
                {
                    result.status_code = status;
                    result.references = None;
                    result.continuation_point = ByteString::null();
                }
            }
            Fate::Change(encode(&answer))
        });
        let collector = collect(&proxy.endpoint(), SUBSCRIBE).await;
        collector.until_served(310).await;
        assert_eq!(collector.metric("browse_errors_total"), 0.0);
        collector.stop().await;
        plant.stop().await;
    }
}

/// If that fails as well, the folder counts as failed and the rest is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_browsed_ends_the_browse_for_nobody_else() {
    let (plant, proxy) = behind_a_proxy(SimulatorOptions { wide: 300, ..open() }).await;
    let broken = Arc::new(AtomicUsize::new(1));
    let is_broken = broken.clone();
    proxy.tell(move |request, body| {
        if request.kind != proxy::BROWSE || is_broken.load(Ordering::SeqCst) == 0 {
            return Fate::Pass;
        }
        let mut answer: BrowseResponse = decode(body);
        for result in answer.results.iter_mut().flatten() {
            if result
                .references
                .as_ref()
                .is_some_and(|references| references.len() > 100)
            {
                result.status_code = StatusCode::BadNoContinuationPoints;
                result.references = None;
            }
        }
        Fate::Change(encode(&answer))
    });
    let collector = collect_retrying(&proxy.endpoint(), SUBSCRIBE).await;
    collector.until_served(10).await;
    let failures = collector.get("/api/v1/opcua/failures").await;
    assert_eq!(
        (failures["total"].as_u64(), &failures["items"][0]["what"]),
        (Some(1), &"browse".into())
    );
    broken.store(0, Ordering::SeqCst);
    collector.until_served(310).await;
    collector.stop().await;
    plant.stop().await;
}

/// One node whose value is too large for a response fails; the others are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polled_node_that_is_too_large_fails_alone_and_is_tried_again() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let broken = Arc::new(AtomicUsize::new(0));
    let is_broken = broken.clone();
    proxy.judge(move |request| {
        let concerned = request.kind == proxy::READ && request.names("FastUInt3");
        match concerned && is_broken.load(Ordering::SeqCst) == 1 {
            true => Verdict::Refuse(StatusCode::BadResponseTooLarge),
            false => Verdict::Pass,
        }
    });
    let collector = collect_retrying(&proxy.endpoint(), "pollRate: 50").await;
    collector.until_served(10).await;
    values_of_all(&collector, 10).await;
    broken.store(1, Ordering::SeqCst);
    collector
        .until("the failure", |c| {
            (c.metric("items_failed"), c.metric("items_polled")) == (1.0, 9.0)
        })
        .await;
    let failures = collector.get("/api/v1/opcua/failures").await;
    assert_eq!(
        (failures["total"].as_u64(), &failures["items"][0]["what"]),
        (Some(1), &"read".into())
    );
    values_of_all(&collector, 9).await;
    broken.store(0, Ordering::SeqCst);
    collector.forget();
    collector.until("it again", |c| c.metric("items_polled") == 10.0).await;
    collector
        .until("its values", |c| !c.of("ns=3;s=FastUInt3").is_empty())
        .await;
    let first = collector.of("ns=3;s=FastUInt3").remove(0);
    assert_eq!(meta(&first, "opcua_gap"), "true");
    assert!(meta(&first, "opcua_gap_from") < meta(&first, "opcua_gap_to"));
    assert!(collector.labelled("gaps_total", "reason=\"poll_skipped\"") >= 1.0);
    collector.stop().await;
    plant.stop().await;
}

/// After every connection loss the server's own list of items is compared with the expected one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_that_the_server_has_lost_or_has_twice_are_put_right_after_a_cut() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let collector = collect(&proxy.endpoint(), SUBSCRIBE).await;
    collector.until_served(10).await;
    let reconnects = |c: &Collector| c.metric("reconnects_total");
    // The server pretends not to have the first three.
    proxy.tell(|request, body| {
        if request.kind != proxy::CALL {
            return Fate::Pass;
        }
        let mut answer: CallResponse = decode(body);
        for output in answer
            .results
            .iter_mut()
            .flatten()
            .flat_map(|result| result.output_arguments.iter_mut().flatten())
        {
            if let Variant::Array(array) = output {
                array.values.drain(..3);
            }
        }
        Fate::Change(encode(&answer))
    });
    proxy.cut();
    collector.until("a connection", |c| reconnects(c) >= 1.0).await;
    collector
        .until("three more", |c| {
            c.labelled("gaps_total", "reason=\"recreated\"") >= 1.0 && c.not_ready().is_none()
        })
        .await;
    values_of_all(&collector, 10).await;
    until_items(&plant, 13).await;
    // Now there really are three too many.
    proxy.tell(|_, _| Fate::Pass);
    proxy.cut();
    collector.until("a connection", |c| reconnects(c) >= 2.0).await;
    until_items(&plant, 10).await;
    values_of_all(&collector, 10).await;
    values_of_all(&collector, 10).await;
    let values = collector.values_of("ns=3;s=FastUInt1");
    assert!(is_unbroken(&values), "{values:?}");
    assert_eq!(collector.metric("items_monitored"), 10.0);
    collector.stop().await;
    plant.stop().await;
}

/// Values of unknown subscriptions and items are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_a_subscription_that_nobody_knows_are_counted_and_ended() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let collector = collect(&proxy.endpoint(), SUBSCRIBE).await;
    collector.until_served(10).await;
    let mut changed = false;
    proxy.tell(move |request, body| {
        // The response begins with its header: time, handle, status, no diagnostics, no texts, no additional header.
        const SUBSCRIPTION_ID: usize = 8 + 4 + 4 + 1 + 4 + 3;
        if request.kind != proxy::PUBLISH || body.len() < 200 || std::mem::replace(&mut changed, true) {
            return Fate::Pass;
        }
        let mut body = body.to_vec();
        body[SUBSCRIPTION_ID..SUBSCRIPTION_ID + 4].copy_from_slice(&77_777_u32.to_le_bytes());
        Fate::Change(body)
    });
    collector
        .until("the count", |c| {
            c.labelled("values_discarded_total", "reason=\"unknown_subscription\"") >= 1.0
        })
        .await;
    values_of_all(&collector, 10).await;
    collector.stop().await;
    plant.stop().await;
}

/// The server responds to everything but publishes nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_falls_silent_is_made_anew() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let fields = "subscribeEnabled: true, publishingInterval: 50, keepAliveCount: 5";
    let collector = collect(&proxy.endpoint(), fields).await;
    collector.until_served(10).await;
    values_of_all(&collector, 10).await;
    proxy.judge(|request| match request.kind {
        proxy::PUBLISH => Verdict::Swallow,
        _ => Verdict::Pass,
    });
    // A new connection does not help; the second time the subscription counts as lost.
    collector
        .until("two reconnects", |c| c.metric("reconnects_total") >= 2.0)
        .await;
    proxy.judge(|_| Verdict::Pass);
    collector
        .until("the subscription anew", |c| {
            c.labelled("reconnects_total", "how=\"recreated\"") >= 1.0 && c.not_ready().is_none()
        })
        .await;
    collector.until_served(10).await;
    values_of_all(&collector, 10).await;
    assert!(collector.labelled("gaps_total", "reason=\"recreated\"") >= 1.0);
    collector.stop().await;
    plant.stop().await;
}

/// The server restarts and rejects every item that it accepted before. Only the retries of the items help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_serves_nothing_any_more_is_not_connected_until_it_does_again() {
    for fields in [SUBSCRIBE, "pollRate: 50"] {
        let (plant, proxy) = behind_a_proxy(open()).await;
        let collector = collect_retrying(&proxy.endpoint(), fields).await;
        collector.until_served(10).await;
        assert_eq!(collector.metric("connected"), 1.0);
        let refuses = Arc::new(AtomicBool::new(true));
        let still = refuses.clone();
        proxy.judge(move |request| {
            let concerned = request.kind == proxy::CREATE_ITEMS
                || (request.kind == proxy::READ && request.names("FastUInt") && fields != SUBSCRIBE);
            match concerned && still.load(Ordering::SeqCst) {
                true => Verdict::Refuse(StatusCode::BadResponseTooLarge),
                false => Verdict::Pass,
            }
        });
        let plant = plant.restart(|_| {}).await;
        collector
            .until("the sentence", |c| {
                c.not_ready()
                    .is_some_and(|why| why.starts_with("no valid nodes selected: 10 of 10 failures: "))
                    && c.metric("reconnects_total") == 1.0
            })
            .await;
        assert_eq!(
            (collector.metric("connected"), collector.metric("items_failed")),
            (0.0, 10.0)
        );
        refuses.store(false, Ordering::SeqCst);
        collector.until_served(10).await;
        assert_eq!(collector.metric("connected"), 1.0);
        values_of_all(&collector, 10).await;
        collector.stop().await;
        plant.stop().await;
    }
}

/// Rejects the heartbeat's item, alone or with others, while the flag is set.
fn refuse_the_clock(proxy: &Proxy) -> Arc<AtomicBool> {
    let refuses = Arc::new(AtomicBool::new(true));
    let still = refuses.clone();
    proxy.judge(move |request| {
        let names_it = || {
            let asked: CreateMonitoredItemsRequest = request.decoded();
            let mut nodes = asked
                .items_to_create
                .iter()
                .flatten()
                .map(|item| &item.item_to_monitor.node_id);
            nodes.any(|node| *node == VariableId::Server_ServerStatus_CurrentTime)
        };
        match request.kind == proxy::CREATE_ITEMS && still.load(Ordering::SeqCst) && names_it() {
            true => Verdict::Refuse(StatusCode::BadUserAccessDenied),
            false => Verdict::Pass,
        }
    });
    refuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_is_refused_is_asked_for_again() {
    let (plant, proxy) = behind_a_proxy(open()).await;
    let refuses = refuse_the_clock(&proxy);
    let fields = "subscribeEnabled: true, useHeartbeat: true";
    let collector = collect_retrying(&proxy.endpoint(), fields).await;
    collector.until_served(10).await;
    assert_eq!(plant.monitored_items().await, 10);
    refuses.store(false, Ordering::SeqCst);
    until_items(&plant, 11).await;
    collector
        .until("a heartbeat", |c| {
            c.messages()
                .iter()
                .any(|message| meta(message, "opcua_tag_group") == "heartbeat")
        })
        .await;
    collector.stop().await;
    plant.stop().await;
}

/// Long before the retry interval: the next connection tries again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_is_refused_is_asked_for_by_the_next_connection() {
    for is_new_session in [false, true] {
        let (mut plant, proxy) = behind_a_proxy(SimulatorOptions {
            cuttable: true,
            ..open()
        })
        .await;
        let refuses = refuse_the_clock(&proxy);
        let fields = "subscribeEnabled: true, useHeartbeat: true";
        let collector = collect(&proxy.endpoint(), fields).await;
        collector.until_served(10).await;
        refuses.store(false, Ordering::SeqCst);
        match is_new_session {
            true => plant = plant.restart(|_| {}).await,
            false => proxy.cut(),
        }
        until_items(&plant, 11).await;
        values_of_all(&collector, 11).await;
        collector.stop().await;
        plant.stop().await;
    }
}

/// While a server keeps the subscriptions of a broken connection, it may have no capacity for new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_that_are_polled_for_want_of_room_are_monitored_when_there_is_room() {
    for allowed in [0, 2] {
        let (plant, proxy) = behind_a_proxy(SimulatorOptions {
            fast_nodes: 60,
            max_items_per_subscription: 20,
            ..open()
        })
        .await;
        let fields = "subscribeEnabled: true, itemsPerSubscription: 20, pollRate: 100";
        let collector = collect_retrying(&proxy.endpoint(), fields).await;
        collector.until_served(60).await;
        let has_room = Arc::new(AtomicBool::new(false));
        let (now, mut made) = (has_room.clone(), 0);
        proxy.judge(move |request| {
            if request.kind != proxy::CREATE_SUBSCRIPTION || now.load(Ordering::SeqCst) {
                return Verdict::Pass;
            }
            made += 1;
            match made > allowed {
                true => Verdict::Refuse(StatusCode::BadTooManySubscriptions),
                false => Verdict::Pass,
            }
        });
        let plant = plant.restart(|_| {}).await;
        let served = |c: &Collector| (c.metric("items_monitored"), c.metric("items_polled"));
        let monitored = 20.0 * f64::from(allowed);
        collector
            .until("tags polled", |c| served(c) == (monitored, 60.0 - monitored))
            .await;
        values_of_all(&collector, 60).await;
        has_room.store(true, Ordering::SeqCst);
        collector.until("all monitored", |c| served(c) == (60.0, 0.0)).await;
        values_of_all(&collector, 60).await;
        until_items(&plant, 60).await;
        assert_eq!(collector.metric("reconnects_total"), 1.0);
        collector.stop().await;
        plant.stop().await;
    }
}
