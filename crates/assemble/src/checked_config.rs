//! A configuration that was read and checked. All mistakes of its components are known, and nothing runs yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_config::{
    ComponentKind, ComponentNode, Config, Diagnostics, ListenerConfig, LoadOptions, LoadedConfig, LogFormat, LogLevel,
    Node, Pos, SourceText, TokenSecret, load, load_path, process_environment,
};
use thalweg_console::ConfigLocation;
use thalweg_flow::{FlowSpec, OutputSpec, ParseContext};
use thalweg_telemetry::{LogFile, LogFileError, LogFileOptions, LogRotation, logging};

use crate::components::Components;
use crate::settings::{FlowRequirements, Settings};

/// A configuration and its diagnostics.
pub struct CheckedConfig {
    pub config: Config,
    pub diagnostics: Diagnostics,
    pub(crate) components: Components,
    pub(crate) settings: Settings,
    pub(crate) flows: Vec<FlowSpec>,
    pub(crate) dead_letter: Option<DeadLetterSpec>,
}

pub(crate) struct DeadLetterSpec {
    pub name: String,
    pub path: String,
    pub label: String,
    pub spec: Arc<dyn OutputSpec>,
}

impl CheckedConfig {
    /// Reads and checks a file with the process's environment.
    pub fn load(path: &Path, options: &LoadOptions) -> CheckedConfig {
        CheckedConfig::check(load_path(path, &process_environment, options))
    }

    /// Reads and checks a text.
    pub fn text(
        source: &SourceText,
        environment: &dyn Fn(&str) -> Option<String>,
        options: &LoadOptions,
    ) -> CheckedConfig {
        CheckedConfig::check(load(source, environment, options))
    }

    fn check(loaded: LoadedConfig) -> CheckedConfig {
        CheckedConfig::check_with(loaded, Components::new())
    }

    /// Checks with the given components.
    pub(crate) fn check_with(loaded: LoadedConfig, components: Components) -> CheckedConfig {
        let LoadedConfig { config, diagnostics } = loaded;
        let mut context = ParseContext::new(&diagnostics, &components.registry, &config);
        let mut flows: Vec<FlowSpec> = config
            .flows
            .iter()
            .filter_map(|flow| FlowSpec::parse(flow, &mut context))
            .collect();
        let dead_letter = config.dead_letter.as_ref().and_then(|node| {
            let spec = context.output(node)?;
            let label = node.label.clone().unwrap_or_default();
            Some(DeadLetterSpec {
                name: node.name.clone(),
                path: node.path.clone(),
                label,
                spec,
            })
        });
        // Unused resources are checked too.
        for kind in [
            ComponentKind::Input,
            ComponentKind::Processor,
            ComponentKind::Output,
            ComponentKind::Cache,
            ComponentKind::RateLimit,
        ] {
            config.resources.of(kind).iter().for_each(|node| context.check(node));
        }
        fields_of_later_versions(&config, &diagnostics);
        let used = FlowRequirements {
            queues: components.store.shared.is_wanted(),
            events: components.events.shared.is_wanted(),
            lake: components.lake.is_wanted(),
        };
        let settings = Settings::read(&config, used, &diagnostics);
        let shared = &components.store.shared;
        shared.check_names(&settings.store.queues, &diagnostics);
        nothing_to_run(&config, &diagnostics);
        if settings.events.needs_log(used.events) || settings.ingest.is_some() || settings.mqtt.is_some() {
            shared.want();
        }
        for flow in &mut flows {
            let waiting = settings.flows.iter().find(|memory| memory.name == flow.name);
            waiting.into_iter().for_each(|memory| flow.limit_waiting(memory.share));
        }
        CheckedConfig {
            config,
            diagnostics,
            components,
            settings,
            flows,
            dead_letter,
        }
    }

    /// Checks what a start would refuse on this machine and for this user: login and TLS files (unless those may be
    /// absent), addresses, origins, the file of the log. Only callers that start a process, or ask whether it would start,
    /// need this: `thalweg auth` creates such files.
    pub fn verify_start(&self) {
        self.verify_log_file();
        if let Some(mqtt) = &self.settings.mqtt {
            mqtt.verify(&self.diagnostics);
        }
        let ingest = self.settings.ingest.iter();
        let doors: Vec<&ListenerConfig> = ingest.flat_map(|ingest| [&ingest.grpc, &ingest.http]).collect();
        for refused in thalweg_console::verify(&self.config.http, &self.config.auth, &doors) {
            let pos = match &refused.place {
                ConfigLocation::Pos(pos) => *pos,
                ConfigLocation::Field(field) => place_of(field, &self.config.root),
            };
            match self.file_at(&refused.place).is_some_and(|file| !file.exists()) {
                true => self.diagnostics.absent_at(pos, refused.text, ""),
                false => self.diagnostics.error_at(pos, refused.text),
            }
        }
    }

    /// The file that is named at a place.
    fn file_at(&self, place: &ConfigLocation) -> Option<PathBuf> {
        match place {
            ConfigLocation::Pos(pos) => {
                let mut tokens = self.config.auth.tokens.iter().filter(|token| token.pos == *pos);
                tokens.find_map(|token| match &token.secret {
                    TokenSecret::File(file) => Some(file.clone()),
                    TokenSecret::Sha256(_) => None,
                })
            }
            ConfigLocation::Field(field) => {
                let mut node = &self.config.root;
                for name in field.split('.') {
                    node = node.get(name)?;
                }
                let names_file = field.ends_with("_file");
                names_file.then(|| node.scalar_text().map(PathBuf::from)).flatten()
            }
        }
    }

    /// Checks the file of the log, as far as that is possible without making it.
    fn verify_log_file(&self) {
        let Some(file) = &self.config.logger.file else {
            return;
        };
        let pos = place_of("logger.file.path", &self.config.root);
        let parent = file.path.ancestors().skip(1).find(|folder| folder.exists());
        if file.path.is_dir() {
            let text = "it is a folder; name a file in it";
            self.diagnostics.error_at(pos, format!("logger.file.path: {text}"));
        } else if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
            let text = format!("{} is a file, and no folder for another one", parent.display());
            self.diagnostics
                .error_at(pos, format!("logger.file.path: {text}; name another folder"));
        }
    }

    /// Opens the file of the log, if the configuration has one.
    pub fn log_file(&self) -> Result<Option<LogFile>, LogFileError> {
        let Some(file) = &self.config.logger.file else {
            return Ok(None);
        };
        let options = LogFileOptions {
            path: file.path.clone(),
            rotation: file.rotate.then_some(LogRotation { max_age: file.max_age }),
        };
        LogFile::open(options).map(Some)
    }

    /// The logging options of the process, without the file.
    pub fn logging(&self) -> logging::LoggingOptions {
        let logger = &self.config.logger;
        let level = match logger.level {
            LogLevel::Off => "OFF",
            LogLevel::Error => "ERROR",
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
            LogLevel::Debug => "DEBUG",
            LogLevel::Trace => "TRACE",
        };
        let outputs = self.config.flows.iter().map(|flow| &flow.output);
        let mut outputs = outputs.chain(&self.config.dead_letter);
        let data_on_stdout = outputs.any(|output| writes_to_stdout(output, &self.config));
        logging::LoggingOptions {
            level: logging::level(level).unwrap_or(logging::LevelFilter::INFO),
            format: match logger.format {
                LogFormat::Json => logging::LineFormat::Json,
                LogFormat::Logfmt => logging::LineFormat::Logfmt,
            },
            target: if data_on_stdout {
                logging::LogTarget::Stderr
            } else {
                logging::LogTarget::Stdout
            },
            add_timestamp: logger.add_timestamp,
            names: logging::LineNames {
                level: logger.level_name.clone(),
                time: logger.timestamp_name.clone(),
                message: logger.message_name.clone(),
            },
            static_fields: logger.static_fields.iter().cloned().collect(),
            only_errors_of: &[],
        }
    }
}

/// Whether an output is `stdout`, directly or through brokers and resources.
fn writes_to_stdout(output: &ComponentNode, config: &Config) -> bool {
    output.name == "stdout" || {
        let mut followed = Vec::new();
        names_stdout(&output.name, &output.body, config, &mut followed)
    }
}

/// Like [`writes_to_stdout`], for a field and its value. `followed` contains the labels of visited resources, which may
/// refer to each other in a circle.
fn names_stdout(name: &str, body: &Node, config: &Config, followed: &mut Vec<String>) -> bool {
    if name == "stdout" {
        return true;
    }
    if let Some(map) = body.as_map() {
        return map
            .iter()
            .any(|(key, value)| names_stdout(key.as_str(), value, config, followed));
    }
    if let Some(items) = body.as_seq() {
        return items.iter().any(|item| names_stdout("", item, config, followed));
    }
    let Some(label) = body.scalar_text().filter(|_| name == "resource") else {
        return false;
    };
    if followed.iter().any(|known| known == label) {
        return false;
    }
    followed.push(label.to_owned());
    let resource = config.resources.find(ComponentKind::Output, label);
    resource.is_some_and(|resource| names_stdout(&resource.name, &resource.body, config, followed))
}

/// Reported only if there is no other mistake, which may be the reason.
fn nothing_to_run(config: &Config, diagnostics: &Diagnostics) {
    let serves = config.queues.is_some() || config.events.is_some() || config.ingest.is_some() || config.mqtt.is_some();
    if config.flows.is_empty() && !serves && !diagnostics.has_errors() && !diagnostics.has_unset() {
        diagnostics.error_at(
            thalweg_config::Pos::WHOLE_FILE,
            "nothing to run: add an input and an output, a list of flows, queues, events, mqtt, or ingest",
        );
    }
}

/// The position of a field, or of the nearest enclosing field that is given.
fn place_of(field: &str, root: &Node) -> Pos {
    let mut node = root;
    for name in field.split('.') {
        match node.get(name) {
            Some(below) => node = below,
            None => break,
        }
    }
    node.pos()
}

/// Reports fields that the file format knows but this version does not honour: an error is better than silence.
fn fields_of_later_versions(config: &Config, diagnostics: &Diagnostics) {
    let find = |section: &str, field: &str| config.root.get(section).and_then(|node| node.get(field)).cloned();
    if let Some(mapping) = find("metrics", "mapping").filter(|_| !config.metrics.mapping.trim().is_empty()) {
        diagnostics.error(
            &mapping,
            "this version does not rename or drop metrics; remove it and relabel where the metrics are scraped",
        );
    }
    if let Some(stack) = find("scripting", "stack").filter(|_| config.scripting.stack > thalweg_tags::STACK_MAX) {
        let mebibytes = thalweg_tags::STACK_MAX >> 20;
        diagnostics.error(&stack, format!("a script can have at most {mebibytes}MiB of stack"));
    }
}

#[cfg(test)]
mod listener_tests;

#[cfg(test)]
mod without_secrets_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_is_an_error_at_its_line() {
        for (text, expected) in [
            (
                "metrics: {mapping: root = deleted()}",
                "f.yaml:1:20: metrics.mapping: this version does not rename or drop metrics; remove it and relabel where \
                 the metrics are scraped\n",
            ),
            (
                "scripting: {stack: 7MiB}",
                "f.yaml:1:20: scripting.stack: a script can have at most 6MiB of stack\n",
            ),
            (
                "metrics: {mapping: \"\"}\nscripting: {engine: quickjs, stack: 6MiB}",
                "",
            ),
        ] {
            let text = format!("{text}\ninput: {{stdin: {{}}}}\noutput: {{drop: {{}}}}\n");
            let checked = CheckedConfig::text(
                &SourceText::new("f.yaml", text.as_str()),
                &|_| None,
                &LoadOptions::default(),
            );
            assert_eq!(checked.diagnostics.to_string(), expected, "for {text}");
        }
    }

    #[test]
    fn a_file_without_anything_to_run_is_told_so_unless_another_mistake_may_be_why() {
        for (text, expected) in [
            (
                "logger: {level: INFO}",
                "f.yaml: nothing to run: add an input and an output, a list of flows, queues, events, mqtt, or ingest\n",
            ),
            (
                "lake: {retention: 5}",
                "f.yaml:1:19: lake.retention: expected a mapping of fields, got the number 5\n",
            ),
            (
                "lake: {url: \"ftp://x\"}",
                "f.yaml:1:13: lake.url: ftp://x is not on a supported object store: expected s3://bucket/lake, \
                 gs://bucket/lake, az://container/lake, or a path\n",
            ),
        ] {
            let checked = CheckedConfig::text(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
            assert_eq!(checked.diagnostics.to_string(), expected, "for {text}");
        }
    }

    #[test]
    fn a_door_is_refused_after_a_work_group_and_not_after_a_stream() {
        for (input, is_refused) in [
            ("{name: q}", true),
            ("{name: q, mode: work}", true),
            ("{name: q, mode: stream}", false),
        ] {
            let text = format!(
                "input: {{queue: {input}}}\noutput: {{drop: {{}}}}\n\
                 pipeline: {{processors: [{{downsampler: {{default: {{swinging_door: {{threshold: 1}}}}}}}}]}}\n"
            );
            let checked = CheckedConfig::text(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
            let found = checked.diagnostics.to_string();
            let refusal = "f.yaml:3:26: swinging_door holds messages back until later ones come";
            assert_eq!(found.starts_with(refusal), is_refused, "{input}: {found}");
            assert_eq!(checked.diagnostics.has_errors(), is_refused, "{input}: {found}");
        }
    }

    #[test]
    fn the_log_keeps_clear_of_data_on_the_standard_output() {
        let nested = "output: {broker: {outputs: [{drop: {}}, {resource: a}]}}\n\
                      output_resources: [{label: a, resource: b}, {label: b, stdout: {}}]";
        let circle = "output: {resource: a}\noutput_resources: [{label: a, resource: b}, {label: b, resource: a}]";
        for (text, expected) in [
            ("output: {drop: {}}", logging::LogTarget::Stdout),
            ("output: {file: {path: stdout}}", logging::LogTarget::Stdout),
            ("output: {stdout: {}}", logging::LogTarget::Stderr),
            (
                "output: {drop: {}}\ndead_letter: {stdout: {}}",
                logging::LogTarget::Stderr,
            ),
            (nested, logging::LogTarget::Stderr),
            (circle, logging::LogTarget::Stdout),
        ] {
            let source = SourceText::new("f.yaml", format!("input: {{stdin: {{}}}}\n{text}\n"));
            let checked = CheckedConfig::text(&source, &|_| None, &LoadOptions::default());
            assert_eq!(checked.logging().target, expected, "for {text}");
        }
    }
}
