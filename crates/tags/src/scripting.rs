//! What the script processors share: limits and console from the configuration, mistakes in scripts with their place in
//! the file, and failures with their reason.

use std::sync::Arc;

use thalweg_config::{Diagnostics, Node, ScriptingConfig};
use thalweg_flow::{BuildError, StageContext};
use thalweg_record::DropReason;
use thalweg_script::{
    Cache, CompileError, ComputedKey, Environment, FailureKind, Limits, LogConsole, Program, QuickJs, Remembering,
    Script, Stats,
};
use thalweg_telemetry::IntCounter;

/// The most that `scripting.stack` may be, in bytes: worker threads have 8 MiB of stack, and scripts are called from some
/// way down.
pub const STACK_MAX: u64 = 6 << 20;

/// The scripts of one processor, checked, with what all threads share.
pub(crate) struct Scripts {
    pub list: Vec<Script>,
    limits: Limits,
    cache: Arc<Cache>,
    computed: &'static [ComputedKey],
}

impl Scripts {
    pub fn new(list: Vec<Script>, config: &ScriptingConfig, computed: &'static [ComputedKey]) -> Scripts {
        let limits = Limits {
            timeout: config.timeout,
            memory: usize::try_from(config.memory).unwrap_or(usize::MAX),
            stack: usize::try_from(config.stack.min(STACK_MAX)).unwrap_or(usize::MAX),
            results: config.results,
        };
        Scripts {
            list,
            limits,
            cache: Arc::new(Cache::new(config.cache_entries)),
            computed,
        }
    }

    pub fn with_timeout(mut self, timeout: std::time::Duration) -> Scripts {
        self.limits.timeout = timeout;
        self
    }

    /// An engine for one thread; none if there are no scripts.
    pub fn build(&self, context: &StageContext) -> Result<Option<Box<dyn Program>>, BuildError> {
        if self.list.is_empty() {
            return Ok(None);
        }
        let environment = Environment {
            limits: self.limits,
            console: Arc::new(LogConsole {
                component: context.component.title().into(),
            }),
            cache: self.cache.clone(),
            computed: self.computed,
        };
        match QuickJs::new(&self.list, environment) {
            Ok(engine) => Ok(Some(Box::new(Remembering::new(engine)))),
            Err(error) => Err(BuildError::new(format!("{}: {error}", context.component.title()))),
        }
    }
}

/// The metrics of a processor's engines, shared by its instances.
pub(crate) struct ScriptMetrics {
    calls: IntCounter,
    timeouts: IntCounter,
    memo_hits: IntCounter,
    pool_hits: IntCounter,
    pool_misses: IntCounter,
    /// What was counted already.
    counted: Stats,
}

impl ScriptMetrics {
    pub fn new(context: &StageContext, engine: &str) -> ScriptMetrics {
        let component = &context.component;
        let (calls, help) = ("thalweg_script_calls_total", "Script calls.");
        ScriptMetrics {
            calls: component
                .metrics
                .counter_with(&component.id, calls, help, &[("engine", engine)]),
            timeouts: component.counter("thalweg_script_timeouts_total", "Script calls that ran out of time."),
            memo_hits: component.counter(
                "thalweg_script_memo_hits_total",
                "Results that were at hand from an earlier message of the tag, without a call.",
            ),
            pool_hits: component.counter("vm_pool_hits", "Script calls by an engine that was there."),
            pool_misses: component.counter("vm_pool_misses", "Engines made for scripts."),
            counted: Stats::default(),
        }
    }

    /// Once per batch: counts what came since the last time.
    pub fn update(&mut self, stats: Stats) {
        let calls = stats.calls - self.counted.calls;
        let made = stats.engines_made - self.counted.engines_made;
        self.calls.inc_by(calls);
        self.timeouts.inc_by(stats.timeouts - self.counted.timeouts);
        self.memo_hits.inc_by(stats.remembered - self.counted.remembered);
        self.pool_misses.inc_by(made);
        self.pool_hits.inc_by(calls.saturating_sub(made));
        self.counted = stats;
    }
}

/// A script with its place in the configuration and the name that start-up errors give it.
pub(crate) struct Source {
    pub script: Script,
    pub node: Node,
    pub label: String,
}

/// Reports every script that is no JavaScript, at its place in the file. Whether all are.
pub(crate) fn check(sources: &[Source], prefix: &str, diagnostics: &Diagnostics) -> bool {
    let scripts: Vec<Script> = sources.iter().map(|source| source.script.clone()).collect();
    let errors = QuickJs::check(&scripts);
    for error in &errors {
        if let Some(source) = sources.get(error.script) {
            let CompileError { line, column, .. } = error;
            let message = format!("{prefix}{}{error}", source.label);
            diagnostics.error_at(source.node.text_pos(*line, *column), message);
        }
    }
    errors.is_empty()
}

pub(crate) fn reason(kind: FailureKind) -> DropReason {
    match kind {
        FailureKind::Exception => DropReason::ScriptError,
        FailureKind::BadReturn => DropReason::ScriptBadReturn,
        FailureKind::Timeout => DropReason::ScriptTimeout,
        FailureKind::Limit => DropReason::Limit,
    }
}
