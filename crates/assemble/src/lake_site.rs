//! The location of the lake: `lake.url`, `lake.storage` and `lake.spool`, and the checks before anything is written
//! there.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use thalweg_config::Fields;
use thalweg_delta::store::{LakeStorage, LakeUrl, STORAGE_FLAGS, STORAGE_TEXTS, ScratchOptions, SyncedStore};
use thalweg_http::tls_client::install_crypto_provider;
use thalweg_kit::files;

use crate::data_dir::DataDir;

/// Copies of files leave this much disk space to the log.
const FREE_MIN: u64 = 1 << 30;
/// Two merged files and the result, at the smallest target.
const SPOOL_MIN: u64 = 16 << 20;

/// The location as the section `lake` states it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LakeSite {
    /// `None` means the data folder.
    url: Option<LakeUrl>,
    storage: Vec<(String, String)>,
    spool_bytes: u64,
}

impl LakeSite {
    /// Mistakes go to the diagnostics. `target` is the size of merged files.
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

    /// Opens the location without contacting an object store. `bytes_per_second` limits the writes of merges.
    pub fn open(&self, data_dir: &Path, bytes_per_second: u64) -> Result<LakeStorage> {
        let folder = thalweg_lake::folder(data_dir);
        match &self.url {
            None => {
                // The lake is in the data folder now, so a note of another location is stale.
                let _ = std::fs::remove_file(note(data_dir));
                Ok(LakeStorage::folder(&folder, SyncedStore::new()))
            }
            Some(url) => {
                // Needed also for a folder elsewhere: queries spill to this folder.
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

    /// Locks a lake folder outside the data folder; the data folder has a lock of its own.
    pub fn lock(&self) -> Result<Option<DataDir>> {
        match &self.url {
            Some(LakeUrl::Folder(path)) => DataDir::take_lake(path).map(Some),
            _ => Ok(None),
        }
    }
}

/// The noted location of the lake, if it is outside the data folder. For readers while no process runs.
pub fn noted_lake(data_dir: &Path) -> Option<String> {
    std::fs::read_to_string(note(data_dir)).ok()
}

fn note(data_dir: &Path) -> PathBuf {
    thalweg_lake::folder(data_dir).join("_thalweg/url")
}

fn at(url: &LakeUrl, storage: &[(String, String)], scratch: &ScratchOptions) -> Result<LakeStorage> {
    install_crypto_provider();
    LakeStorage::at(url, storage, scratch).map_err(|why| anyhow!("lake.url: {why}"))
}

#[cfg(test)]
mod tests {
    use thalweg_config::{Diagnostics, LoadOptions, SourceText, load};

    use super::*;

    /// Reads a section, and returns its mistakes.
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
                "lake.url: ftp://host is not on a supported object store",
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
