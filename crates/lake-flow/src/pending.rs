//! Opens a table now, or later if an object store does not answer; the log keeps the entries until then.

use std::sync::{Arc, Weak};
use std::time::Duration;

use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::{EVENTS, TableSpec};
use thalweg_delta::store::{FaultKind, LeaseError};
use thalweg_flow::OpenError;
use thalweg_kit::backoff::Backoff;
use thalweg_kit::blocking;
use thalweg_lake::OpenError as TableError;
use thalweg_lake::ingest::{DecoderFactory, QueueSource, TableWriter, keep_ends, keep_event_ends};
use thalweg_queue::QueueError;

use crate::context::LakeContext;
use crate::event_store::LakeEventStore;
use crate::tables::LakeTables;

const OPEN_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Why a table and its queue could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TableOpenError {
    #[error("the lake needs a log, and none is open")]
    NoGround,
    #[error("the queue {name} cannot be created: {source}")]
    Queue { name: &'static str, source: QueueError },
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("the end of the log cannot be saved for the later opening of the table {table}: {source}")]
    Ends {
        table: &'static str,
        source: std::io::Error,
    },
}

impl TableOpenError {
    /// Logs an error of one table, so that the others still open. A loss in the log is returned as an error, because
    /// nothing may be stored after it.
    pub(crate) fn say(self, table: &str) -> anyhow::Result<()> {
        if matches!(self, TableOpenError::Table(TableError::Lost { .. })) {
            return Err(self.into());
        }
        tracing::error!(table, "{self}");
        Ok(())
    }
}

impl From<TableOpenError> for OpenError {
    fn from(error: TableOpenError) -> OpenError {
        match &error {
            TableOpenError::Table(table) if table.is_permanent() => OpenError::Permanent(error.to_string()),
            _ => OpenError::Temporary(error.to_string()),
        }
    }
}

/// Whether the start has to fail: waiting helps only if the store is unreachable.
pub(crate) fn is_final(error: &LeaseError) -> bool {
    matches!(error.kind(), FaultKind::Held | FaultKind::Denied | FaultKind::NoBucket)
}

/// A table that is not open yet.
pub(crate) struct PendingTable {
    pub context: Arc<LakeContext>,
    pub table: TableSource,
}

/// The table, and its source.
pub(crate) enum TableSource {
    Fed {
        spec: &'static TableSpec,
        feed: QueueSource,
        decoder: DecoderFactory,
        promotion: Box<AttributePromotion>,
    },
    Events(Arc<LakeEventStore>),
}

impl PendingTable {
    pub fn spec(&self) -> &'static TableSpec {
        match &self.table {
            TableSource::Fed { spec, .. } => spec,
            TableSource::Events(_) => &EVENTS,
        }
    }

    async fn open(&self) -> Result<TableWriter, TableError> {
        let LakeContext { site, metrics, .. } = &*self.context;
        let partitions = match &self.table {
            TableSource::Fed { feed, .. } => feed.partitions.len(),
            TableSource::Events(_) => 1,
        };
        let (metrics, options) = (metrics.clone(), self.context.ingest_options(partitions));
        match &self.table {
            TableSource::Fed {
                spec,
                feed,
                decoder,
                promotion,
            } => {
                let promotion = AttributePromotion::clone(promotion);
                TableWriter::open(site, spec, feed.clone(), decoder, promotion, metrics, &options).await
            }
            TableSource::Events(messages) => {
                let promotion = self.context.options.events_promotion.clone();
                let log = self.context.log.clone();
                TableWriter::open_events(site, log, messages.clone(), promotion, metrics, &options).await
            }
        }
    }

    /// Like `open`, with a time limit for object stores.
    pub async fn open_within(&self, within: Duration) -> Result<TableWriter, TableError> {
        if !self.context.site.is_remote() {
            return self.open().await;
        }
        let opened = tokio::time::timeout(within, self.open()).await;
        opened.unwrap_or_else(|_| Err(self.context.site.late(within).into()))
    }

    /// Saves the current ends of the log, so that a later opening, by any process, can tell which entries came after
    /// them.
    pub async fn keep_ends(self) -> Result<PendingTable, TableOpenError> {
        let table = self.spec().name;
        let keep = move || {
            let LakeContext {
                site, log, log_ends, ..
            } = &*self.context;
            let kept = match &self.table {
                TableSource::Fed { spec, feed, .. } => keep_ends(site, spec, feed, log_ends),
                TableSource::Events(messages) => {
                    keep_event_ends(site, &EVENTS, log.as_ref(), messages.as_ref(), log_ends)
                }
            };
            kept.map(|()| self)
        };
        let kept = blocking::spawn(keep).await.map_err(std::io::Error::other);
        kept.and_then(|kept| kept)
            .map_err(|source| TableOpenError::Ends { table, source })
    }

    /// Whether opening may succeed later, while the log keeps the entries.
    pub fn is_worth_waiting(&self, error: &TableError) -> bool {
        let is_final = match error {
            TableError::Claim(error) => is_final(error),
            error => error.is_permanent(),
        };
        self.context.site.is_remote() && !is_final
    }

    /// Retries until it succeeds or the tables are stopped.
    pub async fn open_later(self, lake: Weak<LakeTables>) {
        let mut pauses = OPEN_AGAIN;
        loop {
            tokio::time::sleep(pauses.next_pause()).await;
            if lake.upgrade().is_none_or(|lake| lake.is_stopped()) {
                return;
            }
            let opened = self.open().await;
            let Some(lake) = lake.upgrade() else { return };
            match opened {
                Ok(writer) => {
                    tracing::info!(
                        table = self.spec().name,
                        "the lake can be reached, and its table is open"
                    );
                    return lake.keep(writer);
                }
                Err(error) => {
                    lake.set_unopened(self.spec(), &error);
                    if !self.is_worth_waiting(&error) {
                        return;
                    }
                }
            }
        }
    }
}
