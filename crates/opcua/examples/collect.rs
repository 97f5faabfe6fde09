//! Collects from an OPC UA server and prints what arrives: `collect FILE.yaml [seconds]`. The file is an ordinary flow;
//! its output may be `show: {}`, which prints each message with its metadata, or any other (`drop: {}` to measure).
//! Every five seconds, and at the end, it prints the mass balance, values per second and CPU time per value.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, Flow, FlowEnvironment, FlowSpec, Output, OutputSpec,
    ParseContext, WriteError,
};
use thalweg_record::Message;
use thalweg_telemetry::Metrics;
use thalweg_telemetry::logging;

struct Show;

impl OutputSpec for Show {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(Show))
    }
}

impl Output for Show {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        for message in messages.iter() {
            let payload = message.bytes();
            let text = String::from_utf8_lossy(&payload);
            let meta: Vec<String> = message
                .meta
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            println!("{} | {}", text.chars().take(300).collect::<String>(), meta.join(" "));
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(file) = arguments.first() else {
        return println!("usage: collect FILE.yaml [seconds]");
    };
    let seconds = arguments.get(1).map_or(u64::MAX, |text| text.parse().unwrap());
    logging::start(logging::LoggingOptions {
        level: logging::level(&std::env::var("LEVEL").unwrap_or_else(|_| "INFO".to_owned())).unwrap(),
        format: logging::LineFormat::Logfmt,
        target: logging::LogTarget::Stderr,
        names: Default::default(),
        add_timestamp: true,
        static_fields: Default::default(),
        only_errors_of: &[],
    });
    let loaded = thalweg_config::load_path(
        Path::new(file),
        &thalweg_config::process_environment,
        &Default::default(),
    );
    let mut registry = ComponentRegistry::new();
    thalweg_opcua::register(&mut registry, thalweg_opcua::InputDirectory::new());
    registry.output("show", "", |_, _| Some(Arc::new(Show)));
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    let spec = loaded
        .config
        .flows
        .first()
        .and_then(|flow| FlowSpec::parse(flow, &mut context));
    print!("{}", loaded.diagnostics);
    let Some(spec) = spec.filter(|_| !loaded.diagnostics.has_errors()) else {
        return;
    };
    let metrics = Arc::new(Metrics::default());
    let environment = FlowEnvironment {
        metrics: metrics.clone(),
        data_dir: loaded.config.data_dir.clone(),
        runtime: tokio::runtime::Handle::current(),
        dead_letters: None,
    };
    let flow = Flow::start(spec, &environment).unwrap();
    let start = Instant::now();
    let (mut last_count, mut last_cpu, mut last) = (0, thalweg_telemetry::cpu_time(), start);
    while start.elapsed().as_secs() < seconds {
        let left = Duration::from_secs(seconds.min(1 << 40)).saturating_sub(start.elapsed());
        tokio::time::sleep(left.min(Duration::from_secs(5))).await;
        let counts = flow.handle().counts();
        let (cpu, now) = (thalweg_telemetry::cpu_time(), Instant::now());
        let (values, used) = (counts.entered - last_count, cpu - last_cpu);
        let rate = values as f64 / (now - last).as_secs_f64();
        let each = used.as_secs_f64() * 1e6 / values.max(1) as f64;
        let memory = thalweg_telemetry::resident_bytes() >> 20;
        println!("{counts} | {rate:.0} values/s, {each:.3} us CPU per value, {memory} MiB");
        (last_count, last_cpu, last) = (counts.entered, cpu, now);
    }
    let handle = flow.handle();
    println!(
        "{:#?}",
        handle
            .status()
            .nodes
            .first()
            .map(|node| (&node.details, &node.not_ready))
    );
    let text = metrics.text();
    for line in text
        .lines()
        .filter(|line| line.starts_with("thalweg_opcua") && !line.contains("quantile"))
    {
        println!("{line}");
    }
    flow.stop(Duration::from_secs(10)).await;
    println!("{}", handle.counts());
}
