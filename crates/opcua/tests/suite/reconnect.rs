//! Connections that break and servers that restart: what is kept, republished, recreated and marked.

use std::collections::HashMap;

use opcua::types::{BrowseRequest, NodeId, StatusCode};
use thalweg_record::Message;

use crate::harness::{Collector, Plant, SimulatorOptions, collect, is_unbroken, meta, open, secured};
use crate::proxy::{self, Proxy, Verdict};

fn reconnects(collector: &Collector, how: &str) -> f64 {
    collector.labelled("reconnects_total", &format!("how=\"{how}\""))
}

fn is_marked(message: &Message) -> bool {
    meta(message, "opcua_gap") == "true"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_the_session_goes_on_and_what_was_sent_meanwhile_is_fetched() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 200,
        cuttable: true,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, queueSize: 200").await;
    collector.until_served(200).await;
    for round in 1..=3 {
        let before = collector.count();
        collector.until("values", |c| c.count() > before + 2000).await;
        plant.cut();
        collector
            .until("the session again", |c| {
                reconnects(c, "reactivated") >= f64::from(round)
            })
            .await;
    }
    let before = collector.count();
    collector.until("values", |c| c.count() > before + 2000).await;
    assert_eq!(reconnects(&collector, "recreated"), 0.0);
    // The server keeps what the broken connection lost, so nothing is missing: queues and republishing cover it.
    for i in 1..=200 {
        let values = collector.values_of(&format!("ns=3;s=FastUInt{i}"));
        assert!(is_unbroken(&values), "FastUInt{i}: {values:?}");
    }
    assert_eq!(collector.metric("gaps_total"), 0.0);
    assert_eq!(collector.metric("items_monitored"), 200.0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_server_everything_is_made_anew_and_marked() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 150,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, itemsPerSubscription: 60").await;
    collector.until_served(150).await;
    collector.until("values", |c| c.latest().len() == 150).await;
    let plant = plant.restart(|_| {}).await;
    collector
        .until("items anew", |c| reconnects(c, "recreated") == 1.0)
        .await;
    collector.until_served(150).await;
    assert!(
        collector.labelled("gaps_total", "reason=\"recreated\"") >= 3.0,
        "one per subscription"
    );
    collector
        .until("a mark on each tag", |c| {
            c.messages().iter().filter(|message| is_marked(message)).count() >= 150
        })
        .await;
    for i in 1..=150 {
        let messages = collector.of(&format!("ns=3;s=FastUInt{i}"));
        let marked: Vec<&Message> = messages.iter().filter(|message| is_marked(message)).collect();
        assert_eq!(marked.len(), 1, "FastUInt{i} marks the gap once");
        let (from, to) = (meta(marked[0], "opcua_gap_from"), meta(marked[0], "opcua_gap_to"));
        assert!(from < to, "{from} {to}");
    }
    assert!(collector.metrics.total("input_connection_lost") >= 1.0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_changed_is_browsed_again_and_only_the_differences_are_applied() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 40,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(40).await;
    let plant = plant.restart(|options| options.fast_nodes = 55).await;
    collector.until_served(55).await;
    collector
        .until("the new tags", |c| c.latest().contains_key("FastUInt55"))
        .await;
    let plant = plant.restart(|options| options.fast_nodes = 30).await;
    collector
        .until("the tags that are left", |c| {
            c.metric("items_wanted") == 30.0 && c.not_ready().is_none()
        })
        .await;
    assert_eq!(collector.metric("items_monitored"), 30.0);
    assert_eq!(collector.metric("items_failed"), 0.0);
    collector.forget();
    collector.until("values", |c| c.latest().len() == 30).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_goes_on_after_cuts_and_restarts() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 30,
        cuttable: true,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "pollRate: 100").await;
    collector.until_served(30).await;
    plant.cut();
    collector
        .until("the session again", |c| reconnects(c, "reactivated") >= 1.0)
        .await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 30).await;
    let plant = plant.restart(|_| {}).await;
    collector
        .until("a new session", |c| c.metric("reconnects_total") >= 2.0)
        .await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 30).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_while_browsing_and_creating_lose_and_double_nothing() {
    let options = SimulatorOptions {
        fast_nodes: 500,
        wide: 3000,
        drop_every: 0.35,
        latency: 3,
        ..open()
    };
    let plant = Plant::start(options).await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector
        .until("all items", |c| c.metric("items_monitored") == 3500.0)
        .await;
    assert_eq!(collector.metric("items_wanted"), 3500.0);
    collector.until("a value of each", |c| c.latest().len() == 3500).await;
    // No item exists twice: values of one tag never repeat without a mark in between.
    let mut doubled = 0;
    for i in (1..=500).step_by(50) {
        let messages = collector.of(&format!("ns=3;s=FastUInt{i}"));
        let pairs = messages.windows(2);
        doubled += pairs
            .filter(|pair| {
                crate::harness::payload(&pair[0]) == crate::harness::payload(&pair[1])
                    && meta(&pair[1], "opcua_gap").is_empty()
            })
            .count();
    }
    assert_eq!(doubled, 0);
    collector.stop().await;
    plant.stop().await;
}

/// The server has lost the session but not its subscriptions: the next session takes them over with their queued
/// messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_of_a_lost_session_are_transferred_to_the_next() {
    // The server library transfers subscriptions only to sessions of the same user.
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 50,
        user: Some(("operator".to_owned(), "secret".to_owned())),
        ..secured()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let fields = "subscribeEnabled: true, queueSize: 200, securityMode: None, username: operator, password: secret";
    let collector = collect(&proxy.endpoint(), fields).await;
    collector.until_served(50).await;
    collector.until("values", |c| c.count() > 500).await;
    let mut refused = false;
    proxy.judge(move |request| match request.kind {
        proxy::ACTIVATE_SESSION if !std::mem::replace(&mut refused, true) => {
            Verdict::Refuse(StatusCode::BadSessionIdInvalid)
        }
        _ => Verdict::Pass,
    });
    proxy.cut();
    collector
        .until("another session", |c| reconnects(c, "transferred") == 1.0)
        .await;
    let before = collector.count();
    collector.until("values", |c| c.count() > before + 500).await;
    assert_eq!(
        reconnects(&collector, "recreated") + reconnects(&collector, "reactivated"),
        0.0
    );
    assert_eq!(proxy.seen(proxy::CREATE_SUBSCRIPTION).len(), 1);
    assert_eq!(plant.monitored_items().await, 50);
    for i in 1..=50 {
        // The new session requests the current values, which may repeat the last ones.
        let mut values = collector.values_of(&format!("ns=3;s=FastUInt{i}"));
        values.dedup();
        assert!(is_unbroken(&values), "FastUInt{i}: {values:?}");
    }
    assert_eq!(collector.metric("gaps_total"), 0.0);
    collector.stop().await;
    plant.stop().await;
}

/// The tags are known: neither the same session nor a new one browses again, unless the server was restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_nothing_is_browsed_again() {
    const TAGS: usize = 300;
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: TAGS as u32,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let collector = collect(&proxy.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(TAGS).await;
    let browses = || proxy.seen(proxy::BROWSE).len() + proxy.seen(proxy::BROWSE_NEXT).len();
    let before = browses();
    assert!(before > 0);
    for (round, session_is_kept) in [(1, true), (2, false), (3, true)] {
        let mut refuse = !session_is_kept;
        proxy.judge(move |request| match request.kind {
            proxy::ACTIVATE_SESSION if std::mem::take(&mut refuse) => Verdict::Refuse(StatusCode::BadSessionIdInvalid),
            _ => Verdict::Pass,
        });
        proxy.cut();
        collector
            .until("a connection again", |c| {
                c.metric("reconnects_total") >= f64::from(round) && c.not_ready().is_none()
            })
            .await;
        collector.until_served(TAGS).await;
        collector.forget();
        collector
            .until("values of all tags", |c| c.latest().len() == TAGS)
            .await;
        assert_eq!(browses(), before, "in round {round}");
    }
    assert_eq!(reconnects(&collector, "reactivated"), 2.0);
    let plant = plant.restart(|_| {}).await;
    collector.until("another browse", |_| browses() > before).await;
    collector.until_served(TAGS).await;
    collector.stop().await;
    plant.stop().await;
}

/// What was browsed before the connection loss is not browsed again after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browse_that_is_cut_goes_on_where_it_was() {
    const TAGS: usize = 910;
    const PER_CALL: usize = 20;
    /// For a server without a profile.
    const IN_FLIGHT: usize = 5;
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 10,
        wide: 900,
        max_nodes_per_browse: PER_CALL as u32,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let mut calls = 0;
    proxy.judge(move |request| {
        calls += usize::from(request.kind == proxy::BROWSE);
        match request.kind == proxy::BROWSE && calls == 30 {
            true => Verdict::Cut,
            false => Verdict::Pass,
        }
    });
    let collector = collect(&proxy.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(TAGS).await;
    assert_eq!(collector.metric("reconnects_total"), 1.0);
    let mut asked: HashMap<NodeId, usize> = HashMap::new();
    for request in proxy.seen(proxy::BROWSE) {
        let request: BrowseRequest = request.decoded();
        for node in request.nodes_to_browse.unwrap() {
            *asked.entry(node.node_id).or_default() += 1;
        }
    }
    assert!(asked.len() > TAGS, "the tags and their folders");
    let again = asked.values().filter(|times| **times > 1).count();
    assert!((1..=PER_CALL * IN_FLIGHT).contains(&again), "{again} nodes");
    assert!(asked.values().all(|times| *times <= 2));
    collector.stop().await;
    plant.stop().await;
}
