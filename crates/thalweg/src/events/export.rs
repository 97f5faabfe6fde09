//! `thalweg events export`: all messages up to the newest at the start, one record per line, in constant memory. A file has its
//! name only when it is whole and synced.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::args::Export;
use super::client::Client;
use super::files::Output;
use super::record::Row;
use crate::out;

/// Messages of one request.
const PAGE: u64 = 1000;
const TELL_EVERY: Duration = Duration::from_secs(1);

pub fn run(options: &Export) -> Result<()> {
    let client = Client::new(&options.server)?;
    let last = newest(&client)?;
    let mut export = Exported {
        client,
        last,
        count: 0,
        told: Instant::now(),
        on_terminal: io::stderr().is_terminal(),
    };
    let written = match &options.output {
        Some(path) => {
            let mut file = BufWriter::with_capacity(1 << 18, Output::create(path)?);
            export.all(options, &mut file)?;
            let file = file.into_inner().map_err(|error| error.into_error());
            file.with_context(|| format!("cannot write {}", path.display()))?
                .finish()
        }
        None => {
            let mut stdout = BufWriter::with_capacity(1 << 16, io::stdout().lock());
            let written = export.all(options, &mut stdout);
            match written.and_then(|()| stdout.flush().context("cannot write to the standard output")) {
                // Whoever has read enough has left.
                Err(error) if is_closed(&error) => return Ok(()),
                written => written,
            }
        }
    };
    written?;
    let (count, above) = (export.count, if export.on_terminal { "\r" } else { "" });
    out::complain(format_args!("{above}{count} messages exported"));
    Ok(())
}

fn is_closed(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Global position of the newest message; 0 without any.
pub fn newest(client: &Client) -> Result<u64> {
    let call = json!(["category.get", "", {"direction": "backward", "batchSize": 1}]);
    match client.elements(&call)?.next()? {
        Some(text) => Ok(Row::parse(&text)?.global),
        None => Ok(0),
    }
}

struct Exported {
    client: Client,
    /// What is stored later is not exported, so that there is an end.
    last: u64,
    count: u64,
    told: Instant,
    on_terminal: bool,
}

impl Exported {
    fn all(&mut self, options: &Export, out: &mut impl Write) -> Result<()> {
        if !options.gzip {
            return self.categories(options, out);
        }
        let mut compressed = GzEncoder::new(out, Compression::default());
        self.categories(options, &mut compressed)?;
        compressed
            .finish()
            .context("cannot write the end of what is compressed")?;
        Ok(())
    }

    fn categories(&mut self, options: &Export, out: &mut impl Write) -> Result<()> {
        if options.categories.is_empty() {
            return self.category("", options, out);
        }
        let mut done: Vec<&str> = Vec::new();
        for category in &options.categories {
            if !done.contains(&category.as_str()) {
                self.category(category, options, out)?;
                done.push(category);
            }
        }
        Ok(())
    }

    /// An empty name is that of all.
    fn category(&mut self, category: &str, options: &Export, out: &mut impl Write) -> Result<()> {
        let mut next = 1;
        while next <= self.last {
            let call = json!(["category.get", category, {"position": next, "batchSize": PAGE}]);
            let mut page = self.client.elements(&call)?;
            let mut of_page = 0;
            while let Some(text) = page.next()? {
                let row = Row::parse(&text)?;
                of_page += 1;
                next = row.global + 1;
                if row.global <= self.last && within(row.time, options) {
                    writeln!(out, "{}", row.record()).context("cannot write a record")?;
                    self.count += 1;
                }
            }
            if of_page < PAGE {
                break;
            }
            self.tell();
        }
        Ok(())
    }

    fn tell(&mut self) {
        if self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            // Over the line before; who cannot read it misses nothing.
            let _ = write!(io::stderr(), "\r{} messages exported", self.count);
        }
    }
}

fn within(time: i64, options: &Export) -> bool {
    options.since.is_none_or(|since| time >= since) && options.until.is_none_or(|until| time < until)
}
