//! Settings of the process: memory, scripting limits, logging and metrics.

use std::path::PathBuf;
use std::time::Duration;

use crate::fields::Fields;
use crate::machine::memory_bytes;
use crate::names::{closest, quoted};
use crate::source::Pos;

/// Components take shares of one budget; there is no memory beside it.
#[derive(Debug, Clone)]
pub struct MemoryConfig {
    /// Bytes; by default half of the machine's memory.
    pub limit: u64,
    /// Its position in the file, if it is given.
    pub given: Option<Pos>,
}

/// With less, no share would be large enough to work with.
pub const MEMORY_MIN: u64 = 64 << 20;
/// The error text for less.
pub const MEMORY_NEEDED: &str = "the process needs at least 64MiB; give a size such as 2GiB";

impl MemoryConfig {
    pub(super) fn read(mut f: Fields<'_>) -> MemoryConfig {
        let limit = f.opt_size("limit");
        if limit.is_some_and(|limit| limit < MEMORY_MIN) {
            f.error("limit", MEMORY_NEEDED);
        }
        let given = f.has("limit").then(|| f.pos_of("limit"));
        f.finish();
        MemoryConfig {
            limit: limit.unwrap_or_else(|| memory_bytes() / 2).max(MEMORY_MIN),
            given,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptEngine {
    /// Native where the script allows it, QuickJS otherwise.
    Auto,
    Native,
    QuickJs,
    /// Both; counts differences.
    Verify,
}

/// Limits of one script call.
#[derive(Debug, Clone)]
pub struct ScriptingConfig {
    pub engine: ScriptEngine,
    pub timeout: Duration,
    /// The timeout for `stream_processor`: the configured one, by default 5 s.
    pub stream_timeout: Duration,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub stack: u64,
    /// Messages.
    pub results: usize,
    pub cache_entries: usize,
    /// Maximum number of lost threads in the process, which are stuck in calls that do not end.
    pub lost_threads: usize,
}

impl ScriptingConfig {
    pub(super) fn read(mut f: Fields<'_>) -> ScriptingConfig {
        let engine = match f.one_of("engine", &["auto", "native", "quickjs", "verify"], "auto") {
            "native" => ScriptEngine::Native,
            "quickjs" => ScriptEngine::QuickJs,
            "verify" => ScriptEngine::Verify,
            _ => ScriptEngine::Auto,
        };
        let given = f.has("timeout");
        let timeout = f.duration("timeout", "1s");
        if timeout.is_zero() {
            f.error("timeout", "the time must be more than 0; give a duration such as 1s");
        }
        let config = ScriptingConfig {
            engine,
            timeout,
            stream_timeout: if given { timeout } else { Duration::from_secs(5) },
            memory: f.size("memory", "64MiB"),
            stack: f.size("stack", "1MiB"),
            results: count(f.int_in("results", 10_000, 1..=i64::MAX)),
            cache_entries: count(f.int_in("cache_entries", 1_000_000, 0..=i64::MAX)),
            lost_threads: count(f.int_in("lost_threads", 8, 1..=1024)),
        };
        f.finish();
        config
    }
}

fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The reference system's names; `FATAL` is `ERROR` here, `ALL` is `TRACE`.
    const NAMES: [&'static str; 9] = ["OFF", "NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL"];

    /// A level by its name in any case; the error lists the valid names.
    pub fn parse(name: &str) -> Result<LogLevel, String> {
        match name.to_ascii_uppercase().as_str() {
            "OFF" | "NONE" => Ok(LogLevel::Off),
            "FATAL" | "ERROR" => Ok(LogLevel::Error),
            "WARN" => Ok(LogLevel::Warn),
            "INFO" => Ok(LogLevel::Info),
            "DEBUG" => Ok(LogLevel::Debug),
            "TRACE" | "ALL" => Ok(LogLevel::Trace),
            other => {
                let hint = closest(other, &Self::NAMES).map(|near| format!(", did you mean \"{near}\"?"));
                let hint = hint.unwrap_or_default();
                let got = quoted(name);
                Err(format!(
                    "expected one of OFF, ERROR, WARN, INFO, DEBUG, TRACE, got {got}{hint}"
                ))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Logfmt,
    Json,
}

#[derive(Debug, Clone)]
pub struct LoggerConfig {
    pub level: LogLevel,
    pub format: LogFormat,
    pub add_timestamp: bool,
    /// What the level, the time and the message are called in a line.
    pub level_name: String,
    pub timestamp_name: String,
    pub message_name: String,
    /// Added to every line.
    pub static_fields: Vec<(String, String)>,
    /// Lines go there instead of the standard output or error.
    pub file: Option<LogFileConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFileConfig {
    pub path: PathBuf,
    /// The file is renamed when it is long.
    pub rotate: bool,
    /// Renamed files are deleted at this age; `None` keeps them.
    pub max_age: Option<Duration>,
}

impl LogFileConfig {
    /// `None` without a path.
    fn read(mut f: Fields<'_>) -> Option<LogFileConfig> {
        let path = f.string("path", "");
        let rotate = f.bool("rotate", false);
        let days = f.int_in("rotate_max_age_days", 0, 0..=MAX_AGE_DAYS).unsigned_abs();
        if path.is_empty() && (f.has("rotate") || f.has("rotate_max_age_days")) {
            let message = "has no effect without path; name a file, or remove it";
            f.diags().warn(f.mapping(), message);
        } else if days > 0 && !rotate {
            f.diags().warn_at(
                f.pos_of("rotate_max_age_days"),
                "logger.file.rotate_max_age_days has no effect without rotate: true",
            );
        }
        f.finish();
        (!path.is_empty()).then(|| LogFileConfig {
            path: PathBuf::from(path),
            rotate,
            max_age: (days > 0).then(|| Duration::from_secs(days * 24 * 3600)),
        })
    }
}

/// A hundred years.
const MAX_AGE_DAYS: i64 = 36_500;

impl LoggerConfig {
    pub(super) fn read(mut f: Fields<'_>) -> LoggerConfig {
        let level = LogLevel::parse(&f.string("level", "INFO")).unwrap_or_else(|message| {
            f.error("level", message);
            LogLevel::Info
        });
        let format = match f.one_of("format", &["logfmt", "json"], "logfmt") {
            "json" => LogFormat::Json,
            _ => LogFormat::Logfmt,
        };
        let add_timestamp = f.bool("add_timestamp", true);
        let [level_name, timestamp_name, message_name] = [
            ("level_name", "level"),
            ("timestamp_name", "time"),
            ("message_name", "msg"),
        ]
        .map(|(field, default)| line_name(&mut f, field, default));
        let given = f.has("static_fields");
        let mut static_fields = f.string_map("static_fields");
        if !given {
            static_fields.push(("@service".to_owned(), "thalweg".to_owned()));
        }
        let file = LogFileConfig::read(f.fields("file"));
        f.finish();
        LoggerConfig {
            level,
            format,
            add_timestamp,
            level_name,
            timestamp_name,
            message_name,
            static_fields,
            file,
        }
    }
}

/// A name in log lines: logfmt allows no spaces, quotes or equals signs in it.
fn line_name(f: &mut Fields<'_>, field: &str, default: &str) -> String {
    let name = f.string(field, default);
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=');
    if name.is_empty() || name.contains(is_bad) {
        f.error(
            field,
            format!(
                "expected a name without spaces, quotes and \"=\", got {}",
                quoted(&name)
            ),
        );
    }
    name
}

#[derive(Debug, Clone)]
pub struct MetricsConfig {
    /// Timings as histograms instead of summaries.
    pub use_histogram_timing: bool,
    /// A mapping that renames or drops metrics; empty for none.
    pub mapping: String,
}

impl MetricsConfig {
    pub(super) fn read(mut f: Fields<'_>) -> MetricsConfig {
        let mut prometheus = f.fields("prometheus");
        let use_histogram_timing = prometheus.bool("use_histogram_timing", false);
        prometheus.finish();
        let mapping = f.string("mapping", "");
        f.legacy(
            "none",
            "has no effect: /metrics is always there, and costs little until it is read",
        );
        f.finish();
        MetricsConfig {
            use_histogram_timing,
            mapping,
        }
    }
}
