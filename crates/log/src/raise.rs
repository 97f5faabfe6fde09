//! Has a partition go on at a later offset. Whoever knows offsets that the log has lost (an index, a table) calls it, so that
//! no offset is ever given to two records. What lies between is a gap to its readers.

use std::time::Duration;

use crate::contract::{Log, ReadOptions};
use crate::error::Result;
use crate::format::frame::FrameKind;
use crate::ids::{Offset, PartitionId};
use crate::records::{Records, WriteBatch};

/// So often it is looked whether the disk has it.
const LOOK: Duration = Duration::from_millis(1);

/// Returns when the next record of the partition gets `to` or a later offset, which no power cut takes back, whatever the partition
/// promises of records. Nobody else may append to it meanwhile.
pub async fn raise_next(log: &dyn Log, id: PartitionId, to: Offset) -> Result<()> {
    loop {
        let next = log.bounds(id)?.next;
        let Some(distance) = to.checked_sub(next).filter(|distance| *distance > 0) else {
            break;
        };
        let step = u32::try_from(distance).unwrap_or(u32::MAX);
        let nothing = Records::new().covering(step)?.expecting(next);
        let unit = WriteBatch::default().and_of(FrameKind::Gap, id, nothing);
        log.append(unit, None).await?;
    }
    let synced = ReadOptions { bytes: 1, synced: true };
    while log.bounds(id)?.synced < to {
        // Whoever wants what is synced has it synced.
        log.read(id, to, synced)?;
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
