//! Where the lake is: `lake.url`, `lake.storage` and `lake.spool`, and what has to be so before anybody writes there.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use tempfile::NamedTempFile;
use thalweg_config::Fields;
use thalweg_kit::{WorkFolder, files};
use thalweg_lake::store::{
    FaultKind, LakeStorage, LakeUrl, LeaseError, STORAGE_FLAGS, STORAGE_TEXTS, ScratchOptions, SyncedStore,
};
use tokio_rustls::rustls::crypto::aws_lc_rs;

use crate::checked_config::CheckedConfig;
use crate::data_dir::DataDir;

/// Copies of files leave so much of the disk to the log.
const FREE_MIN: u64 = 1 << 30;
/// Of copies that a command needs.
const TOOL_SPOOL_BYTES: u64 = 4 << 30;
/// Two files that are merged and what is made of them, at the smallest target.
const SPOOL_MIN: u64 = 16 << 20;

/// As the section `lake` says it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LakeSite {
    /// `None` is the data folder.
    url: Option<LakeUrl>,
    storage: Vec<(String, String)>,
    spool_bytes: u64,
}

impl LakeSite {
    /// Mistakes go to the diagnostics. `target` is how large files are made that are merged.
    pub fn read(fields: &mut Fields<'_>, target: u64) -> LakeSite {
        let mut site = LakeSite {
            spool_bytes: fields.size("spool", "4GiB"),
            ..LakeSite::default()
        };
        if let Some(text) = fields.opt_string("url") {
            match LakeUrl::parse(&text) {
                Ok(url) => site.url = Some(url),
                Err(why) => fields.error("url", why),
            }
        }
        let least = SPOOL_MIN.max(target.saturating_mul(4));
        let is_remote = matches!(site.url, Some(LakeUrl::Store(_)));
        if is_remote && site.spool_bytes < least {
            fields.error(
                "spool",
                format!("expected at least {least} bytes, four times compaction.target: a merge has to fit"),
            );
        }
        let is_given = fields.has("storage");
        let mut storage = fields.fields("storage");
        for name in STORAGE_TEXTS {
            site.storage
                .extend(storage.opt_string(name).map(|value| (name.to_owned(), value)));
        }
        for name in STORAGE_FLAGS {
            let flag = storage.opt_bool(name);
            site.storage
                .extend(flag.map(|flag| (name.to_owned(), flag.to_string())));
        }
        storage.finish();
        if is_given && !is_remote {
            fields.error("storage", "has no use without a lake.url on an object store");
        }
        site
    }

    /// Where tables are. Nothing is asked of an object store yet. `bytes_per_second` is what merges may write.
    pub fn open(&self, data_dir: &Path, bytes_per_second: u64) -> Result<LakeStorage> {
        let folder = thalweg_lake::folder(data_dir);
        match &self.url {
            None => {
                // Where it was before is not where it is.
                let _ = std::fs::remove_file(note(data_dir));
                Ok(LakeStorage::folder(&folder, SyncedStore::new()))
            }
            Some(url) => {
                // Also of a folder elsewhere: what does not fit into the memory of queries has its place here.
                files::create_folders(&folder.join("_thalweg"))?;
                let absolute = match url {
                    LakeUrl::Folder(path) => std::path::absolute(path)?.display().to_string(),
                    store => store.to_string(),
                };
                files::write_whole(&note(data_dir), absolute.as_bytes())?;
                let scratch = ScratchOptions {
                    folder: folder.join("_thalweg"),
                    spool_bytes: self.spool_bytes,
                    free_min: FREE_MIN,
                    bytes_per_second,
                };
                at(url, &self.storage, &scratch)
            }
        }
    }

    /// The lock of a folder that is not in the data folder, which has one itself.
    pub fn lock(&self) -> Result<Option<DataDir>> {
        match &self.url {
            Some(LakeUrl::Folder(path)) => DataDir::take_lake(path).map(Some),
            _ => Ok(None),
        }
    }
}

/// Where a process of this data folder has its lake, if that is elsewhere: for those who read when it does not run.
pub(crate) fn noted(data_dir: &Path) -> Option<String> {
    std::fs::read_to_string(note(data_dir)).ok()
}

fn note(data_dir: &Path) -> PathBuf {
    thalweg_lake::folder(data_dir).join("_thalweg/url")
}

/// A lake by its URL alone; credentials are those of the environment. Copies of files lie in `scratch`.
pub(crate) fn by_url(url: &str, scratch: &Path) -> Result<LakeStorage> {
    let url = LakeUrl::parse(url).map_err(|why| anyhow!("--lake {url}: {why}"))?;
    let scratch = ScratchOptions {
        folder: scratch.to_owned(),
        spool_bytes: TOOL_SPOOL_BYTES,
        free_min: FREE_MIN,
        bytes_per_second: 0,
    };
    at(&url, &[], &scratch)
}

/// A folder of a command that has none of its own in a data folder.
pub(crate) fn scratch() -> Result<WorkFolder> {
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
        let site = match lake.map(str::to_owned).or_else(|| noted(data_dir)) {
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
        let lake = &checked.settings.lake;
        Ok(LakeLocation {
            site: lake.site.open(data_dir, lake.upkeep.bytes_per_second)?,
            data_dir: Some(data_dir.to_owned()),
            scratch: scratch()?,
        })
    }

    pub fn site(&self) -> &LakeStorage {
        &self.site
    }

    pub(crate) fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// Where rows wait for their tables, and bad lines stay.
    pub(crate) fn local(&self) -> PathBuf {
        match (self.site.is_remote(), &self.data_dir) {
            (false, _) => self.site.path().to_owned(),
            (true, Some(data_dir)) => thalweg_lake::folder(data_dir),
            (true, None) => self.scratch.path().to_owned(),
        }
    }
}

/// A file of an object store, copied to one that goes when it is dropped; credentials are those of the environment.
pub async fn download(url: &str) -> Result<NamedTempFile> {
    let _ = aws_lc_rs::default_provider().install_default();
    let mut file = NamedTempFile::with_prefix("thalweg-")?;
    let copied = thalweg_lake::store::download(url, file.as_file_mut()).await;
    copied.map_err(|why| anyhow!("{url} cannot be read: {why}"))?;
    Ok(file)
}

fn at(url: &LakeUrl, storage: &[(String, String)], scratch: &ScratchOptions) -> Result<LakeStorage> {
    // The clients of object stores take the one of the process; somebody else may have set the same one.
    let _ = aws_lc_rs::default_provider().install_default();
    LakeStorage::at(url, storage, scratch).map_err(|why| anyhow!("lake.url: {why}"))
}

/// Whether a start has to end there: waiting cures a store that is away, and nothing else.
pub(crate) fn is_final(error: &LeaseError) -> bool {
    matches!(error.kind(), FaultKind::Held | FaultKind::Denied | FaultKind::NoBucket)
}

#[cfg(test)]
mod tests {
    use thalweg_config::{Diagnostics, LoadOptions, SourceText, load};

    use super::*;

    /// What a section says, and the mistakes in it.
    fn read(lake: &str) -> (LakeSite, String) {
        let source = SourceText::new("f.yaml", format!("lake: {lake}\n"));
        let loaded = load(&source, &|_| None, &LoadOptions::default());
        let diagnostics = Diagnostics::new("f.yaml");
        let mut fields = Fields::new(loaded.config.lake.as_ref().unwrap(), &diagnostics);
        let site = LakeSite::read(&mut fields, 256 << 20);
        fields.finish();
        (site, diagnostics.to_string())
    }

    #[test]
    fn a_lake_is_in_the_data_folder_a_folder_or_an_object_store() {
        let folder = tempfile::tempdir().unwrap();
        let at = |lake: &str| {
            let (site, mistakes) = read(lake);
            assert_eq!(mistakes, "");
            site.open(folder.path(), 0).unwrap().path().to_owned()
        };
        assert_eq!(at("{}"), folder.path().join("lake"));
        assert_eq!(at("{url: /elsewhere/lake}"), Path::new("/elsewhere/lake"));
        let keys = "access_key_id: a, secret_access_key: b, region: eu-north-1";
        let url = format!("{{url: \"s3://bucket/lake\", storage: {{{keys}}}}}");
        assert_eq!(at(&url), Path::new("s3://bucket/lake"));
    }

    #[test]
    fn mistakes_are_named_where_they_are() {
        for (lake, words) in [
            (
                "{url: \"ftp://host\"}",
                "lake.url: ftp://host is on no object store that is known here",
            ),
            (
                "{storage: {region: x}}",
                "lake.storage: has no use without a lake.url on an object store",
            ),
            (
                "{url: \"s3://b\", storage: {acces_key_id: x}}",
                "unknown field \"acces_key_id\" in lake.storage, did you mean \"access_key_id\"?",
            ),
            (
                "{url: \"s3://b\", spool: 1MiB}",
                "lake.spool: expected at least 1073741824 bytes",
            ),
            (
                "{url: \"s3://b\", storage: {allow_http: maybe}}",
                "lake.storage.allow_http",
            ),
        ] {
            let (_, mistakes) = read(lake);
            assert!(mistakes.contains(words), "{lake}: {mistakes}");
        }
    }
}
