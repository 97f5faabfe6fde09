//! Disk damage: its cost is reported, and nothing else is lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Place, begin, keyed, open, put, settings, up_to};
use thalweg_log::disk::FolderDisk;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, QueueSettings};
use thalweg_queue::{Delivery, Queue, Result};

/// Makes the frame of the message with this payload unreadable.
fn damage(folder: &Path, text: &str) {
    let mut found = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap_or_default();
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
        if let Some(at) = at {
            bytes[at] ^= 1;
            std::fs::write(file, bytes).unwrap();
            found += 1;
        }
    }
    assert_eq!(found, 1);
}

/// The queue after a restart with damage, which is repaired if it is `lost` for good.
async fn damaged(place: Place, folder: &Path, texts: &[&str], lost: bool) -> (Place, Arc<Queue>) {
    place.stop().await;
    for text in texts {
        damage(folder, text);
    }
    if lost {
        let disk = FolderDisk::open(folder).unwrap();
        thalweg_log::repair(&disk, true, &mut |_, _| {}).unwrap();
    }
    let place = open(folder).await;
    let queue = place.queue();
    (place, queue)
}

async fn deliveries(queue: &Arc<Queue>, max: u32) -> Result<Vec<Delivery>> {
    let group = queue.group("s").unwrap();
    queue.claim(&group, "c", MemberKind::Http, up_to(max)).await
}

async fn read(queue: &Arc<Queue>, max: u32) -> Result<Vec<u64>> {
    let read = deliveries(queue, max).await?;
    let offset = |delivery: &Delivery| delivery.message.offset;
    Ok(read.iter().map(offset).collect())
}

fn committed(queue: &Queue) -> u64 {
    queue.group("s").unwrap().stats().positions[0]
}

#[tokio::test]
async fn a_stream_is_told_of_a_gap_once_and_what_it_read_before_and_did_not_ack_is_not_committed_by_that() {
    let (folder, place, queue) = begin(settings(1, &[("s", GroupMode::Stream)])).await;
    for n in 0..10 {
        put(&queue, &[&format!("message-{n}.")]).await;
    }
    let lost = ["message-5.", "message-6."];
    let (place, queue) = damaged(place, folder.path(), &lost, true).await;
    let group = queue.group("s").unwrap();
    let first = deliveries(&queue, 100).await.unwrap();
    assert_eq!(first.len(), 5);
    queue.ack(&group, 0, 0, 1).unwrap();
    assert_eq!(read(&queue, 100).await.unwrap_err().code(), "offset_gap");
    assert_eq!(committed(&queue), 1);
    assert_eq!(read(&queue, 1).await.unwrap(), [7]);
    let third = queue.receipt(&first[3]);
    queue.give_back(&group, &[third], false).unwrap();
    assert_eq!(read(&queue, 100).await.unwrap(), [3, 4, 7, 8, 9], "it knows of the gap");
    for offset in [1, 2, 3, 4] {
        queue.ack(&group, 0, offset, 1).unwrap();
    }
    assert_eq!(committed(&queue), 7, "what is lost is done");
    place.kill();
}

#[tokio::test]
async fn retention_goes_on_beside_a_partition_that_cannot_be_read_and_comes_back_to_it() {
    let (folder, place, queue) = begin(QueueSettings {
        ttl: Duration::from_secs(100),
        ..settings(2, &[])
    })
    .await;
    let mut partitions = Vec::new();
    for n in 0..8 {
        let sent = queue.produce(keyed(format!("key {n}"), format!("of key {n}."))).await;
        partitions.push(sent.unwrap().partition);
    }
    // The first message of one partition is damaged; the others of that partition stay after it.
    let beside = partitions
        .iter()
        .filter(|partition| **partition == partitions[0])
        .count() as u64;
    assert_ne!(beside, 8);
    let (place, queue) = damaged(place, folder.path(), &["of key 0."], false).await;
    place.later(Duration::from_secs(101));
    queue.look_after_now().await;
    assert_eq!(queue.stats().retained, beside);
    // As if the disk could be read again.
    damage(folder.path(), "nf key 0.");
    place.later(Duration::from_secs(61));
    queue.look_after_now().await;
    assert_eq!(queue.stats().retained, 0);
}
