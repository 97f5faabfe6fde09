//! The log of the process: logfmt or JSON lines with the static fields of the configuration.
//!
//! Logging never blocks on the reader: a full pipe or a full disk loses lines, and the next line that is written says how
//! many are missing. A queue with a writer thread was rejected because the last lines of a process would be lost with it.
//!
//! The layout is our own and small, because consumers of the reference system's logs match on it: `level=info
//! @service=thalweg msg="..."` with further fields after the message.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::log_file::LogFile;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    Logfmt,
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Stdout,
    /// For processes that write data to stdout.
    Stderr,
    File(LogFile),
}

/// What the parts of a line are called.
#[derive(Clone, Debug)]
pub struct LineNames {
    pub level: String,
    pub time: String,
    pub message: String,
}

impl Default for LineNames {
    fn default() -> LineNames {
        LineNames {
            level: "level".to_owned(),
            time: "time".to_owned(),
            message: "msg".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct LoggingOptions {
    pub level: LevelFilter,
    pub format: LineFormat,
    pub target: LogTarget,
    pub add_timestamp: bool,
    pub names: LineNames,
    pub static_fields: BTreeMap<String, String>,
    /// Modules of which only errors are logged, at any level.
    pub only_errors_of: &'static [&'static str],
}

/// The levels that a configuration may name.
pub const LEVELS: &[&str] = &["OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL", "NONE"];

/// The filter for a level's name in any case; `None` for unknown names.
pub fn level(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_uppercase().as_str() {
        "OFF" | "NONE" => LevelFilter::OFF,
        "FATAL" | "ERROR" => LevelFilter::ERROR,
        "WARN" => LevelFilter::WARN,
        "INFO" => LevelFilter::INFO,
        "DEBUG" => LevelFilter::DEBUG,
        "TRACE" | "ALL" => LevelFilter::TRACE,
        _ => return None,
    })
}

/// Starts logging for the whole process. A second call changes nothing.
pub fn start(options: LoggingOptions) {
    let filter = EnvFilter::try_new(directives(options.level, options.only_errors_of))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(LineLayer {
            options,
            missing: Mutex::default(),
        })
        .try_init();
}

/// The filter directives for a level.
fn directives(level: LevelFilter, only_errors_of: &[&str]) -> String {
    let quiet: String = only_errors_of.iter().map(|module| format!(",{module}=error")).collect();
    if level >= LevelFilter::DEBUG {
        return format!("{},thalweg={level}{quiet}", LevelFilter::DEBUG);
    }
    // Only errors of libraries matter: Thalweg itself logs what an operator must know.
    let libraries = level.min(LevelFilter::ERROR);
    format!("{libraries},opcua=off,thalweg={level}{quiet}")
}

/// The most that a writable pipe accepts without blocking: Linux's `PIPE_BUF`.
const PIECE_BYTES: usize = 4096;

struct LineLayer {
    options: LoggingOptions,
    missing: Mutex<MissingLines>,
}

/// Lines that could not be written.
#[derive(Debug, Default, PartialEq, Eq)]
struct MissingLines {
    lines: u64,
    /// The last written line has no end.
    is_cut: bool,
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let line = self.line(*event.metadata().level(), &fields);
        match &self.options.target {
            LogTarget::Stdout => self.offer(&mut io::stdout().lock(), &line),
            LogTarget::Stderr => self.offer(&mut io::stderr().lock(), &line),
            LogTarget::File(file) => self.append(file, &line),
        }
    }
}

impl LineLayer {
    /// Writes a line unless that would block. A log that cannot be written must not stop the data.
    fn offer(&self, out: &mut (impl Write + AsFd), line: &str) {
        let mut missing = self.missing.lock();
        if !takes_more(out) {
            missing.lines += 1;
            return;
        }
        let text = self.with_missing(&std::mem::take(&mut *missing), "nothing read them", line);
        for (n, piece) in text.as_bytes().chunks(PIECE_BYTES).enumerate() {
            if n > 0 && !takes_more(out) {
                *missing = MissingLines { lines: 1, is_cut: true };
                return;
            }
            let _ = out.write_all(piece);
        }
    }

    /// Appends a line to a file. A full disk loses lines, and nothing else.
    fn append(&self, file: &LogFile, line: &str) {
        let mut missing = self.missing.lock();
        match file.append(&self.with_missing(&missing, "they could not be written", line)) {
            Ok(complaint) => {
                *missing = MissingLines::default();
                if let Some(message) = complaint {
                    let fields = EventFields {
                        message,
                        others: Vec::new(),
                    };
                    let _ = file.append(&self.line(Level::WARN, &fields));
                }
            }
            Err(_) => {
                missing.lines += 1;
                // A part of it may be there.
                missing.is_cut = true;
            }
        }
    }

    /// A line, after one that says how many are missing before it.
    fn with_missing(&self, missing: &MissingLines, why: &str, line: &str) -> String {
        let mut text = String::new();
        if missing.is_cut {
            text.push('\n');
        }
        if missing.lines > 0 {
            let fields = EventFields {
                message: format!("lines of this log are missing, because {why}"),
                others: vec![("lines", missing.lines.to_string())],
            };
            text.push_str(&self.line(Level::WARN, &fields));
        }
        text.push_str(line);
        text
    }

    /// The line with its line end.
    fn line(&self, level: Level, fields: &EventFields) -> String {
        let mut line = match self.options.format {
            LineFormat::Logfmt => self.logfmt(level, fields),
            LineFormat::Json => self.json(level, fields),
        };
        line.push('\n');
        line
    }

    fn logfmt(&self, level: Level, fields: &EventFields) -> String {
        let mut line = String::new();
        let mut pair = |name: &str, value: &str| {
            let gap = if line.is_empty() { "" } else { " " };
            if value.is_empty() || value.contains(|c: char| c.is_whitespace() || c == '"' || c == '=' || c.is_control())
            {
                let _ = write!(line, "{gap}{name}={value:?}");
            } else {
                let _ = write!(line, "{gap}{name}={value}");
            }
        };
        if self.options.add_timestamp {
            pair(&self.options.names.time, &timestamp());
        }
        pair(&self.options.names.level, level_name(level));
        for (name, value) in &self.options.static_fields {
            pair(name, value);
        }
        pair(&self.options.names.message, &fields.message);
        for (name, value) in &fields.others {
            pair(name, value);
        }
        line
    }

    fn json(&self, level: Level, fields: &EventFields) -> String {
        let mut object = serde_json::Map::new();
        for (name, value) in &self.options.static_fields {
            object.insert(name.clone(), value.as_str().into());
        }
        let names = &self.options.names;
        object.insert(names.level.clone(), level_name(level).into());
        object.insert(names.message.clone(), fields.message.as_str().into());
        for (name, value) in &fields.others {
            object.insert((*name).to_owned(), value.as_str().into());
        }
        if self.options.add_timestamp {
            object.insert(names.time.clone(), timestamp().into());
        }
        serde_json::Value::Object(object).to_string()
    }
}

/// Whether a write of one piece returns at once, possibly with an error.
fn takes_more(out: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(out, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // If polling fails, the target is a file or gone.
    poll(&mut asked, Some(&now)).is_err() || asked.iter().any(|one| !one.revents().is_empty())
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn timestamp() -> String {
    thalweg_record::Ticks::now().to_string()
}

#[derive(Default)]
struct EventFields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => self.others.push((name, value.to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => {
                let _ = write!(self.message, "{value:?}");
            }
            name => self.others.push((name, format!("{value:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(format: LineFormat) -> LineLayer {
        let static_fields = BTreeMap::from([("@service".to_owned(), "thalweg".to_owned())]);
        LineLayer {
            options: LoggingOptions {
                level: LevelFilter::INFO,
                format,
                target: LogTarget::Stderr,
                add_timestamp: false,
                names: LineNames::default(),
                static_fields,
                only_errors_of: &[],
            },
            missing: Mutex::default(),
        }
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nothing_up_and_says_later_what_is_missing() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let log = lines(LineFormat::Logfmt);
        let long = "x".repeat(1000) + "\n";
        // Far more than the capacity of a pipe.
        (0..1000).for_each(|_| log.offer(&mut writer, &long));
        let lost = log.missing.lock().lines;
        assert!((1..1000).contains(&lost), "{lost} lines");
        let mut held = vec![0; 1000 - lost as usize];
        let mut found = Vec::new();
        while found.len() < 1001 * held.len() {
            let len = io::Read::read(&mut reader, &mut held).unwrap();
            found.extend_from_slice(&held[..len]);
        }
        log.offer(&mut writer, "again\n");
        // A line that does not fit is cut, and the next one begins on a new line.
        log.offer(&mut writer, &("y".repeat(1 << 20) + "\n"));
        assert_eq!(*log.missing.lock(), MissingLines { lines: 1, is_cut: true });
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut rest = String::new();
                io::Read::read_to_string(&mut reader, &mut rest).unwrap();
                rest
            });
            while !takes_more(&writer) {
                std::thread::yield_now();
            }
            log.offer(&mut writer, "last\n");
            drop(writer);
            let rest = reading.join().unwrap();
            let told: Vec<&str> = rest.lines().collect();
            let missing =
                "level=warn @service=thalweg msg=\"lines of this log are missing, because nothing read them\" lines=";
            assert_eq!(told[..2], [format!("{missing}{lost}").as_str(), "again"]);
            assert!(told[2].starts_with("yyy"));
            assert_eq!(told[3..], [format!("{missing}1").as_str(), "last"]);
        });
    }

    #[test]
    fn a_full_disk_loses_lines_and_says_later_how_many() {
        let full = crate::log_file::LogFileOptions {
            path: "/dev/full".into(),
            rotation: None,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flow.log");
        let usable = crate::log_file::LogFileOptions {
            path: path.clone(),
            rotation: None,
        };
        let (full, usable) = (LogFile::open(full).unwrap(), LogFile::open(usable).unwrap());
        let log = lines(LineFormat::Logfmt);
        log.append(&usable, "before\n");
        log.append(&full, "lost\n");
        log.append(&full, "lost\n");
        log.append(&usable, "after\n");
        let told = std::fs::read_to_string(path).unwrap();
        let missing = "level=warn @service=thalweg msg=\"lines of this log are missing, because they could not be written\" \
                       lines=2";
        assert_eq!(told, format!("before\n\n{missing}\nafter\n"));
    }

    #[test]
    fn libraries_are_no_louder_than_the_level() {
        assert_eq!(directives(LevelFilter::OFF, &[]), "off,opcua=off,thalweg=off");
        assert_eq!(directives(LevelFilter::WARN, &[]), "error,opcua=off,thalweg=warn");
        assert_eq!(directives(LevelFilter::TRACE, &[]), "debug,thalweg=trace");
        assert_eq!(
            directives(LevelFilter::WARN, &["a::b"]),
            "error,opcua=off,thalweg=warn,a::b=error"
        );
    }

    #[test]
    fn the_parts_of_a_line_have_the_names_that_are_set() {
        let fields = EventFields {
            message: "started".to_owned(),
            others: Vec::new(),
        };
        let mut log = lines(LineFormat::Logfmt);
        log.options.add_timestamp = true;
        log.options.names = LineNames {
            level: "severity".to_owned(),
            time: "@timestamp".to_owned(),
            message: "message".to_owned(),
        };
        let line = log.logfmt(Level::INFO, &fields);
        assert!(line.starts_with("@timestamp=2"), "{line}");
        assert!(
            line.ends_with(" severity=info @service=thalweg message=started"),
            "{line}"
        );
        let json: serde_json::Value = serde_json::from_str(&log.json(Level::INFO, &fields)).unwrap();
        assert_eq!(json["severity"], "info");
        assert_eq!(json["message"], "started");
        assert!(json["@timestamp"].as_str().unwrap().starts_with('2'), "{json}");
    }

    #[test]
    fn a_line_has_level_static_fields_message_and_the_rest() {
        let fields = EventFields {
            message: "it \"works\"".to_owned(),
            others: vec![("flow", "a".to_owned()), ("why", "x=y".to_owned())],
        };
        let line = lines(LineFormat::Logfmt).logfmt(Level::WARN, &fields);
        assert_eq!(
            line,
            r#"level=warn @service=thalweg msg="it \"works\"" flow=a why="x=y""#
        );
        let json: serde_json::Value =
            serde_json::from_str(&lines(LineFormat::Json).json(Level::WARN, &fields)).unwrap();
        assert_eq!(json["msg"], "it \"works\"");
        assert_eq!(json["@service"], "thalweg");
    }
}
