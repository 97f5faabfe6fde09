use std::sync::Arc;
use std::time::Duration;

use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_log::format::record::Properties;
use thalweg_queue::{NewMessage, Queue};
use thalweg_telemetry::BalanceStatus;

use super::backing_queue::ParcelLabel;
use crate::{CheckedConfig, Components, Process};

/// A process whose one flow has a buffer, and the buffer's queue.
async fn start(folder: &std::path::Path, flow: &str) -> (Process, Arc<Queue>) {
    start_with(folder, "", flow).await
}

/// `options`: of the buffer, each with a comma before it.
async fn start_with(folder: &std::path::Path, options: &str, flow: &str) -> (Process, Arc<Queue>) {
    let text = format!(
        "data_dir: {0}\nhttp: {{enabled: false}}\nmemory: {{limit: 64MiB}}\nshutdown_timeout: 2s\n\
         log: {{min_free: 16MiB, commit: {{spare: 1}}}}\nbuffer: {{queue: {{partitions: 1{options}}}}}\n{flow}",
        folder.display()
    );
    let components = Components::new();
    let store = components.store.clone();
    let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    let checked = CheckedConfig::check_with(loaded, components);
    assert_eq!(checked.diagnostics.to_string(), "");
    let process = Process::start(checked, "").await.unwrap();
    let queue = eventually(|| store.queues()?.get("buffer.default").ok()).await;
    (process, queue)
}

async fn eventually<T>(ask: impl Fn() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(answer) = ask() {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not reached within 30 s");
}

fn balance(process: &Process) -> BalanceStatus {
    let flows = process.status().flows();
    assert!(flows[0].balance.adds_up, "{:?}", flows[0].balance);
    flows[0].balance.clone()
}

fn dropped(process: &Process, reason: &str) -> u64 {
    let by = balance(process).dropped_by;
    by.iter().find(|(known, _)| known == reason).map_or(0, |(_, n)| *n)
}

fn parcel(messages: u64, before: u64, bytes: &'static [u8]) -> NewMessage {
    NewMessage {
        properties: ParcelLabel { messages, before }.properties(),
        ..NewMessage::of(bytes)
    }
}

const TICKS: &str = "input: {generate: {interval: 5ms, mapping: 'root = count(\"n\")'}}\noutput: {drop: {}}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_nobody_can_read_is_counted_and_does_not_stop_the_flow() {
    let folder = tempfile::tempdir().unwrap();
    let (process, queue) = start(folder.path(), TICKS).await;
    eventually(|| (balance(&process).out > 0).then_some(())).await;
    queue.produce(NewMessage::of(&b"not a parcel"[..])).await.unwrap();
    queue.produce(parcel(4, 1 << 40, &[1, 4, 0, 200])).await.unwrap();
    queue.produce(parcel(2, 0, &[1, 1, 0, 0, 0, 0])).await.unwrap();
    // As text instead of a number.
    let foreign: Properties = [("messages", "many"), ("before", "0")].into_iter().collect();
    let message = NewMessage {
        properties: foreign,
        ..NewMessage::of(&b"x"[..])
    };
    queue.produce(message).await.unwrap();
    eventually(|| (dropped(&process, "invalid_payload") == 1 + 4 + 2 + 1).then_some(())).await;
    let seen = balance(&process).out;
    eventually(|| (balance(&process).out > seen + 20).then_some(())).await;
    let stopped = process.stop().await;
    let report = &stopped.flows[0];
    assert_eq!((report.unacknowledged, &report.failure), (0, &None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_later_version_wrote_stops_the_flow_and_is_not_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let (process, queue) = start(folder.path(), TICKS).await;
    eventually(|| (balance(&process).out > 0).then_some(())).await;
    let stored = queue.produce(parcel(3, 0, &[9, 3, 0])).await.unwrap();
    process.ended().await;
    let report = process.stop().await.flows.remove(0);
    let failure = report.failure.unwrap();
    let place = format!(
        "message buffer.default:0:{}: the messages are written in format 9",
        stored.offset
    );
    assert!(
        failure.contains(&place) && failure.ends_with("another name and leave them"),
        "{failure}"
    );
    // It is the first thing the next start finds.
    let (process, queue) = start(folder.path(), TICKS).await;
    process.ended().await;
    let committed = queue.stats().groups[0].positions[0];
    assert!(committed <= stored.offset, "{committed}");
    assert!(process.stop().await.flows[0].failure.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_purged_under_a_flow_is_counted_as_lost() {
    let slow = "input: {generate: {interval: 1ms, batch_size: 50, mapping: 'root = \"%01000d\".format(count(\"m\"))'}}\n\
                pipeline: {threads: 1, processors: [{sleep: {duration: 100us}}]}\noutput: {drop: {}}\n";
    let folder = tempfile::tempdir().unwrap();
    let (process, queue) = start(folder.path(), slow).await;
    eventually(|| (balance(&process).in_flight > 30_000).then_some(())).await;
    queue.purge().await.unwrap();
    let lost = eventually(|| Some(dropped(&process, "limit")).filter(|lost| *lost > 0)).await;
    assert!(lost > 1000, "{lost}");
    let report = process.stop().await.flows.remove(0);
    assert!(report.counts.adds_up(), "{}", report.counts);
    assert_eq!(report.unacknowledged, 0, "{}", report.counts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_larger_than_its_buffer_fails_and_the_others_go_on() {
    let flow = "input: {generate: {interval: 5ms, mapping: 'root = if count(\"l\") % 10 == 0 { range(0, 300000) } else { 1 }'}}\n\
                output: {drop: {}}\n";
    let folder = tempfile::tempdir().unwrap();
    let (process, _queue) = start_with(folder.path(), ", max_bytes: 1MiB", flow).await;
    eventually(|| (dropped(&process, "too_large") >= 3 && balance(&process).out >= 30).then_some(())).await;
    let report = process.stop().await.flows.remove(0);
    assert!(report.counts.adds_up(), "{}", report.counts);
}
