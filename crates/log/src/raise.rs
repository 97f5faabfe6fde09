//! Has a partition go on at a later offset. Whoever knows offsets that the log has lost (an index, a table) calls it, so that
//! no offset is ever given to two records. What lies between is a gap to its readers.

use crate::contract::Log;
use crate::error::Result;
use crate::format::frame::Kind;
use crate::ids::{Offset, PartitionId};
use crate::records::{Records, Unit};

/// Returns when the next record of the partition gets `to` or a later offset, as durably as the partition promises. Nobody else
/// may append to it meanwhile.
pub async fn raise_next(log: &dyn Log, id: PartitionId, to: Offset) -> Result<()> {
    loop {
        let next = log.bounds(id)?.next;
        let Some(distance) = to.checked_sub(next).filter(|distance| *distance > 0) else {
            return Ok(());
        };
        let step = u32::try_from(distance).unwrap_or(u32::MAX);
        let nothing = Records::new().covering(step)?.expecting(next);
        let unit = Unit::default().and_of(Kind::Gap, id, nothing);
        log.append(unit, None).await?;
    }
}
