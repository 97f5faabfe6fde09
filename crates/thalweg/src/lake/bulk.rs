//! Ingests files into tables, also beside a running process, with the limits and columns of its configuration or the
//! defaults.

use anyhow::{Result, bail};
use thalweg_assemble::{CheckedConfig, DataDir};
use thalweg_columns::tables::TableSpec;
use thalweg_lake::LakeMetrics;
use thalweg_lake::bulk::{BulkImporter, BulkRequest, SPECS};
use thalweg_otlp::OtlpBulkRequests;
use thalweg_telemetry::Metrics;
use tokio::runtime::Runtime;

use crate::lake_location::LakeLocation;

/// Opens a lake that another process may hold.
pub fn open(
    place: &LakeLocation,
    checked: Option<&CheckedConfig>,
    wanted: BulkRequest,
    runtime: &Runtime,
) -> Result<BulkImporter> {
    if let Some(data_dir) = place.data_dir() {
        DataDir::refuse_restore(data_dir)?;
    }
    let metrics = LakeMetrics::register(&Metrics::new(false));
    let options = checked.map(CheckedConfig::bulk_options).unwrap_or_default();
    let (site, local) = (place.site().clone(), place.local());
    Ok(BulkImporter::new(
        site,
        &local,
        runtime.handle().clone(),
        metrics,
        Box::new(OtlpBulkRequests::default()),
        options,
        wanted,
    ))
}

/// The table for rows.
pub fn table(name: &str) -> Result<&'static TableSpec> {
    match SPECS.into_iter().find(|spec| spec.name == name) {
        Some(spec) => Ok(spec),
        None => {
            let names: Vec<_> = SPECS.iter().map(|spec| spec.name).collect();
            bail!(
                "files cannot be imported into a table {name}; the tables are {}",
                names.join(", ")
            )
        }
    }
}
