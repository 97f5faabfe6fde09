//! `thalweg events backup`, `restore`: writes everything on a server to a file, and restores such a file to the folder
//! of a stopped server. A file is checked while it is written, and gets its name only when its end was seen.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use thalweg_events::backup::{BackupCounts, BackupError, BackupPart, BackupReader};

use super::args::{EventsBackup, EventsRestore};
use super::client::EventsClient;
use super::files::AtomicFile;
use super::progress::ByteProgress;
use crate::out;

const BUFFER: usize = 1 << 18;

pub fn backup(options: &EventsBackup) -> Result<()> {
    let mut answer = EventsClient::patient(&options.server)?.ask("GET", "/api/v1/events/backup", &[], ())?;
    let source = answer.body_mut().with_config().limit(u64::MAX).reader();
    let copied = match is_standard(&options.output) {
        true => copy(source, &mut io::stdout().lock())?,
        false => {
            let mut file = AtomicFile::create(&options.output)?;
            let copied = copy(source, &mut file)?;
            file.finish()?;
            copied
        }
    };
    let (counts, bytes) = copied;
    out::complain(format_args!(
        "{}; {bytes} bytes in {}",
        told(&counts),
        options.output.display()
    ));
    Ok(())
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn told(counts: &BackupCounts) -> String {
    format!("{} namespaces, {} messages", counts.namespaces, counts.messages)
}

/// Copies up to the end of the backup. Returns its counts and its bytes.
fn copy(source: impl Read, into: &mut impl Write) -> Result<(BackupCounts, u64)> {
    let mut progress = ByteProgress::new("backed up");
    let copied = TeeReader {
        source,
        into: &mut *into,
    };
    let mut backup = BackupReader::new(BufReader::with_capacity(BUFFER, copied)).map_err(cut_off)?;
    loop {
        match backup.next_part().map_err(cut_off)? {
            Some(BackupPart::End(counts)) => {
                let bytes = backup.bytes();
                drop(backup);
                into.flush().context("cannot write the backup")?;
                return Ok((counts, bytes));
            }
            Some(_) => progress.tell(backup.bytes()),
            // Only after the end.
            None => return Err(cut_off(BackupError::CutOff { at: backup.bytes() })),
        }
    }
}

/// A backup that was cut off in transfer is not damaged.
fn cut_off(error: BackupError) -> anyhow::Error {
    match error {
        BackupError::CutOff { at } => {
            anyhow::anyhow!("the server ended the backup after {at} bytes, before its end; its log may say why")
        }
        error => error.into(),
    }
}

/// Copies what it reads to a writer.
struct TeeReader<'a, R, W> {
    source: R,
    into: &'a mut W,
}

impl<R: Read, W: Write> Read for TeeReader<'_, R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.source.read(buffer) {
            // The last chunk is missing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            read => read?,
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        let written = self.into.write_all(bytes);
        written.map_err(|error| io::Error::new(error.kind(), format!("the backup cannot be written: {error}")))?;
        Ok(read)
    }
}

pub fn restore(options: &EventsRestore) -> Result<()> {
    let shown = options.input.display().to_string();
    let source: Box<dyn Read + Send> = match is_standard(&options.input) {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(&options.input).with_context(|| format!("cannot read {shown}"))?),
    };
    let source = BufReader::with_capacity(BUFFER, source);
    let runtime = crate::runtime()?;
    let mut progress = ByteProgress::new("read");
    let restored = runtime.block_on(thalweg_assemble::restore_events(
        &options.data_dir,
        source,
        move |restored| progress.tell(restored.bytes),
    ));
    let restored = restored.map_err(|error| match error.downcast_ref::<BackupError>() {
        Some(_) => error.context(shown),
        None => error,
    })?;
    out::complain(format_args!(
        "{} in {}",
        told(&restored.all),
        options.data_dir.display()
    ));
    Ok(())
}
