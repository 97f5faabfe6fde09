//! How the tables of a process are written and kept in order.

use std::time::Duration;

use thalweg_columns::attributes::AttributePromotion;
use thalweg_lake::ingest::FileRules;
use thalweg_lake::maintenance::MaintenanceOptions;

/// As the section `lake` of a configuration says it.
#[derive(Clone, Debug)]
pub struct LakeOptions {
    /// Memory of rows after which a flush starts.
    pub flush_bytes: usize,
    /// Age of the oldest row at which a flush starts. Rows are on disk in the log, and seen by queries, long before.
    pub flush_interval: Duration,
    /// Of rows and the files made of them, of all tables together.
    pub memory_bytes: usize,
    pub files: FileRules,
    /// Which attributes have columns: of logs, metrics and traces.
    pub promotions: [AttributePromotion; 3],
    /// Of the table `tags`.
    pub tags_promotion: AttributePromotion,
    /// Of the table `events`.
    pub events_promotion: AttributePromotion,
    pub upkeep: MaintenanceOptions,
}

impl Default for LakeOptions {
    fn default() -> LakeOptions {
        LakeOptions {
            flush_bytes: 64 << 20,
            flush_interval: Duration::from_secs(60),
            memory_bytes: 768 << 20,
            files: FileRules::default(),
            promotions: Default::default(),
            tags_promotion: AttributePromotion::default(),
            events_promotion: AttributePromotion::default(),
            upkeep: MaintenanceOptions::default(),
        }
    }
}
