//! [`Mapping`]: a compiled mapping, and the result of running it on a message.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_record::{Message, Object, Payload, Value};

use crate::context::EvalContext;
use crate::error::SyntaxError;
use crate::host::Host;
use crate::parser::statements;
use crate::path::Path;
use crate::root::Root;
use crate::statement::{self, Statement};
use crate::{CompileError, Compiler, RunError};

/// A compiled mapping. Clones share it, including its counters, and any number of threads may run it concurrently.
#[derive(Clone)]
pub struct Mapping(Arc<Program>);

struct Program {
    statements: Vec<Statement>,
    in_place: bool,
    host: Arc<dyn Host>,
}

/// The result of a mapping for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingOutcome {
    /// The message is in its place, changed as the mapping says.
    Kept,
    /// `root = deleted()`: the caller removes the message, which is unchanged.
    Deleted,
}

impl Mapping {
    /// Compiles a mapping: `root` is a new document, and `this` is the input, which does not change.
    pub fn compile(source: &str) -> Result<Mapping, CompileError> {
        Compiler::default().mapping(source)
    }

    /// Compiles a mutation: `root` is the input document, and `this` sees each change.
    pub fn compile_mutation(source: &str) -> Result<Mapping, CompileError> {
        Compiler::default().mutation(source)
    }

    pub(crate) fn build(compiler: &Compiler, source: &str, in_place: bool) -> Result<Mapping, CompileError> {
        let statements =
            statements::parse(compiler, source, in_place).map_err(|found| SyntaxError::place(found, source))?;
        Ok(Mapping(Arc::new(Program {
            statements,
            in_place,
            host: compiler.host.clone(),
        })))
    }

    /// Runs the mapping on one message of a batch. After an error the message is unchanged.
    pub fn apply(&self, batch: &mut [Message], index: usize) -> Result<MappingOutcome, RunError> {
        let EvalContext {
            root,
            is_assigned,
            changed_meta,
            ..
        } = self.run(batch, index)?;
        if matches!(root, Root::Deleted) {
            return Ok(MappingOutcome::Deleted);
        }
        if let Some(message) = batch.get_mut(index) {
            if let (Root::Value(root), true) = (root, is_assigned) {
                message.payload = payload(root, &message.payload);
            }
            if let Some(meta) = changed_meta {
                message.meta = meta;
            }
        }
        Ok(MappingOutcome::Kept)
    }

    /// Returns the value of `root` without changing a message; `None` if it was deleted or never assigned.
    pub fn evaluate(&self, batch: &[Message], index: usize) -> Result<Option<Value>, RunError> {
        match self.run(batch, index)?.root {
            Root::Value(root) => Ok(Some(root)),
            Root::Nothing | Root::Deleted => Ok(None),
        }
    }

    /// Evaluates a condition, such as the `check` of a `switch` case, on a message. The texts `true` and `false` count,
    /// because metadata and payloads are texts.
    pub fn check(&self, batch: &[Message], index: usize) -> Result<bool, RunError> {
        let found = match self.evaluate(batch, index)? {
            Some(Value::Bool(truth)) => return Ok(truth),
            Some(other) => match crate::view::text(&other).as_deref() {
                Some("true") => return Ok(true),
                Some("false") => return Ok(false),
                _ => crate::view::kind(&other),
            },
            None => "nothing",
        };
        Err(RunError {
            line: None,
            message: format!("the condition must yield true or false, got {found}"),
        })
    }

    fn run<'a>(&'a self, batch: &'a [Message], index: usize) -> Result<EvalContext<'a>, RunError> {
        let program = &*self.0;
        let mut context =
            EvalContext::new(&*program.host, batch, index, program.in_place).map_err(|fault| RunError {
                line: None,
                message: fault.to_string(),
            })?;
        if program.in_place
            && let Ok(document) = context.input(&Path::default())
        {
            context.root = Root::Value(document);
        }
        statement::run(&program.statements, &mut context)?;
        Ok(context)
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({} statements)", self.0.statements.len())
    }
}

/// Turns `root` into a payload: texts and bytes become raw bytes, everything else stays typed.
fn payload(root: Value, before: &Payload) -> Payload {
    match root {
        Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Payload::Raw(text.as_str().to_owned().into()),
        Value::Bytes(bytes) => Payload::Raw(Bytes::from_owner(bytes)),
        Value::Time(time) => Payload::Raw(time.to_string().into()),
        Value::Object(object) => match (before, as_sample(&object)) {
            (Payload::Sample { .. }, Some(sample)) => sample,
            _ => Payload::Value(Value::Object(object)),
        },
        other => Payload::Value(other),
    }
}

/// A sample that still has its shape stays a sample, so that later stages need not look up value and time again.
fn as_sample(object: &Object) -> Option<Payload> {
    let (value, Value::I64(time_ms)) = (object.get("value")?, object.get("timestamp_ms")?) else {
        return None;
    };
    (object.len() == 2).then(|| Payload::Sample {
        value: value.clone(),
        time_ms: *time_ms,
    })
}
