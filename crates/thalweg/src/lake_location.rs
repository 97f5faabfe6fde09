//! The lake that a command works on, and a folder for its temporary files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use tempfile::NamedTempFile;
use thalweg_assemble::{CheckedConfig, noted_lake};
use thalweg_delta::store::{LakeStorage, LakeUrl, ScratchOptions, SyncedStore};
use thalweg_http::tls_client::install_crypto_provider;
use thalweg_kit::WorkFolder;

/// Space for copies that a command needs.
const SPOOL_BYTES: u64 = 4 << 30;
/// Copies of files leave this much disk space free.
const FREE_MIN: u64 = 1 << 30;

/// Opens a lake by its URL, with credentials from the environment. Copies of files go to `scratch`.
pub fn by_url(url: &str, scratch: &Path) -> Result<LakeStorage> {
    let url = LakeUrl::parse(url).map_err(|why| anyhow!("--lake {url}: {why}"))?;
    let scratch = ScratchOptions {
        folder: scratch.to_owned(),
        spool_bytes: SPOOL_BYTES,
        free_min: FREE_MIN,
        bytes_per_second: 0,
    };
    install_crypto_provider();
    LakeStorage::at(&url, &[], &scratch).map_err(|why| anyhow!("lake.url: {why}"))
}

/// A temporary folder for a command without a data folder.
pub fn scratch() -> Result<WorkFolder> {
    WorkFolder::temporary().with_context(|| {
        let folder = std::env::temp_dir();
        format!(
            "cannot write to {}, the folder for temporary files; set TMPDIR to a writable folder",
            folder.display()
        )
    })
}

/// The lake that a command works on.
pub struct LakeLocation {
    site: LakeStorage,
    /// The data folder, if the lake was found through it.
    data_dir: Option<PathBuf>,
    /// For copies, and for rows that wait.
    scratch: WorkFolder,
}

impl LakeLocation {
    /// Opens the lake at a URL or path, or else where the last process of the data folder had it.
    pub fn new(data_dir: &Path, lake: Option<&str>) -> Result<LakeLocation> {
        let scratch = scratch()?;
        let site = match lake.map(str::to_owned).or_else(|| noted_lake(data_dir)) {
            Some(url) => by_url(&url, scratch.path())?,
            None => LakeStorage::folder(&thalweg_lake::folder(data_dir), SyncedStore::new()),
        };
        let data_dir = lake.is_none().then(|| data_dir.to_owned());
        Ok(LakeLocation {
            site,
            data_dir,
            scratch,
        })
    }

    /// Opens the lake of a configuration's section `lake`.
    pub fn configured(checked: &CheckedConfig, data_dir: &Path) -> Result<LakeLocation> {
        Ok(LakeLocation {
            site: checked.open_lake(data_dir)?,
            data_dir: Some(data_dir.to_owned()),
            scratch: scratch()?,
        })
    }

    pub fn site(&self) -> &LakeStorage {
        &self.site
    }

    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// The folder for waiting rows and bad lines.
    pub fn local(&self) -> PathBuf {
        match (self.site.is_remote(), &self.data_dir) {
            (false, _) => self.site.path().to_owned(),
            (true, Some(data_dir)) => thalweg_lake::folder(data_dir),
            (true, None) => self.scratch.path().to_owned(),
        }
    }
}

/// Copies a file from an object store to a temporary file, with credentials from the environment.
pub async fn download(url: &str) -> Result<NamedTempFile> {
    install_crypto_provider();
    let mut file = NamedTempFile::with_prefix("thalweg-")?;
    let copied = thalweg_delta::store::download(url, file.as_file_mut()).await;
    copied.map_err(|why| anyhow!("{url} cannot be read: {why}"))?;
    Ok(file)
}
