//! Rollups, which are tables of their own: opens them as soon as possible, and updates them periodically.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{MaintainedTable, MaintenanceWorker, PAUSE, RepeatedErrorFilter, now};
use crate::ingest::TableWriter;
use crate::rollup::job::{RollupBuilder, RollupError, RollupOptions};
use thalweg_columns::compaction::MergeError;
use thalweg_kit::clock;

/// How long points do not expire if their windows cannot be made.
const WAIT_FOR_WINDOWS: Duration = Duration::from_secs(3600);

/// A source table with its rollup, which is opened as soon as possible.
pub(super) struct MaintainedRollup {
    source: Arc<TableWriter>,
    pub rolled: Option<OpenRollup>,
    /// Windows were made of all points once.
    is_made: bool,
    since: Instant,
    left_alone: Option<Instant>,
    told: RepeatedErrorFilter,
}

/// A rollup table that is open.
pub(super) struct OpenRollup {
    pub rollups: RollupBuilder,
    pub table: MaintainedTable,
}

impl MaintainedRollup {
    pub fn of(source: Arc<TableWriter>) -> MaintainedRollup {
        MaintainedRollup {
            source,
            rolled: None,
            is_made: false,
            since: clock::now(),
            left_alone: None,
            told: RepeatedErrorFilter::default(),
        }
    }

    /// Points must not expire before windows are made of them. If that fails, the disk must not fill meanwhile.
    pub(super) fn may_points_expire(&self) -> bool {
        self.is_made || self.source.spec().rollup.is_none() || self.since.elapsed() > WAIT_FOR_WINDOWS
    }
}

impl MaintenanceWorker {
    /// Opens the rollup of a table that has one.
    fn rolled(&self, writer: &Arc<TableWriter>) -> Result<Option<OpenRollup>, RollupError> {
        let source = writer.spec();
        let Some(spec) = source.rollup else { return Ok(None) };
        let rollups = RollupBuilder::open(
            writer.site(),
            writer.log().clone(),
            source,
            spec,
            RollupOptions {
                memory: usize::try_from(self.options.compaction.memory / 4).unwrap_or(usize::MAX),
                source_days: self.options.days(source.name),
                days: self.options.rollup_days(spec.name),
                ..self.options.rollup.clone()
            },
            self.metrics.clone(),
            self.runtime.clone(),
        )?;
        self.stop.waiting.lock().push(rollups.health().clone());
        if self.stop.is_stopped() {
            rollups.health().abandon();
        }
        Ok(Some(OpenRollup {
            table: MaintainedTable::new(spec, rollups.log()),
            rollups,
        }))
    }

    /// Returns whether all windows that can be made are made.
    pub(super) fn roll(&self, rolling: &mut MaintainedRollup) -> bool {
        if rolling.left_alone.is_some_and(|until| until > clock::now()) {
            return false;
        }
        let was_open = rolling.rolled.is_some();
        let made = match &mut rolling.rolled {
            Some(rolled) => rolled.rollups.run(now(), &|| self.stop.is_stopped()),
            none => self.rolled(&rolling.source).map(|opened| *none = opened),
        };
        match made {
            Ok(()) => {
                rolling.told = RepeatedErrorFilter::default();
                rolling.is_made |= rolling
                    .rolled
                    .as_ref()
                    .is_some_and(|rolled| was_open && rolled.rollups.has_all_kept());
                was_open
            }
            Err(RollupError::Merge(MergeError::Stopped)) => {
                rolling.told = RepeatedErrorFilter::default();
                false
            }
            Err(error) => {
                let table = rolling.source.spec().rollup.map_or("", |spec| spec.name);
                let text = error.to_string();
                if rolling.told.is_news(&text) {
                    tracing::error!(table, "making rollups failed and will be retried: {text}");
                }
                rolling.left_alone = Some(clock::now() + PAUSE);
                false
            }
        }
    }
}
