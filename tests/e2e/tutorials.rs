//! Runs each page of `docs/tutorials` as it stands: writes its files, types its commands into terminals, and compares what they
//! print with what the page shows. `page.rs` lists the kinds of blocks.

mod page;
mod printed;
mod terminal;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use thalweg_tests::servers::{kafka, python};
use thalweg_tests::thalweg::binary;
use thalweg_tests::{Process, beside, eventually};

use page::{TutorialAction, steps};
use printed::ExpectedOutput;
use terminal::{TutorialNetwork, TutorialTerminal};

/// Commands that are run one after the other share their variables and functions, as on a single terminal.
const BEFORE: &str = "set -aeo pipefail\n. \"$TUTORIAL_STATE\"\n";
const AFTER: &str = "\n{ export -p; declare -f; } > \"$TUTORIAL_STATE\"\n";
/// A command that goes on has a terminal of its own.
const ALONE: &str = "set -eo pipefail\n";

/// A page that is being followed. Terminals end before their network and their folders.
struct TutorialRun {
    terminals: BTreeMap<String, TutorialTerminal>,
    brokers: Vec<Process>,
    network: TutorialNetwork,
    /// The folder of the reader.
    folder: TempDir,
    /// Scripts, and what terminals show.
    own: TempDir,
    /// With the binary under test, and the Python that has the packages of the pages.
    path: OsString,
    scripts: u32,
}

impl TutorialRun {
    fn begin() -> Result<TutorialRun> {
        let (folder, own) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let programs = own.path().join("bin");
        std::fs::create_dir(&programs)?;
        std::os::unix::fs::symlink(binary(), programs.join("thalweg"))?;
        std::fs::write(own.path().join("state"), "")?;
        let python = python()?.parent().map(Path::to_owned);
        let others = std::env::var_os("PATH").unwrap_or_default();
        let folders = [Some(programs), python].into_iter().flatten();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&others)))?;
        Ok(TutorialRun {
            terminals: BTreeMap::new(),
            brokers: Vec::new(),
            network: TutorialNetwork::create(own.path())?,
            folder,
            own,
            path,
            scripts: 0,
        })
    }

    fn act(&mut self, action: &TutorialAction) -> Result<()> {
        match action {
            TutorialAction::WriteFile { name, content } => Ok(std::fs::write(self.folder.path().join(name), content)?),
            TutorialAction::Run {
                commands,
                exit_code,
                repeats: false,
                prints,
            } => self.run(commands, *exit_code, prints),
            TutorialAction::Run {
                commands,
                exit_code,
                repeats: true,
                prints,
            } => eventually(|| self.run(commands, *exit_code, prints)),
            TutorialAction::Start {
                terminal,
                command,
                prints,
            } => {
                let mut opened = self.open(terminal, &format!("{ALONE}{command}"))?;
                let shown = prints.as_ref().map_or(Ok(()), |prints| opened.wait_for(prints));
                self.terminals.insert(terminal.clone(), opened);
                shown
            }
            TutorialAction::WaitFor { terminal, shows } => self.terminal(terminal)?.wait_for(shows),
            TutorialAction::Interrupt { terminal, shows } => {
                let opened = self.terminal(terminal)?;
                opened.interrupt()?;
                opened.wait_for(shows)
            }
            TutorialAction::StartKafka => self.start_kafka(),
        }
    }

    fn terminal(&mut self, name: &str) -> Result<&mut TutorialTerminal> {
        let terminal = self.terminals.get_mut(name);
        terminal.with_context(|| format!("no block starts the terminal {name}"))
    }

    /// Runs commands to their end, once.
    fn run(&mut self, commands: &str, exit_code: i32, prints: &ExpectedOutput) -> Result<()> {
        let mut terminal = self.open("step", &format!("{BEFORE}{commands}{AFTER}"))?;
        let status = terminal.wait()?;
        let shown = terminal.shown();
        ensure!(
            status.code() == Some(exit_code),
            "{commands}ended with {status}:\n{shown}"
        );
        ensure!(prints.is(&shown), "{commands}printed\n{shown}\ninstead of {prints:?}");
        Ok(())
    }

    fn open(&mut self, name: &str, script: &str) -> Result<TutorialTerminal> {
        self.scripts += 1;
        let name = format!("{}-{name}", self.scripts);
        let (own, folder) = (self.own.path(), self.folder.path());
        let file = own.join(format!("{name}.sh"));
        std::fs::write(&file, script)?;
        TutorialTerminal::open(&self.network, &name, own, &file, |command| {
            command
                .current_dir(folder)
                .env("PATH", &self.path)
                .env("TUTORIAL_STATE", own.join("state"));
        })
    }

    fn start_kafka(&mut self) -> Result<()> {
        let mut command = self.network.enter(&kafka()?);
        command
            .args(["broker", "-port", "9092", "-data"])
            .arg(self.own.path().join("kafka"));
        self.brokers
            .push(Process::start("kafka", self.own.path(), &mut command)?);
        eventually(|| {
            let mut connect = self.network.enter(Path::new("bash"));
            let connected = connect.args(["-c", ": 3<> /dev/tcp/127.0.0.1/9092"]).output()?;
            ensure!(connected.status.success(), "no broker answers");
            Ok(())
        })
    }
}

fn pages() -> PathBuf {
    beside("../docs/tutorials")
}

/// Follows a page from its first block to its last.
fn follow(name: &str) {
    let steps = steps(&pages().join(name)).unwrap();
    assert!(!steps.is_empty(), "{name} has nothing to follow");
    let mut run = TutorialRun::begin().unwrap();
    for step in &steps {
        let done = run.act(&step.action);
        done.with_context(|| format!("docs/tutorials/{name}, line {}", step.line))
            .unwrap();
    }
}

#[test]
fn the_tutorial_of_opc_ua_runs_as_it_stands() {
    follow("opcua-to-sql.md");
}

#[test]
fn the_tutorial_of_opentelemetry_runs_as_it_stands() {
    follow("otlp-to-sql.md");
}

#[test]
fn the_tutorial_of_queues_runs_as_it_stands() {
    follow("queues.md");
}

#[test]
fn the_tutorial_of_event_streams_runs_as_it_stands() {
    follow("event-streams.md");
}

#[test]
fn the_tutorial_of_the_lake_runs_as_it_stands() {
    follow("lake-and-sql.md");
}

#[test]
fn the_tutorial_of_the_unified_namespace_runs_as_it_stands() {
    follow("unified-namespace.md");
}

#[test]
fn every_tutorial_has_a_test() {
    let tests = include_str!("tutorials.rs");
    for entry in std::fs::read_dir(pages()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(tests.contains(&format!("follow(\"{name}\")")), "no test follows {name}");
    }
}
