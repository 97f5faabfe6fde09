//! The memory budget of one query for the results of its functions. Operators reserve memory for themselves; functions
//! cannot, so their callers do it for them.
//!
//! The budget is part of the query's configuration, which every function call receives.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use parking_lot::Mutex;
use regex::RegexBuilder;

use crate::error::QueryError;
use crate::guard::QueryCancellation;

/// A result may take this fraction of `query.memory`, because later steps copy it.
const RESULT_PART: usize = 8;
/// For a query without a budget: a filter of `thalweg parquet cat`.
const RESULT_BYTES_ALONE: usize = 64 << 20;
/// Limit for everything computed during planning. Plans are copied and printed with it.
const CONSTANT_BYTES_MAX: usize = 1 << 20;
/// Smaller results are not reserved; those of all calls together are a small fraction of `query.memory`.
const UNHELD_PART: usize = 8;
/// Limits of a query: different regular expressions, bytes of one as text, and bytes of one compiled.
const PATTERNS_MAX: usize = 256;
const PATTERN_BYTES_MAX: usize = 16 << 10;
const PATTERN_COMPILED_BYTES_MAX: usize = 1 << 20;

/// Clones share one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    /// Always empty; it only provides the registration for the reservations taken from it.
    reservation: Option<MemoryReservation>,
    watch: Option<Arc<QueryCancellation>>,
    result_max: usize,
    memory: usize,
    unheld_max: AtomicUsize,
    is_planning: AtomicBool,
    constants: AtomicUsize,
    patterns: Mutex<HashSet<String>>,
    /// The most rows that windows have read but not emitted.
    waited_for: AtomicUsize,
    /// The rows before and after a row that its window needs.
    around: AtomicUsize,
}

impl Budget {
    /// The budget of a query that is about to be planned.
    pub fn new(pool: &Arc<dyn MemoryPool>, memory_bytes: usize, watch: &Arc<QueryCancellation>) -> Budget {
        Budget(Arc::new(BudgetState {
            reservation: Some(MemoryConsumer::new("functions").register(pool)),
            watch: Some(watch.clone()),
            result_max: memory_bytes / RESULT_PART,
            memory: memory_bytes,
            unheld_max: AtomicUsize::new(0),
            is_planning: AtomicBool::new(true),
            constants: AtomicUsize::new(0),
            patterns: Mutex::default(),
            waited_for: AtomicUsize::new(0),
            around: AtomicUsize::new(0),
        }))
    }

    fn alone() -> Budget {
        Budget(Arc::new(BudgetState {
            reservation: None,
            watch: None,
            result_max: RESULT_BYTES_ALONE,
            memory: usize::MAX,
            unheld_max: AtomicUsize::new(usize::MAX),
            is_planning: AtomicBool::new(false),
            constants: AtomicUsize::new(0),
            patterns: Mutex::default(),
            waited_for: AtomicUsize::new(0),
            around: AtomicUsize::new(0),
        }))
    }

    /// The budget of the query that calls a function.
    pub fn of(config: &ConfigOptions) -> Budget {
        config.extensions.get::<Budget>().cloned().unwrap_or_else(Budget::alone)
    }

    /// Ends the planning phase. The plan has `expressions` expressions.
    pub fn planned(&self, expressions: usize) {
        let unheld = self.0.memory / UNHELD_PART / expressions.max(1);
        self.0.unheld_max.store(unheld, Ordering::Relaxed);
        self.0.is_planning.store(false, Ordering::Relaxed);
    }

    /// The largest result allowed, in bytes.
    pub fn result_max(&self) -> usize {
        match self.0.is_planning.load(Ordering::Relaxed) {
            true => self.0.result_max.min(CONSTANT_BYTES_MAX),
            false => self.0.result_max,
        }
    }

    /// Whether a result of this size is reserved for its lifetime.
    pub fn holds(&self, bytes: usize) -> bool {
        bytes > self.0.unheld_max.load(Ordering::Relaxed)
    }

    /// Fails if the query has to end.
    pub fn check_time(&self) -> Result<()> {
        self.0.watch.as_ref().map_or(Ok(()), |watch| watch.check())
    }

    /// Reserves memory for a result, until the reservation is dropped.
    pub fn take(&self, function: &str, bytes: usize) -> Result<Option<MemoryReservation>> {
        if self.0.is_planning.load(Ordering::Relaxed) {
            let before = self.0.constants.fetch_add(bytes, Ordering::Relaxed);
            if before.saturating_add(bytes) > CONSTANT_BYTES_MAX {
                self.0.constants.fetch_sub(bytes, Ordering::Relaxed);
                return Err(too_large(function, bytes, CONSTANT_BYTES_MAX));
            }
        }
        let Some(all) = self.0.reservation.as_ref().filter(|_| self.holds(bytes)) else {
            return Ok(None);
        };
        let taken = all.new_empty();
        taken.try_grow(bytes)?;
        Ok(Some(taken))
    }

    /// An empty reservation that can grow.
    pub fn reservation(&self) -> Option<MemoryReservation> {
        self.0.reservation.as_ref().map(MemoryReservation::new_empty)
    }

    /// Records that a window buffers `rows` rows before it emits them.
    pub fn waits_for(&self, rows: usize) {
        self.0.waited_for.fetch_add(rows, Ordering::Relaxed);
    }

    pub fn rows_waited_for(&self) -> usize {
        self.0.waited_for.load(Ordering::Relaxed)
    }

    /// Records that a window function needs `rows` rows around each row.
    pub fn needs_around(&self, rows: usize) {
        self.0.around.fetch_max(rows, Ordering::Relaxed);
    }

    pub fn rows_around(&self) -> usize {
        self.0.around.load(Ordering::Relaxed)
    }

    /// Checks a regular expression before a function or an operator compiles it.
    pub fn check_pattern(&self, function: &str, pattern: &str) -> Result<()> {
        if self.0.patterns.lock().contains(pattern) {
            return Ok(());
        }
        let refuse = |why: String| Err(DataFusionError::External(Box::new(QueryError::pattern(function, &why))));
        if pattern.len() > PATTERN_BYTES_MAX {
            return refuse(format!(
                "it has {} bytes, {PATTERN_BYTES_MAX} are allowed",
                pattern.len()
            ));
        }
        let compiled = RegexBuilder::new(pattern)
            .size_limit(PATTERN_COMPILED_BYTES_MAX)
            .build();
        // Other errors are reported by the code that uses the pattern.
        if let Err(regex::Error::CompiledTooBig(_)) = compiled {
            return refuse(format!(
                "it needs more than {PATTERN_COMPILED_BYTES_MAX} bytes when compiled; repeat less"
            ));
        }
        self.count_pattern(function, pattern)
    }

    /// Checks a LIKE pattern. It is compiled only if it has wildcards other than `%` at its ends.
    pub fn check_like(&self, pattern: &str) -> Result<()> {
        if !pattern.trim_matches('%').contains(['%', '_', '\\']) {
            return Ok(());
        }
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(DataFusionError::External(Box::new(QueryError::too_complex(format!(
                "the pattern of LIKE has {} bytes, {PATTERN_BYTES_MAX} are allowed; use a shorter pattern or \
                 contains(text, part)",
                pattern.len()
            )))));
        }
        self.count_pattern("LIKE", pattern)
    }

    fn count_pattern(&self, function: &str, pattern: &str) -> Result<()> {
        let mut patterns = self.0.patterns.lock();
        if patterns.contains(pattern) {
            return Ok(());
        }
        if patterns.len() >= PATTERNS_MAX {
            return Err(DataFusionError::External(Box::new(QueryError::pattern(
                function,
                &format!("the query has more than {PATTERNS_MAX} different ones; use one pattern for many rows"),
            ))));
        }
        patterns.insert(pattern.to_owned());
        Ok(())
    }
}

/// The error for a result that is too large.
pub fn too_large(function: &str, asked: usize, allowed: usize) -> DataFusionError {
    DataFusionError::External(Box::new(QueryError::too_large(function, asked, allowed)))
}

impl ConfigExtension for Budget {
    const PREFIX: &'static str = "thalweg_budget";
}

impl ExtensionOptions for Budget {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    /// Configurations are cloned during planning; the clones share one budget.
    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _value: &str) -> Result<()> {
        datafusion::common::config_err!("{key} cannot be set")
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}
