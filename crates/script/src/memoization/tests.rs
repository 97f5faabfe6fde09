//! An engine with memoization against one without: equal results for every message, including failures, and what is
//! memoized and what is not.

mod generated;

use std::time::Duration;

use proptest::prelude::*;
use thalweg_record::{Payload, QualityDetails, Ticks, Value, ValueQuality};

use super::*;
use crate::{
    Cache, CallWatch, ComputedKey, EngineMode, Environment, LogConsole, QuickJs, Script, ScriptForm, ScriptLimits,
};

const COMPUTED: &[ComputedKey] = &[ComputedKey {
    name: "_keys",
    compute: |origin| origin.iter().map(|(key, _)| key).collect::<Vec<_>>().join(","),
}];

/// A script that runs until its timeout, for each message in each engine.
const ENDLESS: &str = "while (true) {}";

fn environment(code: &str) -> Environment {
    let timeout_ms = if code == ENDLESS { 20 } else { 300 };
    Environment {
        limits: ScriptLimits {
            timeout: Duration::from_millis(timeout_ms),
            ..ScriptLimits::default()
        },
        console: Arc::new(LogConsole { component: "".into() }),
        cache: Arc::new(Cache::new(100)),
        computed: COMPUTED,
        undefined_meta: crate::UndefinedMeta::Text,
        watch: CallWatch::default(),
    }
}

fn script(form: ScriptForm, code: &str) -> Script {
    Script {
        stage: "defaults".to_owned(),
        form,
        code: code.to_owned(),
    }
}

fn engine(form: ScriptForm, code: &str) -> QuickJs {
    QuickJs::new(&[script(form, code)], environment(code)).unwrap()
}

/// The mode selects the engine for calls that are not memoized.
fn remembering(form: ScriptForm, code: &str, mode: EngineMode) -> MemoizingEngine {
    MemoizingEngine::new(Engine::new(&[script(form, code)], environment(code), mode).unwrap())
}

const MODES: [EngineMode; 2] = [EngineMode::QuickJs, EngineMode::Auto];

fn map(tag: u64) -> Arc<MetaMap> {
    let entries = [
        ("opcua_tag_name", format!("Tag{tag}")),
        ("opcua_tag_group", "Plant.Line".to_owned()),
        ("unit", if tag.is_multiple_of(2) { "Cel" } else { "" }.to_owned()),
    ];
    Arc::new(MetaMap::new(
        entries.map(|(name, text)| (name.into(), text.into())),
        Some(tag),
    ))
}

fn message(map: &Arc<MetaMap>, n: i64) -> Message {
    let stamps = ValueQuality {
        source_time: Ticks(n),
        server_time: Ticks(2 * n),
        status: 0,
    };
    Message::new(Payload::Value(Value::I64(n)), Metadata::stamped(map.clone(), stamps))
}

/// The same message, after a gap.
fn marked(map: &Arc<MetaMap>, n: i64) -> Message {
    let message = message(map, n);
    let marks = QualityDetails::new(Some("0x480".into()), Some((Ticks(n - 1), Ticks(n))));
    let stamps = ValueQuality {
        status: 0x480,
        ..message.meta.stamps().unwrap()
    };
    let meta = Metadata::marked(map.clone(), stamps, marks);
    Message { meta, ..message }
}

/// Payload and metadata of each resulting message.
fn effect(returned: ScriptOutput, message: &Message) -> Vec<(String, Vec<(String, String)>)> {
    let of = |payload: PayloadReply, meta: Metadata| {
        let payload = match payload {
            PayloadReply::Same => format!("same {}", String::from_utf8_lossy(&message.bytes())),
            PayloadReply::Again => format!("again {}", String::from_utf8_lossy(&message.bytes())),
            PayloadReply::Missing => "missing".to_owned(),
            PayloadReply::New(value) => thalweg_record::json::to_string(&value),
        };
        (
            payload,
            meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect(),
        )
    };
    let reply = |reply: Reply| {
        let mut meta = message.meta.clone();
        reply.meta.apply(&mut meta);
        of(reply.payload, meta)
    };
    match returned {
        ScriptOutput::Nothing => Vec::new(),
        ScriptOutput::One(one) => vec![reply(one)],
        ScriptOutput::Many(many) => many.into_iter().map(reply).collect(),
        ScriptOutput::Over(map) => vec![of(PayloadReply::Same, message.meta.with_shared(map))],
    }
}

/// Three messages of a tag, each in turn with a gap before it, or none. Returns how many results were memoized, after
/// all were compared.
fn at_hand(form: ScriptForm, code: &str, mode: EngineMode) -> u64 {
    let counts = (1..=4).map(|after_gap| {
        let (mut plain, mut remembering) = (engine(form.clone(), code), remembering(form.clone(), code, mode));
        let map = map(2);
        for n in 1..=3 {
            let message = if n == after_gap {
                marked(&map, n)
            } else {
                message(&map, n)
            };
            compare(form.clone(), code, &mut plain, &mut remembering, &message);
        }
        remembering.stats().remembered
    });
    let counts: Vec<u64> = counts.collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{code}: {counts:?}");
    counts[0]
}

fn compare(form: ScriptForm, code: &str, plain: &mut QuickJs, remembering: &mut MemoizingEngine, message: &Message) {
    match form {
        ScriptForm::Body | ScriptForm::Expression(_) => {
            let expected = plain
                .run(0, message, &message.meta)
                .map(|returned| effect(returned, message));
            let found = remembering.run(0, message, &message.meta);
            assert_eq!(found.map(|returned| effect(returned, message)), expected, "{code}");
            if let Some(halves) = halves(remembering, message) {
                assert_eq!(Ok(effect(halves, message)), expected, "{code}");
            }
        }
        ScriptForm::Condition => {
            let expected = plain.test(0, message, &message.meta);
            assert_eq!(remembering.test(0, message, &message.meta), expected, "{code}");
        }
    }
}

/// The result of a message from the memoized half of a script and the payload half.
fn halves(remembering: &mut MemoizingEngine, message: &Message) -> Option<ScriptOutput> {
    let half = remembering.remembered(0, message.meta.shared_map());
    let (MemoizedOutcome::Half(map), Payload::Value(value)) = (half, &message.payload) else {
        return None;
    };
    let payload = remembering.payload(0, value)?;
    let meta = MetaReply::Over(map);
    (!message.meta.is_changed()).then_some(ScriptOutput::One(Reply { payload, meta }))
}

/// Their metadata depends only on the map, and their payload only on the payload.
const IN_HALVES: &[&str] = &[
    "msg.meta.tag_name = msg.meta.opcua_tag_name; msg.payload = msg.payload * 0.1 + 32; return msg",
    "msg.payload = msg.payload + 1; return msg",
    "msg.payload = String(msg.payload); msg.meta.unit = ''; msg.payload = msg.payload + '!'; return msg",
    "msg.payload = msg.payload > 2 ? null : [msg.payload]; return msg",
    "if (msg.meta.unit === 'Cel') { msg.meta.n = 1 } msg.payload = 2; return msg",
];

/// Similar scripts that cannot be split.
const NOT_IN_HALVES: &[&str] = &[
    "msg.meta.n = msg.payload; msg.payload = 1; return msg",
    "msg.payload = msg.payload * 2; msg.meta.n = msg.payload; return msg",
    "msg.payload = msg.payload + msg.meta.unit; return msg",
    "if (msg.payload > 1) { return null } msg.payload = 1; return msg",
    "msg.payload = 1; if (msg.meta.unit) { throw new Error('unit') } return msg",
    "msg.meta.at = msg.meta.opcua_source_timestamp; msg.payload = 1; return msg",
    "msg.meta.opcua_gap = 'true'; msg.payload = 1; return msg",
    "msg.meta.keys = msg.meta._keys; msg.payload = 1; return msg",
    "msg.payload = cache.exists('n') ? 1 : 2; return msg",
    "msg.payload = msg; return msg",
];

#[test]
fn of_a_script_in_halves_the_metadata_is_at_hand_and_the_payload_is_computed() {
    let is_half = |code: &str, mode: EngineMode| {
        let (mut plain, mut remembering) = (
            engine(ScriptForm::Body, code),
            remembering(ScriptForm::Body, code, mode),
        );
        let map = map(2);
        for n in 1..=4 {
            let message = if n == 3 { marked(&map, n) } else { message(&map, n) };
            compare(ScriptForm::Body, code, &mut plain, &mut remembering, &message);
        }
        halves(&mut remembering, &message(&map, 5)).is_some()
    };
    for code in IN_HALVES {
        assert!(is_half(code, EngineMode::Auto), "{code}");
        assert!(
            !is_half(code, EngineMode::QuickJs) && !is_half(code, EngineMode::Verify),
            "{code}"
        );
    }
    for code in NOT_IN_HALVES {
        assert!(!is_half(code, EngineMode::Auto), "{code}");
    }
}

#[test]
fn a_half_that_native_code_leaves_is_run_as_a_whole() {
    let code = "msg.meta.n = 1; msg.payload = msg.payload.value * 2; return msg";
    let (mut plain, mut remembering) = (
        engine(ScriptForm::Body, code),
        remembering(ScriptForm::Body, code, EngineMode::Auto),
    );
    let map = map(2);
    let meta = message(&map, 1).meta;
    let with_value: thalweg_record::Object = [("value".into(), Value::I64(3))].into_iter().collect();
    for value in [Value::from(with_value), Value::Null] {
        let message = Message::new(Payload::Value(value), meta.clone());
        compare(ScriptForm::Body, code, &mut plain, &mut remembering, &message);
    }
    assert!(matches!(remembering.remembered(0, &map), MemoizedOutcome::Half(_)));
    let before = remembering.stats();
    assert_eq!(remembering.payload(0, &Value::Null), None);
    let after = remembering.stats();
    assert_eq!(
        (after.native_calls, after.bails),
        (before.native_calls, before.bails),
        "the whole call counts"
    );
}

const ON_THE_MAP: &[&str] = &[
    "msg.meta.location_path = 'a.b'; msg.meta.tag_name = msg.meta.opcua_tag_name; return msg;",
    "return msg",
    "return null",
    "if (msg.meta.opcua_tag_name.endsWith('2')) { return null } return msg",
    "msg.meta.area = msg.meta.opcua_tag_group.split('.')[0].toLowerCase(); delete msg.meta.unit; return msg",
    "msg.meta.unit = ''; return msg",
    "if (msg.meta.nothing === undefined) msg.meta.n = Math.max(1, 2); return msg",
    "msg.meta.has = 'unit' in msg.meta; return msg",
    "const words = []; for (let i = 0; i < 3; i++) words.push(i); msg.meta.words = words; return msg",
    "try { null.x } catch (error) { msg.meta.error = error.message } return msg",
    // The date is only mentioned in a text.
    "msg.meta.kind = 'Date'; return msg",
];

const ON_MORE: &[&str] = &[
    "msg.meta.n = msg.payload; return msg",
    "msg.payload = 5; return msg",
    "return { payload: msg.payload, meta: msg.meta }",
    "msg.meta.at = msg.meta.opcua_source_timestamp; return msg",
    "msg.meta.good = msg.meta.opcua_attr_statuscode.includes('Good'); return msg",
    "msg.meta.opcua_source_timestamp = 'x'; return msg",
    "delete msg.meta.opcua_attr_statuscode; return msg",
    "msg.meta.all = Object.keys(msg.meta).join(); return msg",
    "msg.meta = { ...msg.meta, a: 1 }; return msg",
    "msg.meta.text = JSON.stringify(msg); return msg",
    "msg.meta.late = msg.meta.opcua_gap === 'true'; return msg",
    "if ('opcua_gap_from' in msg.meta) return null; return msg",
    "if (msg.meta[['opcua', 'gap', 'to'].join('_')]) return null; return msg",
    "delete msg.meta.opcua_gap; return msg",
    "msg.meta.keys = msg.meta._keys; return msg",
    "console.log('a'); return msg",
    "cache.set('n', (cache.get('n') || 0) + 1); msg.meta.n = cache.get('n'); return msg",
    "return [msg, msg]",
    "msg.payload = 1; return msg",
    "msg.payload = null; return msg",
    "return { payload: 2, meta: msg.meta }",
    "throw new Error(msg.meta.opcua_tag_name)",
    "return 7",
    ENDLESS,
];

#[test]
fn what_depends_on_the_map_of_a_tag_alone_is_at_hand_for_its_next_message() {
    for (code, mode) in ON_THE_MAP.iter().flat_map(|code| MODES.map(|mode| (code, mode))) {
        assert_eq!(at_hand(ScriptForm::Body, code, mode), 2, "{code} {mode:?}");
    }
    for code in [
        "true",
        "msg.meta.opcua_tag_name === 'Tag2'",
        "msg.meta.unit == 'K'",
        "/^Tag\\d$/.test(msg.meta.opcua_tag_name)",
    ] {
        for mode in MODES {
            assert_eq!(at_hand(ScriptForm::Condition, code, mode), 2, "{code} {mode:?}");
        }
    }
}

#[test]
fn what_depends_on_more_is_made_for_each_message() {
    for (code, mode) in ON_MORE.iter().flat_map(|code| MODES.map(|mode| (code, mode))) {
        assert_eq!(at_hand(ScriptForm::Body, code, mode), 0, "{code} {mode:?}");
    }
    for code in [
        "msg.payload > 2",
        "msg.meta.opcua_attr_statuscode",
        "console.log(1), true",
        "x = 1",
    ] {
        for mode in MODES {
            assert_eq!(at_hand(ScriptForm::Condition, code, mode), 0, "{code} {mode:?}");
        }
    }
}

/// Their results may differ between calls, so nothing is compared.
#[test]
fn what_knows_the_time_or_chance_is_made_for_each_message() {
    for code in [
        "msg.meta.at = Date.now(); return msg",
        "msg.meta.at = D\\u0061te.now(); return msg",
        "msg.meta.at = new Date().toISOString(); return msg",
        "msg.meta.n = Math.random(); return msg",
        "msg.meta.n = Math['random'](); return msg",
        "const { random } = Math; msg.meta.n = random(); return msg",
        "const chance = Math; msg.meta.n = chance['ran' + 'dom'](); return msg",
        "msg.meta.n = (() => 1)['constructor']('return Math.random()')(); return msg",
        "msg.meta.n = performance.now(); return msg",
        "msg.meta.n = globalThis.Math.random(); return msg",
    ] {
        for mode in MODES {
            let mut remembering = remembering(ScriptForm::Body, code, mode);
            let map = map(2);
            for n in 1..=3 {
                let message = message(&map, n);
                let _whatever = remembering.run(0, &message, &message.meta);
            }
            assert_eq!(remembering.stats().remembered, 0, "{code} {mode:?}");
        }
    }
}

#[test]
fn a_message_with_changes_of_its_own_is_not_what_the_map_says() {
    let code = "msg.meta.area = msg.meta.unit; return msg";
    let mut remembering = remembering(ScriptForm::Body, code, EngineMode::Auto);
    let map = map(2);
    for n in 1..=3 {
        let mut message = message(&map, n);
        message.meta.set("unit", n.to_string());
        let returned = remembering.run(0, &message, &message.meta).unwrap();
        let found = effect(returned, &message).remove(0).1;
        assert!(found.contains(&("area".to_owned(), n.to_string())), "{found:?}");
    }
    assert_eq!(remembering.stats().remembered, 0);
}

#[test]
fn what_lists_the_metadata_of_a_message_without_times_is_not_at_hand_for_one_with_them() {
    let code = "msg.meta.all = Object.keys(msg.meta).join(); return msg";
    for mode in MODES {
        let (mut plain, mut remembering) = (
            engine(ScriptForm::Body, code),
            remembering(ScriptForm::Body, code, mode),
        );
        let map = map(2);
        let without = Message::new(Payload::Value(Value::I64(1)), Metadata::shared(map.clone()));
        for message in [without, message(&map, 2), marked(&map, 3)] {
            compare(ScriptForm::Body, code, &mut plain, &mut remembering, &message);
        }
    }
}

#[test]
fn results_of_a_tag_share_one_map_and_the_next_stage_remembers_by_it() {
    let code = "msg.meta.area = 'x'; return msg";
    let mut remembering = remembering(ScriptForm::Body, code, EngineMode::Auto);
    let map = map(2);
    let mut run = |n| {
        let message = message(&map, n);
        match remembering.run(0, &message, &message.meta).unwrap() {
            ScriptOutput::Over(map) => Some(map),
            _ => None,
        }
    };
    assert!(run(1).is_none(), "the first one was made");
    let (second, third) = (run(2).unwrap(), run(3).unwrap());
    assert!(Arc::ptr_eq(&second, &third));
    assert_eq!(second.series(), Some(2), "messages of a tag keep their order");
}

#[test]
fn a_script_that_never_pays_is_not_watched_for_ever_and_memory_has_an_end() {
    let mut never = remembering(
        ScriptForm::Body,
        "msg.meta.n = msg.payload; return msg",
        EngineMode::Auto,
    );
    for tag in 0..2 * TRIES_MAX as u64 {
        let message = message(&map(tag), 1);
        never.run(0, &message, &message.meta).unwrap();
    }
    assert!(never.scripts[0].is_none());
    let few = CacheLimits {
        entries_max: 10,
        ..CacheLimits::default()
    };
    let some = remembering(ScriptForm::Body, "msg.meta.n = 1; return msg", EngineMode::Auto);
    let mut some = MemoizingEngine::within(some.engine, few);
    for tag in 0..100 {
        let message = message(&map(tag), 1);
        some.run(0, &message, &message.meta).unwrap();
        assert!(some.scripts[0].as_ref().unwrap().maps.len() <= 10);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// For any messages in any order.
    #[test]
    fn both_say_the_same(
        script in 0..ON_THE_MAP.len() + ON_MORE.len() - 1,
        mode in prop::sample::select(&MODES),
        steps in prop::collection::vec((0_u64..6, any::<i16>(), any::<bool>(), prop::option::of("[a-c]{0,2}")), 1..40),
    ) {
        // The last one never ends.
        let code = ON_THE_MAP.iter().chain(ON_MORE).nth(script).unwrap();
        let (mut plain, mut remembering) = (engine(ScriptForm::Body, code), remembering(ScriptForm::Body, code, mode));
        let maps: Vec<_> = (0..6).map(map).collect();
        for (tag, n, is_marked, own) in steps {
            let make = if is_marked { marked } else { message };
            let mut message = make(&maps[tag as usize], n.into());
            if let Some(unit) = own {
                message.meta.set("unit", unit);
            }
            compare(ScriptForm::Body, code, &mut plain, &mut remembering, &message);
        }
    }
}
