//! Properties that hold for any value, any sequence of operations, any text.

use super::*;
use proptest::prelude::*;
use thalweg_record::{Guid, Object, Text, json};

use crate::view::has_two_texts;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        "-?[1-9][0-9]{0,30}\\.[0-9]{1,20}".prop_map(|digits| Value::Decimal(digits.into())),
        "\\PC{0,40}".prop_map(|text| Value::Text(text.into())),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Value::Bytes(bytes.into())),
        any::<i32>().prop_map(|n| Value::Time(Ticks(i64::from(n) * 1_234_567))),
        any::<u32>().prop_map(Value::Status),
        any::<[u8; 8]>().prop_map(|data4| Value::Guid(Guid {
            data1: 1,
            data2: 2,
            data3: 3,
            data4
        })),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(("[a-z]{0,3}|__proto__|[0-9]{1,2}", inner), 0..6).prop_map(|members| {
                members
                    .into_iter()
                    .map(|(name, value)| (Text::from(name), value))
                    .collect::<Object>()
                    .into()
            }),
        ]
    })
}

/// Engines are created once, because creating one per case would be most of the work.
fn with_bench<R>(code: &'static str, f: impl FnOnce(&mut Bench) -> R) -> R {
    thread_local! {
        static BENCHES: std::cell::RefCell<std::collections::HashMap<&'static str, Bench>> = std::cell::RefCell::default();
    }
    BENCHES.with_borrow_mut(|benches| f(benches.entry(code).or_insert_with(|| Bench::body(code))))
}

fn run(code: &'static str, payload: Value) -> Reply {
    let message = Message::new(Payload::Value(payload), Metadata::default());
    match with_bench(code, |bench| bench.run(&message)) {
        Ok(ScriptOutput::One(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

/// The metadata text of a JSON value by the rules, computed without the engine.
fn expected_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Text(text) => text.to_string(),
        Value::Array(values) => format!("[{}]", values.iter().map(expected_text).collect::<Vec<_>>().join(" ")),
        Value::Object(object) => {
            let mut members: Vec<_> = object.iter().collect();
            members.sort_by(|a, b| a.0.cmp(b.0));
            let members: Vec<_> = members
                .iter()
                .map(|(name, value)| format!("{name}:{}", expected_text(value)))
                .collect();
            format!("map[{}]", members.join(" "))
        }
        number => crate::number_text(number.as_f64().unwrap()),
    }
}

/// An operation on an object `m`, which appends what it saw to `log`.
fn operation() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "opcua_source_timestamp",
        "toString",
        "constructor",
        "7",
        "new",
    ]);
    let value = prop::sample::select(vec!["'x'", "1", "null", "undefined", "[1]", "''", "m.a", "{k: 'v'}"]);
    (key, value, 0usize..22).prop_map(|(key, value, kind)| {
        let code = match kind {
            0..=3 => format!("m['{key}'] = {value}"),
            4 | 5 => format!("log.push(typeof m['{key}'] === 'function' ? 'function' : m['{key}'])"),
            6 | 7 => format!("log.push(delete m['{key}'])"),
            8 => format!("log.push('{key}' in m)"),
            9 => format!("log.push(Object.hasOwn(m, '{key}'))"),
            10 => "log.push(Object.keys(m).sort().join())".to_owned(),
            11 => "log.push(JSON.stringify(sorted({...m})))".to_owned(),
            12 => "log.push(JSON.stringify(sorted(Object.assign({}, m))))".to_owned(),
            13 => "for (const k in m) seen.add(k); log.push([...seen].sort().join())".to_owned(),
            14 => format!("log.push(JSON.stringify(sorted(Object.getOwnPropertyDescriptor(m, '{key}') || {{}})))"),
            15 => format!("Object.defineProperty(m, '{key}', {{value: {value}, enumerable: true}})"),
            16 => format!(
                "Object.defineProperty(m, '{key}', {{get() {{ return 'got' }}, enumerable: true, configurable: true}})"
            ),
            17 => format!("Object.defineProperty(m, '{key}', {{writable: false}})"),
            18 => "Object.freeze(m)".to_owned(),
            19 => "Object.preventExtensions(m)".to_owned(),
            20 => {
                format!("const child = Object.create(m); child['{key}'] = {value}; log.push(Object.keys(child).join())")
            }
            // With frozen prototypes, Reflect.set throws for the names that they have.
            _ if key.starts_with(['t', 'c']) => format!("m.{key} += 'more'"),
            _ => format!("log.push(Reflect.set(m, '{key}', {value}))"),
        };
        format!("try {{ {code} }} catch (e) {{ log.push(e.name) }}\n")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_a_script_only_passes_on_stays_as_it_was(payload in value()) {
        for code in [
            "return msg",
            "return {payload: msg.payload, meta: msg.meta}",
            "const p = msg.payload; if (p && p.a) p.a = p.a; msg.payload = p; return msg",
        ] {
            let reply = run(code, payload.clone()).payload;
            let is_kept = match reply {
                PayloadReply::Same => true,
                PayloadReply::Again => code != "return msg" && has_two_texts(&payload),
                _ => false,
            };
            prop_assert!(is_kept, "{reply:?} of {code}");
        }
        // Inside a new value, its parts look like parsed JSON.
        let PayloadReply::New(Value::Array(wrapped)) = run("return {payload: [msg.payload]}", payload).payload else {
            panic!()
        };
        prop_assert_eq!(wrapped.len(), 1);
    }

    #[test]
    fn payloads_look_as_their_json_text(payload in value()) {
        // NaN and infinities have no JSON text.
        let text = json::to_string(&payload);
        prop_assume!(json::parse(text.as_bytes()).is_ok());
        let typed = run("return {payload: [JSON.stringify(msg.payload)]}", payload).payload;
        let parsed = run("return {payload: [JSON.stringify(JSON.parse(msg.payload))]}", Value::text(text)).payload;
        prop_assert_eq!(typed, parsed);
    }

    #[test]
    fn any_metadata_value_has_the_documented_text(payload in value()) {
        let text = json::to_string(&payload);
        let Ok(plain) = json::parse(text.as_bytes()) else { return Ok(()) };
        let reply = run("msg.meta.x = JSON.parse(msg.payload); return msg", Value::text(text));
        let MetaReply::Changes(changes) = reply.meta else { panic!() };
        prop_assert_eq!(changes[0].1.as_str(), expected_text(&plain));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Lazy metadata and an ordinary object with the same entries are indistinguishable.
    #[test]
    fn lazy_metadata_is_an_ordinary_object(operations in prop::collection::vec(operation(), 1..12)) {
        let code = format!(
            "const sorted = (o) => Object.fromEntries(Object.entries(o).sort(([a], [b]) => a < b ? -1 : 1));
             const exercise = (m) => {{ const log = [], seen = new Set();\n{}
             log.push(Object.keys(m).sort().join(), Object.isFrozen(m), Object.isExtensible(m)); return log }};
             const plain = {{a: '1', b: '2', opcua_source_timestamp: msg.meta.opcua_source_timestamp}};
             delete msg.meta._keys;
             const before = JSON.stringify(exercise(plain)), lazy = JSON.stringify(exercise(msg.meta));
             return {{payload: lazy === before || [before, lazy]}}",
            operations.concat()
        );
        let map = MetaMap::new([("a", "1"), ("b", "2")].map(|(k, v)| (k.into(), v.into())), None);
        let mut meta = Metadata::stamped(Arc::new(map), ValueQuality::NONE);
        meta.remove("opcua_server_timestamp");
        meta.remove("opcua_attr_statuscode");
        let message = Message::new(Payload::Value(Value::Null), meta);
        let returned = Bench::body(&code).run(&message);
        let Ok(ScriptOutput::One(reply)) = returned else { panic!("{returned:?}\n{code}") };
        prop_assert_eq!(reply.payload, PayloadReply::New(Value::Bool(true)), "{}", code);
    }

    #[test]
    fn no_text_breaks_the_compiler(code in "\\PC{0,60}|[-(){}\\[\\]`$'\"/*;=.a-z0-9\\n ]{0,60}") {
        let script = |form| Script { stage: "s".into(), form, code: code.clone() };
        for error in QuickJs::check(&[script(ScriptForm::Body), script(ScriptForm::Condition)]) {
            prop_assert!(error.line >= 1 && error.column >= 1);
        }
    }
}
