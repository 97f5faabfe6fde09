//! `thalweg demo`: a simulated plant in a child process. Its values are collected through the same path as real ones
//! into the table `tags`, with a live line in the terminal.

mod line;
mod plant;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use thalweg_assemble::{CheckedConfig, Process, ShutdownReport};
use thalweg_config::{LoadOptions, SourceText};
use thalweg_kit::clock;
use thalweg_telemetry::logging;

use self::line::StatusLine;
use self::plant::Plant;
use crate::cli::DemoOptions;
use crate::out;
use crate::signals::Signals;

const FLOW: &str = include_str!("../../../../examples/demo.yaml");

pub fn main(options: &DemoOptions) -> anyhow::Result<ExitCode> {
    let plant = Plant::start(options)?;
    say(format_args!(
        "plant      {} slow and {} fast tags at {}",
        options.slow_nodes, options.fast_nodes, plant.endpoint
    ));
    let checked = configuration(options, &plant)?;
    let mut log = checked.logging();
    log.level = logging::level("WARN").unwrap_or(log.level);
    log.target = logging::LogTarget::Stderr;
    // The plant is a child of this process on this machine, and deliberately not encrypted.
    log.only_errors_of = &["thalweg_opcua::connect"];
    logging::start(log);

    let runtime = crate::runtime()?;
    let stopped = runtime.block_on(async {
        let signals = Signals::install()?;
        let process = Process::start(checked, &crate::built())
            .await
            .map_err(in_options_of_the_demo)?;
        if let Some(address) = process.url() {
            say(format_args!("status     {address}"));
        }
        print_queries(options)?;
        watch(&process, signals, options.duration).await;
        anyhow::Ok(process.stop().await)
    });
    drop(plant);
    let stopped = stopped?;
    summary(&stopped, options);
    runtime.shutdown_background();
    Ok(crate::run::exit_code(&stopped))
}

fn configuration(options: &DemoOptions, plant: &Plant) -> anyhow::Result<CheckedConfig> {
    let environment = |name: &str| (name == "ENDPOINT").then(|| plant.endpoint.clone());
    let set = [
        ("data_dir", options.data_dir.display().to_string()),
        ("http.address", options.http.to_string()),
    ];
    let set = set
        .map(|(path, value)| (path.to_owned(), serde_json::Value::from(value).to_string()))
        .to_vec();
    let checked = CheckedConfig::text(
        &SourceText::new("demo.yaml", FLOW),
        &environment,
        &LoadOptions {
            set,
            chilled: false,
            ..LoadOptions::default()
        },
    );
    for diagnostic in checked.diagnostics.sorted() {
        out::complain(diagnostic);
    }
    anyhow::ensure!(!checked.diagnostics.has_errors(), "the demo's configuration has errors");
    Ok(checked)
}

/// Prints a line. If the reader has left, the live line notices it and ends the demo.
fn say(text: impl std::fmt::Display) {
    let _ = out::line(text);
}

/// Rewrites an error so that it names the demo's options, because the user never wrote the configuration.
fn in_options_of_the_demo(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    if let Some((address, _)) = text.strip_prefix("http.address ").and_then(|rest| rest.split_once(';')) {
        return anyhow::anyhow!("--http {address}, and the demo has neither; give --http a loopback address");
    }
    let fields = [
        ("set http.address to", "set --http to"),
        ("set data_dir to", "set --data-dir to"),
        ("set another data_dir", "give another --data-dir"),
    ];
    let text = fields
        .iter()
        .fold(text, |text, (field, option)| text.replace(field, option));
    anyhow::anyhow!(text)
}

/// Prints two commands that work in any folder and terminal of this machine.
fn print_queries(options: &DemoOptions) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let (program, folder) = (quoted(&program), quoted(&absolute(&options.data_dir)));
    for (lead, query) in [
        (
            "ask it",
            "select count(*) as rows, count(distinct tag) as tags, min(time) as first, max(time) as last from tags",
        ),
        (
            "",
            "select attr_opcua_tag_group as tag_group, count(*) as rows, avg(value) as mean from tags group by 1 order by 1",
        ),
    ] {
        say(format_args!(
            "{lead:<10} {program} sql --data-dir {folder} \\\n             \"{query}\""
        ));
    }
    say("           Ctrl-C ends: it drains, commits and prints the balance\n");
    Ok(())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Prints the live line once per second until the demo ends or nobody reads it any more.
async fn watch(process: &Process, signals: Signals, duration: Option<Duration>) {
    let terminal = std::io::stdout().is_terminal();
    let start = clock::now();
    let mut line = StatusLine::new();
    let mut timer = tokio::time::interval(Duration::from_secs(1));
    let stop = signals.stop();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = process.ended() => break,
            _ = timer.tick() => {}
        }
        let text = line.render(&process.status());
        let mut out = std::io::stdout().lock();
        let written = if terminal {
            let width = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(120, |size| usize::from(size.ws_col));
            let shown: String = text.chars().take(width.saturating_sub(1)).collect();
            write!(out, "\r\x1b[2K{shown}")
        } else {
            writeln!(out, "{text}")
        };
        if written.and_then(|()| out.flush()).is_err() {
            break;
        }
        if duration.is_some_and(|duration| start.elapsed() >= duration) {
            break;
        }
    }
    if terminal {
        say("");
    }
    say("stopping   draining and committing");
}

fn summary(stopped: &ShutdownReport, options: &DemoOptions) {
    for report in &stopped.flows {
        let counts = &report.counts;
        let sign = if counts.adds_up() {
            "balanced"
        } else {
            "DOES NOT ADD UP"
        };
        say(format_args!("balance    {counts}   ({sign})"));
    }
    for table in &stopped.tables {
        let mib = table.bytes as f64 / f64::from(1 << 20);
        say(format_args!(
            "table      {}: {} rows in {} files, {mib:.1} MiB, version {}",
            table.name, table.rows, table.files, table.version
        ));
    }
    say(format_args!(
        "data       {}",
        absolute(&options.data_dir).join("lake").display()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_pasted_into_a_shell() {
        for (path, expected) in [
            (
                "/opt/thalweg/target/release/thalweg",
                "/opt/thalweg/target/release/thalweg",
            ),
            ("/home/a b/data", "'/home/a b/data'"),
            ("/home/o'neil/data", "'/home/o'\\''neil/data'"),
            ("/home/$x/data", "'/home/$x/data'"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }

    #[test]
    fn errors_name_the_options_of_the_demo() {
        for (error, expected) in [
            (
                "cannot listen on 127.0.0.1:4195: the port is taken by another process; stop it or set http.address to another port",
                "cannot listen on 127.0.0.1:4195: the port is taken by another process; stop it or set --http to another port",
            ),
            (
                "the data folder ./data_dir is in use by process 7; stop it, or set data_dir to another folder",
                "the data folder ./data_dir is in use by process 7; stop it, or set --data-dir to another folder",
            ),
            (
                "http.address 10.0.0.1:4195 can be reached by other hosts without TLS or a login; set it to 127.0.0.1:4195, or add",
                "--http 10.0.0.1:4195 can be reached by other hosts without TLS or a login, and the demo has neither; give \
                 --http a loopback address",
            ),
        ] {
            assert_eq!(in_options_of_the_demo(anyhow::anyhow!(error)).to_string(), expected);
        }
    }
}
