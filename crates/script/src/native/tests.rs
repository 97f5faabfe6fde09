//! Native code against QuickJS: the same result for every script and message, or a bail-out.

mod functions;
mod generated;
pub(crate) mod grower;
mod limits;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_record::{Guid, MetaMap, Object, Payload, Ticks, Value, ValueQuality};

use super::*;
use crate::{
    Cache, ComputedKey, Console, ConsoleLevel, Environment, Failure, MetaReply, Program, QuickJs, Reply, Script,
    ScriptForm, ScriptLimits,
};

const COMPUTED: &[ComputedKey] = &[ComputedKey {
    name: "_keys",
    compute: |origin| origin.iter().map(|(key, _)| key).collect::<Vec<_>>().join(","),
}];

/// Records its lines.
#[derive(Default)]
pub(crate) struct Lines(pub(crate) Mutex<Vec<String>>);

impl Console for Lines {
    fn enabled(&self, _: ConsoleLevel) -> bool {
        true
    }

    fn line(&self, level: ConsoleLevel, text: &str) {
        self.0.lock().push(format!("{level:?} {text}"));
    }
}

/// A script in both engines, each with its own console and cache.
struct Both {
    quickjs: QuickJs,
    native: NativeScript,
    consoles: [Arc<Lines>; 2],
    caches: [Arc<Cache>; 2],
    form: ScriptForm,
    code: String,
}

fn limits() -> ScriptLimits {
    ScriptLimits {
        timeout: Duration::from_millis(300),
        ..ScriptLimits::default()
    }
}

fn environment(limits: ScriptLimits, console: Arc<Lines>, cache: Arc<Cache>) -> Environment {
    Environment {
        limits,
        console,
        cache,
        computed: COMPUTED,
        undefined_meta: crate::UndefinedMeta::Text,
        watch: crate::CallWatch::default(),
    }
}

impl Both {
    fn new(form: ScriptForm, code: &str) -> Result<Both, String> {
        Both::within(limits(), 4, form, code)
    }

    fn within(limits: ScriptLimits, cache_entries: usize, form: ScriptForm, code: &str) -> Result<Both, String> {
        Both::of(cache_entries, form, code, |console, cache| {
            environment(limits, console, cache)
        })
    }

    fn of(
        cache_entries: usize,
        form: ScriptForm,
        code: &str,
        environment: impl Fn(Arc<Lines>, Arc<Cache>) -> Environment,
    ) -> Result<Both, String> {
        let consoles = [Arc::new(Lines::default()), Arc::new(Lines::default())];
        let caches = [(); 2].map(|()| Arc::new(Cache::new(cache_entries)));
        let script = Script {
            stage: "defaults".to_owned(),
            form: form.clone(),
            code: code.to_owned(),
        };
        let quickjs = environment(consoles[0].clone(), caches[0].clone());
        let quickjs =
            QuickJs::new(std::slice::from_ref(&script), quickjs).map_err(|error| format!("QuickJS: {error}"))?;
        let mut native = quickjs.native(0).map_err(|outside| outside.to_string())?;
        native.environment = environment(consoles[1].clone(), caches[1].clone());
        Ok(Both {
            quickjs,
            native,
            consoles,
            caches,
            form,
            code: code.to_owned(),
        })
    }

    /// Runs a message in both. `Ok` if native code ran it, else why not.
    fn compare(&mut self, message: &Message) -> Result<(), &'static str> {
        let (native, quickjs) = match self.form {
            ScriptForm::Body | ScriptForm::Expression(_) => (
                map(self.native.run(message, &message.meta, true), |returned| {
                    effects(&returned, message)
                }),
                self.quickjs
                    .run(0, message, &message.meta)
                    .map(|returned| effects(&returned, message)),
            ),
            ScriptForm::Condition => (
                map(self.native.test(message, &message.meta, true), |truth| {
                    truth.to_string()
                }),
                self.quickjs
                    .test(0, message, &message.meta)
                    .map(|truth| truth.to_string()),
            ),
        };
        let [lines, native_lines] = self
            .consoles
            .each_ref()
            .map(|lines| std::mem::take(&mut *lines.0.lock()));
        match native {
            NativeOutcome::Done(native, _) => {
                self.compare_halves(message, &native);
                assert_eq!(Ok::<_, Failure>(native), quickjs, "{}\n{message:?}", self.code);
                assert_eq!(native_lines, lines, "{}", self.code);
                let entries = self.caches.each_ref().map(|cache| format!("{:?}", cache.sorted()));
                assert_eq!(entries[0], entries[1], "{}", self.code);
                Ok(())
            }
            NativeOutcome::Bail(why) => {
                assert!(native_lines.is_empty(), "{}", self.code);
                // Copies the cache changes that only QuickJS made.
                self.caches[1].become_like(&self.caches[0]);
                Err(why)
            }
        }
    }

    /// The halves of a script, one of which is memoized by now, give the same result as the whole.
    fn compare_halves(&mut self, message: &Message, whole: &str) {
        let half = self.native.half(message.meta.shared_map());
        let (Some(map), Payload::Value(value)) = (half.filter(|_| !message.meta.is_changed()), &message.payload) else {
            return;
        };
        let NativeOutcome::Done(payload, _) = self.native.payload(value) else {
            panic!("a half is left to QuickJS, and the whole is not: {}", self.code);
        };
        let meta = MetaReply::Over(map);
        let halves = effects(&ScriptOutput::One(Reply { payload, meta }), message);
        assert_eq!(halves, whole, "{}\n{message:?}", self.code);
    }
}

fn effects(returned: &ScriptOutput, message: &Message) -> String {
    let effects = returned.effects(message);
    let shown = effects
        .iter()
        .map(|(payload, meta)| format!("{payload} {:?}", meta.iter().collect::<Vec<_>>()));
    shown.collect::<Vec<_>>().join("\n")
}

fn map<R>(outcome: NativeOutcome<R>, f: impl FnOnce(R) -> String) -> NativeOutcome<String> {
    match outcome {
        NativeOutcome::Done(result, depends) => NativeOutcome::Done(f(result), depends),
        NativeOutcome::Bail(why) => NativeOutcome::Bail(why),
    }
}

fn message(payload: Value) -> Message {
    let entries = [
        ("opcua_tag_name", "Temperature"),
        ("opcua_tag_group", "Plant.Line1.Oven"),
        ("opcua_attr_nodeid", "ns=3;s=Plant.Line1.Oven.Temperature"),
        ("unit", "°C"),
        ("level", "7"),
    ];
    let map = MetaMap::new(entries.map(|(name, text)| (name.into(), text.into())), Some(1));
    let stamps = ValueQuality {
        source_time: Ticks(12_345_678_901_234),
        server_time: Ticks(12_345_678_901_235),
        status: 0,
    };
    Message::new(Payload::Value(payload), Metadata::stamped(Arc::new(map), stamps))
}

fn object(members: Vec<(&str, Value)>) -> Value {
    let members = members.into_iter().map(|(name, value)| (name.into(), value));
    members.collect::<Object>().into()
}

/// One of each kind.
pub(crate) fn messages() -> Vec<Message> {
    let nested = object(vec![
        ("value", Value::I32(5)),
        ("unit", Value::text("bar")),
        ("10", Value::Bool(true)),
        ("2", Value::Null),
        (
            "list",
            Value::Array(vec![Value::I64(3), Value::text("b"), Value::F64(0.5)].into()),
        ),
        (
            "inner",
            object(vec![("a", Value::U64(u64::MAX)), ("toString", Value::I64(1))]),
        ),
    ]);
    let mut messages: Vec<Message> = [
        Value::I64(42),
        Value::I64(i64::MAX),
        Value::I32(-7),
        Value::U64(u64::MAX),
        Value::F64(21.75),
        Value::F64(-0.0),
        Value::F64(f64::NAN),
        Value::F32(0.1),
        Value::Decimal("1.50".into()),
        Value::Bool(true),
        Value::Null,
        Value::text("12.5"),
        Value::text("Grüße, 10 €"),
        Value::text("a😀b"),
        Value::text("x".repeat(200)),
        Value::Time(Ticks(16_000_000_000_000_000)),
        Value::Bytes(vec![1, 2, 3].into()),
        Value::Guid(Guid {
            data1: 1,
            data2: 2,
            data3: 3,
            data4: [4; 8],
        }),
        Value::Status(0x8000_0000),
        nested,
        Value::Array(vec![Value::I64(1), Value::Array(vec![Value::text("x")].into()), Value::Null].into()),
    ]
    .map(message)
    .into();
    for text in [r#"{"value": 1.50, "timestamp_ms": 5}"#, "plain text", "7", ""] {
        let mut raw = message(Value::Null);
        raw.payload = Payload::Raw(text.as_bytes().to_vec().into());
        messages.push(raw);
    }
    messages.push(Message::new(
        Payload::Sample {
            value: Value::F64(1.25),
            time_ms: 1_700_000_000_000,
        },
        Metadata::default(),
    ));
    let mut changed = message(Value::I64(1));
    changed.meta.set("own", "text that is longer than what lies inline");
    changed.meta.set("unit", "");
    messages.push(changed);
    messages
}

/// Runs a script natively. Returns for how many of the messages that worked, and why it bailed out of the others.
#[track_caller]
fn natively(form: ScriptForm, code: &str) -> (usize, Vec<&'static str>) {
    natively_within(limits(), form, code)
}

fn natively_within(limits: ScriptLimits, form: ScriptForm, code: &str) -> (usize, Vec<&'static str>) {
    let both = Both::within(limits, 4, form, code);
    let mut both = both.unwrap_or_else(|why| panic!("{code}\nis outside: {why}"));
    let mut done = 0;
    let mut reasons = Vec::new();
    for message in messages() {
        // The second time the message belongs to a known tag.
        let first = both.compare(&message);
        match both.compare(&message) {
            Ok(()) => done += 1,
            Err(why) => reasons.push(why),
        }
        assert!(first.is_ok() || both.native.bails > 0, "{code}");
    }
    (done, reasons)
}

/// Typical scripts, all of which run natively for every message.
const WHOLLY: &[&str] = &[
    "return msg",
    "return null",
    "return",
    "",
    "return []",
    "return [msg, null, msg]",
    "msg.meta.location_path = 'enterprise.site.area'; msg.meta.data_contract = '_raw';
     msg.meta.tag_name = msg.meta.opcua_tag_name; return msg;",
    "msg.meta.location_path = `enterprise.${msg.meta.opcua_tag_group.toLowerCase()}`; return msg",
    "msg.payload = 1; return msg",
    "msg.payload = {value: 1, list: [1, 2, {a: null}], text: 'x', none: undefined}; return msg",
    "const parts = msg.meta.opcua_attr_nodeid ? msg.meta.opcua_attr_nodeid.split(';s=')[1].split('.') : [];
     msg.meta.tag_name = parts[parts.length - 1]; msg.meta.depth = parts.length; return msg",
    "delete msg.meta.unit; msg.meta.level = ''; return msg",
    "return {payload: 5, meta: {a: 1, b: [1, 'x'], c: {k: true, j: null}, d: 1e21, e: ''}}",
    "return {payload: 5}",
    // The status of one of the messages, which has another text if a script set it.
    "return {payload: 2147483648}",
    "msg.payload = msg.payload; return msg",
    "const {payload} = msg; return {payload, meta: msg.meta}",
    "return {meta: msg.meta}",
    "return {payload: null, meta: {...msg.meta, extra: 'yes'}}",
    "msg.meta = {a: 1}; return msg",
    "msg.meta = 'x'; return msg",
    "msg.extra = 5; return msg",
    "if (msg.meta.unit === '°C') { msg.meta.unit = 'Cel' } else if (!msg.meta.unit) { return null } return msg",
    "for (const key of Object.keys(msg.meta)) { if (/^opcua_attr_/.test(key)) { delete msg.meta[key] } } return msg",
    "for (const key in msg.meta) { if (key.startsWith('opcua_')) delete msg.meta[key] } return msg",
    "let n = 0; for (let i = 0; i < 10; i++) { if (i % 2) continue; if (i > 6) break; n += i } msg.meta.n = n; return msg",
    "let i = 0; while (true) { if (++i >= 5) break } do { i-- } while (i > 2); msg.meta.i = i; return msg",
    "switch (msg.meta.unit) { case '°C': msg.meta.u = 1; break; case 'K': msg.meta.u = 2; default: msg.meta.v = 3 } return msg",
    "switch (1) { default: msg.meta.a = 1; case 2: msg.meta.b = 2; break; case 3: msg.meta.c = 3 } return msg",
    "const clean = (text) => text.replace(/[^A-Za-z0-9_.-]/g, '_'); msg.meta.tag_name = clean('Größe 1/2'); return msg",
    "function depth(text) { return text.split('.').length } msg.meta.d = depth('a.b.c'); return msg",
    "function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) } msg.meta.f = fib(12); return msg",
    "const {unit, level: l = '1', missing = 'none'} = msg.meta; msg.meta.all = `${unit}|${l}|${missing}`; return msg",
    "const [a, , b = 'z', ...rest] = 'a.b'.split('.'); msg.meta.x = `${a}${b}${rest.length}`; return msg",
    "msg.meta.x = ['c', 'a', 'b'].map(s => s.toUpperCase()).filter((s, i) => i !== 1).sort().join('-'); return msg",
    "msg.meta.x = [1, 2, 3].reduce((sum, n) => sum + n, 0); msg.meta.y = [1, 2].some(n => n > 1); return msg",
    "msg.meta.x = Object.entries({a: 1, b: 2}).map(([k, v]) => `${k}=${v}`).join('&'); return msg",
    "msg.meta.x = JSON.stringify({a: [1, 'ä\\n', null, undefined], b: {c: 1.5}, d: undefined}); return msg",
    "msg.meta.x = JSON.stringify([1, {a: 2}], null, 2); return msg",
    "msg.meta.x = JSON.parse('{\"a\": [1, 2.50, \"x\"]}').a.length; return msg",
    "msg.meta.x = parseInt('12px') + parseFloat('1.5e3x') + Number(' 0x1F ') + Number(''); return msg",
    "msg.meta.x = (1.005).toFixed(2) + (2.5).toFixed(0) + (-1.5).toFixed(0) + (1e20).toFixed(1); return msg",
    "msg.meta.x = [0.1 + 0.2, 1e21, 1e-7, 123456789012345680000, -0, 5e-324, 100].join(); return msg",
    "msg.meta.x = 'Line 1'.padStart(8, 'ab') + 'x'.padEnd(3) + 'abc'.slice(-2) + 'abc'.substring(2, 0); return msg",
    "msg.meta.x = 'a-b-c'.split('-', 2).length + 'a,b;c'.split(/[,;]/).join('') + 'abc'.split('').join(' '); return msg",
    "msg.meta.x = 'John Smith'.replace(/(\\w+)\\s(\\w+)/, '$2, $1 $& $$ $3'); return msg",
    "msg.meta.x = 'camelCaseName'.replace(/[A-Z]/g, c => '_' + c.toLowerCase()); return msg",
    "msg.meta.x = ('2026-11-25'.match(/(\\d+)-(\\d+)/) || [])[2]; msg.meta.y = 'aXbX'.match(/X/g).length; return msg",
    "msg.meta.x = new Date(0).toISOString(); msg.meta.y = new Date('2026-11-25T08:00:00.5Z').getTime(); return msg",
    "msg.meta.x = [typeof 1, typeof 'a', typeof null, typeof undefined, typeof {}, typeof true].join(); return msg",
    "msg.meta.x = [1 == '1', null == undefined, null == 0, NaN == NaN, '' == 0, [] == '', [1] == 1, 'a' < 'b'].join(); return msg",
    "msg.meta.x = [5 & 3, 5 | 3, 5 ^ 3, ~5, 1 << 31, -1 >>> 28, -8 >> 1, 2 ** 10, 7 % -3, -7 % 3].join(); return msg",
    "msg.meta.x = [Math.round(-0.5), Math.round(2.5), Math.max(), Math.min(1, 'x'), Math.sign(-3), Math.trunc(-1.7)].join(); return msg",
    "msg.meta.x = msg.missing?.deep.er ?? 'none'; msg.meta.y = msg.meta.unit?.length; return msg",
    "let a = null; a ??= 5; a ||= 6; a &&= 7; a **= 2; msg.meta.a = a; return msg",
    "var x = 1; { var x = 2; let y = x } msg.meta.x = x; return msg",
    "msg.meta.x = 'unit' in msg.meta; msg.meta.y = msg.meta.hasOwnProperty('nothing'); return msg",
    "msg.meta.x = Object.assign({}, {a: 1}, null, {b: 2}).b; msg.meta.y = Array.isArray([]); return msg",
    "msg.meta.x = ['a', 'b'].includes('b') && 'abc'.includes('bc') && ['x'].indexOf('y') === -1; return msg",
    "msg.meta.x = [3, 10, 1, 'b', undefined, 'a'].sort().join(); return msg",
    "const words = []; words.push('a', 'b'); words.unshift('z'); words.pop(); msg.meta.x = words.concat([1], 2).reverse().join(); return msg",
    "const o = {b: 1, 10: 2, a: 3, 2: 4}; msg.meta.x = Object.keys(o).join(); delete o.b; o.b = 1; msg.meta.y = JSON.stringify(o); return msg",
    "console.log('x', 1, -0, 1e21, {a: [1, 'q\\'s'], 'b c': null}, [], {}, undefined, true); console.warn('w'); return msg",
    "cache.set('n', {a: 1}); const v = cache.get('n'); msg.meta.x = v.a + (cache.exists('m') ? 1 : 0); return msg",
    "if (!cache.exists('count')) cache.set('count', 0); cache.set('count', cache.get('count') + 1); msg.meta.n = cache.get('count'); return msg",
    "cache.set('a', 1); cache.delete('a'); msg.meta.x = cache.exists('a'); return msg",
    "try { msg.meta.x = 1 } catch (error) { return null } finally { msg.meta.y = 2 } return msg",
    "let out = ''; for (const [i, c] of Object.entries('abc'.split(''))) out += i + c; msg.meta.x = out; return msg",
    "for (const c of 'äb') msg.meta['c_' + c] = 1; return msg",
    "msg.meta.x = String(null) + String([1, [2, 3]]) + `${{}}` + [] + [null]; return msg",
    "msg.meta.x = isNaN('x') && isFinite('5') && Number.isInteger(5.0) && !Number.isNaN('x'); return msg",
    "msg.meta._keys = 'mine'; return msg",
    "msg.meta.k = msg.meta._keys; return msg",
    "msg.meta.x = 'a' + 1 + 2 + true + null + undefined + [1]; msg.meta.y = 1 + 2 + 'a'; return msg",
    "msg.meta.x = Number.MAX_SAFE_INTEGER + Math.PI; msg.meta.y = 0.1 * 3; return msg",
];

#[test]
fn what_people_write_is_run_natively_and_as_quickjs_does_it() {
    for code in WHOLLY {
        // Messages without the metadata of a tag make some of them throw.
        let (done, reasons) = natively(ScriptForm::Body, code);
        assert!(done + 1 >= messages().len(), "{code}\n{done} {reasons:?}");
    }
}

#[test]
fn what_depends_on_the_payload_is_run_natively_where_it_can_be() {
    for (code, least) in [
        ("msg.payload = msg.payload * 0.1 + 32; return msg", 22),
        ("msg.meta.x = msg.payload; return msg", 20),
        ("msg.payload = msg.payload; return msg", 26),
        ("return {payload: msg.payload, meta: msg.meta}", 26),
        ("if (msg.payload > 10) { msg.meta.high = 'yes' } return msg", 20),
        (
            "msg.payload = Math.round(Number(msg.payload) * 100) / 100; return msg",
            20,
        ),
        ("msg.payload = String(msg.payload).trim(); return msg", 20),
        (
            "if (typeof msg.payload === 'object' && msg.payload !== null && msg.payload.value !== undefined) { msg.payload = msg.payload.value } return msg",
            20,
        ),
        ("msg.meta.x = JSON.stringify(msg.payload); return msg", 22),
        (
            "return [{payload: msg.payload, meta: {...msg.meta, part: 'a'}}, {payload: 1, meta: msg.meta}]",
            24,
        ),
    ] {
        let (done, reasons) = natively(ScriptForm::Body, code);
        assert!(done >= least, "{code}\n{done} {reasons:?}");
    }
}

#[test]
fn conditions_are_run_natively() {
    for code in [
        "true",
        "msg.meta.unit === '°C'",
        "msg.meta.opcua_tag_name && msg.meta.opcua_tag_name.endsWith('ature')",
        "/^Temp/.test(msg.meta.opcua_tag_name)",
        "['K', '°C'].includes(msg.meta.unit)",
        "msg.meta.nothing",
    ] {
        let (done, reasons) = natively(ScriptForm::Condition, code);
        assert!(done + 1 >= messages().len(), "{code}\n{done} {reasons:?}");
    }
    let (done, _) = natively(ScriptForm::Condition, "msg.payload > 10 && msg.payload < 100");
    assert!(done >= 20, "{done}");
}

#[test]
fn what_throws_or_is_uncertain_is_left_to_quickjs() {
    for code in [
        "throw new Error('no')",
        "null.x; return msg",
        "msg.meta.x = msg.nothing.deep; return msg",
        "let a = b; let b = 1; return msg",
        "f(); const f = () => 1; return msg",
        "while (true) {}",
        "function f() { return f() } f()",
        "msg.meta.x = 'a😀'.slice(0, 2); return msg",
        "msg.meta.x = msg.meta.toString(); return msg",
        "msg.meta.x = msg.meta['toString']; return msg",
        "msg.meta.x = [1, 2].map; return msg",
        "let s = 'x'; for (let i = 0; i < 40; i++) s += s; return msg",
        "return 7",
        "return [1]",
        "const a = []; a[5] = 1; return msg",
        "msg.meta.x = JSON.parse('{'); return msg",
        "cache.get('missing'); return msg",
        "cache.set('', 1); return msg",
        "for (let i = 0; i < 10; i++) cache.set('k' + i, i); return msg",
        "'abc'.x = 1; return msg",
    ] {
        // What QuickJS makes of it does not matter.
        let limits = ScriptLimits {
            timeout: Duration::from_millis(10),
            ..limits()
        };
        let (done, _) = natively_within(limits, ScriptForm::Body, code);
        assert_eq!(done, 0, "{code}");
    }
}

#[test]
fn what_is_outside_is_named_with_its_place() {
    for (code, construct) in [
        ("return msg;\nclass A {}", "a class (line 2, column 1)"),
        (
            "msg.meta.x = Math.random(); return msg",
            "Math.random() (line 1, column 14)",
        ),
        (
            "const f = x => x;\nmsg.meta.f = f; return msg",
            "a function as a value (line 2, column 14)",
        ),
        (
            "msg.meta.x = /(a)*/.test('a'); return msg",
            "a repeated group in a regular expression (line 1, column 14)",
        ),
        (
            "msg.meta.x = /a(?=b)/.test('a'); return msg",
            "a look-around in a regular expression (line 1, column 14)",
        ),
        ("const s = new Set(); return msg", "new Set (line 1, column 11)"),
        ("msg.meta.x = this; return msg", "this (line 1, column 14)"),
        (
            "outer: for (;;) { break outer } return msg",
            "a label (line 1, column 1)",
        ),
        (
            "msg.meta.x = [1, 2].copyWithin(0); return msg",
            ".copyWithin() (line 1, column 21)",
        ),
        (
            "const {unit, ...rest} = msg.meta; return msg",
            "the rest of an object (line 1, column 14)",
        ),
        (
            "let a = 1, b = 2; [a, b] = [b, a]; return msg",
            "destructuring without a declaration (line 1, column 19)",
        ),
        (
            "var {unit} = msg.meta; return msg",
            "destructuring by var (line 1, column 5)",
        ),
        ("let msg = 1; return null", "a variable named msg (line 1, column 1)"),
        (
            "globalThis.x = 1; return msg",
            "globals or built-in objects are changed (line 1, column 1)",
        ),
        ("msg.meta.x = 5n; return msg", "a BigInt (line 1, column 14)"),
    ] {
        let outside = Both::new(ScriptForm::Body, code).map(drop).unwrap_err();
        assert_eq!(outside, construct, "{code}");
    }
}

#[test]
fn what_a_result_depends_on_is_seen_in_the_text() {
    for (code, because) in [
        ("msg.meta.tag_name = msg.meta.opcua_tag_name; return msg", None),
        ("if (msg.meta.unit) { return null } return msg", None),
        (
            "msg.payload = 5; return msg",
            Some("sets msg.payload (line 1, column 1)"),
        ),
        (
            "let x = 1;\nmsg.meta.x = msg.payload; return msg",
            Some("reads msg.payload (line 2, column 14)"),
        ),
        (
            "msg.meta.x = Object.keys(msg.meta).join(); return msg",
            Some("uses msg.meta as a whole (line 1, column 26)"),
        ),
        (
            "console.log(1); return msg",
            Some("writes to the console (line 1, column 1)"),
        ),
        (
            "msg.meta.x = Date.now(); return msg",
            Some("reads the clock (line 1, column 14)"),
        ),
        ("return [msg]", Some("uses msg as a whole (line 1, column 9)")),
        (
            "msg.meta.x = msg.meta.opcua_source_timestamp; return msg",
            Some("reads msg.meta.opcua_source_timestamp (line 1, column 14)"),
        ),
    ] {
        let both = Both::new(ScriptForm::Body, code).unwrap();
        assert_eq!(
            both.native.varies().map(ToString::to_string).as_deref(),
            because,
            "{code}"
        );
    }
}

#[test]
fn texts_that_messages_have_in_common_are_shared() {
    let mut both = Both::new(
        ScriptForm::Body,
        "msg.meta.path = 'enterprise.' + msg.meta.opcua_tag_group + '.further'; return msg",
    )
    .unwrap();
    let path = |both: &mut Both| {
        let message = message(Value::I64(1));
        match both.native.run(&message, &message.meta, true) {
            NativeOutcome::Done(ScriptOutput::One(reply), _) => match reply.meta {
                crate::MetaReply::Changes(changes) => changes[0].1.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (path(&mut both), path(&mut both));
    assert_eq!(first.as_ptr(), second.as_ptr(), "{first}");
}

#[test]
fn a_script_whose_calls_end_at_quickjs_is_not_begun_here_any_more() {
    let mut both = Both::new(ScriptForm::Body, "return 7").unwrap();
    for _ in 0..TRIES {
        assert!(!both.native.is_futile());
        both.compare(&message(Value::I64(1))).unwrap_err();
    }
    assert!(both.native.is_futile());
}

/// Where engines differ from each other, or from what one would expect.
#[test]
fn corners_of_the_language_are_those_of_quickjs() {
    for code in [
        "msg.payload = 5; return msg",
        "msg.payload = null; return msg",
        "msg.payload = {value: msg.payload}; return msg",
        "msg.payload = [msg.payload, msg.payload]; return msg",
        "if (msg.payload && msg.payload.inner) { msg.payload = msg.payload.inner } return msg",
        "msg.payload = Number('0xFFFFFFFFFFFFFFFF'); return msg",
        "msg.meta.x = '-12'.match(/^([A-Z]*)?-(\\d+)$/)[1]; return msg",
        "msg.meta.x = 'a'.replace(/(|a)?/, 'X'); return msg",
        "msg.payload = {...'abc'.match(/b/)}; return msg",
        "msg.meta.x = Object.keys('abc'.match(/b/)).join(); return msg",
        "delete msg.meta.unit; msg.meta.z = 1; msg.meta.unit = 'K'; msg.meta.k = Object.keys(msg.meta).join(); return msg",
        "msg.meta.a = 1; msg.meta.b = 2; delete msg.meta.a; msg.meta.a = 3; msg.meta.k = Object.keys(msg.meta).join(); return msg",
        "if (msg.payload && msg.payload.length) { cache.set('d', [1, 2]); msg.payload = cache.get('d') } return msg",
        "cache.set('d', [-0]); msg.payload = cache.get('d'); return msg",
        "const x = [1]; for (const x of x) { msg.meta.k = 1 } return msg",
        "const a = [1, 2]; msg.meta.x = `${a} ${a.reverse()}`; return msg",
        "msg.meta.x = [1, 2, 1].lastIndexOf(1, undefined); return msg",
        "const l = [undefined]; const [a = l.push(9), b] = l; msg.meta.x = b; return msg",
        "const [a, ...rest] = [1]; msg.meta.x = rest.length; const [c, d, ...e] = 'äb'; msg.meta.y = c + d + e.length; return msg",
        "msg.meta.x = JSON.stringify({b: 1, 10: 2, 2: 3}); return msg",
        "msg.meta.x = JSON.stringify(JSON.parse('{\"b\": 1, \"10\": 2, \"b\": 3}')); return msg",
        "msg.meta.x = 'äöü'.includes('ü', 2) + 'äöü'.indexOf('ü', 9) + 'äöü'.endsWith('ä', 1) + 'äöü'.slice(-2, 9); return msg",
        "msg.meta.x = 'a,b,'.split(',').length + ''.split(',').length + 'ab'.split('').length; return msg",
        "msg.meta.x = 'abc'.split(/(b)/).join('|') + 'abc'.split(/(?:)/).join('|') + ''.split(/x/).length; return msg",
        "let t = 0; for (let i = 0; i < 3; i++) { const f = n => n + i; t += f(1) } msg.meta.t = t; return msg",
        "for (var i = 0; i < 2; i++) { let x; msg.meta['x' + i] = x === undefined; x = 1 } return msg",
        "msg.meta.x = [1, 2, 3].map(String).concat([4].map(Number)).join(); return msg",
        "msg.meta.x = typeof msg.payload; msg.meta.y = msg.payload === null; return msg",
        "msg.meta.n = 1e21 + ' ' + 1e-7 + ' ' + 123456789.125 + ' ' + 0.000001 + ' ' + -1e-9; return msg",
        "msg.meta.d = new Date(8.64e15).getTime() + ' ' + new Date(NaN).getTime() + ' ' + new Date(1.9).getTime(); return msg",
        "cache.set('h', {v: 1, prev: cache.exists('h') ? cache.get('h') : null}); return msg",
    ] {
        let mut both = match Both::new(ScriptForm::Body, code) {
            Ok(both) => both,
            Err(why) => {
                assert!(why.contains("in a regular expression"), "{code}: {why}");
                continue;
            }
        };
        for message in messages() {
            for _ in 0..2 {
                let _left = both.compare(&message);
            }
        }
    }
    for code in [
        "JSON.stringify(...[{a: 1, b: 2}, ['a']]); return msg",
        "msg.meta.x = 'undefined'.replace(x => 1, y => 'Z'); return msg",
    ] {
        assert!(Both::new(ScriptForm::Body, code).is_err(), "{code}");
    }
}

#[test]
fn scripts_of_two_halves_run_the_first_one_once_for_a_tag() {
    for (code, is_split) in [
        (
            "msg.meta.a = msg.meta.unit; msg.payload = msg.payload * 0.1 + 32; return msg",
            true,
        ),
        (
            "msg.payload = Math.round(msg.payload); const x = msg.meta.level; msg.meta.b = x + 1; msg.payload += 1; return msg",
            true,
        ),
        (
            "if (msg.meta.unit) { msg.meta.a = 1 } else { msg.meta.a = 2 } msg.payload = String(msg.payload); return msg",
            true,
        ),
        (
            "msg.meta.all = Object.keys(msg.meta).length; msg.payload = 5; return msg",
            true,
        ),
        (
            "msg.meta.at = msg.meta.opcua_source_timestamp; msg.payload = msg.payload + 1; return msg",
            true,
        ),
        ("msg.payload = msg.payload + 1; return msg", true),
        ("msg.meta.a = msg.payload; msg.payload = 1; return msg", false),
        (
            "const k = 0.1; msg.payload = msg.payload * k; msg.meta.a = 1; return msg",
            false,
        ),
        (
            "if (msg.meta.unit) { return null } msg.payload = 1; msg.meta.a = 1; return msg",
            false,
        ),
        ("msg.meta = {a: 1}; msg.payload = 1; return msg", false),
        ("msg.payload.x = 1; msg.meta.a = 1; return msg", false),
        ("console.log(1); msg.payload = 1; return msg", false),
        ("msg.meta.a = Date.now() > 0; msg.payload = 1; return msg", false),
        (
            "function f() { return msg.payload } msg.meta.a = f(); msg.payload = 1; return msg",
            false,
        ),
        ("msg.payload = 1; msg.meta.a = 1; return {...msg}", false),
    ] {
        let mut both = Both::new(ScriptForm::Body, code).unwrap_or_else(|why| panic!("{code}: {why}"));
        assert_eq!(both.native.code.split.is_some(), is_split, "{code}");
        for message in messages() {
            // The same tag with other values.
            for other in messages() {
                let message = Message::new(other.payload, message.meta.clone());
                let _left = both.compare(&message);
            }
        }
    }
}

#[test]
fn what_is_arithmetic_is_done_to_numbers_without_a_call() {
    for (code, is_arithmetic) in [
        ("msg.payload = msg.payload * 0.1 + 32; return msg", true),
        ("msg.payload *= 2; msg.payload = -msg.payload; return msg", true),
        ("msg.payload = Math.round(msg.payload * 10) / 10; return msg", true),
        ("msg.payload = 5; return msg", true),
        ("msg.payload = msg.payload + '1'; return msg", false),
        ("msg.payload = msg.payload > 1; return msg", false),
        ("msg.payload = Math.max(msg.payload, 1); return msg", false),
        ("msg.payload = msg.payload.value * 2; return msg", false),
    ] {
        let mut both = Both::new(ScriptForm::Body, code).unwrap_or_else(|why| panic!("{code}: {why}"));
        let split = both.native.code.split.as_ref().unwrap();
        assert_eq!(split.arithmetic.is_some(), is_arithmetic, "{code}");
        for message in messages() {
            let _left = both.compare(&message);
        }
    }
}

/// Metadata that is left undefined is absent in both engines where a processor wants it so, and never taken for null.
#[test]
fn undefined_metadata_is_absent_where_that_is_asked_for() {
    let absent = |console, cache| Environment {
        undefined_meta: crate::UndefinedMeta::Absent,
        ..environment(limits(), console, cache)
    };
    for (code, expected) in [
        ("msg.meta.unit = undefined; return msg", None),
        ("msg.meta.unit = msg.meta.nothing; return msg", None),
        ("return {payload: 1, meta: {unit: undefined}}", None),
        (
            "msg.meta.unit = msg.payload === 42 ? undefined : null; return msg",
            None,
        ),
        ("msg.meta.unit = null; return msg", Some("<nil>")),
        ("msg.meta.unit = [undefined]; return msg", Some("[<nil>]")),
    ] {
        let mut both = Both::of(4, ScriptForm::Body, code, absent).unwrap();
        let first = message(Value::I64(42));
        for message in [&first, &first].into_iter().chain(&messages()).chain([&first]) {
            // Texts with unpaired surrogates and the like are left to QuickJS.
            let _done = both.compare(message);
        }
        let NativeOutcome::Done(returned, _) = both.native.run(&first, &first.meta, true) else {
            panic!("{code} is left to QuickJS");
        };
        let (_, meta) = returned.effects(&first).remove(0);
        assert_eq!(meta.get("unit").as_deref(), expected, "{code}");
    }
}
