//! How the tables of a process are written and maintained.

use std::time::Duration;

use thalweg_columns::attributes::AttributePromotion;
use thalweg_lake::ingest::FileRules;
use thalweg_lake::maintenance::MaintenanceOptions;

/// The section `lake` of a configuration.
#[derive(Clone, Debug)]
pub struct LakeOptions {
    /// Memory of rows that triggers a flush.
    pub flush_bytes: usize,
    /// Age of the oldest row that triggers a flush. Rows are in the log, and visible to queries, long before.
    pub flush_interval: Duration,
    /// Memory for the rows and files of all tables.
    pub memory_bytes: usize,
    pub files: FileRules,
    /// Which attributes get columns in logs, metrics and traces.
    pub promotions: [AttributePromotion; 3],
    /// Which attributes get columns in `tags`.
    pub tags_promotion: AttributePromotion,
    /// Which attributes get columns in `events`.
    pub events_promotion: AttributePromotion,
    pub maintenance: MaintenanceOptions,
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
            maintenance: MaintenanceOptions::default(),
        }
    }
}
