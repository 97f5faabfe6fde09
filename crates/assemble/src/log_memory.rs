//! The uses of `log.memory`: request bodies on their way to the log, submissions that wait for the writer of each disk,
//! the newest records, which are read without the disk, and indexes of full files.
//!
//! A submission that exceeds the limit of waiting bytes goes alone, once nothing else waits.

use thalweg_queue_api::{BODIES_BYTES_MAX, BODY_BYTES_MAX};

/// The most that one disk can use.
const WAITING_MAX: usize = 64 << 20;
const TAIL_MAX: usize = 64 << 20;
const INDEX_MAX: usize = 32 << 20;
/// Below this, a disk would write each message separately.
const DISK_MIN: usize = 7 << 20;

/// Parts of the memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogMemory {
    /// For all requests together.
    pub bodies: usize,
    /// For each disk: submissions that wait, and as much again for those that the writer has taken but not stored.
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

    /// Below this, the largest request or a disk would find no room.
    pub fn floor(disks: usize) -> usize {
        BODY_BYTES_MAX + disks.max(1) * DISK_MIN
    }

    /// More memory would not be used.
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
