//! The context in which an expression is evaluated on one message.
//!
//! The payload is parsed as JSON at most once, on first access to its structure; typed payloads are used as they are.
//! The context never changes the message: it keeps the new root and metadata aside until the run has succeeded.

use std::borrow::Cow;

use thalweg_record::{Message, Metadata, Object, Payload, Text, Value, json};

use crate::error::{EvalResult, Fault};
use crate::expr::Lambda;
use crate::expr_value::ExprValue;
use crate::host::Host;
use crate::limits;
use crate::path::{Path, walk};
use crate::root::Root;

pub(crate) struct EvalContext<'a> {
    pub batch: &'a [Message],
    pub index: usize,
    pub message: &'a Message,
    pub host: &'a dyn Host,
    pub root: Root,
    /// Whether a statement has assigned to the root.
    pub is_assigned: bool,
    /// The changed metadata; `None` until a statement changes any.
    pub changed_meta: Option<Metadata>,
    /// An upper bound on the keys that the current statements will set.
    pub meta_expected: usize,
    pub variables: Vec<Option<Value>>,
    /// Values of the `name ->` queries around the expression, outermost first.
    pub named: Vec<Value>,
    /// The value that a method or `match` binds `this` to; `None` if `this` is the document itself.
    this: Option<Value>,
    /// Whether this is a mutation, in which `this` is the document under construction.
    in_place: bool,
    parsed: Option<Result<Value, Text>>,
    work_left: usize,
}

impl<'a> EvalContext<'a> {
    pub fn new(host: &'a dyn Host, batch: &'a [Message], index: usize, in_place: bool) -> EvalResult<EvalContext<'a>> {
        let message = batch.get(index).ok_or_else(|| {
            let size = batch.len();
            Fault::text(format!("there is no message {index} in a batch of {size}"))
        })?;
        Ok(EvalContext {
            batch,
            index,
            message,
            host,
            root: Root::Nothing,
            is_assigned: false,
            changed_meta: None,
            meta_expected: 0,
            variables: Vec::new(),
            named: Vec::new(),
            this: None,
            in_place,
            parsed: None,
            work_left: limits::WORK_BYTES_MAX,
        })
    }

    /// Charges `bytes` of work to the limit for one message.
    pub fn spend(&mut self, bytes: usize) -> EvalResult<()> {
        match self.work_left.checked_sub(bytes) {
            Some(left) => {
                self.work_left = left;
                Ok(())
            }
            None => {
                // A loop that catches this fault must not succeed at anything afterwards.
                self.work_left = 0;
                let mebibytes = limits::WORK_BYTES_MAX >> 20;
                let message = format!("the mapping builds more than the limit of {mebibytes} MiB for one message");
                Err(Fault::text(message))
            }
        }
    }

    /// Charges for an array or object of `count` elements before it is built.
    pub fn spend_elements(&mut self, count: usize) -> EvalResult<()> {
        limits::check_elements(count)?;
        self.spend(count * limits::ELEMENT_BYTES)
    }

    /// Charges for a text of `length` bytes before it is built.
    pub fn spend_bytes(&mut self, length: usize) -> EvalResult<()> {
        limits::check_bytes(length)?;
        self.spend(length)
    }

    /// Checks and charges for a value before it is stored or printed.
    pub fn check(&mut self, value: &Value) -> EvalResult<()> {
        let size = limits::check(value)?;
        self.spend(size)
    }

    pub fn this(&mut self, path: &Path) -> EvalResult<Value> {
        match (&self.this, &self.root) {
            (Some(bound), _) => Ok(path.read(bound)),
            (None, Root::Value(root)) if self.in_place => Ok(path.read(root)),
            _ => self.input(path),
        }
    }

    /// Evaluates `run` with `this` bound to a value.
    pub fn bind<T>(&mut self, value: Value, run: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.this.replace(value);
        let result = run(self);
        self.this = outer;
        result
    }

    pub fn call(&mut self, query: &Lambda, value: Value) -> EvalResult<ExprValue> {
        self.spend(limits::CALL_BYTES)?;
        if !query.named {
            return self.bind(value, |context| query.body.eval(context));
        }
        self.named.push(value);
        let result = query.body.eval(self);
        self.named.pop();
        result
    }

    /// Returns the value at a path of the input document.
    pub fn input(&mut self, path: &Path) -> EvalResult<Value> {
        match &self.message.payload {
            Payload::Value(value) => Ok(path.read(value)),
            Payload::Sample { value, time_ms } => Ok(read_sample(path, value, *time_ms)),
            Payload::Raw(bytes) => match self.parsed.get_or_insert_with(|| parse(bytes)) {
                Ok(document) => Ok(path.read(document)),
                Err(error) => Err(Fault::text(error.as_str())),
            },
        }
    }

    /// The metadata of the input; in a mutation, the metadata in its current state.
    pub fn meta(&self) -> &Metadata {
        match self.in_place {
            true => self.new_meta(),
            false => &self.message.meta,
        }
    }

    /// The new metadata in its current state. It begins as that of the input.
    pub fn new_meta(&self) -> &Metadata {
        self.changed_meta.as_ref().unwrap_or(&self.message.meta)
    }
}

fn parse(bytes: &[u8]) -> Result<Value, Text> {
    json::parse(bytes).map_err(|error| {
        let cause = if bytes.is_empty() {
            "the payload is empty".to_owned()
        } else {
            error.to_string()
        };
        format!("unable to reference message as structured (with `this`): {cause}").into()
    })
}

/// Reads a path from a sample as if it were the object that the sample prints as. Builds that object only for the empty
/// path.
fn read_sample(path: &Path, value: &Value, time_ms: i64) -> Value {
    let Some((first, rest)) = path.0.split_first() else {
        let mut sample = Object::with_capacity(2);
        sample.push_new("value", value.clone());
        sample.push_new("timestamp_ms", Value::I64(time_ms));
        return sample.into();
    };
    match first.name.as_str() {
        "value" => walk(rest, value).map_or(Value::Null, Cow::into_owned),
        "timestamp_ms" if rest.is_empty() => Value::I64(time_ms),
        _ => Value::Null,
    }
}
