//! Terminals in a network of their own, in which every default port is free, whatever other tests and programs listen on.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use thalweg_tests::servers::python;
use thalweg_tests::{Process, beside, eventually};

use super::printed::ExpectedOutput;

/// What Ctrl-C sends.
const CTRL_C: &[u8] = b"\x03";
/// For a command that was killed.
const END_PATIENCE: Duration = Duration::from_secs(10);

pub struct TutorialNetwork {
    /// Keeps the namespace while it waits on its standard input.
    holder: Process,
    own_user: bool,
}

impl TutorialNetwork {
    /// A namespace that has only a loopback interface. Files of the holder go to `folder`.
    pub fn create(folder: &Path) -> Result<TutorialNetwork> {
        // A user who may not create one becomes root of a namespace in which that is allowed.
        let own_user = std::fs::metadata("/proc/self")?.uid() != 0;
        let mut command = Command::new("unshare");
        command.arg("--net").args(own_user.then_some("--map-root-user"));
        command.arg(python()?).arg(beside("python/loopback.py"));
        let mut holder = Process::start("network", folder, &mut command)?;
        holder
            .wait_for_line("up")
            .context("the test needs a network namespace, as root or by unprivileged user namespaces")?;
        Ok(TutorialNetwork { holder, own_user })
    }

    /// The command line that runs a program in the network.
    pub fn enter(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .args(
                self.own_user
                    .then(|| format!("--user=/proc/{}/ns/user", self.holder.id())),
            )
            .arg(program);
        command
    }
}

/// A command on a terminal. It ends with this value, at the latest.
pub struct TutorialTerminal {
    process: Process,
    /// Number of lines that the page has shown.
    compared: usize,
}

impl TutorialTerminal {
    /// Runs a script of `bash`. `prepare` sets working directory and environment; what the terminal shows goes to a file in
    /// `folder`.
    pub fn open(
        network: &TutorialNetwork,
        name: &str,
        folder: &Path,
        script: &Path,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<TutorialTerminal> {
        let mut command = network.enter(&python()?);
        command.arg(beside("python/terminal.py")).arg("bash").arg(script);
        prepare(&mut command);
        Ok(TutorialTerminal {
            process: Process::start(name, folder, &mut command)?,
            compared: 0,
        })
    }

    pub fn shown(&self) -> String {
        self.process.stdout()
    }

    /// Waits for lines after those of the page so far.
    pub fn wait_for(&mut self, expected: &ExpectedOutput) -> Result<()> {
        eventually(|| {
            let shown = self.shown();
            let end = expected.end_in(&shown, self.compared);
            self.compared = end.with_context(|| format!("{expected:?} is not shown in\n{shown}"))?;
            Ok(())
        })
    }

    /// Ends the command with Ctrl-C; it must succeed.
    pub fn interrupt(&mut self) -> Result<()> {
        let typed = self.process.stdin().context("nothing can be typed")?;
        typed.write_all(CTRL_C)?;
        typed.flush()?;
        let status = self.wait()?;
        ensure!(status.success(), "ended with {status}:\n{}", self.shown());
        Ok(())
    }

    /// Waits for the end of the command.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.process.wait()
    }
}

impl Drop for TutorialTerminal {
    fn drop(&mut self) {
        // Killing the process would leave the command, which takes the end of its terminal for a request to reload.
        self.process.close_stdin();
        let _ = self.process.wait_within(END_PATIENCE);
    }
}
