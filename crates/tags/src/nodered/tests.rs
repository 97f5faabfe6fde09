use super::*;
use crate::tag_processor::tests::{with_config, with_settings};
use std::sync::Arc;
use thalweg_record::{Ack, DropReason, FlowBalance, Value, json};

fn run(code: &str, messages: Vec<Message>) -> (Vec<Message>, Arc<FlowBalance>) {
    run_within("", code, messages)
}

/// With settings of the process.
fn run_within(settings: &str, code: &str, messages: Vec<Message>) -> (Vec<Message>, Arc<FlowBalance>) {
    let yaml = format!("  - nodered_js:\n      code: |\n        {code}\n");
    let spec = with_settings(settings, &yaml, parse).unwrap();
    let mut processor = spec.build(StageContext::for_tests("nodered_js")).unwrap();
    let balance = Arc::new(FlowBalance::default());
    let ack = Ack::enter(&balance, messages.len(), |_| {});
    let mut out = Vec::new();
    processor.process(Batch::new(messages, ack), &mut out);
    let mut results = Vec::new();
    for batch in out {
        results.extend(batch.messages);
        batch.ack.delivered();
    }
    assert!(balance.snapshot().adds_up());
    (results, balance)
}

fn raw(payload: &str) -> Message {
    let mut message = Message::raw(payload.to_owned().into_bytes());
    message.meta.set("a", "1");
    message
}

fn shown(message: &Message) -> String {
    let meta: Vec<String> = message.meta.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{} {}", String::from_utf8_lossy(&message.bytes()), meta.join(","))
}

#[test]
fn messages_become_what_the_script_returns() {
    for (code, results) in [
        ("return msg", vec!["{ \"n\": 1.50 } a=1"]),
        (
            "msg.payload = {x: msg.payload.n}; msg.meta.b = 2; return msg",
            vec!["{\"x\":1.5} a=1,b=2"],
        ),
        ("msg.payload = 'text'; return msg", vec!["\"text\" a=1"]),
        ("return {payload: 1}", vec!["1 "]),
        ("return {meta: {c: [1, 'x']}}", vec![" c=[1 x]"]),
        (
            "return [msg, {payload: 2, meta: msg.meta}, null]",
            vec!["{ \"n\": 1.50 } a=1", "2 a=1"],
        ),
        ("return null", vec![]),
        ("", vec![]),
        ("throw new Error('x')", vec![]),
        ("return 5", vec![]),
        (
            "msg.meta._initialMetadata === undefined ? msg : null; return msg",
            vec!["{ \"n\": 1.50 } a=1"],
        ),
    ] {
        let (messages, _) = run(code, vec![raw("{ \"n\": 1.50 }")]);
        assert_eq!(messages.iter().map(shown).collect::<Vec<_>>(), results, "{code}");
    }
}

#[test]
fn accounts_add_up() {
    let code = "if (msg.payload === 1) return null; if (msg.payload === 2) throw 1; if (msg.payload === 3) return 'x'; return [msg, msg]";
    let (messages, balance) = run(code, ["1", "2", "3", "4"].map(raw).into());
    let counts = balance.snapshot();
    assert_eq!(messages.len(), 2);
    assert_eq!((counts.entered, counts.out, counts.expanded), (5, 2, 1));
    assert_eq!(counts.filtered(FilterReason::ReturnedNull), 1);
    assert_eq!(counts.dropped(DropReason::ScriptError), 1);
    assert_eq!(counts.dropped(DropReason::ScriptBadReturn), 1);
}

#[test]
fn what_failed_is_told_in_the_words_of_this_processor() {
    let failure = |kind, text: &str| {
        failure_text(&Failure {
            kind,
            text: text.into(),
        })
    };
    assert_eq!(
        failure(FailureKind::BadReturn, NOT_A_MESSAGE),
        "JavaScript error in nodered_js: function must return a message object or null"
    );
    assert_eq!(
        failure(FailureKind::Exception, "Error: x"),
        "JavaScript error in nodered_js: Error: x"
    );
    assert_eq!(
        with_config("  - nodered_js: {code: 'return msg +'}\n", parse)
            .map(|_| ())
            .unwrap_err(),
        [
            "flow.yaml:4:37: failed to compile JavaScript code: SyntaxError: unexpected end of the script (line 1, column 13)"
        ]
    );
    assert_eq!(
        with_config("  - nodered_js: {}\n", parse).map(|_| ()).unwrap_err(),
        ["flow.yaml:4:17: missing required field \"code\" in pipeline.processors[0].nodered_js"]
    );
}

#[test]
fn typed_payloads_stay_typed() {
    let mut message = raw("");
    message.payload = Payload::Value(Value::U64(u64::MAX));
    let (messages, _) = run("return msg", vec![message]);
    assert_eq!(messages[0].payload, Payload::Value(Value::U64(u64::MAX)));
}

#[test]
fn what_leaves_a_script_is_json_or_is_refused() {
    let code = "if (msg.payload === 1) msg.payload = {avg: 0 / 0, all: [1, 1 / 0, {min: -1 / 0}]};
        if (msg.payload === 2) return [{payload: NaN}, {payload: [NaN]}];
        if (msg.payload === 3) msg.payload = 1 / 0;
        return msg";
    let (messages, balance) = run(code, ["1", "2", "3", "4"].map(raw).into());
    for message in &messages {
        json::parse(&message.bytes()).unwrap();
    }
    assert_eq!(
        messages.iter().map(shown).collect::<Vec<_>>(),
        [r#"{"avg":null,"all":[1,null,{"min":null}]} a=1"#, "[null] ", "4 a=1"]
    );
    let counts = balance.snapshot();
    assert_eq!((counts.dropped(DropReason::InvalidValue), counts.out), (2, 3));
}

/// `normalize` sorts combining marks by insertion: seconds within one built-in function.
#[test]
fn a_message_that_cannot_be_stopped_is_removed_and_the_flow_goes_on_in_order() {
    let code = "if (msg.payload === 3) ('a' + '\\u0323\\u0301'.repeat(20000)).normalize('NFD'); msg.meta.m = new Map().size; return msg";
    let started = std::time::Instant::now();
    let (messages, balance) = run_within(
        "scripting: {timeout: 50ms}\n",
        code,
        ["1", "2", "3", "4", "5"].map(raw).into(),
    );
    assert!(
        started.elapsed() < std::time::Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    let shown: Vec<String> = messages.iter().map(shown).collect();
    assert_eq!(shown, ["1 a=1,m=0", "2 a=1,m=0", "4 a=1,m=0", "5 a=1,m=0"]);
    let counts = balance.snapshot();
    assert_eq!(
        (counts.entered, counts.out, counts.dropped(DropReason::ScriptTimeout)),
        (5, 4, 1)
    );
}

#[test]
fn metadata_set_to_undefined_is_absent() {
    for (code, result) in [
        ("msg.meta.a = undefined; return msg", "1 "),
        ("msg.meta.a = undefined; msg.meta.b = 2; return msg", "1 b=2"),
        ("msg.meta.b = undefined; return msg", "1 a=1"),
        ("msg.meta = {a: undefined, b: 2}; return msg", "1 b=2"),
        ("msg.meta = {...msg.meta, c: msg.payload.none}; return msg", "1 a=1"),
        (
            "return {payload: 1, meta: {a: undefined, b: null, c: [undefined]}}",
            "1 b=<nil>,c=[<nil>]",
        ),
        ("return [{payload: 1, meta: {a: undefined}}]", "1 "),
        ("msg.meta.a = undefined; msg.meta.a = 3; return msg", "1 a=3"),
        ("msg.meta.a = null; return msg", "1 a=<nil>"),
        // One after the other is not taken for the other.
        ("msg.meta.a = msg.payload === 1 ? undefined : null; return msg", "1 "),
    ] {
        for engine in ["auto", "quickjs", "verify"] {
            let settings = format!("scripting: {{engine: {engine}}}\n");
            let (messages, _) = run_within(&settings, code, vec![raw("1"), raw("1"), raw("1")]);
            assert_eq!(
                messages.iter().map(shown).collect::<Vec<_>>(),
                [result; 3],
                "{code} {engine}"
            );
        }
    }
    let code = "msg.meta.a = msg.payload === 1 ? undefined : null; return msg";
    let (messages, _) = run(code, ["1", "2", "1", "2"].map(raw).into());
    assert_eq!(
        messages.iter().map(shown).collect::<Vec<_>>(),
        ["1 ", "2 a=<nil>", "1 ", "2 a=<nil>"]
    );
}
