//! What is asked of the store of a folder that no process holds.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use thalweg_events::Verified;
use thalweg_log::Durability;
use thalweg_queue::settings::LogSettings;

use super::opening::{open_embedded, take};
use crate::log::OpenLog;
use crate::log_memory::LogMemory;

/// For the log, while nobody writes.
const MEMORY: usize = 64 << 20;

/// Opens the store in `log/` of a folder and reads everything in it. Changes nothing but what any start does: the torn end of
/// the log is cut off. Must be called on a runtime.
pub async fn verify_events(folder: &Path) -> Result<Verified> {
    let shown = folder.display();
    ensure!(
        folder.join("log").is_dir(),
        "{shown} has no log; give the folder that `thalweg events serve` has as --data-dir"
    );
    let _held = take(folder)?;
    let settings = LogSettings {
        min_free: Some(0),
        ..LogSettings::default()
    };
    let log = OpenLog::open(&settings, LogMemory::of(MEMORY, 1), folder).await?;
    let store = open_embedded(log.log(), Durability::Fsync, folder, MEMORY).await?;
    let verified = store.verify().await;
    drop(store);
    tokio::task::spawn_blocking(move || log.close())
        .await
        .context("the log was not closed")?;
    Ok(verified?)
}
