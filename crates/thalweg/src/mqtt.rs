//! `thalweg mqtt`: the MQTT broker alone, on a loopback address and without a configuration file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use thalweg_assemble::{CheckedConfig, Process};
use thalweg_config::{LoadOptions, SourceText};
use thalweg_telemetry::logging;

use crate::out;
use crate::signals::Signals;

/// Everybody on this machine may use it. Commands find the HTTP address through the data folder, so any free port does.
const BROKER: &str = "\
http: {address: \"127.0.0.1:0\"}
mqtt:
  anonymous: true
  listeners: [{kind: tcp, address: \"127.0.0.1:1883\"}]
";

#[derive(Subcommand)]
pub enum MqttCommand {
    /// Run an MQTT broker on this machine without a configuration file: anonymous, for this machine only, sessions and
    /// messages on disk
    Serve(MqttServe),
}

#[derive(Args)]
pub struct MqttServe {
    /// TCP port on 127.0.0.1; 0 picks a free one, which the log names
    #[arg(long, default_value_t = 1883)]
    pub port: u16,
    /// The folder for sessions and messages
    #[arg(long, value_name = "DIR", default_value = "./thalweg-data")]
    pub data_dir: PathBuf,
}

pub fn main(command: &MqttCommand) -> anyhow::Result<ExitCode> {
    match command {
        MqttCommand::Serve(options) => serve(options),
    }
}

fn serve(options: &MqttServe) -> anyhow::Result<ExitCode> {
    let checked = configuration(options)?;
    let mut log = checked.logging();
    log.target = logging::LogTarget::Stderr;
    logging::start(log);
    let runtime = crate::runtime()?;
    let stopped = runtime.block_on(async {
        let signals = Signals::install()?;
        let process = Process::start(checked, &crate::built())
            .await
            .map_err(in_options_of_the_command)?;
        if let Some(address) = process.url() {
            tracing::info!("status page at {address}");
        }
        signals.stop().await;
        tracing::info!("stopping: ending connections and storing what has come");
        anyhow::Ok(process.stop().await)
    });
    runtime.shutdown_background();
    Ok(crate::run::exit_code(&stopped?))
}

fn configuration(options: &MqttServe) -> anyhow::Result<CheckedConfig> {
    let text = BROKER.replace(":1883", &format!(":{}", options.port));
    let data_dir = serde_json::Value::from(options.data_dir.display().to_string()).to_string();
    let checked = CheckedConfig::text(
        &SourceText::new("mqtt.yaml", text),
        &|_| None,
        &LoadOptions {
            set: vec![("data_dir".to_owned(), data_dir)],
            ..LoadOptions::default()
        },
    );
    for diagnostic in checked.diagnostics.sorted() {
        out::complain(diagnostic);
    }
    anyhow::ensure!(
        !checked.diagnostics.has_errors(),
        "the command's configuration has errors"
    );
    Ok(checked)
}

/// Rewrites an error so that it names the command's options, because the user wrote no configuration.
fn in_options_of_the_command(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let fields = [
        ("mqtt.listeners[0].address: ", "--port: "),
        ("set data_dir to", "set --data-dir to"),
        ("set another data_dir", "give another --data-dir"),
    ];
    let renamed = fields
        .iter()
        .fold(text.clone(), |text, (field, option)| text.replace(field, option));
    match renamed == text {
        // The error keeps its type, by which the exit code is chosen.
        true => error,
        false => anyhow::anyhow!(renamed),
    }
}
