//! Table tests of the language: an expression, a document, and the expected value or error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_record::{Message, Payload, json};

use crate::{CompileError, Compiler, Host, Interpolation, Mapping, MappingOutcome, NamedCounters};

mod arithmetic;
mod compile_errors;
mod conversions;
mod fields;
mod functions;
mod interpolation;
mod limits;
mod mappings;
mod metadata;
mod methods;
mod properties;
mod queries;
mod shapes;
mod times;

/// A deterministic host: the time is 2031-05-06T07:08:09.123456789Z, and random numbers count up.
#[derive(Default)]
struct TestHost {
    random: AtomicU64,
}

const NOW_NANOS: i64 = 1_935_817_689_123_456_789;

impl Host for TestHost {
    fn unix_nanos(&self) -> i64 {
        NOW_NANOS
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(1, Ordering::Relaxed) << 60
    }

    fn env(&self, name: &str) -> Option<String> {
        (name == "PLANT").then(|| "north".to_owned())
    }

    fn hostname(&self) -> Option<String> {
        Some("edge-7".to_owned())
    }
}

fn compiler() -> Compiler {
    Compiler::new(Arc::new(TestHost::default()), Arc::new(NamedCounters::default()))
}

fn mapping(source: &str) -> Mapping {
    compiler()
        .mapping(source)
        .unwrap_or_else(|error| panic!("{source}\n{error}"))
}

fn interpolation(text: &str) -> Interpolation {
    compiler()
        .interpolation(text)
        .unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn compile_error(source: &str) -> CompileError {
    compiler()
        .mapping(source)
        .err()
        .unwrap_or_else(|| panic!("compiles: {source}"))
}

/// The payload after a mapping, `(deleted)`, or the error.
fn outcome(mapping: &Mapping, message: Message) -> String {
    let mut batch = [message];
    match mapping.apply(&mut batch, 0) {
        Ok(MappingOutcome::Kept) => String::from_utf8_lossy(&batch[0].bytes()).into_owned(),
        Ok(MappingOutcome::Deleted) => "(deleted)".to_owned(),
        Err(error) => format!("error: {error}"),
    }
}

/// The result of an expression for a JSON document: its JSON, `(nothing)`, or the error without its line.
fn eval(expression: &str, document: &str) -> String {
    let mapping = mapping(&format!("root = {expression}"));
    match mapping.evaluate(&[Message::raw(document.to_owned())], 0) {
        Ok(Some(value)) => json::to_string(&value),
        Ok(None) => "(nothing)".to_owned(),
        Err(error) => format!("error: {}", error.message),
    }
}

/// `(expression, document, expected result)`
fn check(cases: &[(&str, &str, &str)]) {
    for (expression, document, expected) in cases {
        assert_eq!(eval(expression, document), *expected, "{expression} on {document}");
    }
}

/// `(expression, expected result)`
fn check_constant(cases: &[(&str, &str)]) {
    for (expression, expected) in cases {
        assert_eq!(eval(expression, ""), *expected, "{expression}");
    }
}

/// A typed payload, as from another stage.
fn typed(value: thalweg_record::Value) -> Message {
    Message::new(Payload::Value(value), thalweg_record::Metadata::default())
}
