//! What `verify` detects: native code with another result than QuickJS, here because it was compiled from another
//! script.

use std::cell::Cell;
use std::sync::Once;

use thalweg_record::{Payload, Text, Value};
use tracing::span;

use super::*;
use crate::{PayloadReply, ScriptForm};

fn engine(form: &ScriptForm, code: &str, mode: EngineMode) -> Engine {
    let script = Script {
        stage: "one".to_owned(),
        form: form.clone(),
        code: code.to_owned(),
    };
    Engine::new(&[script], Environment::bare(), mode).unwrap()
}

/// QuickJS has one script, native code the other.
fn torn(form: &ScriptForm, quickjs: &str, native: &str) -> Engine {
    Log::install();
    let other = engine(form, native, EngineMode::Verify);
    assert!(other.native.iter().all(Result::is_ok), "{native} runs as native code");
    Engine {
        native: other.native,
        ..engine(form, quickjs, EngineMode::Verify)
    }
}

fn message() -> Message {
    let mut message = Message::new(Payload::Value(Value::I64(5)), Metadata::default());
    message.meta.set("unit", "K");
    message
}

thread_local! {
    /// Differences that this thread has logged.
    static LOGGED: Cell<usize> = const { Cell::new(0) };
}

/// Counts logged differences per thread. It is installed once for the whole process, before the first difference:
/// whether a line is enabled is decided at its first use, so one that is installed later on another thread may be
/// missed.
struct Log;

impl Log {
    fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let fields = event.metadata().fields();
        let is_told = ["stage", "expected", "found"]
            .iter()
            .all(|name| fields.field(name).is_some());
        LOGGED.set(LOGGED.get() + usize::from(is_told));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Runs a script `times` times. Returns the last result, and how many differences were counted and logged.
fn run(engine: &mut Engine, times: usize) -> (Result<ScriptOutput, Failure>, u64, usize) {
    let (before, message) = (LOGGED.get(), message());
    for _ in 1..times {
        let _ = engine.run(0, &message, &message.meta);
    }
    let returned = engine.run(0, &message, &message.meta);
    (returned, engine.stats().differences, LOGGED.get() - before)
}

fn payload(returned: ScriptOutput) -> Option<Value> {
    match returned {
        ScriptOutput::One(reply) => match reply.payload {
            PayloadReply::New(value) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn each_result_in_which_the_engines_differ_is_counted_and_logged_and_the_one_of_quickjs_counts() {
    let body = ScriptForm::Body;
    let of_value = "msg.payload = msg.payload * 2; return msg";
    for (quickjs, native) in [
        // Another value, another type, a missing value.
        (of_value, "msg.payload = msg.payload * 3; return msg"),
        (of_value, "msg.payload = String(msg.payload * 2); return msg"),
        (of_value, "return msg"),
        (of_value, "return null"),
        (of_value, "return [msg, msg]"),
        // Another metadata text, an extra key, a missing key.
        (
            of_value,
            "msg.payload = msg.payload * 2; msg.meta.unit = 'C'; return msg",
        ),
        (of_value, "msg.payload = msg.payload * 2; msg.meta.more = 1; return msg"),
        (
            of_value,
            "msg.payload = msg.payload * 2; msg.meta.unit = ''; return msg",
        ),
    ] {
        let (returned, counted, logged) = run(&mut torn(&body, quickjs, native), 3);
        assert_eq!(payload(returned.unwrap()), Some(Value::I64(10)), "{native}");
        assert_eq!((counted, logged), (3, 3), "{native}");
    }
    let failing = "throw new Error('no')";
    let (returned, counted, logged) = run(&mut torn(&body, failing, of_value), 1);
    assert!(returned.is_err(), "the failure of QuickJS counts");
    assert_eq!((counted, logged), (1, 1));
}

#[test]
fn results_that_say_the_same_are_no_difference() {
    let body = ScriptForm::Body;
    for (quickjs, native) in [
        ("return msg", "return {payload: msg.payload, meta: msg.meta}"),
        ("msg.meta.a = 1; return msg", "msg.meta.a = '1'; return msg"),
        ("msg.meta.unit = 'K'; return msg", "return msg"),
        ("return null", "return []"),
    ] {
        let (_, counted, logged) = run(&mut torn(&body, quickjs, native), 2);
        assert_eq!((counted, logged), (0, 0), "{quickjs} and {native}");
    }
}

#[test]
fn conditions_and_expressions_are_compared_alike() {
    let mut condition = torn(&ScriptForm::Condition, "msg.payload > 4", "msg.payload > 5");
    let message = message();
    assert_eq!(condition.test(0, &message, &message.meta), Ok(true));
    assert_eq!(condition.stats().differences, 1);
    let mut same = torn(&ScriptForm::Condition, "msg.payload > 4", "msg.payload");
    assert_eq!(same.test(0, &message, &message.meta), Ok(true));
    assert_eq!(same.stats().differences, 0);
    let variables: [String; 1] = ["left".to_owned()];
    let mut expression = torn(&ScriptForm::Expression(variables.into()), "left + 1", "left - 1");
    let members = [(Text::from("left"), Value::I64(1))];
    let payload_of = Payload::Value(members.into_iter().collect::<thalweg_record::Object>().into());
    let message = Message::new(payload_of, Metadata::default());
    let returned = expression.run(0, &message, &message.meta).unwrap();
    assert_eq!(payload(returned), Some(Value::I64(2)));
    assert_eq!(expression.stats().differences, 1);
}
