//! `thalweg simulate opcua`: runs the simulator until Ctrl-C, and prints one line on stdout when it listens.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::io::AsyncReadExt as _;

use crate::cli::{SimulateCommand, SimulateOpcua};
use crate::out;
use crate::signals::Signals;

pub fn main(command: SimulateCommand) -> anyhow::Result<ExitCode> {
    let SimulateCommand::Opcua(arguments) = command;
    let until_stdin_ends = arguments.until_stdin_ends;
    let options = options(*arguments)?;
    crate::runtime()?.block_on(async {
        let signals = Signals::install()?;
        let simulator = thalweg_simulator::start(options).await?;
        if simulator.is_exposed() {
            out::complain(
                "other hosts reach this simulator, which is for tests: everyone who connects may read and write its \
                 values; without --host only this machine reaches it",
            );
        }
        out::line(format_args!(
            "listening {} stats {}",
            simulator.endpoint(),
            simulator.stats_url()
        ))?;
        tokio::select! {
            () = signals.stop() => {}
            () = stdin_ends(), if until_stdin_ends => {}
        }
        simulator.shutdown().await;
        Ok(ExitCode::SUCCESS)
    })
}

async fn stdin_ends() {
    let mut stdin = tokio::io::stdin();
    let mut bytes = [0; 64];
    while !matches!(stdin.read(&mut bytes).await, Ok(0) | Err(_)) {}
}

fn options(a: SimulateOpcua) -> anyhow::Result<thalweg_simulator::SimulatorOptions> {
    let user = match &a.user {
        None => None,
        Some(text) => {
            let (name, password) = text
                .split_once(':')
                .context("--user takes a name and a password with a colon between: operator:secret")?;
            Some((name.to_owned(), password.to_owned()))
        }
    };
    Ok(thalweg_simulator::SimulatorOptions {
        host: a.host,
        port: a.port,
        http_port: a.http_port,
        slow_nodes: a.slow_nodes,
        slow_rate: a.slow_rate,
        slow_type: a.slow_type,
        fast_nodes: a.fast_nodes,
        fast_rate: a.fast_rate,
        fast_type: a.fast_type,
        hold: a.hold,
        insecure: a.insecure,
        secure: a.secure,
        user,
        user_certificate: a.user_certificate,
        auto_accept: a.auto_accept,
        pki_dir: a.pki_dir,
        max_nodes_per_browse: a.max_nodes_per_browse,
        max_nodes_per_read: a.max_nodes_per_read,
        max_items_per_call: a.max_items_per_call,
        refuse_filters: a.refuse_filters,
        bad_nodes: a.bad_nodes,
        drop_every: a.drop_every,
        latency: a.latency,
        depth: a.depth,
        wide: a.wide,
        seed: a.seed,
        types: a.types,
        ..thalweg_simulator::SimulatorOptions::default()
    })
}
