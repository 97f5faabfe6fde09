//! Which lake a command is about, and the folder for what does not fit into memory meanwhile.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use tempfile::NamedTempFile;
use thalweg_assemble::{CheckedConfig, noted_lake};
use thalweg_delta::store::{LakeStorage, LakeUrl, ScratchOptions, SyncedStore};
use thalweg_kit::WorkFolder;
use tokio_rustls::rustls::crypto::aws_lc_rs;

/// Of copies that a command needs.
const SPOOL_BYTES: u64 = 4 << 30;
/// Copies of files leave so much of the disk to others.
const FREE_MIN: u64 = 1 << 30;

/// A lake by its URL alone; credentials are those of the environment. Copies of files lie in `scratch`.
pub fn by_url(url: &str, scratch: &Path) -> Result<LakeStorage> {
    let url = LakeUrl::parse(url).map_err(|why| anyhow!("--lake {url}: {why}"))?;
    let scratch = ScratchOptions {
        folder: scratch.to_owned(),
        spool_bytes: SPOOL_BYTES,
        free_min: FREE_MIN,
        bytes_per_second: 0,
    };
    use_tls();
    LakeStorage::at(&url, &[], &scratch).map_err(|why| anyhow!("lake.url: {why}"))
}

/// A folder of a command that has none of its own in a data folder.
pub fn scratch() -> Result<WorkFolder> {
    WorkFolder::temporary().with_context(|| {
        let folder = std::env::temp_dir();
        format!(
            "cannot write to {}, the folder for temporary files; set TMPDIR to one that can be written",
            folder.display()
        )
    })
}

/// A lake that a command is about.
pub struct LakeLocation {
    site: LakeStorage,
    /// The data folder, of a lake that is known by it.
    data_dir: Option<PathBuf>,
    /// Of copies, and of rows that wait.
    scratch: WorkFolder,
}

impl LakeLocation {
    /// That of a URL or a path, else where the last process of a data folder had it.
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

    /// The same by the section `lake` of a configuration.
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

    /// Where rows wait for their tables, and bad lines stay.
    pub fn local(&self) -> PathBuf {
        match (self.site.is_remote(), &self.data_dir) {
            (false, _) => self.site.path().to_owned(),
            (true, Some(data_dir)) => thalweg_lake::folder(data_dir),
            (true, None) => self.scratch.path().to_owned(),
        }
    }
}

/// A file of an object store, copied to one that goes when it is dropped; credentials are those of the environment.
pub async fn download(url: &str) -> Result<NamedTempFile> {
    use_tls();
    let mut file = NamedTempFile::with_prefix("thalweg-")?;
    let copied = thalweg_delta::store::download(url, file.as_file_mut()).await;
    copied.map_err(|why| anyhow!("{url} cannot be read: {why}"))?;
    Ok(file)
}

/// The clients of object stores take the one of the process; somebody else may have set the same one.
fn use_tls() {
    let _ = aws_lc_rs::default_provider().install_default();
}
