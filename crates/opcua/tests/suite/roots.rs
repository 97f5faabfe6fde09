//! Configured nodes and folders that are temporarily missing: each is served as soon as the server has it, and nothing
//! is given up meanwhile.

use crate::harness::{Plant, SimulatorOptions, collect_retrying, open};

const TWO: &str = "nodeIDs: [\"ns=3;s=FastUInt1\", \"ns=3;s=FastUInt2\"]";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_node_that_comes_later_is_served_then() {
    for mode in ["subscribeEnabled: true", "pollRate: 100"] {
        let plant = Plant::start(SimulatorOptions {
            hidden: vec!["ns=3;s=FastUInt2".to_owned()],
            ..open()
        })
        .await;
        let collector = collect_retrying(&plant.endpoint(), &format!("{mode}, {TWO}")).await;
        collector.until_served(1).await;
        collector
            .until("the failure", |c| c.metric("items_failed") == 1.0)
            .await;
        let failures = collector.get("/api/v1/opcua/failures").await;
        assert_eq!(failures["items"][0]["what"], "root");
        plant.hide("ns=3;s=FastUInt2", false);
        collector.until_served(2).await;
        collector
            .until("its values", |c| !c.of("ns=3;s=FastUInt2").is_empty())
            .await;
        assert_eq!(
            (collector.metric("items_failed"), collector.metric("items_wanted")),
            (0.0, 2.0)
        );
        assert_eq!(collector.get("/api/v1/opcua/failures").await["total"], 0);
        let node = collector.get("/api/v1/opcua/nodes?offset=1").await["items"][0].clone();
        assert_eq!(
            (&node["path"], &node["data_type"]),
            (&"FastUInt2".into(), &"uint32".into())
        );
        collector.stop().await;
        plant.stop().await;
    }
}

/// The same if the server restarts and has the node afterwards: the new browse finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_node_that_a_new_start_brings_is_served_then() {
    let plant = Plant::start(SimulatorOptions {
        hidden: vec!["ns=3;s=FastUInt2".to_owned()],
        ..open()
    })
    .await;
    let collector = crate::harness::collect(&plant.endpoint(), &format!("subscribeEnabled: true, {TWO}")).await;
    collector.until_served(1).await;
    let plant = plant.restart(|options| options.hidden.clear()).await;
    collector.until_served(2).await;
    assert_eq!(collector.metric("items_failed"), 0.0);
    assert_eq!(collector.get("/api/v1/opcua/failures").await["total"], 0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_item_is_created_when_its_time_has_come() {
    let plant = Plant::start(SimulatorOptions {
        hidden: vec!["ns=3;s=FastUInt7".to_owned()],
        ..open()
    })
    .await;
    let collector = collect_retrying(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(9).await;
    collector
        .until("the failure", |c| c.metric("items_failed") == 1.0)
        .await;
    plant.hide("ns=3;s=FastUInt7", false);
    collector.until_served(10).await;
    collector.until("values", |c| c.latest().len() == 10).await;
    collector.stop().await;
    plant.stop().await;
}

/// A folder that the server temporarily denies during a background browse removes nothing and is browsed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_below_a_folder_that_cannot_be_browsed_for_a_while_stays() {
    let plant = Plant::start(open()).await;
    let collector = collect_retrying(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(10).await;
    let plant = plant
        .restart(|options| {
            options.hidden = vec!["ns=3;s=Fast".to_owned()];
            options.fast_nodes = 12;
        })
        .await;
    collector
        .until("the failure", |c| {
            c.metric("reconnects_total") >= 1.0 && c.metric("browse_errors_total") >= 1.0
        })
        .await;
    collector.until_served(10).await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 10).await;
    plant.hide("ns=3;s=Fast", false);
    collector.until_served(12).await;
    collector.until("values", |c| c.latest().len() == 12).await;
    collector.stop().await;
    plant.stop().await;
}

/// None of the configured nodes can be read after a restart: the browse is retried until they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_any_configured_node_is_browsed_again_until_it_has_them() {
    let plant = Plant::start(open()).await;
    let collector = collect_retrying(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(10).await;
    let plant = plant
        .restart(|options| {
            options.hidden = vec!["ns=3;s=OpcPlc".to_owned()];
            options.fast_nodes = 12;
        })
        .await;
    collector
        .until("the items anew", |c| {
            c.metric("reconnects_total") >= 1.0 && c.not_ready().is_none()
        })
        .await;
    collector
        .until("the sentence", |c| c.metrics.total("input_connection_lost") >= 1.0)
        .await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 10).await;
    plant.hide("ns=3;s=OpcPlc", false);
    collector.until_served(12).await;
    collector.stop().await;
    plant.stop().await;
}

/// Removed tags are not retried, however they had failed before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_tags_that_are_gone_stay_gone() {
    for mode in ["subscribeEnabled: true", "pollRate: 100"] {
        let plant = Plant::start(SimulatorOptions { bad_nodes: 3, ..open() }).await;
        let collector = collect_retrying(&plant.endpoint(), mode).await;
        collector.until_served(10).await;
        collector.until("failures", |c| c.metric("items_failed") == 3.0).await;
        let plant = plant.restart(|options| options.bad_nodes = 0).await;
        collector
            .until("the tags that are left", |c| {
                c.metric("items_wanted") == 10.0 && c.not_ready().is_none()
            })
            .await;
        assert_eq!(collector.get("/api/v1/opcua/failures").await["total"], 0);
        // Longer than any pending retry takes.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(
            (collector.metric("items_wanted"), collector.metric("items_failed")),
            (10.0, 0.0)
        );
        collector.stop().await;
        plant.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_node_of_an_unknown_namespace_is_listed_and_counted() {
    let plant = Plant::start(open()).await;
    let lost = "nsu=urn:nowhere;s=Line1";
    let known = "nsu=urn:thalweg:simulator:plc;s=OpcPlc";
    let fields = format!("subscribeEnabled: true, nodeIDs: [\"{lost}\", \"{known}\"]");
    let collector = collect_retrying(&plant.endpoint(), &fields).await;
    collector.until_served(10).await;
    collector
        .until("the failure", |c| {
            (c.metric("items_failed"), c.metric("items_wanted")) == (1.0, 11.0)
        })
        .await;
    assert_eq!(collector.labelled("items_failed", "reason=\"node_id_unknown\""), 1.0);
    let failure = collector.get("/api/v1/opcua/failures").await["items"][0].clone();
    assert_eq!((&failure["node_id"], &failure["what"]), (&lost.into(), &"root".into()));
    assert!(failure["status"].as_str().unwrap().contains("urn:nowhere"), "{failure}");
    let nodes = collector.get("/api/v1/opcua/nodes?state=failed").await;
    assert_eq!(nodes["items"][0]["node_id"], lost);
    // After a restart it is still that one, once.
    let plant = plant.restart(|_| {}).await;
    collector
        .until("the new start", |c| {
            c.metric("reconnects_total") >= 1.0 && c.not_ready().is_none()
        })
        .await;
    collector.until_served(10).await;
    assert_eq!(collector.metric("items_wanted"), 11.0);
    collector.stop().await;
    plant.stop().await;
}
