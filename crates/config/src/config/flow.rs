//! Flows: one input, an optional buffer, processors and one output.
//!
//! A file has either a list `flows`, or the parts of one flow at top level, which is then named `default`; never both.

use std::thread::available_parallelism;

use crate::batch_policy::BatchPolicy;
use crate::component::{ComponentKind, ComponentNode};
use crate::diagnostics::Diagnostics;
use crate::fields::Fields;
use crate::kind;
use crate::names::nearest;
use crate::node::Node;
use crate::source::Pos;

/// The parts of a flow that may be at top level.
const SHORTHAND: [&str; 4] = ["input", "buffer", "pipeline", "output"];
/// Maximum length of a flow's name: `buffer.<name>` is a queue, whose name has at most 128 characters.
const NAME_CHARS_MAX: usize = 120;
const MEMORY_BUFFER_BYTES: &str = "524288000";
const THREADS_MAX: i64 = 1024;

#[derive(Debug, Clone)]
pub struct FlowConfig {
    pub name: String,
    pub input: ComponentNode,
    pub buffer: BufferConfig,
    pub pipeline: PipelineConfig,
    pub output: ComponentNode,
    /// Position of the flow.
    pub pos: Pos,
}

/// The buffer between the input and the pipeline.
#[derive(Debug, Clone)]
pub enum BufferConfig {
    None,
    /// Messages wait in memory, up to `limit` bytes of the memory budget; a crash loses them.
    Memory {
        /// Default 500 MiB, which the budget may lower.
        limit: u64,
        /// Its position in the file, if it is given.
        given: Option<Pos>,
        batch_policy: Option<BatchPolicy>,
    },
    /// Messages wait in a durable queue; the node has the queue's fields.
    Queue(Node),
}

#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// Threads for the processors, at least 1.
    pub threads: usize,
    pub processors: Vec<ComponentNode>,
}

/// Reads the flows of a document through the fields of its root.
pub(super) fn read_flows(f: &mut Fields<'_>) -> Vec<FlowConfig> {
    let diags = f.diags();
    let entries = f.list("flows");
    let root = f.mapping().clone();
    let shorthand = SHORTHAND.iter().find_map(|name| root.as_map()?.entry(name));
    if !f.has("flows") && (shorthand.is_some() || !diags.is_describing()) {
        let flow = match shorthand {
            Some((first, _)) => read_flow(f, "default".to_owned(), first.pos()),
            None => {
                name_shorthand(f);
                None
            }
        };
        return Vec::from_iter(flow);
    }
    if let Some((key, _)) = shorthand {
        let message = format!("\"{key}\" at top level excludes \"flows\"; move it into an entry of flows");
        diags.error_at(key.pos(), message);
    }
    name_shorthand(f);
    let mut names: Vec<(String, Pos)> = Vec::new();
    let mut flows = Vec::new();
    for entry in entries {
        let mut f = Fields::new(&entry, diags);
        let name = f.required_string("name");
        check_name(&f, &name, &mut names);
        flows.extend(read_flow(&mut f, name, entry.pos()));
        f.finish();
    }
    flows
}

/// Makes the parts of a flow valid names at top level.
fn name_shorthand(f: &mut Fields<'_>) {
    for name in SHORTHAND {
        let kind = if name == "pipeline" { kind::MAPPING } else { name };
        drop(f.node(name, kind));
    }
}

fn check_name(f: &Fields<'_>, name: &str, names: &mut Vec<(String, Pos)>) {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let fits = name.len() <= NAME_CHARS_MAX && name.bytes().all(allowed);
    if !f.has("name") {
        return;
    }
    if !fits || name.is_empty() {
        let message = format!("a flow's name has 1 to {NAME_CHARS_MAX} letters, digits, \"_\", \".\" or \"-\"");
        f.error("name", message);
    } else if let Some((_, first)) = names.iter().find(|(taken, _)| taken == name) {
        f.error(
            "name",
            format!("duplicate flow \"{name}\", first defined on line {}", first.line),
        );
    } else {
        names.push((name.to_owned(), f.pos_of("name")));
    }
}

/// Reads one flow; `None` if its input or output is missing or has no usable shape.
fn read_flow(f: &mut Fields<'_>, name: String, pos: Pos) -> Option<FlowConfig> {
    let diags = f.diags();
    let input = required(f, ComponentKind::Input, "stdin: {}", pos);
    let buffer = f
        .node("buffer", kind::BUFFER)
        .map_or(BufferConfig::None, |node| read_buffer(&node, diags));
    let pipeline = read_pipeline(f.fields("pipeline"));
    let output = required(f, ComponentKind::Output, "stdout: {}", pos);
    Some(FlowConfig {
        name,
        input: input?,
        buffer,
        pipeline,
        output: output?,
        pos,
    })
}

fn required(f: &mut Fields<'_>, kind: ComponentKind, example: &str, pos: Pos) -> Option<ComponentNode> {
    let diags = f.diags();
    // The type of such a field is the name of its kind.
    let Some(node) = f.node(kind.as_str(), kind.as_str()) else {
        let path = f.mapping().path();
        let place = if path.is_empty() { path } else { format!(" in {path}") };
        let message = format!("missing {kind}{place}; add for example \"{kind}: {{{example}}}\"");
        diags.error_at(pos, message);
        return None;
    };
    ComponentNode::parse(&node, kind, format!("root.{kind}"), diags)
}

fn read_buffer(node: &Node, diags: &Diagnostics) -> BufferConfig {
    let kind = ComponentKind::Buffer;
    let Some(component) = ComponentNode::parse(node, kind, "root.buffer", diags) else {
        return BufferConfig::None;
    };
    match component.name.as_str() {
        "none" => {
            Fields::new(&component.body, diags).finish();
            BufferConfig::None
        }
        "memory" => {
            let mut f = Fields::new(&component.body, diags);
            let limit = f.size("limit", MEMORY_BUFFER_BYTES);
            let given = f.has("limit").then(|| f.pos_of("limit"));
            let batch_policy = f.opt_fields("batch_policy").and_then(BatchPolicy::read_switched);
            f.finish();
            BufferConfig::Memory {
                limit,
                given,
                batch_policy,
            }
        }
        "queue" => BufferConfig::Queue(component.body),
        name => {
            let hint = nearest(name, ["none", "memory", "queue"]);
            diags.error_at(component.name_pos, format!("unknown buffer \"{name}\"{hint}"));
            BufferConfig::None
        }
    }
}

fn read_pipeline(mut f: Fields<'_>) -> PipelineConfig {
    let diags = f.diags();
    let threads = f.int_in("threads", -1, -1..=THREADS_MAX);
    let list = f.node_or("processors", kind::PROCESSOR_LIST, "[]");
    f.finish();
    let processors =
        list.map(|list| ComponentNode::parse_list(&list, ComponentKind::Processor, "root.pipeline.processors", diags));
    let threads = match usize::try_from(threads) {
        Ok(threads) if threads > 0 => threads,
        _ => available_parallelism().map_or(1, usize::from),
    };
    PipelineConfig {
        threads,
        processors: processors.unwrap_or_default(),
    }
}
