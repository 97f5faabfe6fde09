use std::sync::Arc;

use thalweg_log::format::record::Properties;
use thalweg_queue::{NewMessage, Queue};

use crate::support::{World, eventually};

/// A flow that has a buffer, and the buffer's queue.
async fn start(folder: &std::path::Path, flow: &str) -> (World, Arc<Queue>) {
    start_with(folder, "", flow).await
}

/// `options` are fields of the buffer, each after a comma.
async fn start_with(folder: &std::path::Path, options: &str, flow: &str) -> (World, Arc<Queue>) {
    let text = format!("buffer: {{queue: {{partitions: 1{options}}}}}\n{flow}");
    let world = World::start(folder, &text).await;
    let queue = world.queue("buffer.default").await;
    (world, queue)
}

/// A parcel as a flow stores it, with its label.
fn parcel(messages: u64, before: u64, bytes: &'static [u8]) -> NewMessage {
    let label = [("messages", messages.to_string()), ("before", before.to_string())];
    NewMessage {
        properties: label.into_iter().collect(),
        ..NewMessage::of(bytes)
    }
}

const TICKS: &str = "input: {generate: {interval: 5ms, mapping: 'root = count(\"n\")'}}\noutput: {drop: {}}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_nobody_can_read_is_counted_and_does_not_stop_the_flow() {
    let folder = tempfile::tempdir().unwrap();
    let (world, queue) = start(folder.path(), TICKS).await;
    eventually(|| (world.balance().out > 0).then_some(())).await;
    queue.produce(NewMessage::of(&b"not a parcel"[..])).await.unwrap();
    queue.produce(parcel(4, 1 << 40, &[1, 4, 0, 200])).await.unwrap();
    queue.produce(parcel(2, 0, &[1, 1, 0, 0, 0, 0])).await.unwrap();
    // Text instead of a number.
    let foreign: Properties = [("messages", "many"), ("before", "0")].into_iter().collect();
    let message = NewMessage {
        properties: foreign,
        ..NewMessage::of(&b"x"[..])
    };
    queue.produce(message).await.unwrap();
    eventually(|| (world.dropped("invalid_payload") == 1 + 4 + 2 + 1).then_some(())).await;
    let seen = world.balance().out;
    eventually(|| (world.balance().out > seen + 20).then_some(())).await;
    let report = world.stop().await;
    assert_eq!((report.unacknowledged, &report.failure), (0, &None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_later_version_wrote_stops_the_flow_and_is_not_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let (world, queue) = start(folder.path(), TICKS).await;
    eventually(|| (world.balance().out > 0).then_some(())).await;
    let stored = queue.produce(parcel(3, 0, &[9, 3, 0])).await.unwrap();
    world.flow.ended().await;
    let report = world.stop().await;
    let failure = report.failure.unwrap();
    let place = format!(
        "message buffer.default:0:{}: the messages are written in format 9",
        stored.offset
    );
    assert!(
        failure.contains(&place) && failure.ends_with("another name and leave them"),
        "{failure}"
    );
    // It is the first record that the next start reads.
    let (world, queue) = start(folder.path(), TICKS).await;
    world.flow.ended().await;
    let committed = queue.stats().groups[0].positions[0];
    assert!(committed <= stored.offset, "{committed}");
    assert!(world.stop().await.failure.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_purged_under_a_flow_is_counted_as_lost() {
    let slow = "input: {generate: {interval: 1ms, batch_size: 50, mapping: 'root = \"%01000d\".format(count(\"m\"))'}}\n\
                pipeline: {threads: 1, processors: [{sleep: {duration: 100us}}]}\noutput: {drop: {}}\n";
    let folder = tempfile::tempdir().unwrap();
    let (world, queue) = start(folder.path(), slow).await;
    eventually(|| (world.balance().in_flight > 30_000).then_some(())).await;
    queue.purge().await.unwrap();
    let lost = eventually(|| Some(world.dropped("limit")).filter(|lost| *lost > 0)).await;
    assert!(lost > 1000, "{lost}");
    let report = world.stop().await;
    assert!(report.counts.adds_up(), "{}", report.counts);
    assert_eq!(report.unacknowledged, 0, "{}", report.counts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_larger_than_its_buffer_fails_and_the_others_go_on() {
    let flow = "input: {generate: {interval: 5ms, mapping: 'root = if count(\"l\") % 10 == 0 { range(0, 300000) } else { 1 }'}}\n\
                output: {drop: {}}\n";
    let folder = tempfile::tempdir().unwrap();
    let (world, _queue) = start_with(folder.path(), ", max_bytes: 1MiB", flow).await;
    eventually(|| (world.dropped("too_large") >= 3 && world.balance().out >= 30).then_some(())).await;
    let report = world.stop().await;
    assert!(report.counts.adds_up(), "{}", report.counts);
}
