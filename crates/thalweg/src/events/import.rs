//! `thalweg events import`: sends the records of a file or of the standard input to the server while they are read.
//! Records stored before an error stay, and the error names its line.

use std::io::{self, BufRead, BufReader, IsTerminal as _, Read, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use flate2::read::MultiGzDecoder;
use serde_json::Value;
use thalweg_kit::clock;
use ureq::SendBody;

use super::args::EventsImport;
use super::client::EventsClient;
use super::files;
use crate::out;

const TELL_EVERY: Duration = Duration::from_secs(1);
const USAGE: u8 = 2;
const BUFFER: usize = 1 << 18;

pub fn run(options: &EventsImport) -> Result<ExitCode> {
    let from_stdin = options.input.as_ref().is_none_or(|path| path.as_os_str() == "-");
    if options.force && !options.yes {
        if from_stdin {
            out::complain(
                "thalweg: --force asks on the standard input, which is the file here; add --yes, or name a file with --input",
            );
            return Ok(ExitCode::from(USAGE));
        }
        if !out::ask("All messages of the namespace will be removed first.")? {
            return Ok(ExitCode::FAILURE);
        }
    }
    let client = EventsClient::patient(&options.server)?;
    // An empty import: checks that the server accepts imports before a file is sent or anything is removed.
    outcome(&client, "/import", SendBody::none())?;
    let input = files::input(options.input.as_deref())?;
    let source: Box<dyn Read> = match options.gzip {
        true => Box::new(MultiGzDecoder::new(input)),
        false => input,
    };
    let mut source = BufReader::with_capacity(BUFFER, source);
    // Checked before anything is removed.
    look_at_beginning(&mut source)?;
    let path = match options.force {
        true => "/import?force=true",
        false => "/import",
    };
    let mut counted = CountingReader {
        source,
        lines: 0,
        records: 0,
        is_blank: true,
        told: clock::now(),
        on_terminal: io::stderr().is_terminal(),
        failed: None,
    };
    let done = outcome(&client, path, SendBody::from_reader(&mut counted));
    if counted.on_terminal {
        out::complain("");
    }
    // If the file cannot be read, that is the cause of whatever the server reported.
    if let Some(error) = counted.failed {
        bail!("the file cannot be read to its end, so the rest is missing: {error}");
    }
    let done = done?;
    counted.end();
    is_all(counted.records, &done)?;
    let (imported, elapsed) = (&done["imported"], done["elapsed"].as_str().unwrap_or_default());
    out::complain(format_args!("{imported} messages imported in {elapsed}"));
    Ok(ExitCode::SUCCESS)
}

/// An unreadable file, or one that is no export, is not sent.
fn look_at_beginning(source: &mut impl BufRead) -> Result<()> {
    let beginning = source
        .fill_buf()
        .context("the file cannot be read; nothing was changed")?;
    match beginning.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None | Some(b'{') => Ok(()),
        Some(0x1f) => bail!("the file is compressed; add --gzip. Nothing was changed"),
        Some(_) => bail!("the file has no JSON object in its first line, so it is not an export; nothing was changed"),
    }
}

/// The last event of an import.
fn outcome(client: &EventsClient, path: &str, body: SendBody<'_>) -> Result<Value> {
    let headers = [("content-type", "application/x-ndjson")];
    let mut answer = client.ask("POST", path, &headers, body)?;
    let events = BufReader::new(answer.body_mut().with_config().limit(u64::MAX).reader());
    let mut last = None;
    for line in events.lines() {
        let line = line.context("the server's answer was cut off; what it stored before stays")?;
        if let Some(event) = line.strip_prefix("data:") {
            last = Some(event.trim().to_owned());
        }
    }
    let last = last.context("the server's answer was cut off; what it stored before stays")?;
    let event: Value = serde_json::from_str(&last).context("the server answered in an unknown format")?;
    match (event["error"].as_str(), event["message"].as_str()) {
        (Some(code), message) => {
            let message = message.unwrap_or_default();
            // Some messages already mention the line.
            let line = event["line"].as_u64().filter(|_| !message.contains(" line "));
            let place = line.map_or_else(String::new, |line| format!(" (line {line})"));
            match event["imported"].as_u64() {
                Some(imported) => bail!("{code}: {message}{place}; {imported} records before it are imported"),
                None => bail!("{code}: {message}{place}; complete batches before it are stored"),
            }
        }
        (None, _) if event["done"] == true => Ok(event),
        (None, _) => bail!("the server's answer was cut off; what it stored before stays"),
    }
}

/// Checks that the server imported as many records as the file has.
fn is_all(records: u64, done: &Value) -> Result<()> {
    match done["imported"].as_u64() {
        Some(imported) if imported == records => Ok(()),
        Some(imported) => bail!("the file has {records} records, and the server has imported {imported} of them"),
        None => bail!("the server does not say how many of {records} records it has imported"),
    }
}

/// Counts lines and shows the progress, because the server's own reports are read only after everything was sent.
struct CountingReader {
    source: BufReader<Box<dyn Read>>,
    lines: u64,
    /// Lines that are not blank.
    records: u64,
    /// Whether the current line has only spaces so far.
    is_blank: bool,
    told: Instant,
    on_terminal: bool,
    failed: Option<io::Error>,
}

impl CountingReader {
    fn count(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    self.lines += 1;
                    self.records += u64::from(!std::mem::replace(&mut self.is_blank, true));
                }
                byte => self.is_blank &= byte.is_ascii_whitespace(),
            }
        }
    }

    /// The last line may have no line end.
    fn end(&mut self) {
        self.records += u64::from(!std::mem::replace(&mut self.is_blank, true));
    }
}

impl Read for CountingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = match self.source.read(into) {
            Ok(count) => count,
            Err(error) => {
                let passed_on = io::Error::new(error.kind(), error.to_string());
                self.failed = Some(error);
                return Err(passed_on);
            }
        };
        self.count(into.get(..count).unwrap_or_default());
        if self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = clock::now();
            let _ = write!(io::stderr(), "\r{} lines sent", self.lines);
        }
        Ok(count)
    }
}
