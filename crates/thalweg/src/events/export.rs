//! `thalweg events export`: writes all messages up to the newest at the start, one record per line, in constant memory.
//! A file gets its name only when it is complete and synced.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use thalweg_kit::clock;

use super::args::EventsExport;
use super::client::EventsClient;
use super::files::AtomicFile;
use super::record::MessageRow;
use crate::out;

/// Messages of one request. A server may return fewer, so only an empty page is the end.
const PAGE: u64 = 1000;
/// Messages of a request that only searches for the end.
const LONG_PAGE: u64 = 10_000;
const TELL_EVERY: Duration = Duration::from_secs(1);

pub fn run(options: &EventsExport) -> Result<()> {
    let mut export = Exporter::new(options)?;
    let written = match &options.output {
        Some(path) => {
            let mut file = BufWriter::with_capacity(1 << 18, AtomicFile::create(path)?);
            export.all(options, &mut file)?;
            let file = file.into_inner().map_err(|error| error.into_error());
            file.with_context(|| format!("cannot write {}", path.display()))?
                .finish()
        }
        None => {
            let mut stdout = BufWriter::with_capacity(1 << 16, io::stdout().lock());
            let written = export.all(options, &mut stdout);
            match written.and_then(|()| stdout.flush().context("cannot write to the standard output")) {
                // The reader has read enough and left.
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

/// The global position of the newest message; 0 if there is none.
pub fn newest(client: &EventsClient) -> Result<u64> {
    // Two messages, to detect a server that does not know `direction`: it returns the oldest two.
    let call = json!(["category.get", "", {"direction": "backward", "batchSize": 2}]);
    let mut page = client.elements(&call)?;
    let mut first_two = Vec::with_capacity(2);
    while let Some(text) = page.next()? {
        first_two.push(MessageRow::parse(&text)?.global);
        if first_two.len() == 2 {
            break;
        }
    }
    match first_two[..] {
        [] => Ok(0),
        [first, second] if first > second => Ok(first),
        // Either these are all messages, or the server does not know `direction`: the pages after them tell.
        [first, ..] => walk(client, "", first, u64::MAX, LONG_PAGE, &mut |_| Ok(())),
    }
}

/// Passes all messages of a category from a global position up to `last` to `show`, page by page. Returns the last
/// position shown, or the one before `from`. An empty page is the end; a server whose pages do not advance is an error.
fn walk(
    client: &EventsClient,
    category: &str,
    from: u64,
    last: u64,
    page_size: u64,
    show: &mut dyn FnMut(&MessageRow) -> Result<()>,
) -> Result<u64> {
    let mut next = from;
    while next <= last {
        let call = json!(["category.get", category, {"position": next, "batchSize": page_size}]);
        let mut page = client.elements(&call)?;
        let asked_from = next;
        while let Some(text) = page.next()? {
            let row = MessageRow::parse(&text)?;
            ensure!(
                row.global >= next,
                "the server was asked for messages from position {asked_from} on but returned position {} before {next}: \
                 it does not advance from a position, so messages may be missing",
                row.global
            );
            next = row.global.saturating_add(1);
            if row.global <= last {
                show(&row)?;
            }
        }
        if next == asked_from {
            break;
        }
    }
    Ok(next.min(last.saturating_add(1)) - 1)
}

struct Exporter {
    client: EventsClient,
    /// Messages stored later are not exported, so that the export ends.
    last: u64,
    count: u64,
    told: Instant,
    on_terminal: bool,
}

impl Exporter {
    fn new(options: &EventsExport) -> Result<Exporter> {
        let client = EventsClient::new(&options.server)?;
        Ok(Exporter {
            last: newest(&client)?,
            client,
            count: 0,
            told: clock::now(),
            on_terminal: io::stderr().is_terminal(),
        })
    }

    fn all(&mut self, options: &EventsExport, out: &mut impl Write) -> Result<()> {
        if !options.gzip {
            return self.categories(options, out);
        }
        let mut compressed = GzEncoder::new(out, Compression::default());
        self.categories(options, &mut compressed)?;
        compressed
            .finish()
            .context("cannot write the end of the compressed data")?;
        Ok(())
    }

    fn categories(&mut self, options: &EventsExport, out: &mut impl Write) -> Result<()> {
        if options.categories.is_empty() {
            let shown = self.category("", options, out)?;
            return self.is_complete(shown);
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

    /// An empty name exports all categories.
    fn category(&mut self, category: &str, options: &EventsExport, out: &mut impl Write) -> Result<u64> {
        let (count, told, on_terminal) = (&mut self.count, &mut self.told, self.on_terminal);
        walk(&self.client, category, 1, self.last, PAGE, &mut |row| {
            if within(row.time, options) {
                writeln!(out, "{}", row.record()).context("cannot write a record")?;
                *count += 1;
            }
            if on_terminal && count.is_multiple_of(PAGE) && told.elapsed() >= TELL_EVERY {
                *told = clock::now();
                // Overwrites the previous line. A failed write only loses progress output.
                let _ = write!(io::stderr(), "\r{count} messages exported");
            }
            Ok(())
        })
    }

    /// Checks that the newest message of the start was shown, or does not exist any more.
    fn is_complete(&self, shown: u64) -> Result<()> {
        if shown >= self.last {
            return Ok(());
        }
        let call = json!(["category.get", "", {"position": self.last, "batchSize": 1}]);
        let is_there = match self.client.elements(&call)?.next()? {
            Some(text) => MessageRow::parse(&text)?.global == self.last,
            None => false,
        };
        if is_there || newest(&self.client)? == self.last {
            bail!(
                "the export is not complete: the server's pages ended at position {shown}, and it has messages up to {}",
                self.last
            );
        }
        Ok(())
    }
}

fn within(time: i64, options: &EventsExport) -> bool {
    options.since.is_none_or(|since| time >= since) && options.until.is_none_or(|until| time < until)
}

#[cfg(test)]
mod tests;
