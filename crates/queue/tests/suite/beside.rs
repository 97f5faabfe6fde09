//! Isolation: while another queue or a disk is slow, a queue's timers, first claims and changes wait only for their own
//! queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use thalweg_log::clock::Clock;
use thalweg_log::format::frame::{FrameHeader, FrameKind};
use thalweg_log::{
    AppendReceipt, BoxFuture, Durability, EmbeddedLog, Frame, Log, LogCaps, LogStatus, Micros, Offset, PartitionBounds,
    PartitionId, PartitionListener, ReadOptions, RecordFilter, RecordVisitor, Records, Result, RollListener,
    WriteBatch,
};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{Queues, SettleAction};
use tokio::sync::Notify;

use crate::support::{TestClock, claim_http_as, log_options, nack_in, put, queues_in, settle, up_to, work};

const PATIENCE: Duration = Duration::from_secs(60);

/// A log that blocks the selected calls until it is released.
pub struct Slow {
    pub log: Arc<EmbeddedLog>,
    /// Creation of many partitions at once.
    holds_creations: AtomicBool,
    /// Appends after many partitions were created.
    pub holds_after_creation: AtomicBool,
    /// All appends.
    holds_appends: AtomicBool,
    held: AtomicUsize,
    go_on: Notify,
}

impl Slow {
    async fn hold(&self, holds: &AtomicBool) {
        while holds.load(Ordering::SeqCst) {
            let go_on = self.go_on.notified();
            self.held.fetch_add(1, Ordering::SeqCst);
            go_on.await;
        }
    }

    pub async fn until_held(&self) {
        let until = Instant::now() + PATIENCE;
        while self.held.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < until, "nothing is held up");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn let_go(&self) {
        self.holds_creations.store(false, Ordering::SeqCst);
        self.holds_appends.store(false, Ordering::SeqCst);
        self.go_on.notify_waiters();
    }
}

impl Log for Slow {
    fn create_all<'a>(&'a self, ids: &'a [PartitionId], durability: Durability) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if ids.len() > 100 {
                self.hold(&self.holds_creations).await;
            }
            let created = self.log.create_all(ids, durability).await;
            if ids.len() > 100 && self.holds_after_creation.load(Ordering::SeqCst) {
                self.holds_appends.store(true, Ordering::SeqCst);
            }
            created
        })
    }
    fn append(&self, unit: WriteBatch) -> BoxFuture<'_, Result<AppendReceipt>> {
        Box::pin(async move {
            self.hold(&self.holds_appends).await;
            self.log.append(unit).await
        })
    }
    fn remove_all<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.log.remove_all(ids))
    }
    fn caps(&self) -> LogCaps {
        Log::caps(&*self.log)
    }
    fn status(&self) -> LogStatus {
        self.log.status()
    }
    fn id(&self) -> u64 {
        self.log.id()
    }
    fn partitions(&self) -> Vec<PartitionId> {
        self.log.partitions()
    }
    fn bounds(&self, id: PartitionId) -> Result<PartitionBounds> {
        self.log.bounds(id)
    }
    fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64> {
        self.log.bytes(id, from, to)
    }
    fn create(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.log.create(id, durability))
    }
    fn set_durability(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.log.set_durability(id, durability))
    }
    fn durability(&self, id: PartitionId) -> Result<Durability> {
        Log::durability(&*self.log, id)
    }
    fn remove(&self, id: PartitionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.log.remove(id))
    }
    fn journal(
        &self,
        id: PartitionId,
        kind: FrameKind,
        push: &mut dyn FnMut(&mut Records) -> Result<()>,
    ) -> Result<()> {
        self.log.journal_with(id, kind, push)
    }
    fn flush<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.log.flush(ids))
    }
    fn read(&self, id: PartitionId, from: Offset, want: ReadOptions) -> Result<Vec<Frame>> {
        Log::read(&*self.log, id, from, want)
    }
    fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>> {
        self.log.newest(id, from, bytes)
    }
    fn wait_for(&self, id: PartitionId, from: Offset) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.log.wait_for(id, from))
    }
    fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()> {
        self.log.listen(id, listener)
    }
    fn on_roll(&self, told: Arc<RollListener>) {
        self.log.on_roll(told);
    }
    fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset> {
        self.log.offset_at(id, time)
    }
    fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>> {
        self.log.frame_at(id, offset)
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.log.clock()
    }
    fn last_commit_time(&self) -> Micros {
        Log::last_commit_time(&*self.log)
    }
    fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.log.last_checkpoint(id)
    }
    fn trim(&self, id: PartitionId, below: Offset) -> Result<()> {
        self.log.trim(id, below)
    }
    fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset> {
        self.log.rewrite(id, keep)
    }
    fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.log.oldest_leftover(id)
    }
    fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()> {
        self.log.release_leftovers(id, below)
    }
    fn roll(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.log.roll())
    }
    fn erase(&self) -> Result<()> {
        self.log.erase()
    }
    fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()> {
        self.log.scan(id, from, to, show)
    }
}

pub async fn begin() -> (tempfile::TempDir, Arc<Slow>, Queues) {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(thalweg_log::disk::FolderDisk::open(folder.path()).unwrap());
    let slow = Arc::new(Slow {
        log: Arc::new(EmbeddedLog::open(disk, 7, &log_options(4 << 20, 1 << 20)).unwrap()),
        holds_creations: AtomicBool::new(false),
        holds_after_creation: AtomicBool::new(false),
        holds_appends: AtomicBool::new(false),
        held: AtomicUsize::new(0),
        go_on: Notify::new(),
    });
    let queues = queues_in(slow.clone(), Arc::new(TestClock::default()), u64::MAX).await;
    (folder, slow, queues)
}

/// Creating a queue of a thousand partitions hangs. Meanwhile another queue gets groups, a nacked message is
/// redelivered, and a queue is created and deleted.
#[tokio::test]
async fn a_large_queue_that_is_being_made_holds_up_no_other() {
    let (_folder, slow, queues) = begin().await;
    let queue = queues.create("q", work(2)).await.unwrap();
    put(&queue, &["a"]).await;
    slow.holds_creations.store(true, Ordering::SeqCst);
    let (making, second) = (queues.clone(), queues.clone());
    let large = QueueSettings {
        group_expiry: Duration::ZERO,
        ..work(1000)
    };
    let making = tokio::spawn(async move { making.create("large", large).await });
    slow.until_held().await;
    // A second call for the same queue waits for the first and finds the queue.
    let same = tokio::spawn(async move { second.create("large", work(1)).await });

    let beside = async {
        let first = GroupSettings::new("fresh", GroupMode::Work);
        let fresh = queues.join_group(&queue, first).await.unwrap();
        let taken = claim_http_as(&queue, "g", "c", up_to(1)).await;
        settle(&queue, "g", &taken, nack_in(Duration::from_millis(50))).await;
        let again = loop {
            let want = thalweg_queue::ClaimRequest {
                wait: PATIENCE,
                ..up_to(1)
            };
            let again = claim_http_as(&queue, "g", "c", want).await;
            if !again.is_empty() {
                break again;
            }
        };
        assert_eq!(again[0].delivery, 2);
        // The queue itself stores its first member in the catalogue.
        queue.claim(&fresh, "m", MemberKind::Http, up_to(1)).await.unwrap();
        queues.create("other", work(2)).await.unwrap();
        queues.pause(&queue, thalweg_queue::Pause::Produce, true).await.unwrap();
        queues.remove("other", true).await.unwrap();
    };
    tokio::time::timeout(PATIENCE, beside)
        .await
        .expect("the other queue waits for the large one");
    assert!(!making.is_finished() && !same.is_finished());
    slow.let_go();
    assert!(tokio::time::timeout(PATIENCE, making).await.unwrap().unwrap().is_ok());
    let exists = tokio::time::timeout(PATIENCE, same)
        .await
        .unwrap()
        .unwrap()
        .err()
        .unwrap();
    assert_eq!(exists.code(), "queue_exists");
    assert_eq!(queues.get("large").unwrap().partition_count(), 1000);
}

/// A message dies while its dead letter cannot be stored because the disk hangs. Other messages of the same queue are
/// redelivered in time.
#[tokio::test]
async fn timers_wait_for_no_disk() {
    let (_folder, slow, queues) = begin().await;
    let mut settings = work(2);
    settings.retry.initial_backoff = Duration::from_millis(50);
    let queue = queues.create("q", settings).await.unwrap();
    put(&queue, &["a", "b", "c", "d"]).await;
    let taken = claim_http_as(&queue, "g", "c", up_to(4)).await;
    assert_eq!(taken.len(), 4);
    slow.holds_appends.store(true, Ordering::SeqCst);
    // The first leaves for the dead letters, which hangs; so does the call.
    let group = queue.group("g").unwrap();
    let (rejecting, dying, receipt) = (queue.clone(), group.clone(), queue.receipt(&taken[0]));
    let rejected = tokio::spawn(async move {
        let verdict = SettleAction::Reject { reason: None };
        rejecting.settle(&dying, vec![(receipt, verdict)], true).await
    });
    slow.until_held().await;
    for delivery in &taken[1..] {
        let verdict = nack_in(Duration::from_millis(20));
        let settled = queue
            .settle(&group, vec![(queue.receipt(delivery), verdict)], false)
            .await;
        assert!(settled.unwrap().failed.is_empty());
    }
    let again = async {
        let mut again = 0;
        while again < 3 {
            again += claim_http_as(&queue, "g", "c", up_to(4)).await.len();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("timers wait for the disk");
    assert!(!rejected.is_finished());
    slow.let_go();
    assert!(tokio::time::timeout(PATIENCE, rejected).await.unwrap().unwrap().is_ok());
}
