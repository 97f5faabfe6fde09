//! Files to tables, beside a running process: with the limits and columns that its configuration gives to receivers and tables, or
//! with the usual ones.

use anyhow::{Result, bail};
use thalweg_lake::LakeMetrics;
use thalweg_lake::bulk::SPECS;
pub use thalweg_lake::bulk::{
    BulkError, BulkFormat, BulkImporter, BulkOptions, BulkProgress, BulkReport, BulkRequest, BulkSource, TableReport,
    check_format,
};
use thalweg_lake::inflate::InflateLimits;
pub use thalweg_lake::otlp::Signal;
use thalweg_lake::tables::TableSpec;
use thalweg_telemetry::Metrics;
use tokio::runtime::Runtime;

use crate::CheckedConfig;
use crate::data_dir::DataDir;
use crate::lake::OTLP_TABLES;
use crate::lake_site::LakeLocation;

/// A lake that another process may hold.
pub fn open(
    place: &LakeLocation,
    checked: Option<&CheckedConfig>,
    wanted: BulkRequest,
    runtime: &Runtime,
) -> Result<BulkImporter> {
    if let Some(data_dir) = place.data_dir() {
        DataDir::refuse_restore(data_dir)?;
    }
    let metrics = LakeMetrics::register(Metrics::new(false).registry())?;
    let options = checked.map(options).unwrap_or_default();
    let (site, local) = (place.site().clone(), place.local());
    Ok(BulkImporter::new(
        site,
        &local,
        runtime.handle().clone(),
        metrics,
        options,
        wanted,
    ))
}

/// The table that rows go to.
pub fn table(name: &str) -> Result<&'static TableSpec> {
    match SPECS.into_iter().find(|spec| spec.name == name) {
        Some(spec) => Ok(spec),
        None => {
            let names: Vec<_> = SPECS.iter().map(|spec| spec.name).collect();
            bail!(
                "there is no table {name} that files go to; the tables are {}",
                names.join(", ")
            )
        }
    }
}

fn options(checked: &CheckedConfig) -> BulkOptions {
    let (lake, ingest) = (&checked.settings.lake, &checked.settings.ingest);
    let defaults = BulkOptions::default();
    let promotions = OTLP_TABLES.into_iter().zip(lake.promotions.iter().cloned());
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
