//! A child process whose output is kept; it is killed when the test ends.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::wait::{PATIENCE, eventually, eventually_within};

pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts a program; its output goes to files in `folder`.
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> Result<Process> {
        let (stdout, stderr) = (
            folder.join(format!("{name}.stdout")),
            folder.join(format!("{name}.stderr")),
        );
        let child = command
            .stdin(Stdio::piped())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        Ok(Process {
            name: name.to_owned(),
            child,
            stdout,
            stderr,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Closes the standard input.
    pub fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn stdin(&mut self) -> Option<&mut std::process::ChildStdin> {
        self.child.stdin.as_mut()
    }

    /// Waits for the first line of the output that starts with `prefix`.
    pub fn wait_for_line(&mut self, prefix: &str) -> Result<String> {
        eventually(|| {
            let out = self.stdout();
            if let Some(line) = out.lines().find(|line| line.starts_with(prefix)) {
                return Ok(line.to_owned());
            }
            self.check_running()?;
            bail!("{} has not printed {prefix:?}", self.name)
        })
    }

    /// An error with the output if the process has ended.
    pub fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "{} ended ({status})\nstdout: {}\nstderr: {}",
                self.name,
                tail(&self.stdout()),
                tail(&self.stderr())
            );
        }
        Ok(())
    }

    pub fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status()?;
        anyhow::ensure!(status.success(), "cannot send {name} to {}", self.name);
        Ok(())
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.wait_within(PATIENCE)
    }

    pub fn wait_within(&mut self, patience: Duration) -> Result<ExitStatus> {
        eventually_within(patience, || match self.child.try_wait()? {
            Some(status) => Ok(status),
            None => bail!("{} is still running\nstderr: {}", self.name, tail(&read(&self.stderr))),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "shown only when the test failed")]
            {
                eprintln!(
                    "--- {} stdout\n{}\n--- {} stderr\n{}",
                    self.name,
                    tail(&self.stdout()),
                    self.name,
                    tail(&self.stderr())
                );
            }
        }
    }
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(6000);
    let start = (start..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}
