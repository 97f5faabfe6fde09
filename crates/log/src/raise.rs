//! Moves the next offset of a partition forward. An index or a table that knows offsets which the log has lost calls
//! this, so that no offset is assigned to two records. Readers see a gap in between.

use std::time::Duration;

use crate::contract::{Log, ReadOptions};
use crate::error::Result;
use crate::format::frame::FrameKind;
use crate::ids::{Offset, PartitionId};
use crate::records::{Records, WriteBatch};

/// How often to check whether the disk has it.
const LOOK: Duration = Duration::from_millis(1);

/// Raises the next offset of the partition to at least `to`. On return this survives a power cut, whatever the
/// durability of the partition. Nobody else may append to the partition meanwhile.
pub async fn raise_next(log: &dyn Log, id: PartitionId, to: Offset) -> Result<()> {
    loop {
        let next = log.bounds(id)?.next;
        let Some(distance) = to.checked_sub(next).filter(|distance| *distance > 0) else {
            break;
        };
        let step = u32::try_from(distance).unwrap_or(u32::MAX);
        let nothing = Records::new().covering(step)?.expecting(next);
        let unit = WriteBatch::default().and_of(FrameKind::Gap, id, nothing);
        log.append(unit).await?;
    }
    let synced = ReadOptions { bytes: 1, synced: true };
    while log.bounds(id)?.synced < to {
        // A read with `synced` triggers a sync.
        log.read(id, to, synced)?;
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
