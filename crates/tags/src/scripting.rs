//! Shared by the script processors: limits and console from the configuration, script errors with their position in the
//! file, and failures with their reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use thalweg_config::{Diagnostics, Node, ScriptEngine, ScriptingConfig};
use thalweg_flow::{BuildError, StageContext};
use thalweg_record::DropReason;
use thalweg_script::{
    Cache, CallWatch, CompileError, ComputedKey, Engine, EngineMode, Environment, Explanation, FailureKind,
    GuardOptions, GuardedProgram, LogConsole, LostThreads, OffendingConstruct, Program, ProgramStats, QuickJs, Script,
    ScriptForm, ScriptLimits, UndefinedMeta, beyond, explain,
};
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, MetricDoc, StatusDetail, metric_group};

/// Maximum of `scripting.stack` in bytes: worker threads have 8 MiB of stack, part of which is already used when
/// scripts are called.
pub const STACK_MAX: u64 = 6 << 20;

/// Script threads of the process that were given up and still run.
static LOST: LazyLock<LostThreads> = LazyLock::new(LostThreads::default);

/// The validated scripts of one processor, and state shared by all threads.
pub(crate) struct Scripts {
    pub list: Vec<Script>,
    mode: EngineMode,
    /// Whether the scripts that are not native code were already logged. There is an engine per thread.
    told: AtomicBool,
    limits: ScriptLimits,
    lost_max: usize,
    cache: Arc<Cache>,
    computed: &'static [ComputedKey],
    undefined_meta: UndefinedMeta,
}

impl Scripts {
    pub fn new(list: Vec<Script>, config: &ScriptingConfig, computed: &'static [ComputedKey]) -> Scripts {
        let limits = ScriptLimits {
            timeout: config.timeout,
            memory: usize::try_from(config.memory).unwrap_or(usize::MAX),
            stack: usize::try_from(config.stack.min(STACK_MAX)).unwrap_or(usize::MAX),
            results: config.results,
        };
        Scripts {
            list,
            mode: mode(config),
            told: AtomicBool::new(false),
            limits,
            lost_max: config.lost_threads,
            cache: Arc::new(Cache::new(config.cache_entries)),
            computed,
            undefined_meta: UndefinedMeta::Text,
        }
    }

    pub fn with_undefined_meta(mut self, undefined_meta: UndefinedMeta) -> Scripts {
        self.undefined_meta = undefined_meta;
        self
    }

    pub fn with_timeout(mut self, timeout: std::time::Duration) -> Scripts {
        self.limits.timeout = timeout;
        self
    }

    /// An engine for one thread; `None` if there are no scripts.
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
            undefined_meta: self.undefined_meta,
            watch: CallWatch::default(),
        };
        let lost = context.component.gauge(&THREADS_LOST);
        let guard = GuardOptions {
            lost: LOST.clone(),
            lost_max: self.lost_max,
            on_lost: Arc::new(move |change| lost.add(change)),
            gives_up: Arc::new(context.gives_up()),
            name: "script".to_owned(),
        };
        match GuardedProgram::new(&self.list, environment, self.mode, guard) {
            Ok(program) => {
                if let Some(engine) = program.engine() {
                    self.tell(engine, context);
                    context.show(self.details(engine));
                }
                Ok(Some(Box::new(program)))
            }
            Err(error) => Err(BuildError::new(format!("{}: {error}", context.component.title()))),
        }
    }
}

impl Scripts {
    /// Logs once which scripts are not native code.
    fn tell(&self, engine: &Engine, context: &StageContext) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let component = context.component.title();
        for (stage, outside) in engine.outside() {
            tracing::info!(component, "{stage} runs in QuickJS, not as native code: {outside}");
        }
    }

    /// How each script runs, for the console.
    fn details(&self, engine: &Engine) -> Vec<StatusDetail> {
        let place = |outside: &OffendingConstruct| format!("line {}, column {}", outside.line, outside.column);
        let scripts = self.list.iter().zip(engine.explain());
        let detail = |(script, explanation): (&Script, Explanation)| {
            let how = how_it_runs(self.mode, &script.form, &explanation, place);
            StatusDetail::new(&format!("script {}", script.stage), how)
        };
        scripts.map(detail).collect()
    }
}

metric_group! {
    pub(crate) SCRIPT_METRICS("Every processor with scripts", COMPONENT_LABELS) {
        CALLS = MetricDoc::counter("thalweg_script_calls_total", "Script calls, by the engine that ran them.")
            .with_labels(&["engine"]);
        DIFFERENCES = MetricDoc::counter(
            "thalweg_script_verify_differences_total",
            "Results in which native code and QuickJS differed (scripting.engine: verify).",
        );
        TIMEOUTS = MetricDoc::counter("thalweg_script_timeouts_total", "Script calls that ran out of time.");
        GIVEN_UP = MetricDoc::counter(
            "thalweg_script_threads_given_up_total",
            "Script calls that were given up with their thread.",
        );
        THREADS_LOST = MetricDoc::gauge(
            "thalweg_script_threads_lost",
            "Threads that were given up with a script call and still run.",
        );
        MEMO_HITS = MetricDoc::counter(
            "thalweg_script_memo_hits_total",
            "Results that were reused from an earlier message of the tag, without a call.",
        );
        POOL_HITS = MetricDoc::counter("vm_pool_hits", "Script calls by an existing engine.");
        POOL_MISSES = MetricDoc::counter("vm_pool_misses", "Engines made for scripts.");
    }
}

/// The metrics of a processor's engines, shared by its instances.
pub(crate) struct ScriptMetrics {
    quickjs_calls: IntCounter,
    native_calls: IntCounter,
    differences: IntCounter,
    timeouts: IntCounter,
    given_up: IntCounter,
    memo_hits: IntCounter,
    pool_hits: IntCounter,
    pool_misses: IntCounter,
    /// What was already counted.
    counted: ProgramStats,
}

impl ScriptMetrics {
    pub fn new(context: &StageContext) -> ScriptMetrics {
        let component = &context.component;
        let calls = |engine: &str| {
            component
                .metrics
                .counter_with(&component.id, &CALLS, &[("engine", engine)])
        };
        ScriptMetrics {
            quickjs_calls: calls("quickjs"),
            native_calls: calls("native"),
            differences: component.counter(&DIFFERENCES),
            timeouts: component.counter(&TIMEOUTS),
            given_up: component.counter(&GIVEN_UP),
            memo_hits: component.counter(&MEMO_HITS),
            pool_hits: component.counter(&POOL_HITS),
            pool_misses: component.counter(&POOL_MISSES),
            counted: ProgramStats::default(),
        }
    }

    /// Counts scripts that did not run because the whole result of a message was memoized.
    pub fn at_hand(&self, scripts: u64) {
        self.memo_hits.inc_by(scripts);
    }

    /// Called once per batch: counts the difference to the last call.
    pub fn update(&mut self, stats: ProgramStats) {
        let quickjs = stats.calls - self.counted.calls;
        let native = stats.native_calls - self.counted.native_calls;
        let calls = quickjs + native;
        let made = stats.engines_made - self.counted.engines_made;
        self.quickjs_calls.inc_by(quickjs);
        self.native_calls.inc_by(native);
        self.differences.inc_by(stats.differences - self.counted.differences);
        self.timeouts.inc_by(stats.timeouts - self.counted.timeouts);
        self.given_up.inc_by(stats.given_up - self.counted.given_up);
        self.memo_hits.inc_by(stats.remembered - self.counted.remembered);
        self.pool_misses.inc_by(made);
        self.pool_hits.inc_by(calls.saturating_sub(made));
        self.counted = stats;
    }
}

/// A script with its position in the configuration and its name in start-up errors.
pub(crate) struct ScriptSource {
    pub script: Script,
    pub node: Node,
    pub label: String,
}

/// Reports every script that is not valid JavaScript, at its position in the file. Returns whether all are valid.
pub(crate) fn check(
    sources: &[ScriptSource],
    prefix: &str,
    config: &ScriptingConfig,
    diagnostics: &Diagnostics,
) -> bool {
    let scripts: Vec<Script> = sources.iter().map(|source| source.script.clone()).collect();
    let mut errors = QuickJs::check(&scripts);
    if errors.is_empty() && mode(config) == EngineMode::Native {
        errors = beyond(&scripts).unwrap_or_default();
    }
    if errors.is_empty() {
        explain_all(sources, &scripts, config, diagnostics);
    }
    for error in &errors {
        if let Some(source) = sources.get(error.script) {
            let CompileError { line, column, .. } = error;
            let message = format!("{prefix}{}{error}", source.label);
            diagnostics.error_at(source.node.text_pos(*line, *column), message);
        }
    }
    errors.is_empty()
}

/// Adds a note on how each script runs.
fn explain_all(sources: &[ScriptSource], scripts: &[Script], config: &ScriptingConfig, diagnostics: &Diagnostics) {
    let mode = mode(config);
    let explained = explain(scripts).unwrap_or_default();
    for (source, explanation) in sources.iter().zip(explained) {
        let stage = &source.script.stage;
        let place = |outside: &OffendingConstruct| source.node.text_pos(outside.line, outside.column).to_string();
        let how = how_it_runs(mode, &source.script.form, &explanation, place);
        diagnostics.note_at(source.node.text_pos(1, 1), format!("{stage}: {how}"));
    }
}

/// How a script runs, and why; `place` formats the position of the reason.
fn how_it_runs(
    mode: EngineMode,
    form: &ScriptForm,
    explanation: &Explanation,
    place: impl Fn(&OffendingConstruct) -> String,
) -> String {
    let reason = |outside: &OffendingConstruct| format!("{} at {}", outside.construct, place(outside));
    match (mode, &explanation.outside, &explanation.varies) {
        (EngineMode::QuickJs, _, _) => "QuickJS, as scripting.engine says".to_owned(),
        (_, Some(outside), _) => format!("QuickJS: {}", reason(outside)),
        (EngineMode::Verify, _, _) => "native code and QuickJS, compared for each message".to_owned(),
        // It runs when one of its variables changes.
        _ if matches!(form, ScriptForm::Expression(_)) => "native code".to_owned(),
        (_, None, Some(varies)) => format!("native code, for each message: {}", reason(varies)),
        (_, None, None) => "native code, once for each tag".to_owned(),
    }
}

fn mode(config: &ScriptingConfig) -> EngineMode {
    match config.engine {
        ScriptEngine::Auto => EngineMode::Auto,
        ScriptEngine::Native => EngineMode::Native,
        ScriptEngine::QuickJs => EngineMode::QuickJs,
        ScriptEngine::Verify => EngineMode::Verify,
    }
}

pub(crate) fn reason(kind: FailureKind) -> DropReason {
    match kind {
        FailureKind::Exception => DropReason::ScriptError,
        FailureKind::BadReturn => DropReason::ScriptBadReturn,
        FailureKind::Timeout => DropReason::ScriptTimeout,
        FailureKind::Stopped => DropReason::Shutdown,
        FailureKind::Limit => DropReason::Limit,
    }
}
