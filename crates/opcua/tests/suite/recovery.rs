//! Messages that are lost in transit, and servers that respond strangely when they are requested again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use opcua::types::{NotificationMessage, RepublishRequest, RepublishResponse, StatusCode};

use crate::harness::{Collector, Plant, SimulatorOptions, collect, is_unbroken, meta, open, payload};
use crate::proxy::{self, Fate, Proxy, Request, Verdict};

const TAGS: usize = 10;
const REPUBLISH_RESPONSE: u32 = 835;

async fn plant() -> (Plant, Proxy) {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: TAGS as u32,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    (plant, proxy)
}

async fn served(proxy: &Proxy, more: &str) -> Collector {
    let fields = format!("subscribeEnabled: true, queueSize: 200, {more}");
    let collector = collect(&proxy.endpoint(), &fields).await;
    collector.until_served(TAGS).await;
    values_of_all(&collector).await;
    collector
}

/// Waits until all tags have sent some new values.
async fn values_of_all(collector: &Collector) {
    let before = collector.count();
    collector
        .until("values of all tags", |c| c.count() >= before + 5 * TAGS)
        .await;
}

/// Checks that no value is repeated and that the value after each missing one of a tag is marked. Returns the number of
/// marks.
fn holes_are_marked(collector: &Collector) -> usize {
    let mut marked = 0;
    for tag in 1..=TAGS {
        let messages = collector.of(&format!("ns=3;s=FastUInt{tag}"));
        let number = |message| payload(message).parse::<u32>().unwrap();
        for (earlier, later) in messages.iter().zip(messages.iter().skip(1)) {
            let is_marked = meta(later, "opcua_gap") == "true";
            let (before, now) = (number(earlier), number(later));
            assert!(
                now == before + 1 || (is_marked && now > before),
                "FastUInt{tag}: {before}, {now}"
            );
            marked += usize::from(is_marked);
        }
    }
    marked
}

fn reconnected(collector: &Collector, times: usize) -> bool {
    collector.metric("reconnects_total") >= times as f64 && collector.not_ready().is_none()
}

fn republished(request: &Request, number: u32) -> Verdict {
    let response = RepublishResponse {
        response_header: request.response_header(StatusCode::Good),
        notification_message: NotificationMessage {
            sequence_number: number,
            ..NotificationMessage::default()
        },
    };
    Verdict::Answer(proxy::answer(REPUBLISH_RESPONSE, &response))
}

/// Servers that do not have a message may respond with Good and an empty message, or with another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_each_wish_with_an_empty_message_is_asked_once_and_collecting_goes_on() {
    for its_number in [|_: u32| 0, |asked: u32| asked, |asked: u32| asked + 1] {
        let (plant, proxy) = plant().await;
        let collector = served(&proxy, "").await;
        proxy.judge(move |request| match request.kind {
            proxy::REPUBLISH => {
                let asked: RepublishRequest = request.decoded();
                republished(request, its_number(asked.retransmit_sequence_number))
            }
            _ => Verdict::Pass,
        });
        for cut in 1..=3 {
            proxy.cut();
            collector.until("a connection again", |c| reconnected(c, cut)).await;
            values_of_all(&collector).await;
        }
        holes_are_marked(&collector);
        // One after each connection loss, and one for each message that turned out to be missing.
        let asked = proxy.seen(proxy::REPUBLISH).len();
        assert!((3..=20).contains(&asked), "{asked} requests");
        assert_eq!(collector.metric("items_monitored"), TAGS as f64);
        collector.stop().await;
        plant.stop().await;
    }
}

/// A message is lost without a connection loss, and the connection breaks each time it is requested again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaks_while_a_hole_is_filled_lose_nothing_that_the_server_still_has() {
    const BREAKS: usize = 4;
    let (plant, proxy) = plant().await;
    let collector = served(&proxy, "").await;
    let lost = Arc::new(AtomicUsize::new(0));
    let count = lost.clone();
    proxy.tell(move |request, body| {
        let is_data = request.kind == proxy::PUBLISH && body.len() > 200;
        match is_data && count.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Fate::Hold,
            false => Fate::Pass,
        }
    });
    let mut breaks = 0;
    proxy.judge(move |request| {
        breaks += usize::from(request.kind == proxy::REPUBLISH);
        match request.kind == proxy::REPUBLISH && breaks <= BREAKS {
            true => Verdict::Cut,
            false => Verdict::Pass,
        }
    });
    collector
        .until("a message lost", |_| lost.load(Ordering::SeqCst) > 0)
        .await;
    collector
        .until("all breaks", |_| proxy.seen(proxy::REPUBLISH).len() > BREAKS)
        .await;
    collector.until("a connection again", |c| reconnected(c, 1)).await;
    values_of_all(&collector).await;
    for tag in 1..=TAGS {
        let values = collector.values_of(&format!("ns=3;s=FastUInt{tag}"));
        assert!(is_unbroken(&values), "FastUInt{tag}: {values:?}");
    }
    assert_eq!(collector.metric("gaps_total"), 0.0);
    assert!(collector.labelled("messages_missing_total", "outcome=\"fetched\"") >= 1.0);
    collector.stop().await;
    plant.stop().await;
}

/// The same with a server that no longer has the lost message: the values after the hole arrive nevertheless, marked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaks_while_a_hole_is_filled_that_nobody_can_fill_leave_a_mark() {
    let (plant, proxy) = plant().await;
    let collector = served(&proxy, "").await;
    let mut is_lost = false;
    proxy.tell(move |request, body| {
        let is_data = request.kind == proxy::PUBLISH && body.len() > 200;
        match is_data && !std::mem::replace(&mut is_lost, true) {
            true => Fate::Hold,
            false => Fate::Pass,
        }
    });
    let mut asked = 0;
    proxy.judge(move |request| {
        if request.kind != proxy::REPUBLISH {
            return Verdict::Pass;
        }
        asked += 1;
        match asked {
            1 => Verdict::Cut,
            2 => Verdict::Refuse(StatusCode::BadMessageNotAvailable),
            _ => Verdict::Pass,
        }
    });
    collector.until("a connection again", |c| reconnected(c, 1)).await;
    values_of_all(&collector).await;
    assert!(holes_are_marked(&collector) >= 1);
    assert_eq!(collector.labelled("gaps_total", "reason=\"not_republished\""), 1.0);
    assert_eq!(
        collector.labelled("messages_missing_total", "outcome=\"given_up\""),
        1.0
    );
    collector.stop().await;
    plant.stop().await;
}

/// The server has lost the subscription and reports it only when a message of it is requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_the_server_does_not_know_any_more_is_made_anew_at_once() {
    let (plant, proxy) = plant().await;
    let collector = served(&proxy, "").await;
    let mut refused = false;
    proxy.judge(move |request| match request.kind {
        proxy::REPUBLISH if !std::mem::replace(&mut refused, true) => {
            Verdict::Refuse(StatusCode::BadSubscriptionIdInvalid)
        }
        _ => Verdict::Pass,
    });
    proxy.cut();
    collector.until("a connection again", |c| reconnected(c, 1)).await;
    values_of_all(&collector).await;
    assert_eq!(collector.labelled("reconnects_total", "how=\"recreated\""), 1.0);
    assert_eq!(proxy.seen(proxy::CREATE_SUBSCRIPTION).len(), 2);
    assert!(holes_are_marked(&collector) >= TAGS);
    collector.stop().await;
    plant.stop().await;
}

/// If each failure delayed the connection by a second, this test would time out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publish_requests_that_fail_hold_up_nothing() {
    const FAILING: usize = 120;
    let (plant, proxy) = plant().await;
    let collector = served(&proxy, "publishRequests: 16").await;
    let failed = Arc::new(AtomicUsize::new(0));
    let count = failed.clone();
    let mut nth = 0;
    proxy.judge(move |request| {
        nth += usize::from(request.kind == proxy::PUBLISH);
        match request.kind == proxy::PUBLISH && nth % 2 == 0 {
            true => {
                count.fetch_add(1, Ordering::SeqCst);
                Verdict::Refuse(StatusCode::BadInternalError)
            }
            false => Verdict::Pass,
        }
    });
    collector
        .until("all failures", |_| failed.load(Ordering::SeqCst) >= FAILING)
        .await;
    values_of_all(&collector).await;
    assert_eq!(holes_are_marked(&collector), 0);
    assert_eq!(
        (collector.metric("gaps_total"), collector.metric("reconnects_total")),
        (0.0, 0.0)
    );
    collector.stop().await;
    plant.stop().await;
}
