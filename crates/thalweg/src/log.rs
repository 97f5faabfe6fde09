//! `thalweg log`: looks at, checks and repairs the durable log of a data folder. A check and a repair hold the folder, so that
//! no process starts meanwhile; a dump only reads and goes on beside a running process, with a warning.

mod print;

use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use thalweg_assemble::DataDir;
use thalweg_log::disk::Folder;
use thalweg_log::{CheckReport, DumpOptions};

use crate::cli::{LogCheck, LogCommand, LogDump, LogFolder, LogRepair};
use crate::out;

/// `EX_DATAERR`: what is stored is damaged.
const DAMAGED: u8 = 65;

pub fn main(command: &LogCommand) -> anyhow::Result<ExitCode> {
    match command {
        LogCommand::Check(options) => check(options),
        LogCommand::Dump(options) => dump(options),
        LogCommand::Repair(options) => repair(options),
    }
}

fn check(options: &LogCheck) -> anyhow::Result<ExitCode> {
    let place = Place::of(&options.folder)?;
    let _held = place.hold()?;
    let report = checked(&place, |disk, progress| Ok(thalweg_log::check(disk, progress)?))?;
    if options.json {
        out::line(print::report_json(&report))?;
    } else {
        out::text_as_is(print::report(&report))?;
    }
    Ok(code(&report))
}

fn repair(options: &LogRepair) -> anyhow::Result<ExitCode> {
    let place = Place::of(&options.folder)?;
    let _held = place.hold()?;
    let repaired = checked(&place, |disk, progress| {
        Ok(thalweg_log::repair(disk, options.accept_loss, progress)?)
    })?;
    out::text_as_is(print::findings(&repaired.before))?;
    let Some(done) = repaired.done else {
        if !thalweg_log::needs_repair(&repaired.before) {
            out::line("nothing to repair")?;
            return Ok(ExitCode::SUCCESS);
        }
        out::text_as_is(print::losses(&repaired.before, "would be lost"))?;
        out::complain("nothing was changed; give these records up with --accept-loss");
        return Ok(ExitCode::FAILURE);
    };
    for name in &done.set_aside {
        out::line(format_args!("set aside: {name}"))?;
    }
    for name in &done.written {
        out::line(format_args!("written: {name}"))?;
    }
    for name in &done.removed {
        out::line(format_args!("removed: {name}"))?;
    }
    out::text_as_is(print::losses(&repaired.before, "lost"))?;
    out::text_as_is(print::report(&done.after))?;
    Ok(code(&done.after))
}

fn dump(options: &LogDump) -> anyhow::Result<ExitCode> {
    let place = Place::of(&options.folder)?;
    if let Some(holder) = DataDir::holder(&place.data_dir) {
        let process = holder.process;
        out::complain(format_args!(
            "process {process} is writing this log: its newest blocks may look damaged, and files may be missing"
        ));
    }
    let wanted = DumpOptions {
        partition: options.partition,
        from: options.from,
        records: options.records,
    };
    let mut to = BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let dumped = thalweg_log::dump(&place.disk()?, &wanted, &mut |line| {
        written = if options.json {
            writeln!(to, "{}", print::line_json(line))
        } else {
            writeln!(to, "{}", print::line(line))
        };
        written.is_ok()
    });
    match written.and_then(|()| to.flush()) {
        // Whoever read has what it wanted.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        flushed => flushed.context("cannot write to the standard output")?,
    }
    dumped?;
    Ok(ExitCode::SUCCESS)
}

/// What a newer version wrote is not damaged: nobody is to think of a repair.
fn code(report: &CheckReport) -> ExitCode {
    if report.is_newer() {
        ExitCode::FAILURE
    } else if report.is_whole() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DAMAGED)
    }
}

/// A log, and the data folder whose holder may be writing it.
struct Place {
    dir: PathBuf,
    data_dir: PathBuf,
}

impl Place {
    fn of(folder: &LogFolder) -> anyhow::Result<Place> {
        let dir = folder.dir.clone().unwrap_or_else(|| folder.data_dir.join("log"));
        anyhow::ensure!(
            dir.is_dir(),
            "there is no log in {}; name its folder: thalweg log check DIR",
            dir.display()
        );
        // A log that is named may be on a disk of its own, with a lock of its own; or that of another data folder, which then
        // is the folder around it.
        let around = dir.canonicalize().ok().and_then(|dir| dir.parent().map(PathBuf::from));
        let data_dir = [Some(dir.clone()), around]
            .into_iter()
            .flatten()
            .find(|holding| folder.dir.is_some() && holding.join("LOCK").exists())
            .unwrap_or_else(|| folder.data_dir.clone());
        Ok(Place { dir, data_dir })
    }

    /// Keeps other processes from the log; a copy of a log that is in no data folder has nobody to be kept from it.
    fn hold(&self) -> anyhow::Result<Option<DataDir>> {
        if !self.data_dir.join("LOCK").exists() {
            return Ok(None);
        }
        DataDir::take(&self.data_dir)
            .map(Some)
            .context("a log cannot be checked or repaired while a process writes it (thalweg log dump can be used)")
    }

    fn disk(&self) -> anyhow::Result<Folder> {
        Folder::open(&self.dir).with_context(|| format!("cannot open {}", self.dir.display()))
    }
}

/// Runs with a line of progress on a terminal.
fn checked<T>(
    place: &Place,
    work: impl FnOnce(&Folder, &mut thalweg_log::Progress<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let terminal = std::io::stderr().is_terminal();
    let disk = place.disk()?;
    let done = work(&disk, &mut |done, all| {
        if terminal {
            let percent = done * 100 / all.max(1);
            let _ = write!(std::io::stderr(), "\r{percent:3} % of {}", print::bytes(all));
        }
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    done
}
