//! Scenarios for the engine: what scripts see, what they return, how calls are isolated, and which limits apply.

mod expressions;
mod isolation;
mod limits;
mod msg;
mod properties;
mod returns;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Ticks, Value, ValueQuality};

use super::QuickJs;
use crate::{
    Cache, CallWatch, ComputedKey, Console, ConsoleLevel, Environment, Failure, FailureKind, MetaReply, PayloadReply,
    Program, Reply, Script, ScriptForm, ScriptLimits, ScriptOutput,
};

#[derive(Default)]
pub(super) struct Lines(Mutex<Vec<(ConsoleLevel, String)>>);

impl Console for Lines {
    fn enabled(&self, _level: ConsoleLevel) -> bool {
        true
    }

    fn line(&self, level: ConsoleLevel, text: &str) {
        self.0.lock().push((level, text.to_owned()));
    }
}

const COMPUTED: &[ComputedKey] = &[ComputedKey {
    name: "_keys",
    compute: |origin| origin.iter().map(|(key, _)| key).collect::<Vec<_>>().join(","),
}];

/// Scripts with their whole environment.
pub(super) struct Bench {
    pub engine: QuickJs,
    pub lines: Arc<Lines>,
    pub cache: Arc<Cache>,
}

pub(super) fn test_limits() -> ScriptLimits {
    ScriptLimits {
        timeout: Duration::from_millis(300),
        ..ScriptLimits::default()
    }
}

impl Bench {
    pub fn new(scripts: &[(&str, ScriptForm, &str)], limits: ScriptLimits) -> Bench {
        let lines = Arc::new(Lines::default());
        let cache = Arc::new(Cache::new(100));
        let environment = Environment {
            limits,
            console: lines.clone(),
            cache: cache.clone(),
            computed: COMPUTED,
            undefined_meta: crate::UndefinedMeta::Text,
            watch: CallWatch::default(),
        };
        let scripts: Vec<Script> = scripts
            .iter()
            .map(|(stage, form, code)| Script {
                stage: (*stage).to_owned(),
                form: form.clone(),
                code: (*code).to_owned(),
            })
            .collect();
        let engine = QuickJs::new(&scripts, environment).unwrap();
        Bench { engine, lines, cache }
    }

    pub fn body(code: &str) -> Bench {
        Bench::new(&[("defaults", ScriptForm::Body, code)], test_limits())
    }

    pub fn condition(code: &str) -> Bench {
        Bench::new(&[("condition-0-if", ScriptForm::Condition, code)], test_limits())
    }

    pub fn run(&mut self, message: &Message) -> Result<ScriptOutput, Failure> {
        self.engine.run(0, message, &message.meta)
    }

    pub fn test(&mut self, message: &Message) -> Result<bool, Failure> {
        self.engine.test(0, message, &message.meta)
    }

    pub fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.0.lock())
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }
}

/// An OPC UA value with its usual metadata.
pub(super) fn sample(value: Value) -> Message {
    let entries = [
        ("opcua_attr_nodeid", "ns=3;s=FastUInt1"),
        ("opcua_attr_browsename", "FastUInt1"),
        ("opcua_tag_name", "FastUInt1"),
        ("opcua_tag_group", "OpcPlc.Fast"),
    ];
    let map = MetaMap::new(entries.map(|(k, v)| (k.into(), v.into())), Some(1));
    let stamps = ValueQuality {
        source_time: Ticks(0),
        ..ValueQuality::NONE
    };
    Message::new(Payload::Value(value), Metadata::stamped(Arc::new(map), stamps))
}

pub(super) fn plain(payload: &str, meta: &[(&str, &str)]) -> Message {
    let mut message = Message::raw(payload.to_owned().into_bytes());
    for (key, value) in meta {
        message.meta.set(*key, *value);
    }
    message
}

/// Runs a body on a message. Returns the JSON of the payload and the metadata of the single result.
pub(super) fn outcome(code: &str, message: &Message) -> (String, Vec<(String, String)>) {
    let returned = Bench::body(code).run(message).unwrap();
    let ScriptOutput::One(reply) = returned else {
        panic!("expected one message, got {returned:?}")
    };
    applied(reply, message)
}

pub(super) fn applied(reply: Reply, message: &Message) -> (String, Vec<(String, String)>) {
    let payload = match reply.payload {
        PayloadReply::Same => format!("same {}", String::from_utf8_lossy(&message.bytes())),
        PayloadReply::Again => format!("again {}", String::from_utf8_lossy(&message.bytes())),
        PayloadReply::Missing => "missing".to_owned(),
        PayloadReply::New(value) => thalweg_record::json::to_string(&value),
    };
    let mut meta = message.meta.clone();
    reply.meta.apply(&mut meta);
    let meta = meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
    (payload, meta)
}

/// Only the JSON of the payload.
pub(super) fn payload(code: &str, message: &Message) -> String {
    outcome(code, message).0
}

/// The value of an expression, through the payload.
pub(super) fn value_of(expression: &str, message: &Message) -> String {
    payload(&format!("return {{payload: {expression}, meta: msg.meta}}"), message)
}

/// The metadata text of an expression.
pub(super) fn meta_text(expression: &str) -> String {
    let code = format!("msg.meta.x = {expression}; return msg");
    let (_, meta) = outcome(&code, &plain("1", &[]));
    meta.into_iter()
        .find(|(k, _)| k == "x")
        .map(|(_, v)| v)
        .unwrap_or_default()
}

pub(super) fn failure(code: &str, message: &Message) -> Failure {
    Bench::body(code).run(message).unwrap_err()
}

#[test]
fn what_compiles_and_what_does_not() {
    let compile = |form, code: &str| {
        let script = Script {
            stage: "defaults".into(),
            form,
            code: code.into(),
        };
        let environment = Environment {
            limits: test_limits(),
            console: Arc::new(Lines::default()),
            cache: Arc::new(Cache::new(1)),
            computed: &[],
            undefined_meta: crate::UndefinedMeta::Text,
            watch: CallWatch::default(),
        };
        QuickJs::new(&[script], environment)
            .map(|_| ())
            .map_err(|e| (e.line, e.column, e.text))
    };
    for code in [
        "",
        "return msg",
        "let msg = {}; return msg",
        "return msg // end",
        "const a = 1",
        "<!-- x\nreturn msg",
    ] {
        assert_eq!(compile(ScriptForm::Body, code), Ok(()), "{code}");
    }
    for code in [
        "true",
        "",
        "msg.payload > 1",
        "var a = 1; a > 0",
        "{ true }",
        "if (msg) 1; else 0",
        "function f() {} f()",
        "a: 1",
    ] {
        assert_eq!(compile(ScriptForm::Condition, code), Ok(()), "{code}");
    }
    let mut wrong = Vec::new();
    for (form, code, line, column) in [
        (ScriptForm::Body, "return msg +;", 1, 13),
        (ScriptForm::Body, "let a = 1;\n  let a = 2;", 2, 9),
        (ScriptForm::Body, "}); (function () {", 1, 2),
        (ScriptForm::Body, "with (msg) {}", 1, 1),
        (ScriptForm::Body, "a = 010", 1, 5),
        (ScriptForm::Body, "if (msg) {\n  return msg", 2, 13),
        (ScriptForm::Body, "return msg }", 1, 12),
        (ScriptForm::Condition, "a) || (b", 1, 2),
        (ScriptForm::Condition, "msg.payload >", 1, 14),
        (ScriptForm::Condition, "return true", 1, 1),
        (ScriptForm::Condition, "let a = 1;\nlet b = ;", 2, 9),
    ] {
        let error = compile(form, code).unwrap_err();
        if (error.0, error.1) != (line, column) || !error.2.starts_with("SyntaxError: ") {
            wrong.push(format!("{code}: {error:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
