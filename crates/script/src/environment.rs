//! The environment of scripts: limits, console, cache, and metadata keys that are computed on read.

use std::sync::Arc;
use std::time::Duration;

use thalweg_record::Metadata;

use crate::{Cache, CallWatch};

/// Limits of one call. Reaching a limit fails the message, not the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Wall time of one call.
    pub timeout: Duration,
    /// Maximum bytes of one engine (one thread of one processor). Also limits the size of what one call returns and of
    /// the processor's cache.
    pub memory: usize,
    /// Bytes of native stack. Threads that run scripts need this plus half a MiB.
    pub stack: usize,
    /// Maximum number of messages that one call may return.
    pub results: usize,
}

impl Default for ScriptLimits {
    fn default() -> ScriptLimits {
        ScriptLimits {
            timeout: Duration::from_secs(1),
            memory: 64 << 20,
            stack: 1 << 20,
            results: 10_000,
        }
    }
}

/// A key of `msg.meta` that exists only for scripts. It is never part of what a script returns.
#[derive(Clone, Copy, Debug)]
pub struct ComputedKey {
    pub name: &'static str,
    /// Computes its text from the message's original metadata, when a script reads the key.
    pub compute: fn(&Metadata) -> String,
}

/// What becomes of a key of `msg.meta` that a script leaves undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndefinedMeta {
    /// Its text is `<nil>`, like that of null.
    Text,
    /// The key is absent, as in JSON.
    Absent,
}

/// The level of a console line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// The destination of `console.*` and of warnings of `cache.*`.
pub trait Console: Send + Sync {
    /// Whether a line of this level would be kept; if not, it is not even formatted.
    fn enabled(&self, level: ConsoleLevel) -> bool;

    fn line(&self, level: ConsoleLevel, text: &str);
}

/// A console that writes to the log.
#[derive(Clone, Debug)]
pub struct LogConsole {
    /// The component that the lines come from.
    pub component: Arc<str>,
}

impl Console for LogConsole {
    fn enabled(&self, level: ConsoleLevel) -> bool {
        match level {
            ConsoleLevel::Debug => tracing::enabled!(tracing::Level::DEBUG),
            ConsoleLevel::Info => tracing::enabled!(tracing::Level::INFO),
            ConsoleLevel::Warn => tracing::enabled!(tracing::Level::WARN),
            ConsoleLevel::Error => tracing::enabled!(tracing::Level::ERROR),
        }
    }

    fn line(&self, level: ConsoleLevel, text: &str) {
        let component = &*self.component;
        match level {
            ConsoleLevel::Debug => tracing::debug!(component, "{text}"),
            ConsoleLevel::Info => tracing::info!(component, "{text}"),
            ConsoleLevel::Warn => tracing::warn!(component, "{text}"),
            ConsoleLevel::Error => tracing::error!(component, "{text}"),
        }
    }
}

/// What the scripts of one processor share.
#[derive(Clone)]
pub struct Environment {
    pub limits: ScriptLimits,
    pub console: Arc<dyn Console>,
    /// Shared by all threads of the processor.
    pub cache: Arc<Cache>,
    pub computed: &'static [ComputedKey],
    pub undefined_meta: UndefinedMeta,
    /// How the waiting thread signals the engine.
    pub watch: CallWatch,
}

impl Environment {
    /// An environment for analysing scripts without running them.
    pub(crate) fn bare() -> Environment {
        Environment {
            limits: ScriptLimits::default(),
            console: Arc::new(LogConsole { component: "".into() }),
            cache: Arc::new(Cache::new(0)),
            computed: &[],
            undefined_meta: UndefinedMeta::Text,
            watch: CallWatch::default(),
        }
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
