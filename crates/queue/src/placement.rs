//! Which partitions of the log are appended to together, and so belong on one disk: the messages of a partition and the state
//! of its groups.

use thalweg_log::PartitionId;

use crate::queue::STATE;

/// The same for all partitions of the log that belong together.
pub fn together(id: PartitionId) -> PartitionId {
    PartitionId::new(id.queue & !STATE, id.partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_the_state_of_their_groups_are_on_one_disk_other_partitions_anywhere() {
        let (data, state) = (PartitionId::new(20, 3), PartitionId::new(20 | STATE, 3));
        assert_eq!(together(state), together(data));
        assert_ne!(together(data), together(PartitionId::new(20, 4)));
        assert_ne!(together(data), together(PartitionId::new(21, 3)));
    }
}
