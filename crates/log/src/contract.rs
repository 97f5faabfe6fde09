//! The interface of a log. The embedded log implements it; a distributed log can.
//!
//! 1. Offsets of a partition strictly increase; gaps are allowed.
//! 2. `append` returns when the durability that it names holds for the whole unit. A unit is stored as a whole or not
//!    at all.
//! 3. `create` fails with `DurabilityUnavailable` if the log cannot provide the durability.
//! 4. `read` returns only committed records; with `synced`, only records that survive a power cut.
//! 5. Appends that one caller starts one after the other keep their order in each partition.
//! 6. Journaled records are stored in order, before anything that is appended or flushed later. There is no
//!    notification.
//! 7. `rewrite` removes records between the first and the next offset and does not change the offsets of the others.
//! 8. Records that expect an offset are stored there or, with the rest of their unit, not at all.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::clock::Clock;
use crate::durability::Durability;
use crate::embedded::{AppendReceipt, EmbeddedLog};
use crate::error::Result;
use crate::file_pool::RollListener;
use crate::format::frame::{FrameHeader, FrameKind};
use crate::ids::{Micros, Offset, PartitionId};
use crate::partition::{Frame, PartitionBounds, PartitionListener};
use crate::records::{Records, SUBMISSION_BYTES_MAX, WriteBatch};
use crate::segment::{RecordFilter, RecordVisitor};
use crate::status::LogStatus;

/// A boxed `Send` future, which makes traits usable as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The capabilities of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCaps {
    pub durabilities: &'static [Durability],
    /// Units that span several partitions are stored as a whole.
    pub atomic_units: bool,
    /// Offsets of a partition have no gaps except those from `rewrite` and from losses.
    pub contiguous: bool,
    pub rewrite: bool,
    pub unit_bytes_max: usize,
}

/// The size and durability of a read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Approximate size of the result. At least one frame is returned.
    pub bytes: usize,
    /// Return only records that survive a power cut.
    pub synced: bool,
}

pub trait Log: Send + Sync + 'static {
    fn caps(&self) -> LogCaps;

    fn status(&self) -> LogStatus;

    /// Globally identifies this log. Positions in one log mean nothing in another.
    fn id(&self) -> u64;

    /// All partitions, in no particular order.
    fn partitions(&self) -> Vec<PartitionId>;

    fn bounds(&self, id: PartitionId) -> Result<PartitionBounds>;

    /// The size of the records between two offsets, to the granularity of frames.
    fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64>;

    /// Creates a partition. Durable when it returns.
    fn create(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>>;

    /// Creates several partitions, none of which may exist. On each disk they are created atomically, so a crash leaves
    /// all of them or none. Durable when it returns. Costs one commit, or a few for very many partitions.
    fn create_all<'a>(&'a self, ids: &'a [PartitionId], durability: Durability) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for id in ids {
                self.create(*id, durability).await?;
            }
            Ok(())
        })
    }

    /// Changes the durability for everything that is appended after the return. The change survives a restart.
    fn set_durability(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>>;

    /// The durability of the partition.
    fn durability(&self, id: PartitionId) -> Result<Durability>;

    /// Removes a partition. Durable when it returns. An id is never reused.
    fn remove(&self, id: PartitionId) -> BoxFuture<'_, Result<()>>;

    /// Removes several partitions. If a disk cannot remove them atomically, it removes them in this order, so a crash
    /// leaves the last ones and never the first. Durable when it returns. Costs one commit, or a few for very many
    /// partitions or on a full disk.
    fn remove_all<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for id in ids {
                self.remove(*id).await?;
            }
            Ok(())
        })
    }

    fn append(&self, unit: WriteBatch) -> BoxFuture<'_, Result<AppendReceipt>>;

    /// Adds records of one kind that are written with the next block, within 10 ms, without notification. Records of
    /// one call stay together: `push` may be called twice and must then push the same records from the beginning.
    fn journal(&self, id: PartitionId, kind: FrameKind, push: &mut dyn FnMut(&mut Records) -> Result<()>)
    -> Result<()>;

    /// Returns when everything journaled for these partitions so far has their durability.
    fn flush<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>>;

    /// Frames with the records from `from` on; none if there are no records yet. Blocks if the frames are not in
    /// memory. If `synced` is requested and the records are not synced yet, a sync is triggered.
    fn read(&self, id: PartitionId, from: Offset, want: ReadOptions) -> Result<Vec<Frame>>;

    /// Like `read`, but never blocks: returns `None` if the frames must be read from disk.
    fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>>;

    /// Waits until a record at `from` can be read.
    fn wait_for(&self, id: PartitionId, from: Offset) -> BoxFuture<'_, Result<()>>;

    /// Calls the listener whenever the partition has grown. The log keeps the listener as long as the partition exists,
    /// so the listener must not keep a reference to the log.
    fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()>;

    /// Calls a listener whenever the log starts a new file, which is when older files may have become unnecessary. The
    /// commit thread makes the call, so the listener must return at once. The log keeps the listener, so the listener
    /// must not keep a reference to the log.
    fn on_roll(&self, told: Arc<RollListener>);

    /// The first offset at which a record of `time` or later may be; the end of the partition if there is none.
    fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset>;

    /// The header of the frame that contains an offset, or of the next frame, without reading the body; `None` if there
    /// is none.
    fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>>;

    /// The clock of this log, which returns log time.
    fn clock(&self) -> Arc<dyn Clock>;

    /// The log time of the newest block that the start found (see [`clock`](crate::clock)).
    fn last_commit_time(&self) -> Micros;

    /// The offset of the newest checkpoint.
    fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>>;

    /// Declares that records before `below` are no longer needed.
    fn trim(&self, id: PartitionId, below: Offset) -> Result<()>;

    /// Removes every permanently stored record that `keep` rejects. Blocks until done. Returns the offset up to which
    /// all records were passed to `keep`; the records after it are still too recent.
    fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset>;

    /// The lowest offset in a file with records that a rewrite may have removed. These records come back if the file
    /// that replaced it is lost. `None` if there is no such file.
    fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>>;

    /// Removes such files as far as they have records before `below`. Blocks until done.
    fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()>;

    /// Closes the current file. When it returns, everything stored so far is in full files, so that `rewrite` reaches
    /// all of it. These files are not reused.
    fn roll(&self) -> BoxFuture<'_, Result<()>>;

    /// Rewrites what partitions have in files that were full at the last `roll`, and removes those files. Afterwards no
    /// file has bytes of records that were removed before that `roll`. Blocks until done.
    fn erase(&self) -> Result<()>;

    /// Passes the records from `from` to `to` to `show` until it returns false, throttled to the rate of background
    /// I/O. Blocks.
    fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()>;
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

    fn append(&self, unit: WriteBatch) -> BoxFuture<'_, Result<AppendReceipt>> {
        Box::pin(EmbeddedLog::append(self, unit))
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
}
