//! Queues with the settings that most tests vary: partitions and groups.

use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

/// All other settings have their defaults.
pub fn settings(partitions: u32, groups: &[(&str, GroupMode)]) -> QueueSettings {
    let groups = groups.iter().map(|(name, mode)| GroupSettings::new(name, *mode));
    QueueSettings {
        partitions,
        groups: groups.collect(),
        ..QueueSettings::default()
    }
}

/// With one work group, "g".
pub fn work(partitions: u32) -> QueueSettings {
    settings(partitions, &[("g", GroupMode::Work)])
}

/// One partition, and a work group for each of these names.
pub fn work_groups(names: &[&str]) -> QueueSettings {
    let groups: Vec<_> = names.iter().map(|name| (*name, GroupMode::Work)).collect();
    settings(1, &groups)
}
