//! Servers that return fewer results than a call has operations, and servers that reject the parameters of an item.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use opcua::types::{
    BrowseNextResponse, BrowseResponse, CreateMonitoredItemsRequest, CreateMonitoredItemsResponse, ReadRequest,
    ReadResponse, StatusCode,
};

use crate::harness::{Collector, Plant, SimulatorOptions, collect, collect_retrying, open};
use crate::proxy::{self, Fate, Proxy, Request, Verdict, decode, encode};

const TAGS: usize = 10;
const CREATE_ITEMS_RESPONSE: u32 = 754;

async fn plant() -> (Plant, Proxy) {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: TAGS as u32,
        wide: 20,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    (plant, proxy)
}

const FAST: &str = "browse: {include: [\"*.FastUInt*\"]}";

/// Waits until each changing tag has sent a new value.
async fn values_of_all(collector: &Collector) {
    collector.forget();
    collector
        .until("values of all tags", |c| {
            let latest = c.latest();
            (1..=TAGS).all(|tag| latest.contains_key(&format!("FastUInt{tag}")))
        })
        .await;
}

/// No response of this server has more than `results_max` results.
fn answer_at_most(proxy: &Proxy, results_max: usize) {
    proxy.tell(move |request, body| match request.kind {
        proxy::READ => {
            let mut answer: ReadResponse = decode(body);
            answer.results.iter_mut().for_each(|all| all.truncate(results_max));
            Fate::Change(encode(&answer))
        }
        proxy::BROWSE => {
            let mut answer: BrowseResponse = decode(body);
            answer.results.iter_mut().for_each(|all| all.truncate(results_max));
            Fate::Change(encode(&answer))
        }
        proxy::BROWSE_NEXT => {
            let mut answer: BrowseNextResponse = decode(body);
            answer.results.iter_mut().for_each(|all| all.truncate(results_max));
            Fate::Change(encode(&answer))
        }
        proxy::CREATE_ITEMS => {
            let mut answer: CreateMonitoredItemsResponse = decode(body);
            answer.results.iter_mut().for_each(|all| all.truncate(results_max));
            Fate::Change(encode(&answer))
        }
        _ => Fate::Pass,
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cuts_its_answers_short_is_asked_for_less_at_a_time() {
    for mode in ["subscribeEnabled: true", "pollRate: 50"] {
        let (plant, proxy) = plant().await;
        answer_at_most(&proxy, 3);
        let collector = collect(&proxy.endpoint(), mode).await;
        collector.until_served(TAGS + 20).await;
        values_of_all(&collector).await;
        assert_eq!(collector.metric("items_failed"), 0.0);
        collector.stop().await;
        plant.stop().await;
    }
}

/// The server omits the results of one node.
fn leave_out(proxy: &Proxy, node: &'static str) {
    let is_it = move |id: &opcua::types::NodeId| id.to_string().ends_with(node);
    proxy.tell(move |request, body| match request.kind {
        proxy::READ => {
            let asked: ReadRequest = request.decoded();
            let asked = asked.nodes_to_read.unwrap_or_default();
            let mut answer: ReadResponse = decode(body);
            let results = answer.results.take().unwrap_or_default().into_iter().zip(&asked);
            let left = results.filter(|(_, asked)| !(is_it(&asked.node_id) && asked.attribute_id == 13));
            answer.results = Some(left.map(|(result, _)| result).collect());
            Fate::Change(encode(&answer))
        }
        proxy::CREATE_ITEMS => {
            let asked: CreateMonitoredItemsRequest = request.decoded();
            let asked = asked.items_to_create.unwrap_or_default();
            let mut answer: CreateMonitoredItemsResponse = decode(body);
            let results = answer.results.take().unwrap_or_default().into_iter().zip(&asked);
            let left = results.filter(|(_, asked)| !is_it(&asked.item_to_monitor.node_id));
            answer.results = Some(left.map(|(result, _)| result).collect());
            Fate::Change(encode(&answer))
        }
        _ => Fate::Pass,
    });
}

/// The server has created the item nevertheless and includes it in its list of items.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_is_made_and_left_out_of_the_answer_is_found_and_not_made_twice() {
    for results_max in [0, 9] {
        let (plant, proxy) = plant().await;
        proxy.tell(move |request, body| match request.kind {
            proxy::CREATE_ITEMS => {
                let mut answer: CreateMonitoredItemsResponse = decode(body);
                answer.results.iter_mut().for_each(|all| all.truncate(results_max));
                Fate::Change(encode(&answer))
            }
            _ => Fate::Pass,
        });
        let collector = collect(&proxy.endpoint(), &format!("subscribeEnabled: true, {FAST}")).await;
        collector.until_served(TAGS).await;
        values_of_all(&collector).await;
        values_of_all(&collector).await;
        assert_eq!(
            (collector.metric("gaps_total"), collector.metric("items_failed")),
            (0.0, 0.0)
        );
        assert_eq!(plant.monitored_items().await, TAGS as u64);
        assert_eq!(proxy.seen(proxy::CREATE_SUBSCRIPTION).len(), 1);
        collector.stop().await;
        plant.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_left_out_of_every_answer_fails_alone_and_is_tried_again() {
    for mode in ["subscribeEnabled: true", "pollRate: 50"] {
        let (plant, proxy) = plant().await;
        leave_out(&proxy, "FastUInt3");
        // Nor does it list its items.
        proxy.judge(|request| match request.kind {
            proxy::CALL => Verdict::Refuse(StatusCode::BadServiceUnsupported),
            _ => Verdict::Pass,
        });
        let collector = collect_retrying(&proxy.endpoint(), &format!("{mode}, {FAST}")).await;
        collector
            .until("all others", |c| {
                c.metric("items_monitored") + c.metric("items_polled") == TAGS as f64 - 1.0
                    && c.labelled("items_failed", "reason=\"other\"") == 1.0
                    && c.not_ready().is_none()
            })
            .await;
        let failures = collector.get("/api/v1/opcua/failures").await;
        assert_eq!(failures["total"].as_u64(), Some(1));
        let text = failures["items"][0].to_string();
        assert!(text.contains("the server answered 0 of 1 "), "{text}");
        collector.forget();
        collector.until("values", |c| c.latest().len() >= TAGS - 1).await;
        proxy.tell(|_, _| Fate::Pass);
        collector.until_served(TAGS).await;
        values_of_all(&collector).await;
        collector.stop().await;
        plant.stop().await;
    }
}

/// A server that rejects sampling intervals below `least_ms` with this status.
fn refuse_intervals_below(proxy: &Proxy, least_ms: f64, whole_calls: bool, status: StatusCode) {
    proxy.judge(move |request| {
        if request.kind != proxy::CREATE_ITEMS {
            return Verdict::Pass;
        }
        let items = intervals(request);
        if items.iter().all(|interval| *interval >= least_ms) {
            return Verdict::Pass;
        }
        if whole_calls {
            return Verdict::Refuse(status);
        }
        let refused = opcua::types::MonitoredItemCreateResult {
            status_code: status,
            ..Default::default()
        };
        let answer = CreateMonitoredItemsResponse {
            response_header: request.response_header(StatusCode::Good),
            results: Some(vec![refused; items.len()]),
            diagnostic_infos: None,
        };
        Verdict::Answer(proxy::answer(CREATE_ITEMS_RESPONSE, &answer))
    });
}

fn intervals(request: &Request) -> Vec<f64> {
    let asked: CreateMonitoredItemsRequest = request.decoded();
    let items = asked.items_to_create.unwrap_or_default();
    items
        .iter()
        .map(|item| item.requested_parameters.sampling_interval)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_to_sample_as_often_as_it_can_is_asked_for_an_interval() {
    for (whole_calls, status) in [
        (false, StatusCode::BadInvalidArgument),
        (false, StatusCode::BadMonitoredItemFilterUnsupported),
        (true, StatusCode::BadInvalidArgument),
    ] {
        for least_ms in [100.0, 1000.0] {
            let (plant, proxy) = plant().await;
            refuse_intervals_below(&proxy, least_ms, whole_calls, status);
            let collector = collect(&proxy.endpoint(), &format!("subscribeEnabled: true, {FAST}")).await;
            collector.until_served(TAGS).await;
            assert_eq!(
                (collector.metric("items_failed"), collector.metric("gaps_total")),
                (0.0, 0.0)
            );
            values_of_all(&collector).await;
            let taken = proxy.seen(proxy::CREATE_ITEMS).last().map(intervals).unwrap();
            assert!(taken.iter().all(|interval| *interval == least_ms), "{taken:?}");
            collector.stop().await;
            plant.stop().await;
        }
    }
}

/// The cause is the node and not the interval: the others are sampled as configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_is_refused_with_every_interval_fails_and_the_reason_is_told() {
    let (plant, proxy) = plant().await;
    let alone = Arc::new(AtomicUsize::new(0));
    let count = alone.clone();
    proxy.judge(
        move |request| match request.kind == proxy::CREATE_ITEMS && request.names("FastUInt7") {
            true => {
                count.fetch_add(usize::from(intervals(request).len() == 1), Ordering::SeqCst);
                Verdict::Refuse(StatusCode::BadInvalidArgument)
            }
            false => Verdict::Pass,
        },
    );
    let collector = collect(&proxy.endpoint(), &format!("subscribeEnabled: true, {FAST}")).await;
    collector
        .until("all others", |c| {
            c.metric("items_monitored") == TAGS as f64 - 1.0 && c.labelled("items_failed", "reason=\"other\"") == 1.0
        })
        .await;
    assert_eq!(
        alone.load(Ordering::SeqCst),
        3,
        "as configured, and with two longer intervals"
    );
    let others = proxy
        .seen(proxy::CREATE_ITEMS)
        .into_iter()
        .filter(|request| !request.names("FastUInt7"));
    assert!(
        others
            .flat_map(|request| intervals(&request))
            .all(|interval| interval == 0.0)
    );
    let failures = collector.get("/api/v1/opcua/failures").await;
    let text = failures["items"][0].to_string();
    assert!(text.contains("refused with samplingInterval 0, 100, 1000"), "{text}");
    collector.stop().await;
    plant.stop().await;
}

/// Nothing is monitored, and `/ready` reports the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_every_item_is_told_of_with_its_reason() {
    let (plant, proxy) = plant().await;
    refuse_intervals_below(&proxy, f64::INFINITY, false, StatusCode::BadInvalidArgument);
    let collector = collect(&proxy.endpoint(), &format!("subscribeEnabled: true, {FAST}")).await;
    let says = |c: &Collector| c.not_ready().unwrap_or_default();
    collector
        .until("the reason", |c| says(c).contains("10 of 10 failures"))
        .await;
    let why = says(&collector);
    for part in [
        "no valid nodes selected",
        "StatusBadInvalidArgument",
        "samplingInterval 0, 100, 1000",
    ] {
        assert!(why.contains(part), "{why}");
    }
    collector.stop().await;
    plant.stop().await;
}
