//! `thalweg demo`: a simulated plant in a child process, collected through the same path as a real one into the table
//! `tags`, with a live line in the terminal.

mod line;
mod plant;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use thalweg_assemble::{Checked, Process, Stopped};
use thalweg_config::{LoadOptions, Source};
use thalweg_telemetry::logging;

use self::line::Line;
use self::plant::Plant;
use crate::cli::DemoOptions;
use crate::signals::StopSignals;

const FLOW: &str = include_str!("../../../../examples/demo.yaml");

pub fn main(options: &DemoOptions) -> anyhow::Result<ExitCode> {
    let plant = Plant::start(options)?;
    println!(
        "plant      {} slow and {} fast tags at {}",
        options.slow_nodes, options.fast_nodes, plant.endpoint
    );
    let checked = configuration(options, &plant)?;
    let mut log = checked.logging();
    log.level = logging::level("WARN").unwrap_or(log.level);
    log.target = logging::Target::Stderr;
    logging::start(log);

    let runtime = crate::runtime()?;
    let stopped = runtime.block_on(async {
        let signals = StopSignals::install()?;
        let process = Process::start(checked).await?;
        if let Some(address) = process.url() {
            println!("status     {address}");
        }
        print_queries(options);
        watch(&process, signals, options.duration).await;
        anyhow::Ok(process.stop().await)
    });
    drop(plant);
    let stopped = stopped?;
    summary(&stopped, options);
    runtime.shutdown_background();
    Ok(crate::run::exit_code(&stopped))
}

fn configuration(options: &DemoOptions, plant: &Plant) -> anyhow::Result<Checked> {
    let environment = |name: &str| (name == "ENDPOINT").then(|| plant.endpoint.clone());
    let set = [
        ("data_dir", options.data_dir.display().to_string()),
        ("http.address", options.http.to_string()),
    ];
    let set = set
        .map(|(path, value)| (path.to_owned(), serde_json::Value::from(value).to_string()))
        .to_vec();
    let checked = Checked::text(
        &Source::new("demo.yaml", FLOW),
        &environment,
        &LoadOptions { set, chilled: false },
    );
    for diagnostic in checked.diagnostics.sorted() {
        eprintln!("{diagnostic}");
    }
    anyhow::ensure!(!checked.diagnostics.has_errors(), "the demo's configuration has errors");
    Ok(checked)
}

fn print_queries(options: &DemoOptions) {
    let program = std::env::args().next().unwrap_or_else(|| "thalweg".to_owned());
    let folder = options.data_dir.display();
    println!(
        "ask it     {program} sql --data-dir {folder} \\\n             \"select count(*) as rows, count(distinct tag) as tags, min(time) as first, max(time) as last from tags\""
    );
    println!(
        "           {program} sql --data-dir {folder} \\\n             \"select attr_opcua_tag_group as tag_group, count(*) as rows, avg(value) as mean from tags group by 1 order by 1\""
    );
    println!("           Ctrl-C ends: it drains, commits and prints the balance\n");
}

/// Prints the live line once per second until the end is asked for.
async fn watch(process: &Process, signals: StopSignals, duration: Option<Duration>) {
    let terminal = std::io::stdout().is_terminal();
    let start = Instant::now();
    let mut line = Line::new();
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
        let _ = if terminal {
            let width = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(120, |size| usize::from(size.ws_col));
            let shown: String = text.chars().take(width.saturating_sub(1)).collect();
            write!(out, "\r\x1b[2K{shown}")
        } else {
            writeln!(out, "{text}")
        };
        let _ = out.flush();
        if duration.is_some_and(|duration| start.elapsed() >= duration) {
            break;
        }
    }
    if terminal {
        println!();
    }
    println!("stopping   draining and committing");
}

fn summary(stopped: &Stopped, options: &DemoOptions) {
    for report in &stopped.flows {
        let counts = &report.counts;
        let sign = if counts.adds_up() {
            "balanced"
        } else {
            "DOES NOT ADD UP"
        };
        println!("balance    {counts}   ({sign})");
    }
    for table in &stopped.tables {
        let mib = table.bytes as f64 / f64::from(1 << 20);
        println!(
            "table      {}: {} rows in {} files, {mib:.1} MiB, version {}",
            table.name, table.rows, table.files, table.version
        );
    }
    println!("data       {}", options.data_dir.join("lake").display());
}
