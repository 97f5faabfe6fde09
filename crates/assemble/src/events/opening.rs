//! Opens an event store in its storage, and the default namespace with its token.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use thalweg_events::{
    DEFAULT, EmbeddedStore, EventsError, EventsOptions, NewNamespace, NewToken, Scopes, Store, Token, new_token,
};
use thalweg_events_postgres::{PostgresOptions, PostgresStore};
use thalweg_kit::{blocking, files};
use thalweg_log::disk::{FolderDisk, RamDisk};
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

use super::{EventsServerOptions, EventsStorage, log_settings};
use crate::clock::WatchedClock;
use crate::data_dir::DataDir;
use crate::log::OpenLog;
use crate::log_memory::LogMemory;

/// Small files, because a file is not recycled while its messages exist; the largest append fits into one.
const RAM_FILE: u64 = 40 << 20;

/// A store, and what it runs on.
pub(super) struct OpenEventStore {
    pub store: Arc<dyn Store>,
    kept: StoreBacking,
}

enum StoreBacking {
    InMemory(Arc<EmbeddedLog>, Arc<WatchedClock>),
    OnDisk(Box<OpenLog>, DataDir),
    /// In a database.
    Elsewhere,
}

impl OpenEventStore {
    pub async fn open(options: &EventsServerOptions) -> Result<OpenEventStore> {
        match &options.place {
            EventsStorage::Memory => OpenEventStore::in_memory(options).await,
            EventsStorage::Folder(folder) => OpenEventStore::on_disk(options, folder).await,
            EventsStorage::Postgres(url) => {
                let store = open_postgres(url).await?;
                let kept = StoreBacking::Elsewhere;
                Ok(OpenEventStore { store, kept })
            }
        }
    }

    async fn in_memory(options: &EventsServerOptions) -> Result<OpenEventStore> {
        let (store, log) = open_in_memory(options.memory, index_memory(options.memory)).await?;
        let clock = Arc::new(WatchedClock::resume(log.clock(), log.as_ref()).await?);
        clock.watch(log.clone());
        let kept = StoreBacking::InMemory(log, clock);
        Ok(OpenEventStore { store, kept })
    }

    async fn on_disk(options: &EventsServerOptions, folder: &Path) -> Result<OpenEventStore> {
        let held = take(folder)?;
        let memory = LogMemory::of(usize::try_from(options.memory / 4).unwrap_or(usize::MAX), 1);
        let log = OpenLog::open(&log_settings(options), memory, folder).await?;
        if options.recover_skip {
            log.pass_over_damage();
        }
        let store = open_embedded(
            log.log(),
            options.durability,
            folder,
            index_memory(options.memory),
            options.recover_skip,
        )
        .await?;
        Ok(OpenEventStore {
            store,
            kept: StoreBacking::OnDisk(Box::new(log), held),
        })
    }

    /// The logs of this process that it uses.
    pub fn logs(&self) -> Vec<Arc<EmbeddedLog>> {
        match &self.kept {
            StoreBacking::InMemory(log, _) => vec![log.clone()],
            StoreBacking::OnDisk(log, _) => log.logs().to_vec(),
            StoreBacking::Elsewhere => Vec::new(),
        }
    }

    /// The clock of its own log; a database has its own time.
    pub fn clock(&self) -> Option<&Arc<WatchedClock>> {
        match &self.kept {
            StoreBacking::OnDisk(log, _) => Some(log.clock()),
            StoreBacking::InMemory(_, clock) => Some(clock),
            StoreBacking::Elsewhere => None,
        }
    }

    /// Commits and syncs everything that was appended.
    pub async fn close(self) {
        drop(self.store);
        let close = move || match self.kept {
            StoreBacking::InMemory(log, _) => log.close(),
            StoreBacking::OnDisk(log, _held) => log.close(),
            StoreBacking::Elsewhere => {}
        };
        let _ = blocking::spawn(close).await;
    }
}

/// Locks the folder for this process.
pub(super) fn take(folder: &Path) -> Result<DataDir> {
    DataDir::take(folder).map_err(|error| taken(folder, error))
}

/// Explains why a folder cannot be locked, which is mostly that another process holds it.
pub(super) fn taken(folder: &Path, error: anyhow::Error) -> anyhow::Error {
    match DataDir::holder(folder) {
        Some(_) => error.context("data directory is in use"),
        None => error,
    }
}

/// Opens the store of a log, with its indexes in `events/` of a folder.
pub(super) async fn open_embedded(
    log: Arc<dyn Log>,
    durability: Durability,
    folder: &Path,
    index_memory: usize,
    accept_loss: bool,
) -> Result<Arc<dyn Store>> {
    let keeps = RecoveryOptions {
        accept_loss,
        ..RecoveryOptions::default()
    };
    Ok(Arc::new(embedded(log, durability, folder, index_memory, keeps).await?))
}

/// What recovery keeps of deleted or lost data.
#[derive(Clone, Copy, Default)]
pub(crate) struct RecoveryOptions {
    /// Keep messages of deleted namespaces, because the lake reads them too.
    pub deleted: bool,
    /// Continue without data that the log has lost.
    pub accept_loss: bool,
}

pub(super) async fn embedded(
    log: Arc<dyn Log>,
    durability: Durability,
    folder: &Path,
    index_memory: usize,
    keeps: RecoveryOptions,
) -> Result<EmbeddedStore> {
    let indexes = folder.join("events");
    let opened = FolderDisk::open(&indexes).with_context(|| format!("cannot open the folder {}", indexes.display()));
    let settings = EventsOptions {
        durability,
        in_memory: false,
        indexes: Some(Arc::new(opened?)),
        index_memory,
        keep_deleted: keeps.deleted,
        accept_loss: keeps.accept_loss,
    };
    Ok(EmbeddedStore::open(log, settings).await?)
}

/// Opens a store that keeps up to `bytes` of messages in memory, on a log of its own.
pub(super) async fn open_in_memory(bytes: u64, index_memory: usize) -> Result<(Arc<dyn Store>, Arc<EmbeddedLog>)> {
    let log = Arc::new(ram(bytes)?);
    let settings = EventsOptions {
        durability: Durability::Os,
        in_memory: true,
        indexes: None,
        index_memory,
        keep_deleted: false,
        accept_loss: false,
    };
    let store = EmbeddedStore::open(log.clone(), settings).await?;
    Ok((Arc::new(store), log))
}

/// The indexes' share of the total memory.
pub(super) fn index_memory(all: u64) -> usize {
    usize::try_from(all / 8).unwrap_or(usize::MAX)
}

/// Opens the shared store of several servers, for both `thalweg events serve --db-url` and `events.db_url`.
pub(super) async fn open_postgres(url: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?))
}

fn ram(bytes: u64) -> Result<EmbeddedLog> {
    let settings = LogOptions {
        folder: "memory".to_owned(),
        file_bytes: RAM_FILE,
        first_file_bytes: RAM_FILE,
        spare: 1,
        files_max: usize::MAX,
        min_free_bytes: Some(2 * RAM_FILE),
        linger: Duration::ZERO,
        // Records in memory need no tail cache.
        tail_bytes_max: 0,
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    Ok(EmbeddedLog::open(Arc::new(RamDisk::new(bytes)), 1, &settings)?)
}

/// Parses a token that was given for the namespace `default`.
pub(super) fn given_token(text: &str) -> Result<Token> {
    let token = Token::parse(text)?;
    match token.namespace() {
        DEFAULT => Ok(token),
        other => bail!("provided token is for namespace '{other}', expected '{DEFAULT}'"),
    }
}

/// Where a token generated at the first start goes. Without a terminal, the output of a process ends up in journals,
/// which many users can read and which are kept for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenDestination {
    Terminal,
    /// A file that only the user of the process can read.
    File(PathBuf),
    Nowhere,
}

impl TokenDestination {
    /// A terminal if there is one, else a file if a path is given.
    pub fn seen(file: Option<PathBuf>) -> TokenDestination {
        match (std::io::stderr().is_terminal(), file) {
            (true, _) => TokenDestination::Terminal,
            (false, Some(file)) => TokenDestination::File(file),
            (false, None) => TokenDestination::Nowhere,
        }
    }

    /// The path in a data folder.
    pub fn file_in(data_dir: &Path) -> PathBuf {
        data_dir.join("keys/default.token")
    }
}

/// A token that was generated now.
#[derive(Clone, PartialEq, Eq)]
pub enum GeneratedToken {
    /// To be shown at the terminal.
    Text(String),
    /// Written to this file.
    Kept(PathBuf),
}

/// Creates the default namespace and its token. Returns where the token is, if it was created now.
pub(super) async fn make_default(
    store: &dyn Store,
    given: Option<Token>,
    to: &TokenDestination,
) -> Result<Option<GeneratedToken>> {
    let exists = match store.namespace(DEFAULT).await {
        Ok(_) => true,
        Err(EventsError::NamespaceNotFound(_)) => false,
        Err(error) => return Err(error.into()),
    };
    if !exists {
        let made = match &given {
            Some(_) => None,
            None => Some(new_token(DEFAULT)?),
        };
        // Stored before the namespace exists: otherwise a crash could lose the token for ever.
        let handed = made.as_ref().map(|(_, text)| hand_over(text, to)).transpose()?;
        let digest = given
            .as_ref()
            .or(made.as_ref().map(|(token, _)| token))
            .map(Token::digest);
        let new = NewNamespace {
            name: DEFAULT.to_owned(),
            description: "Default namespace".to_owned(),
            metadata: None,
            digest: *digest.context("there is no token")?,
            scopes: Scopes::ALL,
        };
        match store.create(new).await {
            Ok(_) => return Ok(handed),
            // Another server on the same database was faster, and reports its token.
            Err(EventsError::NamespaceExists(_)) => {
                if let Some(GeneratedToken::Kept(path)) = handed {
                    let _ = std::fs::remove_file(path);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(token) = given {
        let token = NewToken {
            digest: *token.digest(),
            scopes: Scopes::ALL,
            description: "Given at the start".to_owned(),
            expires_at: None,
        };
        store.create_token(DEFAULT, token).await?;
    }
    Ok(None)
}

fn hand_over(text: &str, to: &TokenDestination) -> Result<GeneratedToken> {
    match to {
        TokenDestination::Terminal => Ok(GeneratedToken::Text(text.to_owned())),
        TokenDestination::File(path) => {
            let write = || -> std::io::Result<()> {
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    files::create_folders(folder)?;
                }
                files::write_whole(path, format!("{text}\n").as_bytes())
            };
            let shown = path.display();
            write().with_context(|| {
                format!("cannot write the token of the namespace {DEFAULT} to {shown}; make the folder writable, or pass a token (--token-file)")
            })?;
            Ok(GeneratedToken::Kept(path.clone()))
        }
        TokenDestination::Nowhere => bail!(
            "the namespace {DEFAULT} is new, and there is no terminal to show its token at; pass one (--token-file), or a file for it (--token-out)"
        ),
    }
}
