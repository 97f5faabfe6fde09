//! Operations on the store in a folder that no process holds.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use thalweg_events::backup::{BackupError, BackupReader};
use thalweg_events::{EmbeddedStore, EventsError, RestoreReport, VerifyReport, restore};
use thalweg_kit::blocking;
use thalweg_log::{Durability, Log};
use thalweg_queue::settings::LogSettings;

use super::opening::{RecoveryOptions, embedded, take, taken};
use crate::data_dir::DataDir;
use crate::log::OpenLog;
use crate::log_memory::LogMemory;

/// Memory for the log, while nobody writes.
const MEMORY: usize = 64 << 20;
/// Verification must not drop anything.
const KEEPS: RecoveryOptions = RecoveryOptions {
    deleted: true,
    accept_loss: false,
};

/// Opens the store in `log/` of a folder and reads everything in it. It changes only what any start does: the torn end
/// of the log is cut off. `tell` receives the progress. Must be called on a tokio runtime.
pub async fn verify_events(folder: &Path, tell: impl FnMut(&VerifyReport) + Send + 'static) -> Result<VerifyReport> {
    let shown = folder.display();
    ensure!(
        folder.join("log").is_dir(),
        "{shown} contains no log; use the --data-dir of `thalweg events serve`"
    );
    let _held = take(folder)?;
    let log = open_log(folder).await?;
    let store = embedded(log.log(), Durability::Fsync, folder, MEMORY, KEEPS).await?;
    let verified = store.verify_telling(tell).await;
    drop(store);
    close(log).await?;
    Ok(verified?)
}

/// Restores a backup to a new or empty folder. `tell` receives the progress. On return the store is complete and
/// synced; until then nobody accepts the folder's content as a store. Must be called on a tokio runtime.
pub async fn restore_events<R: Read + Send + 'static>(
    folder: &Path,
    source: R,
    tell: impl FnMut(&RestoreReport) + Send + 'static,
) -> Result<RestoreReport> {
    // An invalid backup leaves no folder behind.
    let backup = blocking::spawn(move || BackupReader::new(source)).await;
    let backup = backup.context("the backup was not read")??;
    let held = DataDir::take_for_restore(folder).map_err(|error| taken(folder, error))?;
    let restored = restore_to(folder, backup, tell).await;
    let ended = match &restored {
        Ok(_) => held.restored(),
        Err(_) => held.not_restored(),
    };
    let restored = restored?;
    ended.with_context(|| format!("cannot write to {}", folder.display()))?;
    Ok(restored)
}

async fn restore_to<R: Read + Send + 'static>(
    folder: &Path,
    backup: BackupReader<R>,
    mut tell: impl FnMut(&RestoreReport) + Send + 'static,
) -> Result<RestoreReport> {
    let log = open_log(folder).await?;
    let into = log.log();
    let restored = blocking::spawn(move || restore(&into, backup, &mut tell)).await;
    let restored = match restored.context("the restore was aborted") {
        Ok(Ok(restored)) => index(log.log(), folder, &restored).await.map(|()| restored),
        Ok(Err(BackupError::Store(error))) => Err(error.into()),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(error),
    };
    close(log).await?;
    restored
}

/// Builds the indexes, so that the first start need not, and checks that everything was restored.
async fn index(log: Arc<dyn Log>, folder: &Path, restored: &RestoreReport) -> Result<()> {
    let store: EmbeddedStore = embedded(log, Durability::Fsync, folder, MEMORY, KEEPS).await?;
    let found = store.has_restored(restored).map_err(|error| match error {
        EventsError::NamespaceNotFound(name) => {
            EventsError::Damaged(format!("namespace '{name}' of the backup was not restored"))
        }
        error => error,
    });
    found?;
    store.flush_indexes().await?;
    Ok(())
}

async fn open_log(folder: &Path) -> Result<OpenLog> {
    let settings = LogSettings {
        min_free: Some(0),
        ..LogSettings::default()
    };
    OpenLog::open(&settings, LogMemory::of(MEMORY, 1), folder).await
}

async fn close(log: OpenLog) -> Result<()> {
    let closed = blocking::spawn(move || log.close()).await;
    closed.context("the log was not closed")
}
