//! Reads the configuration: sources, and a tree of expressions and constants. Names are resolved here, once.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_config::{ComponentNode, Fields, Node, ValueKind, kind, nearest};
use thalweg_flow::{ParseContext, ProcessorSpec};
use thalweg_record::{Text, Value};
use thalweg_script::{
    ExpressionDependencies, FreeVariable, Script, ScriptForm, only_word, reach, without_final_semicolons,
};

use super::values::SourceValues;
use super::{Expression, ExpressionBody, Plan, StreamProcessorSpec, Trigger};
use crate::scripting::{ScriptSource, Scripts, check};
use crate::topic;

/// Names with which an expression could reach more than its sources.
const DISABLED: &[&str] = &[
    "FinalizationRegistry",
    "Function",
    "Proxy",
    "Reflect",
    "WeakRef",
    "XMLHttpRequest",
    "cache",
    "clearInterval",
    "clearTimeout",
    "console",
    "document",
    "eval",
    "exports",
    "fetch",
    "global",
    "globalThis",
    "module",
    "process",
    "queueMicrotask",
    "require",
    "self",
    "setImmediate",
    "setInterval",
    "setTimeout",
    "window",
];

pub(crate) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let spec = read(node, context);
    (!context.diagnostics.has_errors()).then(|| Arc::new(spec) as Arc<dyn ProcessorSpec>)
}

pub(super) fn read(node: &ComponentNode, context: &mut ParseContext<'_>) -> StreamProcessorSpec {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mode = required(&mut fields, "mode", "mode is required");
    if !matches!(mode.as_str(), "" | "timeseries") {
        fields.error("mode", format!("{mode:?} is not a mode; use timeseries"));
    }
    let output_topic = required(&mut fields, "output_topic", "output_topic is required");
    let mut model = fields.fields("model");
    let name = required(&mut model, "name", "model name is required");
    let version = required(&mut model, "version", "model version is required");
    model.finish();
    let sources = fields.string_map("sources");
    if sources.is_empty() {
        let place = fields.pos_of("sources");
        context
            .diagnostics
            .error_at(place, "at least one source mapping is required");
    }
    for (alias, _) in sources.iter().filter(|(_, topic)| topic.is_empty()) {
        fields.error("sources", format!("the topic of {alias} is missing"));
    }
    let mapping = fields.node_or("mapping", kind::MAPPING, "{}");
    let place = fields.pos_of("mapping");
    fields.finish();

    let mut reader = ExpressionReader {
        context,
        prefix: format!("{output_topic}._{name}_{version}"),
        aliases: sources.iter().map(|(alias, _)| alias.clone()).collect(),
        expressions: Vec::new(),
        scripts: Vec::new(),
        unread: Vec::new(),
    };
    if let Some(mapping) = &mapping {
        reader.tree(mapping, String::new());
    }
    let (expressions, scripts, unread) = (reader.expressions, reader.scripts, reader.unread);
    if expressions.is_empty() && !context.diagnostics.has_errors() {
        let warning = "the mapping of this stream_processor is empty, so it produces nothing";
        context.diagnostics.warn_at(place, warning);
    }
    let scripting = &context.config.scripting;
    if !scripts.is_empty()
        && check(
            &scripts,
            "failed to compile JavaScript ",
            scripting,
            context.diagnostics,
        )
    {
        for node in unread {
            let error = "the sources in this expression cannot be found; write it shorter, or in a plainer way";
            context.diagnostics.error(&node, error);
        }
    }
    let scripts = scripts.into_iter().map(|source| source.script).collect();
    StreamProcessorSpec {
        scripts: Scripts::new(scripts, scripting, &[]).with_timeout(scripting.stream_timeout),
        values: Arc::new(Mutex::new(SourceValues::of(sources.len()))),
        plan: Arc::new(plan(&sources, expressions)),
    }
}

/// A required text, with the reference system's error for a missing one.
fn required(fields: &mut Fields<'_>, name: &str, missing: &str) -> String {
    match fields.opt_string(name) {
        Some(text) if !text.is_empty() => return text,
        // It is not a text, which is already reported.
        None if fields.has(name) => {}
        _ => fields.diags().error_at(fields.pos_of(name), missing),
    }
    String::new()
}

/// Computes for each topic what its messages set and run.
fn plan(sources: &[(String, String)], expressions: Vec<Expression>) -> Plan {
    let mut topics: HashMap<String, Trigger> = HashMap::new();
    for (source, (_, topic)) in sources.iter().enumerate() {
        topics.entry(topic.clone()).or_default().sources.push(source);
    }
    for trigger in topics.values_mut() {
        let starts = |expression: &Expression| {
            let needs = &expression.needs;
            needs.is_empty() || needs.iter().any(|source| trigger.sources.contains(source))
        };
        let numbered = expressions.iter().enumerate();
        trigger.expressions = numbered
            .filter(|(_, expression)| starts(expression))
            .map(|(number, _)| number)
            .collect();
    }
    Plan { topics, expressions }
}

struct ExpressionReader<'r, 'c> {
    context: &'r ParseContext<'c>,
    /// Prefix of all result topics.
    prefix: String,
    /// The names of the sources, in order.
    aliases: Vec<String>,
    expressions: Vec<Expression>,
    scripts: Vec<ScriptSource>,
    /// Scripts whose names are unknown, mostly because of errors that are reported when all scripts are checked.
    unread: Vec<Node>,
}

impl ExpressionReader<'_, '_> {
    /// Reads the node at a path of the mapping.
    fn tree(&mut self, node: &Node, path: String) {
        match node.kind() {
            ValueKind::Map => {
                for (name, inner) in node.as_map().into_iter().flat_map(|map| map.iter()) {
                    let path = match path.as_str() {
                        "" => name.to_string(),
                        outer => format!("{outer}.{name}"),
                    };
                    self.tree(inner, path);
                }
            }
            _ if path.is_empty() => self.mistake(node, node.expected("a mapping of names to expressions")),
            _ => self.leaf(node, path),
        }
    }

    fn leaf(&mut self, node: &Node, path: String) {
        if self.expressions.iter().any(|expression| expression.path == path) {
            return self.mistake(node, format!("there are two expressions for {path}"));
        }
        let topic = format!("{}.{path}", self.prefix);
        // If a part of the topic is missing, there is already an error.
        if !self.context.diagnostics.has_errors()
            && let Err(error) = topic::check(&topic)
        {
            let warning = format!("its results get an invalid topic: {error}");
            self.context.diagnostics.warn(node, warning);
        }
        let constant = match node.kind() {
            ValueKind::Bool => node.as_bool().map(Value::Bool),
            ValueKind::Int => node.as_i64().map(Value::I64).or_else(|| node.as_f64().map(Value::F64)),
            ValueKind::Float => node.as_f64().filter(|number| number.is_finite()).map(Value::F64),
            _ => None,
        };
        let (needs, work) = match (constant, node.as_str()) {
            (Some(value), _) => (SmallVec::new(), ExpressionBody::Constant(value)),
            (None, Some(code)) => self.code(node, &path, code),
            (None, None) => {
                let expected = node.expected("an expression, a number, or true or false");
                return self.mistake(node, expected);
            }
        };
        self.expressions.push(Expression {
            path,
            topic: topic.into(),
            needs,
            work,
        });
    }

    fn code(&mut self, node: &Node, path: &str, code: &str) -> (SmallVec<[usize; 4]>, ExpressionBody) {
        let code = &*without_final_semicolons(code);
        let ExpressionDependencies { names, is_repeatable } = reach(code).unwrap_or_else(|| {
            self.unread.push(node.clone());
            ExpressionDependencies::default()
        });
        let mut variables: Vec<(Text, usize)> = Vec::new();
        let mut refused = None;
        for free in &names {
            match self.aliases.iter().position(|alias| *alias == free.name) {
                Some(source) => variables.push((free.name.as_str().into(), source)),
                None => refused = refused.or(self.foreign(node, free)),
            }
        }
        let needs = variables.iter().map(|(_, source)| *source).collect();
        if let Some(why) = refused {
            return (needs, ExpressionBody::Refused(why));
        }
        if let [(name, source)] = variables.as_slice()
            && only_word(code) == Some(name.as_str())
        {
            return (needs, ExpressionBody::Source(*source));
        }
        let names = variables.iter().map(|(name, _)| name.to_string());
        let script = Script {
            stage: path.to_owned(),
            form: ScriptForm::Expression(names.collect()),
            code: code.to_owned(),
        };
        self.scripts.push(ScriptSource {
            script,
            node: node.clone(),
            label: format!("expression of {path}: "),
        });
        let work = ExpressionBody::Script {
            number: self.scripts.len() - 1,
            is_fixed: is_repeatable && variables.is_empty(),
            variables,
        };
        (needs, work)
    }

    /// Checks a name that is not a source. Returns why an expression with it is not run, if so.
    fn foreign(&self, node: &Node, free: &FreeVariable) -> Option<String> {
        let (name, place) = (&free.name, node.text_pos(free.line, free.column));
        if DISABLED.contains(&name.as_str()) {
            let why = format!("'{name}' is disabled for security reasons in this sandboxed environment");
            self.context.diagnostics.warn_at(place, &why);
            return Some(why);
        }
        if !free.is_built_in {
            let hint = nearest(name, self.aliases.iter().map(String::as_str));
            let warning = format!("there is no source \"{name}\"{hint}");
            self.context.diagnostics.warn_at(place, warning);
        }
        None
    }

    fn mistake(&self, node: &Node, text: String) {
        self.context.diagnostics.error(node, text);
    }
}
