//! The simulated plant: this program as a child process, so that all values pass over TCP and its cost is counted
//! separately.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::cli::DemoOptions;

pub struct Plant {
    pub endpoint: String,
    child: Child,
}

impl Plant {
    pub fn start(options: &DemoOptions) -> anyhow::Result<Plant> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args([
                "simulate",
                "opcua",
                "--port",
                "0",
                "--secure",
                "false",
                "--until-stdin-ends",
            ])
            .args([
                "--slow-nodes",
                &options.slow_nodes.to_string(),
                "--fast-nodes",
                &options.fast_nodes.to_string(),
            ])
            .arg("--pki-dir")
            .arg(options.data_dir.join("simulator/pki"))
            // The end of the pipe ends the child, also if this process is killed.
            .stdin(Stdio::piped())
            // Ctrl-C reaches every process of the terminal's group, but the plant must run until the collector has
            // drained.
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the simulator")?;
        let mut line = String::new();
        let output = child.stdout.take().context("the simulator has no output")?;
        BufReader::new(output)
            .read_line(&mut line)
            .context("cannot read the simulator's output")?;
        let endpoint = line
            .strip_prefix("listening ")
            .and_then(|rest| rest.split_whitespace().next());
        let Some(endpoint) = endpoint.map(str::to_owned) else {
            let _ = child.kill();
            anyhow::bail!("the simulator did not start; see its message above");
        };
        Ok(Plant { endpoint, child })
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
