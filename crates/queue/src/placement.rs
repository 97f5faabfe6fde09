//! Which partitions of the log are appended to together and so belong on one disk: the messages of a partition, their
//! dedup-ids and the state of their groups; and all that the MQTT broker has.

use thalweg_log::PartitionId;

use crate::identity::number_of;

/// The same value for all log partitions that belong together.
pub fn together(id: PartitionId) -> PartitionId {
    if id.queue >= PartitionId::MQTT {
        // A message and the changes of sessions that come with it are one submission.
        return PartitionId::new(PartitionId::MQTT, 0);
    }
    PartitionId::new(number_of(id), id.partition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{IDS, STATE};

    #[test]
    fn messages_their_ids_and_the_state_of_their_groups_are_on_one_disk_other_partitions_anywhere() {
        let data = PartitionId::new(20, 3);
        for kind in [STATE, IDS] {
            assert_eq!(together(PartitionId::new(20 | kind, 3)), together(data));
        }
        assert_ne!(together(data), together(PartitionId::new(20, 4)));
        let foreign = PartitionId::new(PartitionId::EVENTS + 20, 3);
        assert_eq!(together(foreign), foreign);
        let mqtt = |kind| PartitionId::new(PartitionId::MQTT + kind, 0);
        assert_eq!(together(mqtt(1)), together(mqtt(2)));
        assert_ne!(together(mqtt(1)), together(foreign));
        assert_ne!(together(data), together(PartitionId::new(21, 3)));
    }
}
