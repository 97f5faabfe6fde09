//! Settings of commands that use a lake without a process, from a configuration or the defaults.

use std::path::Path;

use anyhow::Result;
use thalweg_config::{Config, Diagnostics};
use thalweg_delta::store::LakeStorage;
use thalweg_lake::bulk::BulkOptions;
use thalweg_lake::entry::InflateLimits;
use thalweg_lake::maintenance::MaintenanceOptions;
use thalweg_query::QueryOptions;

use crate::checked_config::CheckedConfig;
use crate::lake::OTLP_TABLES;
use crate::settings::{FlowRequirements, Settings};

impl CheckedConfig {
    /// Opens the lake of the section `lake`, or else the one in this data folder.
    pub fn open_lake(&self, data_dir: &Path) -> Result<LakeStorage> {
        let lake = &self.settings.lake;
        lake.site.open(data_dir, lake.options.maintenance.bytes_per_second)
    }

    /// The maintenance options of tables.
    pub fn maintenance_options(&self) -> MaintenanceOptions {
        self.settings.lake.options.maintenance.clone()
    }

    /// The options for turning files into rows, with the limits of receivers and the columns of tables.
    pub fn bulk_options(&self) -> BulkOptions {
        let (lake, ingest) = (&self.settings.lake, &self.settings.ingest);
        let defaults = BulkOptions::default();
        let promotions = OTLP_TABLES.into_iter().zip(lake.options.promotions.iter().cloned());
        let mut options = BulkOptions {
            flush_bytes: lake.options.flush_bytes,
            files: lake.options.files.clone(),
            promotions: promotions.collect(),
            ..defaults
        };
        if let Some(ingest) = ingest {
            let receiver = &ingest.receiver;
            (options.walk, options.window) = (receiver.walk, ingest.window);
            options.inflate = InflateLimits {
                bytes: receiver.decoded_bytes_max,
                ratio: receiver.ratio_max,
                window: receiver.zstd_window_max,
            };
        }
        options
    }
}

/// The maintenance options of tables without a configuration.
pub fn default_maintenance_options() -> MaintenanceOptions {
    defaults().lake.options.maintenance
}

/// The query options without a configuration; memory is the usual share on this machine.
pub fn default_query_options() -> QueryOptions {
    defaults().query
}

fn defaults() -> Settings {
    Settings::read(&Config::default(), FlowRequirements::default(), &Diagnostics::new(""))
}
