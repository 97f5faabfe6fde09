//! Queues by what most tests set: partitions and groups.

use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

/// Whatever else a queue is set to is as it is without a setting.
pub fn settings(partitions: u32, groups: &[(&str, GroupMode)]) -> QueueSettings {
    let groups = groups.iter().map(|(name, mode)| GroupSettings::new(name, *mode));
    QueueSettings {
        partitions,
        groups: groups.collect(),
        ..QueueSettings::default()
    }
}

/// With one group of leases, "g".
pub fn work(partitions: u32) -> QueueSettings {
    settings(partitions, &[("g", GroupMode::Work)])
}

/// Of one partition, with a group of leases for each of these names.
pub fn work_groups(names: &[&str]) -> QueueSettings {
    let groups: Vec<_> = names.iter().map(|name| (*name, GroupMode::Work)).collect();
    settings(1, &groups)
}
