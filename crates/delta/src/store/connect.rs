//! Resolves the configured location of a lake: `s3://bucket/name`, `gs://…`, `az://…`, or a path.
//!
//! Settings have the names that `object_store` and other Delta writers use, without the prefix of the provider. What is
//! not set is taken from the environment, as the providers' own tools do (`AWS_…`, `GOOGLE_…`, `AZURE_…`).

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, RetryConfig};
use url::Url;

use super::{LakeStorage, ScratchOptions, StorePath, SyncedStore, fault_text};

/// A configured location of a lake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LakeUrl {
    Folder(PathBuf),
    Store(Url),
}

/// The names of settings; [`STORAGE_FLAGS`] are those that are `true` or `false`.
pub const STORAGE_TEXTS: [&str; 20] = [
    "endpoint",
    "region",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "role_arn",
    "web_identity_token_file",
    "server_side_encryption",
    "sse_kms_key_id",
    "service_account",
    "service_account_key",
    "account_name",
    "account_key",
    "sas_token",
    "client_id",
    "client_secret",
    "tenant_id",
    "proxy_url",
    "connect_timeout",
    "timeout",
];
pub const STORAGE_FLAGS: [&str; 4] = [
    "allow_http",
    "virtual_hosted_style_request",
    "use_emulator",
    "skip_signature",
];

/// The client retries only this often. Callers retry after that, and can log the reason.
const RETRIES: usize = 3;
const RETRIES_WITHIN: Duration = Duration::from_secs(15);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl LakeUrl {
    /// A relative path is relative to the working directory.
    pub fn parse(text: &str) -> Result<LakeUrl, String> {
        if !text.contains("://") {
            return match text {
                "" => Err("expected a path, or a URL as s3://bucket/lake".to_owned()),
                path => Ok(LakeUrl::Folder(Path::new(path).to_owned())),
            };
        }
        let url = Url::parse(text).map_err(|error| format!("{text} is not a URL: {error}"))?;
        if url.scheme() == "file" {
            let path = url.to_file_path();
            return path
                .map(LakeUrl::Folder)
                .map_err(|()| format!("{text} has no path; write file:///path"));
        }
        if url.query().is_some() || url.password().is_some() {
            return Err("credentials and options do not belong in the URL; set them in lake.storage".to_owned());
        }
        match ObjectStoreScheme::parse(&url) {
            Ok((
                ObjectStoreScheme::AmazonS3 | ObjectStoreScheme::GoogleCloudStorage | ObjectStoreScheme::MicrosoftAzure,
                _,
            )) => Ok(LakeUrl::Store(url)),
            _ => Err(format!(
                "{text} is not on a supported object store: expected s3://bucket/lake, gs://bucket/lake, az://container/lake, \
                 or a path"
            )),
        }
    }
}

impl std::fmt::Display for LakeUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LakeUrl::Folder(path) => write!(f, "{}", path.display()),
            LakeUrl::Store(url) => f.write_str(url.as_str().trim_end_matches('/')),
        }
    }
}

impl LakeStorage {
    /// The storage at a URL, without any request yet. `settings` are pairs of the names above and values.
    pub fn at(url: &LakeUrl, settings: &[(String, String)], scratch: &ScratchOptions) -> Result<LakeStorage, String> {
        match url {
            LakeUrl::Folder(path) => Ok(LakeStorage::folder(path, SyncedStore::new())),
            LakeUrl::Store(store) => {
                let (store, prefix) = connect(store, settings)?;
                Ok(LakeStorage::remote(&url.to_string(), store, prefix, scratch))
            }
        }
    }
}

/// The builders of the providers have the same methods but share no trait.
macro_rules! built {
    ($builder:ident, $key:ty, $url:expr, $settings:expr, $retry:expr) => {{
        let mut builder = $builder::from_env().with_url($url.as_str()).with_retry($retry);
        for (name, value) in $settings {
            let key: $key = name
                .parse()
                .map_err(|_| format!("lake.storage.{name} is not a setting of {}://", $url.scheme()))?;
            builder = builder.with_config(key, value);
        }
        let built = builder
            .build()
            .map_err(|error| format!("{} cannot be used: {error}", $url))?;
        Arc::new(built) as Arc<dyn ObjectStore>
    }};
}

fn connect(url: &Url, settings: &[(String, String)]) -> Result<(Arc<dyn ObjectStore>, StorePath), String> {
    let (scheme, prefix) = ObjectStoreScheme::parse(url).map_err(|error| error.to_string())?;
    only_encrypted(settings)?;
    let retry = RetryConfig {
        backoff: BackoffConfig {
            max_backoff: BACKOFF_MAX,
            ..BackoffConfig::default()
        },
        max_retries: RETRIES,
        retry_timeout: RETRIES_WITHIN,
    };
    let store = match scheme {
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder, AmazonS3ConfigKey, url, settings, retry),
        ObjectStoreScheme::GoogleCloudStorage => {
            built!(GoogleCloudStorageBuilder, GoogleConfigKey, url, settings, retry)
        }
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder, AzureConfigKey, url, settings, retry),
        _ => return Err(format!("{url} is not on a supported object store")),
    };
    Ok((store, prefix))
}

/// Copies one object or file to an open file and rewinds it.
pub async fn download(url: &str, to: &mut File) -> Result<(), String> {
    let written = |error: std::io::Error| error.to_string();
    match LakeUrl::parse(url)? {
        LakeUrl::Folder(path) => {
            let mut from = File::open(path).map_err(written)?;
            std::io::copy(&mut from, to).map_err(written)?;
        }
        LakeUrl::Store(url) => {
            let (store, path) = connect(&url, &[])?;
            let failed = |error: object_store::Error| fault_text(&error);
            let mut pieces = store.get(&path).await.map_err(failed)?.into_stream();
            while let Some(piece) = pieces.try_next().await.map_err(failed)? {
                to.write_all(&piece).map_err(written)?;
            }
        }
    }
    to.rewind().map_err(written)
}

/// Rejects plain HTTP here, because the library's own error would not state the reason.
fn only_encrypted(settings: &[(String, String)]) -> Result<(), String> {
    let of = |name: &str| {
        settings
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    };
    let environment = |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok());
    let endpoint = of("endpoint").or_else(|| environment(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]));
    let allowed = of("allow_http").or_else(|| environment(&["AWS_ALLOW_HTTP"]));
    match endpoint {
        Some(endpoint) if endpoint.starts_with("http://") && allowed.as_deref() != Some("true") => Err(format!(
            "the endpoint {endpoint} is not encrypted; set lake.storage.allow_http: true, or use https"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths_are_told_apart() {
        let folder = |path: &str| -> Result<LakeUrl, String> { Ok(LakeUrl::Folder(path.into())) };
        assert_eq!(LakeUrl::parse("/data/lake"), folder("/data/lake"));
        assert_eq!(LakeUrl::parse("lake"), folder("lake"));
        assert_eq!(LakeUrl::parse("file:///data/lake"), folder("/data/lake"));
        for url in [
            "s3://b/lake",
            "s3a://b/lake",
            "gs://b/lake/",
            "az://c/lake",
            "abfss://c@account.dfs.core.windows.net/lake",
        ] {
            let parsed = LakeUrl::parse(url).unwrap();
            assert!(matches!(parsed, LakeUrl::Store(_)));
            assert_eq!(parsed.to_string(), url.trim_end_matches('/'));
        }
        for (text, word) in [
            ("", "expected a path"),
            ("ftp://host/lake", "expected s3://bucket/lake"),
            ("https://host/lake", "expected s3://bucket/lake"),
            ("s3://key:secret@b/lake", "set them in lake.storage"),
            ("s3://b/lake?endpoint=x", "set them in lake.storage"),
            ("file://host/lake", "write file:///path"),
        ] {
            let error = LakeUrl::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn every_setting_is_one_of_some_provider() {
        for name in STORAGE_TEXTS.into_iter().chain(STORAGE_FLAGS) {
            let known = name.parse::<AmazonS3ConfigKey>().is_ok()
                || name.parse::<GoogleConfigKey>().is_ok()
                || name.parse::<AzureConfigKey>().is_ok();
            assert!(known, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_one_sentence() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let scratch = ScratchOptions {
            folder: std::env::temp_dir(),
            spool_bytes: 0,
            free_min: 0,
            bytes_per_second: 0,
        };
        let url = LakeUrl::parse("s3://bucket/lake").unwrap();
        let at = |settings: &[(&str, &str)]| LakeStorage::at(&url, &pairs(settings), &scratch);
        let plain = at(&[("endpoint", "http://127.0.0.1:9000"), ("region", "eu-north-1")]).unwrap_err();
        assert!(plain.contains("set lake.storage.allow_http: true"), "{plain}");
        let other = at(&[("account_name", "x")]).unwrap_err();
        assert_eq!(other, "lake.storage.account_name is not a setting of s3://");
        let site = at(&[
            ("endpoint", "http://127.0.0.1:9000"),
            ("allow_http", "true"),
            ("access_key_id", "a"),
            ("secret_access_key", "b"),
        ]);
        assert_eq!(site.unwrap().path(), Path::new("s3://bucket/lake"));
    }
}
