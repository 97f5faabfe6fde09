//! `thalweg log`: inspects, checks and repairs the durable log of a data folder. Check and repair lock it, so that no
//! process starts meanwhile; a dump only reads, and runs beside a process with a warning.

mod print;

use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use thalweg_assemble::DataDir;
use thalweg_log::disk::FolderDisk;
use thalweg_log::{CheckReport, DumpOptions};

use crate::cli::{LogCheck, LogCommand, LogDump, LogFolder, LogRepair};
use crate::out;

/// `EX_DATAERR`: stored data is damaged.
const DAMAGED: u8 = 65;

pub fn main(command: &LogCommand) -> anyhow::Result<ExitCode> {
    match command {
        LogCommand::Check(options) => check(options),
        LogCommand::Dump(options) => dump(options),
        LogCommand::Repair(options) => repair(options),
    }
}

fn check(options: &LogCheck) -> anyhow::Result<ExitCode> {
    let place = LogLocation::of(&options.folder)?;
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
    let place = LogLocation::of(&options.folder)?;
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
        out::complain("nothing was changed; drop these records with --accept-loss");
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
    let place = LogLocation::of(&options.folder)?;
    if let Some(holder) = place.locked.iter().find_map(|folder| DataDir::holder(folder)) {
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
        // The reader has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        flushed => flushed.context("cannot write to the standard output")?,
    }
    dumped?;
    Ok(ExitCode::SUCCESS)
}

/// Data of a newer version is not damaged, and must not suggest a repair.
fn code(report: &CheckReport) -> ExitCode {
    if report.is_newer() {
        ExitCode::FAILURE
    } else if report.is_whole() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DAMAGED)
    }
}

/// A log, and the folders whose holder may be writing it.
struct LogLocation {
    dir: PathBuf,
    locked: Vec<PathBuf>,
}

impl LogLocation {
    fn of(folder: &LogFolder) -> anyhow::Result<LogLocation> {
        let dir = folder.dir.clone().unwrap_or_else(|| folder.data_dir.join("log"));
        anyhow::ensure!(
            dir.is_dir(),
            "there is no log in {}; name its folder: thalweg log check DIR",
            dir.display()
        );
        let is_locked = |folder: &PathBuf| folder.join("LOCK").exists();
        // A process that writes a log locks its folder; a log of an earlier version has only the lock of the enclosing
        // data folder.
        let locked: Vec<PathBuf> = match &folder.dir {
            None => [folder.data_dir.clone(), dir.clone()]
                .into_iter()
                .filter(is_locked)
                .collect(),
            Some(named) => {
                let around = named
                    .canonicalize()
                    .ok()
                    .and_then(|dir| dir.parent().map(PathBuf::from));
                let holding = [Some(named.clone()), around, Some(folder.data_dir.clone())];
                holding.into_iter().flatten().find(is_locked).into_iter().collect()
            }
        };
        Ok(LogLocation { dir, locked })
    }

    /// Locks the log. A copy outside any data folder has no lock.
    fn hold(&self) -> anyhow::Result<Vec<DataDir>> {
        let held = self.locked.iter().map(|folder| match *folder == self.dir {
            true => DataDir::take_log(folder),
            false => DataDir::take(folder),
        });
        held.collect::<anyhow::Result<_>>()
            .context("a log cannot be checked or repaired while a process writes it (use thalweg log dump)")
    }

    fn disk(&self) -> anyhow::Result<FolderDisk> {
        FolderDisk::open(&self.dir).with_context(|| format!("cannot open {}", self.dir.display()))
    }
}

/// Runs the work with a line of progress on a terminal.
fn checked<T>(
    place: &LogLocation,
    work: impl FnOnce(&FolderDisk, &mut thalweg_log::CheckProgress<'_>) -> anyhow::Result<T>,
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
