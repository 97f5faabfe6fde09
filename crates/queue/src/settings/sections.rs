//! The section `queues` of the configuration file: the declared queues, and whether others are created on use.

use std::collections::HashSet;

use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Fields, Node, Pos};

use super::QueueSettings;
use crate::names::NameKind;

/// Each has at least one partition, and a process has at most 100 000 of them.
const QUEUES_MAX: usize = 10_000;
/// Of all queues of a process together.
pub(crate) const PARTITIONS_MAX: u64 = 100_000;

/// Names in the list are checked, not reserved, and unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuesSettings {
    /// An undeclared queue is created with default settings when it is first used.
    pub auto_create: bool,
    /// Memory limit for all queues of durability `memory`, and its position in the file.
    pub memory: Option<(u64, Pos)>,
    /// Memory limit for the dedup-ids of all queues, and its position in the file.
    pub dedup_memory: Option<(u64, Pos)>,
    /// Memory limit for the state of groups, and its position in the file.
    pub state_memory: Option<(u64, Pos)>,
    pub list: Vec<(SmolStr, QueueSettings)>,
}

impl QueuesSettings {
    /// `None` is a file without the section. Mistakes go to the diagnostics.
    pub fn read(node: Option<&Node>, diags: &Diagnostics) -> QueuesSettings {
        let empty = Node::empty_map();
        let mut f = Fields::new(node.unwrap_or(&empty), diags);
        let auto_create = f.bool("auto_create", false);
        let memory = f.opt_size("memory").map(|bytes| (bytes, f.pos_of("memory")));
        let dedup_memory = f
            .opt_size("dedup_memory")
            .map(|bytes| (bytes, f.pos_of("dedup_memory")));
        let state_memory = f
            .opt_size("state_memory")
            .map(|bytes| (bytes, f.pos_of("state_memory")));
        let nodes = f.list("list");
        let mut list = Vec::with_capacity(nodes.len().min(QUEUES_MAX));
        if nodes.len() > QUEUES_MAX {
            f.error("list", format!("at most {QUEUES_MAX} queues can be declared"));
        } else {
            let mut seen = HashSet::new();
            for node in &nodes {
                let (name, settings) = QueueSettings::read_named(node, diags);
                let at = node.get("name").unwrap_or(node);
                if NameKind::of(&name) != NameKind::Ordinary {
                    diags.error(
                        at,
                        "names beginning with dlq., lake. or buffer. are reserved; choose another",
                    );
                } else if !name.is_empty() && !seen.insert(name.clone()) {
                    diags.error(at, format!("queue {name:?} is declared twice"));
                }
                if let Some((key, why)) = settings.without_effect() {
                    diags.error(node.get(key).unwrap_or(node), why);
                }
                list.push((name, settings));
            }
        }
        let partitions: u64 = list.iter().map(|(_, settings)| u64::from(settings.partitions)).sum();
        if partitions > PARTITIONS_MAX {
            f.error(
                "list",
                format!("the queues have {partitions} partitions together, a process has at most {PARTITIONS_MAX}"),
            );
        }
        f.finish();
        QueuesSettings {
            auto_create,
            memory,
            dedup_memory,
            state_memory,
            list,
        }
    }
}
