//! A SQL prompt: statements over several lines that end with a semicolon, a persistent history, and commands for
//! frequent questions. Ctrl-C cancels the running query, Ctrl-D ends the shell.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use thalweg_kit::{clock, files};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::session::{SqlOutputFormat, SqlSession, is_broken_pipe, write};
use super::statements::split;
use crate::cli::SqlFormat;
use crate::out;

const PROMPT: &str = "thalweg> ";
const MORE: &str = "      -> ";
const HISTORY_MAX: usize = 10_000;
const HELP: &str = "\
Statements end with a semicolon and may have several lines. Ctrl-C ends a query, Ctrl-D the shell.
  \\d            the tables
  \\d TABLE      the columns of a table
  \\timing       turn query times on or off
  \\format NAME  table, csv, json or ndjson
  \\q            quit";

/// Reads and runs statements until the input ends.
pub fn run(runtime: &Runtime, session: SqlSession, format: SqlOutputFormat) -> Result<()> {
    let interrupt = {
        let _within = runtime.enter();
        signal(SignalKind::interrupt()).context("cannot handle signals")?
    };
    let mut shell = Shell {
        runtime,
        session,
        format,
        timing: false,
        interrupt,
    };
    let mut lines = PromptEditor::open()?;
    out::complain(format_args!(
        "Querying {}. \\? lists the commands.",
        shell.session.whom()?
    ));
    let mut waiting = String::new();
    while let Some(line) = lines.next(if waiting.is_empty() { PROMPT } else { MORE })? {
        let PromptLine::Text(line) = line else {
            waiting.clear();
            continue;
        };
        if waiting.is_empty() && line.trim_start().starts_with('\\') {
            lines.remember(line.trim());
            if !shell.command(line.trim())? {
                break;
            }
            continue;
        }
        waiting.push_str(&line);
        waiting.push('\n');
        let (statements, rest) = split(&waiting);
        waiting = if rest.trim().is_empty() { String::new() } else { rest };
        for statement in statements {
            lines.remember(&format!("{statement};"));
            if !shell.answer(&statement)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

struct Shell<'r> {
    runtime: &'r Runtime,
    session: SqlSession,
    format: SqlOutputFormat,
    timing: bool,
    interrupt: Signal,
}

impl Shell<'_> {
    /// Returns `false` when the shell has to end.
    fn command(&mut self, line: &str) -> Result<bool> {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("\\q"), None) => return Ok(false),
            (Some("\\?"), None) => return out::line(HELP),
            (Some("\\d"), None) => {
                return self.answer(
                    "select table_name as \"table\" from information_schema.tables where table_schema = 'lake' order by 1",
                );
            }
            (Some("\\d"), Some(table)) => {
                let table = table.trim_end_matches(';').replace('"', "\"\"");
                return self.answer(&format!("describe \"{table}\""));
            }
            (Some("\\timing"), setting) => {
                self.timing = match setting {
                    Some("on") => true,
                    Some("off") => false,
                    _ => !self.timing,
                };
                return out::line(format_args!("timing is {}", if self.timing { "on" } else { "off" }));
            }
            (Some("\\format"), name) => match name.map(named) {
                Some(Some(format)) => self.format = format,
                Some(None) => out::complain("expected table, csv, json or ndjson"),
                None => return out::line(format_args!("the format is {}", name_of(self.format))),
            },
            _ => out::complain(format_args!("there is no command {line}; \\? lists the commands")),
        }
        Ok(true)
    }

    /// Returns `false` if nobody reads the output any more.
    fn answer(&mut self, query: &str) -> Result<bool> {
        let begun = clock::now();
        let (session, format, interrupt) = (&self.session, self.format, &mut self.interrupt);
        let answered = self.runtime.block_on(async {
            // An interrupt from before the query does not cancel it.
            while tokio::time::timeout(Duration::ZERO, interrupt.recv()).await.is_ok() {}
            let answer = async {
                let rows = session.ask(query).await?;
                let mut out = std::io::stdout().lock();
                let rows = write(rows, format, &mut out).await?;
                out.flush()?;
                anyhow::Ok(rows)
            };
            tokio::select! {
                biased;
                _ = interrupt.recv() => None,
                answered = answer => Some(answered),
            }
        });
        match answered {
            None => out::complain("\nthe query was cancelled"),
            Some(Ok(rows)) if format == SqlOutputFormat::Table => {
                out::line(format_args!("({rows} {})", if rows == 1 { "row" } else { "rows" }))?;
            }
            Some(Ok(_)) => {}
            Some(Err(error)) if is_broken_pipe(&error) => return Ok(false),
            // The next query may succeed.
            Some(Err(error)) => out::complain(format_args!("{error:#}")),
        }
        if self.timing {
            out::line(format_args!("time: {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0))?;
        }
        Ok(true)
    }
}

fn named(name: &str) -> Option<SqlOutputFormat> {
    let known = [
        SqlOutputFormat::Table,
        SqlOutputFormat::Csv,
        SqlOutputFormat::Json,
        SqlOutputFormat::Ndjson,
    ];
    known.into_iter().find(|format| name_of(*format) == name)
}

fn name_of(format: SqlOutputFormat) -> &'static str {
    match format {
        SqlOutputFormat::Table => "table",
        SqlOutputFormat::Csv => "csv",
        SqlOutputFormat::Json => "json",
        SqlOutputFormat::Ndjson => "ndjson",
        SqlOutputFormat::Arrow => "arrow",
    }
}

/// The initial format.
pub fn format(given: Option<SqlFormat>) -> Result<SqlOutputFormat> {
    Ok(match given {
        None | Some(SqlFormat::Table) => SqlOutputFormat::Table,
        Some(SqlFormat::Csv) => SqlOutputFormat::Csv,
        Some(SqlFormat::Json) => SqlOutputFormat::Json,
        Some(SqlFormat::Ndjson) => SqlOutputFormat::Ndjson,
        Some(SqlFormat::Arrow) => anyhow::bail!("an Arrow stream is not for a terminal"),
    })
}

/// Reads input lines and keeps their history.
struct PromptEditor {
    editor: DefaultEditor,
    /// `None` if there is no folder for it.
    history: Option<PathBuf>,
}

enum PromptLine {
    Text(String),
    /// Ctrl-C: the current input is dropped.
    GivenUp,
}

impl PromptEditor {
    fn open() -> Result<PromptEditor> {
        let config = Config::builder()
            .max_history_size(HISTORY_MAX)
            .and_then(|config| config.history_ignore_dups(true))
            .context("the prompt cannot be set up")?;
        let mut editor = DefaultEditor::with_config(config.build())
            .context("the terminal cannot be used for a prompt; give the query as an argument")?;
        let history = state_folder().map(|folder| folder.join("sql_history"));
        if let Some(history) = &history {
            // There is no history before the first use; an unreadable one is replaced.
            let _ = editor.load_history(history);
        }
        Ok(PromptEditor { editor, history })
    }

    /// Returns `None` at the end of the input.
    fn next(&mut self, prompt: &str) -> Result<Option<PromptLine>> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Some(PromptLine::Text(line))),
            Err(ReadlineError::Interrupted) => Ok(Some(PromptLine::GivenUp)),
            Err(ReadlineError::Eof) => Ok(None),
            Err(error) => Err(error).context("the terminal cannot be read"),
        }
    }

    /// Saved at once, because the shell may be killed at any time.
    fn remember(&mut self, entry: &str) {
        if !matches!(self.editor.add_history_entry(entry), Ok(true)) {
            return;
        }
        if let Some(history) = self.history.clone() {
            let folder = history.parent().map_or(Ok(()), files::create_folders);
            let kept = folder
                .map_err(ReadlineError::from)
                .and_then(|()| self.editor.append_history(&history));
            if let Err(error) = kept {
                out::complain(format_args!(
                    "the history cannot be saved in {}: {error}",
                    history.display()
                ));
                self.history = None;
            }
        }
    }
}

/// The folder for state that outlives a program and is not configuration.
fn state_folder() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(given.or_else(home)?.join("thalweg"))
}
