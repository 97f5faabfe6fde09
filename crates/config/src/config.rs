//! The whole document: flows, resources and the settings of the process.
//!
//! Sections of other parts of the program (`log`, `queues`, `mqtt`, `events`, `ingest`, `lake`, `query`) are passed on
//! as nodes; their owners read them with [`Fields`]. Everything else is typed here, with its default filled in.

mod flow;
mod http;
mod listener;
mod process;

use std::path::PathBuf;
use std::time::Duration;

pub use flow::{BufferConfig, FlowConfig, PipelineConfig};
pub use http::{
    AuthConfig, BasicAuth, CONNECTIONS_USUAL, CorsConfig, HttpConfig, Role, TokenConfig, TokenSecret, is_login_name,
    sha256_from_hex,
};
pub use listener::ListenerConfig;
pub use process::{
    LogFileConfig, LogFormat, LogLevel, LoggerConfig, MEMORY_MIN, MEMORY_NEEDED, MemoryConfig, MetricsConfig,
    ScriptEngine, ScriptingConfig,
};

use crate::component::{ComponentKind, ComponentNode};
use crate::describe::{FieldDoc, describe};
use crate::diagnostics::Diagnostics;
use crate::fields::Fields;
use crate::kind;
use crate::node::{Key, Node};

/// The effective configuration of a process.
#[derive(Debug, Clone)]
pub struct Config {
    /// The document after environment replacement, overrides and file references.
    pub root: Node,
    /// The folder for everything that the process stores.
    pub data_dir: PathBuf,
    pub memory: MemoryConfig,
    pub flows: Vec<FlowConfig>,
    pub resources: Resources,
    /// The output for failed messages.
    pub dead_letter: Option<ComponentNode>,
    pub scripting: ScriptingConfig,
    pub http: HttpConfig,
    pub auth: AuthConfig,
    pub logger: LoggerConfig,
    pub metrics: MetricsConfig,
    /// How long a stop keeps `/metrics` there after everything is delivered.
    pub shutdown_delay: Duration,
    pub shutdown_timeout: Duration,
    pub log: Option<Node>,
    pub queues: Option<Node>,
    pub mqtt: Option<Node>,
    pub events: Option<Node>,
    pub ingest: Option<Node>,
    pub lake: Option<Node>,
    pub query: Option<Node>,
}

impl Config {
    /// Reads the document; what cannot be read is reported and left out or set to its default.
    pub fn read(root: &Node, diags: &Diagnostics) -> Config {
        let mut f = Fields::new(root, diags);
        let data_dir = PathBuf::from(f.string("data_dir", "./thalweg-data"));
        let memory = MemoryConfig::read(f.fields("memory"));
        let flows = flow::read_flows(&mut f);
        let resources = Resources::read(&mut f);
        let dead_letter = f
            .node("dead_letter", kind::OUTPUT)
            .and_then(|node| ComponentNode::parse(&node, ComponentKind::Output, "root.dead_letter", diags));
        let scripting = ScriptingConfig::read(f.fields("scripting"));
        let http = HttpConfig::read(f.fields("http"));
        let auth = AuthConfig::read(f.fields("auth"));
        let log = f.node("log", kind::MAPPING);
        let queues = f.node("queues", kind::MAPPING);
        let mqtt = f.node("mqtt", kind::MAPPING);
        let events = f.node("events", kind::MAPPING);
        let ingest = f.node("ingest", kind::MAPPING);
        let lake = f.node("lake", kind::MAPPING);
        let query = f.node("query", kind::MAPPING);
        let logger = LoggerConfig::read(f.fields("logger"));
        let metrics = MetricsConfig::read(f.fields("metrics"));
        let shutdown_delay = f.duration("shutdown_delay", "0s");
        let shutdown_timeout = f.duration("shutdown_timeout", "20s");
        read_tracer(&mut f);
        // Unit tests of mappings, for another command.
        f.node("tests", kind::LIST);
        f.finish();
        Config {
            root: root.clone(),
            data_dir,
            memory,
            flows,
            resources,
            dead_letter,
            scripting,
            http,
            auth,
            logger,
            metrics,
            shutdown_delay,
            shutdown_timeout,
            log,
            queues,
            mqtt,
            events,
            ingest,
            lake,
            query,
        }
    }

    /// The fields of the document itself, without components.
    pub fn describe() -> Vec<FieldDoc> {
        describe(|node, diags| {
            Config::read(node, diags);
        })
    }

    /// The effective document as YAML with secrets masked.
    pub fn to_yaml(&self) -> String {
        self.root.to_yaml()
    }

    /// The effective document as JSON with secrets masked.
    pub fn to_json(&self) -> String {
        self.root.to_json()
    }
}

impl Default for Config {
    /// The configuration of an empty file.
    fn default() -> Config {
        Config::read(&Node::empty_map(), &Diagnostics::new(""))
    }
}

/// No traces are sent, which is what `none` means.
fn read_tracer(f: &mut Fields<'_>) {
    let Some(node) = f.node("tracer", kind::MAPPING) else {
        return;
    };
    let names_none = |(key, _): (&Key, &Node)| key.as_str() == "none";
    match node.as_map() {
        Some(map) if map.iter().all(names_none) => {}
        Some(_) => f.diags().warn(&node, "it has no effect: this version sends no traces"),
        None => f.diags().error(&node, "expected a mapping such as {none: {}}"),
    }
}

/// Components defined once and used by `resource: <label>`.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    pub inputs: Vec<ComponentNode>,
    pub processors: Vec<ComponentNode>,
    pub outputs: Vec<ComponentNode>,
    pub caches: Vec<ComponentNode>,
    pub rate_limits: Vec<ComponentNode>,
}

impl Resources {
    fn read(f: &mut Fields<'_>) -> Resources {
        Resources {
            inputs: read_labelled(f, "input_resources", ComponentKind::Input),
            processors: read_labelled(f, "processor_resources", ComponentKind::Processor),
            outputs: read_labelled(f, "output_resources", ComponentKind::Output),
            caches: read_labelled(f, "cache_resources", ComponentKind::Cache),
            rate_limits: read_labelled(f, "rate_limit_resources", ComponentKind::RateLimit),
        }
    }

    /// All resources of a kind.
    pub fn of(&self, kind: ComponentKind) -> &[ComponentNode] {
        match kind {
            ComponentKind::Input => &self.inputs,
            ComponentKind::Processor => &self.processors,
            ComponentKind::Output => &self.outputs,
            ComponentKind::Cache => &self.caches,
            ComponentKind::RateLimit => &self.rate_limits,
            ComponentKind::Buffer => &[],
        }
    }

    /// The resource with a label.
    pub fn find(&self, kind: ComponentKind, label: &str) -> Option<&ComponentNode> {
        self.of(kind)
            .iter()
            .find(|resource| resource.label.as_deref() == Some(label))
    }
}

fn read_labelled(f: &mut Fields<'_>, name: &str, kind: ComponentKind) -> Vec<ComponentNode> {
    let diags = f.diags();
    let listed = match kind {
        ComponentKind::Cache | ComponentKind::RateLimit => kind::EMPTY_LIST.to_owned(),
        _ => format!("list of {kind}s"),
    };
    let Some(list) = f.node_or(name, &listed, "[]") else {
        return Vec::new();
    };
    let found = ComponentNode::parse_list(&list, kind, &format!("root.{name}"), diags);
    for resource in found.iter().filter(|resource| resource.label.is_none()) {
        // An invalid label is reported already.
        let entries = list.as_seq().unwrap_or_default();
        let entry = entries.iter().find(|entry| entry.pos() == resource.pos);
        if entry
            .and_then(|entry| entry.get("label"))
            .is_none_or(|label| label.scalar_text().is_none_or(str::is_empty))
        {
            let message = format!("a {kind} resource needs a label, by which \"resource: <label>\" finds it");
            diags.error_at(resource.pos, message);
        }
    }
    found
}

#[cfg(test)]
mod tests;
