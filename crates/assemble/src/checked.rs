//! A configuration that was read and checked: every component's mistakes are known, nothing runs.

use std::path::Path;
use std::sync::Arc;

use thalweg_config::{
    ComponentKind, Config, Diagnostics, LoadOptions, Loaded, LogFormat, LogLevel, Source, load, load_path,
    process_environment,
};
use thalweg_flow::{FlowSpec, OutputSpec, ParseContext};
use thalweg_telemetry::logging;

use crate::components::Components;

/// What a file says, and what is to be said about it.
pub struct Checked {
    pub config: Config,
    pub diagnostics: Diagnostics,
    pub(crate) components: Components,
    pub(crate) flows: Vec<FlowSpec>,
    pub(crate) dead_letter: Option<DeadLetter>,
}

pub(crate) struct DeadLetter {
    pub name: String,
    pub path: String,
    pub label: String,
    pub spec: Arc<dyn OutputSpec>,
}

impl Checked {
    /// Reads and checks a file with the process's environment.
    pub fn load(path: &Path, options: &LoadOptions) -> Checked {
        Checked::check(load_path(path, &process_environment, options))
    }

    /// Reads and checks a text.
    pub fn text(source: &Source, environment: &dyn Fn(&str) -> Option<String>, options: &LoadOptions) -> Checked {
        Checked::check(load(source, environment, options))
    }

    fn check(loaded: Loaded) -> Checked {
        let Loaded { config, diagnostics } = loaded;
        let components = Components::new();
        let mut context = ParseContext::new(&diagnostics, &components.registry, &config);
        let flows = config
            .flows
            .iter()
            .filter_map(|flow| FlowSpec::parse(flow, &mut context))
            .collect();
        let dead_letter = config.dead_letter.as_ref().and_then(|node| {
            let spec = context.output(node)?;
            let label = node.label.clone().unwrap_or_default();
            Some(DeadLetter {
                name: node.name.clone(),
                path: node.path.clone(),
                label,
                spec,
            })
        });
        // Resources that nothing uses are checked too.
        for kind in [
            ComponentKind::Input,
            ComponentKind::Processor,
            ComponentKind::Output,
            ComponentKind::Cache,
            ComponentKind::RateLimit,
        ] {
            config.resources.of(kind).iter().for_each(|node| context.check(node));
        }
        sections_of_later_versions(&config, &diagnostics);
        components.check(&config, &diagnostics);
        Checked {
            config,
            diagnostics,
            components,
            flows,
            dead_letter,
        }
    }

    /// How the process shall log.
    pub fn logging(&self) -> logging::Options {
        let logger = &self.config.logger;
        let level = match logger.level {
            LogLevel::Off => "OFF",
            LogLevel::Error => "ERROR",
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
            LogLevel::Debug => "DEBUG",
            LogLevel::Trace => "TRACE",
        };
        let data_on_stdout = self
            .config
            .flows
            .iter()
            .any(|flow| flow.output.name == "stdout" || names_stdout(&flow.output.body));
        logging::Options {
            level: logging::level(level).unwrap_or(logging::LevelFilter::INFO),
            format: match logger.format {
                LogFormat::Json => logging::Format::Json,
                LogFormat::Logfmt => logging::Format::Logfmt,
            },
            target: if data_on_stdout {
                logging::Target::Stderr
            } else {
                logging::Target::Stdout
            },
            add_timestamp: logger.add_timestamp,
            static_fields: logger.static_fields.iter().cloned().collect(),
        }
    }
}

/// Whether a component's body has a `stdout` anywhere inside (in a broker).
fn names_stdout(node: &thalweg_config::Node) -> bool {
    if let Some(map) = node.as_map() {
        return map
            .iter()
            .any(|(key, value)| key.as_str() == "stdout" || names_stdout(value));
    }
    node.as_seq().is_some_and(|items| items.iter().any(names_stdout))
}

/// Sections that the file format knows and this version does not run: better an error than silence.
fn sections_of_later_versions(config: &Config, diagnostics: &Diagnostics) {
    let sections = [
        ("log", &config.log),
        ("queues", &config.queues),
        ("mqtt", &config.mqtt),
        ("events", &config.events),
        ("ingest", &config.ingest),
    ];
    for (name, node) in sections {
        if let Some(node) = node {
            diagnostics.error(
                node,
                format!("this version does not have what \"{name}\" configures; remove the section"),
            );
        }
    }
    if config.flows.is_empty() && !diagnostics.has_errors() {
        diagnostics.error_at(
            thalweg_config::Pos::WHOLE_FILE,
            "nothing to run: add an input and an output, or a list of flows",
        );
    }
}
