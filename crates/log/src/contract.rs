//! What a log is to those who store in it: the embedded one is such a log, a distributed one can be.
//!
//! 1. Offsets of a partition strictly increase; gaps are allowed.
//! 2. `append` answers when the durability that it names holds for the whole unit, which is stored as a whole or not at all.
//! 3. `create` fails with `DurabilityUnavailable` if the log cannot give the durability.
//! 4. `read` returns only what is committed, with `synced` only what survives a power cut.
//! 5. Appends of one caller, begun one after the other, keep their order in each partition.
//! 6. A stale fence gets `Fenced`, and nothing is stored.
//! 7. What was journaled is stored in its order, before what is appended or flushed later; nobody is told when.
//! 8. `rewrite` removes records between the first and the next offset and changes no offset of those it keeps.
//! 9. Records that expect an offset are stored there or, with the rest of their unit, not at all.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::clock::Clock;
use crate::durability::Durability;
use crate::embedded::{AppendReceipt, EmbeddedLog, Fence};
use crate::error::Result;
use crate::file_pool::RollListener;
use crate::format::frame::{FrameHeader, FrameKind};
use crate::ids::{Micros, Offset, PartitionId};
use crate::partition::{Frame, PartitionBounds, PartitionListener};
use crate::records::{Records, SUBMISSION_BYTES_MAX, WriteBatch};
use crate::segment::{RecordFilter, RecordVisitor};
use crate::status::LogStatus;

/// A future that may be moved between threads, as traits with `dyn` need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a log can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCaps {
    pub durabilities: &'static [Durability],
    /// Units of several partitions are stored as a whole.
    pub atomic_units: bool,
    /// Offsets of a partition have no gaps but those of `rewrite` and of losses.
    pub contiguous: bool,
    pub rewrite: bool,
    pub unit_bytes_max: usize,
}

/// How much a reader wants, and how sure it must be.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// About so many bytes, one frame at least.
    pub bytes: usize,
    /// Only what survives a power cut.
    pub synced: bool,
}

pub trait Log: Send + Sync + 'static {
    fn caps(&self) -> LogCaps;

    fn status(&self) -> LogStatus;

    /// Names this log among all; positions in one mean nothing in another.
    fn id(&self) -> u64;

    /// All partitions, in no order.
    fn partitions(&self) -> Vec<PartitionId>;

    fn bounds(&self, id: PartitionId) -> Result<PartitionBounds>;

    /// Bytes of the records between two offsets, exact to the frame.
    fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64>;

    /// Durable when it returns.
    fn create(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>>;

    /// Several partitions, none of which is there, together or not at all on each disk: a crash finds all of them or none.
    /// Durable when it returns; costs one commit, or a few for very many.
    fn create_all<'a>(&'a self, ids: &'a [PartitionId], durability: Durability) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for id in ids {
                self.create(*id, durability).await?;
            }
            Ok(())
        })
    }

    /// What is appended from when it returns has this durability, also after a restart.
    fn set_durability(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>>;

    /// What the partition promises.
    fn durability(&self, id: PartitionId) -> Result<Durability>;

    /// Durable when it returns. An id is never used again.
    fn remove(&self, id: PartitionId) -> BoxFuture<'_, Result<()>>;

    /// Several partitions, on each disk in this order where they do not go together: a crash leaves the last ones, never the
    /// first. Durable when it returns; costs one commit, or a few for very many or on a full disk.
    fn remove_all<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for id in ids {
                self.remove(*id).await?;
            }
            Ok(())
        })
    }

    fn append(&self, unit: WriteBatch, fence: Option<Fence>) -> BoxFuture<'_, Result<AppendReceipt>>;

    /// Adds records of one kind that go with the next block, within 10 ms, and that nobody waits for. Those of one call
    /// stay together: `push` may be called twice, to push the same from its beginning.
    fn journal(&self, id: PartitionId, kind: FrameKind, push: &mut dyn FnMut(&mut Records) -> Result<()>)
    -> Result<()>;

    /// Returns when what was journaled for these partitions before is as durable as they promise.
    fn flush<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>>;

    /// Frames with the records from `from` on; none if there is nothing yet. Blocks if they are not in memory. What is asked
    /// for with `synced` and is not synced yet will be soon.
    fn read(&self, id: PartitionId, from: Offset, want: ReadOptions) -> Result<Vec<Frame>>;

    /// The same if they are in memory, or if there are none; `None` if they have to be read from a disk.
    fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>>;

    /// Waits until a record at `from` can be read.
    fn wait_for(&self, id: PartitionId, from: Offset) -> BoxFuture<'_, Result<()>>;

    /// Tells somebody whenever a partition has grown. The log keeps the listener as long as the partition, so it must not keep
    /// the log.
    fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()>;

    /// Tells somebody whenever the log begins a new file: the moment to look whether older ones are still needed. The thread
    /// that commits tells, so it has to return at once; and the log keeps it, so it must not keep the log.
    fn on_roll(&self, told: Arc<RollListener>);

    /// The first offset from which on there may be records of `time` or later; the end if there are none yet.
    fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset>;

    /// What the frame that holds an offset or what follows it says of itself, without reading it; `None` if there is none.
    fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>>;

    /// Tells log time.
    fn clock(&self) -> Arc<dyn Clock>;

    /// When the newest block was written that a start found, in log time (see [`clock`](crate::clock)).
    fn last_commit_time(&self) -> Micros;

    /// The offset of the newest checkpoint.
    fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>>;

    /// What stands before `below` is not needed any more.
    fn trim(&self, id: PartitionId, below: Offset) -> Result<()>;

    /// Keeps of the records that are stored for good only those that `keep` wants. Blocks for as long as that takes.
    /// Returns the offset before which every record was shown to `keep`; what follows is still too young.
    fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset>;

    /// The lowest offset of which a file has records that a rewrite may have left out, and that stands in again if the file is
    /// lost that took its place. `None`: there is no such file.
    fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>>;

    /// Has such files go, as far as they have records before `below`. Blocks for as long as that takes.
    fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()>;

    /// What was stored so far is in files that are full when it returns, so that `rewrite` reaches all of it, and those files
    /// are not used again.
    fn roll(&self) -> BoxFuture<'_, Result<()>>;

    /// Writes anew what partitions have in files that were full at the last `roll`, and removes these: no file has bytes of
    /// records that were removed before it. Blocks for as long as that takes.
    fn erase(&self) -> Result<()>;

    /// Shows the records from `from` up to `to` one after the other, until `show` says false, at the pace of what goes on
    /// behind. Blocks.
    fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()>;

    /// Takes a partition over: who held it before appends nothing more.
    fn acquire(&self, id: PartitionId) -> BoxFuture<'_, Result<Fence>>;
}

impl Log for EmbeddedLog {
    fn caps(&self) -> LogCaps {
        LogCaps {
            durabilities: &[Durability::Fsync, Durability::Interval, Durability::Os],
            atomic_units: true,
            contiguous: true,
            rewrite: true,
            unit_bytes_max: SUBMISSION_BYTES_MAX,
        }
    }

    fn status(&self) -> LogStatus {
        EmbeddedLog::status(self)
    }

    fn id(&self) -> u64 {
        EmbeddedLog::id(self)
    }

    fn partitions(&self) -> Vec<PartitionId> {
        EmbeddedLog::partitions(self)
    }

    fn bounds(&self, id: PartitionId) -> Result<PartitionBounds> {
        EmbeddedLog::bounds(self, id)
    }

    fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64> {
        EmbeddedLog::bytes(self, id, from, to)
    }

    fn create(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>> {
        Box::pin(EmbeddedLog::create(self, id, durability))
    }

    fn set_durability(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>> {
        Box::pin(EmbeddedLog::set_durability(self, id, durability))
    }

    fn durability(&self, id: PartitionId) -> Result<Durability> {
        Ok(self.partition(id)?.durability())
    }

    fn remove(&self, id: PartitionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(EmbeddedLog::remove(self, id))
    }

    fn create_all<'a>(&'a self, ids: &'a [PartitionId], durability: Durability) -> BoxFuture<'a, Result<()>> {
        Box::pin(EmbeddedLog::create_all(self, ids, durability))
    }

    fn remove_all<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(EmbeddedLog::remove_all(self, ids))
    }

    fn append(&self, unit: WriteBatch, fence: Option<Fence>) -> BoxFuture<'_, Result<AppendReceipt>> {
        Box::pin(EmbeddedLog::append(self, unit, fence))
    }

    fn journal(
        &self,
        id: PartitionId,
        kind: FrameKind,
        push: &mut dyn FnMut(&mut Records) -> Result<()>,
    ) -> Result<()> {
        self.journal_with(id, kind, push)
    }

    fn flush<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(EmbeddedLog::flush(self, ids))
    }

    fn read(&self, id: PartitionId, from: Offset, want: ReadOptions) -> Result<Vec<Frame>> {
        let mut frames = EmbeddedLog::read(self, id, from, want.bytes)?;
        if want.synced {
            let PartitionBounds { synced, next, .. } = EmbeddedLog::bounds(self, id)?;
            frames.retain(|frame| frame.header.next() <= synced);
            // In mode `os` nothing else would sync it.
            if synced < next && frames.is_empty() {
                self.ask_for_sync();
            }
        }
        Ok(frames)
    }

    fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>> {
        EmbeddedLog::newest(self, id, from, bytes)
    }

    fn wait_for(&self, id: PartitionId, from: Offset) -> BoxFuture<'_, Result<()>> {
        Box::pin(EmbeddedLog::wait_for(self, id, from))
    }

    fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()> {
        EmbeddedLog::listen(self, id, listener)
    }

    fn on_roll(&self, told: Arc<RollListener>) {
        EmbeddedLog::on_roll(self, told);
    }

    fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset> {
        EmbeddedLog::offset_at(self, id, time)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        EmbeddedLog::clock(self)
    }

    fn last_commit_time(&self) -> Micros {
        self.report().last_commit_time
    }

    fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>> {
        EmbeddedLog::frame_at(self, id, offset)
    }

    fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>> {
        EmbeddedLog::last_checkpoint(self, id)
    }

    fn trim(&self, id: PartitionId, below: Offset) -> Result<()> {
        EmbeddedLog::trim(self, id, below)
    }

    fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset> {
        EmbeddedLog::rewrite(self, id, keep)
    }

    fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>> {
        EmbeddedLog::oldest_leftover(self, id)
    }

    fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()> {
        EmbeddedLog::release_leftovers(self, id, below)
    }

    fn roll(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(EmbeddedLog::roll(self))
    }

    fn erase(&self) -> Result<()> {
        EmbeddedLog::erase(self)
    }

    fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()> {
        EmbeddedLog::scan(self, id, from, to, show)
    }

    fn acquire(&self, id: PartitionId) -> BoxFuture<'_, Result<Fence>> {
        Box::pin(EmbeddedLog::acquire(self, id))
    }
}
