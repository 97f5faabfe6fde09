//! What `log.memory` is for: the bodies of requests on their way to the log, what waits for the writer of each disk, the newest
//! records that are read without the disk, and indexes of full files.
//!
//! One submission that is larger than what may wait goes alone, once nothing else waits.

use thalweg_queue_api::{BODIES_BYTES_MAX, BODY_BYTES_MAX};

/// The most that is of use to one disk.
const WAITING_MAX: usize = 64 << 20;
const TAIL_MAX: usize = 64 << 20;
const INDEX_MAX: usize = 32 << 20;
/// With less for one disk, each message would be a write of its own.
const DISK_MIN: usize = 7 << 20;

/// Parts of the memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogMemory {
    /// Of all requests together.
    pub bodies: usize,
    /// Of each disk: what may wait, and as much again that the writer has taken and not yet stored.
    pub waiting: usize,
    pub tail: usize,
    pub index: usize,
}

impl LogMemory {
    pub fn of(bytes: usize, disks: usize) -> LogMemory {
        let of_disks = disks.max(1) * DISK_MIN;
        let bodies = (bytes / 2).min(bytes.saturating_sub(of_disks));
        let bodies = bodies.clamp(BODY_BYTES_MAX, BODIES_BYTES_MAX);
        let seventh = bytes.saturating_sub(bodies) / disks.max(1) / 7;
        LogMemory {
            bodies,
            waiting: (2 * seventh).min(WAITING_MAX),
            tail: (2 * seventh).min(TAIL_MAX),
            index: seventh.min(INDEX_MAX),
        }
    }

    /// With less, the largest request or a disk would find no room.
    pub fn floor(disks: usize) -> usize {
        BODY_BYTES_MAX + disks.max(1) * DISK_MIN
    }

    /// More is of no use.
    pub fn most(disks: usize) -> usize {
        BODIES_BYTES_MAX + disks.max(1) * (2 * WAITING_MAX + TAIL_MAX + INDEX_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_disks_are_the_memory_and_no_more() {
        for disks in 1..5 {
            for bytes in [
                LogMemory::floor(disks),
                100 << 20,
                1 << 30,
                LogMemory::most(disks),
                1 << 40,
            ] {
                let bytes = bytes.max(LogMemory::floor(disks));
                let parts = LogMemory::of(bytes, disks);
                let sum = parts.bodies + disks * (2 * parts.waiting + parts.tail + parts.index);
                let most = bytes.min(LogMemory::most(disks));
                assert!(sum <= most, "{parts:?} of {bytes} on {disks}");
                assert!(
                    parts.waiting >= 2 << 20 && parts.tail >= 2 << 20 && parts.index >= 1 << 20,
                    "{parts:?}"
                );
                assert!(parts.bodies >= BODY_BYTES_MAX);
            }
        }
        let most = LogMemory::of(1 << 40, 2);
        assert_eq!(
            most.bodies + 2 * (2 * most.waiting + most.tail + most.index),
            LogMemory::most(2)
        );
    }
}
