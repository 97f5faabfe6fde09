//! Undeclared groups expire when they are not used, however often the process ends meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Place, claim, open, open_later};
use thalweg_log::PartitionId;
use thalweg_queue::Queue;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

const MINUTE: Duration = Duration::from_secs(60);

/// A queue whose groups expire after an hour, with a group "joined" that has a member.
async fn begin_joined(folder: &Path) -> Place {
    let place = open(folder).await;
    let settings = QueueSettings {
        partitions: 2,
        group_expiry: 60 * MINUTE,
        ..QueueSettings::default()
    };
    let queue = place.queues.create("q", settings).await.unwrap();
    let joined = GroupSettings::new("joined", GroupMode::Work);
    place.queues.join_group(&queue, joined).await.unwrap();
    use_group(&queue).await;
    place
}

async fn use_group(queue: &Arc<Queue>) {
    claim(queue, "joined", 1).await;
    queue.look_after_now().await;
}

async fn leave(queue: &Arc<Queue>) {
    queue.leave(&queue.group("joined").unwrap(), "c");
    queue.look_after_now().await;
}

/// Whether the group still exists after its consumers had time to come back.
async fn is_there(place: &Place) -> bool {
    place.later(MINUTE + Duration::from_secs(1));
    place.queue().look_after_now().await;
    place.queue().group("joined").is_ok()
}

#[tokio::test]
async fn a_group_that_nobody_uses_goes_after_its_time_though_the_process_restarts_often() {
    for clean in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let place = begin_joined(folder.path()).await;
        leave(&place.queue()).await;
        place.end(clean).await;
        for minutes in [20, 40, 57] {
            let place = open_later(folder.path(), minutes * MINUTE).await;
            assert!(is_there(&place).await, "after {minutes} minutes, clean: {clean}");
            place.end(clean).await;
        }
        let place = open_later(folder.path(), 61 * MINUTE).await;
        assert!(
            place.queue().group("joined").is_ok(),
            "somebody may be about to come back"
        );
        assert!(!is_there(&place).await, "clean: {clean}");
        place.end(clean).await;
    }
}

#[tokio::test]
async fn a_group_that_is_used_again_counts_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let place = begin_joined(folder.path()).await;
    leave(&place.queue()).await;
    place.kill();

    let place = open_later(folder.path(), 50 * MINUTE).await;
    use_group(&place.queue()).await;
    leave(&place.queue()).await;
    place.kill();

    let place = open_later(folder.path(), 90 * MINUTE).await;
    assert!(is_there(&place).await);
    place.kill();
    let place = open_later(folder.path(), 112 * MINUTE).await;
    assert!(!is_there(&place).await);
}

#[tokio::test]
async fn a_group_that_was_in_use_when_the_process_was_killed_counts_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let place = begin_joined(folder.path()).await;
    leave(&place.queue()).await;
    use_group(&place.queue()).await;
    place.kill();

    let place = open_later(folder.path(), 1000 * MINUTE).await;
    assert!(is_there(&place).await);
    place.kill();
    let place = open_later(folder.path(), 1050 * MINUTE).await;
    assert!(is_there(&place).await);
    place.kill();
    let place = open_later(folder.path(), 1061 * MINUTE).await;
    assert!(!is_there(&place).await);
}

#[tokio::test]
async fn that_a_group_is_used_is_written_once_and_not_by_each_claim() {
    let folder = tempfile::tempdir().unwrap();
    let place = begin_joined(folder.path()).await;
    let catalog = PartitionId::new(1, 0);
    let written = |place: &Place| place.log.bounds(catalog).unwrap().next;
    let before = written(&place);
    for _ in 0..50 {
        use_group(&place.queue()).await;
    }
    assert_eq!(written(&place), before);
    leave(&place.queue()).await;
    assert!(written(&place) > before);
}
