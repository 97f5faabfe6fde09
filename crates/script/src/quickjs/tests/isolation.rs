//! A call leaves nothing behind that the next one can see.

use super::*;

/// The payloads of three calls.
fn three(code: &str) -> Vec<String> {
    let mut bench = Bench::body(code);
    let message = plain("1", &[("a", "1")]);
    (0..3)
        .map(|_| match bench.run(&message) {
            Ok(ScriptOutput::One(reply)) => applied(reply, &message).0,
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn globals_and_extended_built_ins_work_within_a_call_and_do_not_survive_it() {
    for code in [
        "globalThis.n = (globalThis.n || 0) + 1; return {payload: globalThis.n}",
        "globalThis.n ??= 0; n++; return {payload: n}",
        "Array.prototype.n = ([].n || 0) + 1; return {payload: [].n}",
        "Math.n = (Math.n || 0) + 1; return {payload: Math.n}",
        "console.n = (console.n || 0) + 1; return {payload: console.n}",
        "console.log.n = (console.log.n || 0) + 1; return {payload: console.log.n}",
        "Object.defineProperty(globalThis, 'n', {value: (globalThis.n || 0) + 1}); return {payload: n}",
        "new Function('n = (typeof n === \"number\" ? n : 0) + 1')(); return {payload: n}",
        "(0, eval)('var n = (typeof n === \"number\" ? n : 0) + 1'); return {payload: n}",
        "Object.prototype.n = (({}).n || 0) + 1; return {payload: ({}).n, meta: {}}",
        "''.__proto__.n = (''.n || 0) + 1; return {payload: ''.n}",
        "const was = parseInt; parseInt = () => 1; return {payload: parseInt('9')}",
        "const g = globalThis; g.n = (g.n || 0) + 1; return {payload: g.n}",
        "globalThis[Symbol.for('n')] = (globalThis[Symbol.for('n')] || 0) + 1; return {payload: globalThis[Symbol.for('n')]}",
    ] {
        assert_eq!(three(code), ["1", "1", "1"], "{code}");
    }
}

#[test]
fn hidden_attempts_to_change_built_ins_fail_and_leave_nothing() {
    for code in [
        "const P = Array.prototype; P.n = 1; return msg",
        "const o = {}; o['constru' + 'ctor'].n = 1; return msg",
        "const o = {}; o['__pro' + 'to__'].n = 1; return msg",
        "[].push.n = 1; return msg",
        "const f = Object.getPrototypeOf; f(f).n = 1; return msg",
        "msg.meta['toSt' + 'ring'].n = 1; return msg",
        "Reflect.getPrototypeOf(function* () {}).n = 1; return msg",
        "[][Symbol.iterator]().__proto__['n'] = 1; return msg",
        "const C = (() => {})['construc' + 'tor']; C('globalThis.n = 1; if (globalThis.n) throw 1; throw 2')()",
    ] {
        let message = plain("1", &[]);
        let mut bench = Bench::new(
            &[
                ("defaults", ScriptForm::Body, code),
                (
                    "check",
                    ScriptForm::Body,
                    "return {payload: [[].n, ({}).n, Object.n, (() => 1).n, [].push.n, typeof n].join()}",
                ),
            ],
            test_limits(),
        );
        for _ in 0..2 {
            if code.contains("__proto__") {
                let _ = bench.run(&message);
            } else {
                let result = bench.run(&message);
                assert!(
                    matches!(&result, Err(f) if f.kind == FailureKind::Exception),
                    "{code}: {result:?}"
                );
            }
            let Ok(ScriptOutput::One(reply)) = bench.engine.run(1, &message, &message.meta) else {
                panic!()
            };
            assert_eq!(applied(reply, &message).0, "\",,,,,undefined\"", "{code}");
        }
    }
}

/// Walks everything that a script can reach from the language's built-ins, and tries to leave a mark everywhere.
const MARK_EVERYTHING: &str = r#"
    const seen = new Set(), waiting = [];
    const visit = (v) => {
        if (((typeof v === 'object' && v !== null) || typeof v === 'function') && !seen.has(v)) { seen.add(v); waiting.push(v) }
    };
    for (const v of [[], {}, () => 1, function* () {}, async () => 1, async function* () {}, /x/, '', 1, true, 1n, Symbol(),
        new Map().entries(), new Set().values(), ''.matchAll(/x/g), [].values(), ''[Symbol.iterator](), console, cache, Math,
        JSON, Reflect, Object, Array, Error, Promise, Proxy, Symbol, Map, Set, WeakMap, WeakSet, WeakRef, Date, RegExp,
        Number, String, Boolean, BigInt, Function, Uint8Array, ArrayBuffer, DataView, Atomics, Iterator, parseInt,
        (function () { return arguments })(), (function* () {})(), new Error('e'), new Date(), Promise.resolve()]) {
        visit(Object(v)); visit(Object.getPrototypeOf(Object(v)));
    }
    let marks = 0, found = 0;
    const own = new Set(waiting);
    while (waiting.length) {
        const object = waiting.pop();
        if (object !== msg && Object.getOwnPropertyDescriptor(object, 'mark')) found++;
        visit(Object.getPrototypeOf(object));
        for (const key of Reflect.ownKeys(object)) {
            const d = Object.getOwnPropertyDescriptor(object, key);
            if (d) { visit(d.value); visit(d.get); visit(d.set) }
            try { visit(object[key]) } catch {}
            try { if (d && d.set && key !== '__proto__') object[key] = () => { throw new Error('left behind') } } catch {}
        }
    }
    for (const object of seen) {
        try { object.mark = 1; if (Object.getOwnPropertyDescriptor(object, 'mark')) marks++ } catch {}
        try { Object.defineProperty(object, 'mark2', {value: 1}) } catch {}
        try { delete object.prototype; delete object.constructor; delete object.call } catch {}
        try { Object.setPrototypeOf(object, null) } catch {}
    }
    return {payload: {reached: seen.size, found}};
"#;

#[test]
fn no_reachable_object_keeps_a_mark() {
    let mut bench = Bench::body(MARK_EVERYTHING);
    let message = plain("1", &[]);
    let mut results = Vec::new();
    for _ in 0..3 {
        let Ok(ScriptOutput::One(reply)) = bench.run(&message) else {
            panic!()
        };
        results.push(applied(reply, &message).0);
    }
    assert_eq!(results.first(), results.last());
    assert!(results.iter().all(|r| r.ends_with("\"found\":0}")), "{results:?}");
    let reached: usize = results[0].split(['{', ':', ',']).nth(2).unwrap().parse().unwrap();
    assert!(reached > 500, "the walk saw only {reached} objects");
}

#[test]
fn overriding_below_frozen_prototypes_works() {
    for (code, seen) in [
        (
            "const o = {}; o.toString = () => 'mine'; return {payload: String(o)}",
            "\"mine\"",
        ),
        ("const o = {}; o.constructor = 1; return {payload: o.constructor}", "1"),
        (
            "const e = new TypeError('a'); e.message = 'b'; e.name = 'N'; return {payload: String(e)}",
            "\"N: b\"",
        ),
        (
            "function F() {} F.prototype.valueOf = () => 4; return {payload: new F() + 1}",
            "5",
        ),
        (
            "const a = []; a.toString = () => 'list'; return {payload: '' + a}",
            "\"list\"",
        ),
        (
            "class L extends Array { sum() { return this.reduce((a, b) => a + b, 0) } } return {payload: L.of(1, 2).sum()}",
            "3",
        ),
        (
            "msg.meta.toString = 'text'; msg.meta.constructor = 'c'; return {payload: msg.meta.toString}",
            "\"text\"",
        ),
        ("return {payload: [3, 1, 2].sort().map((x) => x * 2).slice(1)}", "[4,6]"),
        ("return {payload: ({}).hasOwnProperty('a')}", "false"),
    ] {
        assert_eq!(payload(code, &plain("1", &[])), seen, "{code}");
    }
}

#[test]
fn conditions_leave_no_variables() {
    for code in [
        "typeof seen === 'undefined' && (seen = true)",
        "var seen = typeof seen === 'undefined' ? true : false; seen",
        "var was = typeof kept; var kept = 1; was === 'undefined'",
        "this.hidden === undefined && (this.hidden = true)",
        "function once() { return once.n === undefined && (once.n = true) } once()",
    ] {
        let mut bench = Bench::condition(code);
        for _ in 0..3 {
            assert_eq!(bench.test(&plain("1", &[])), Ok(true), "{code}");
        }
    }
}

#[test]
fn random_and_time_still_work() {
    let message = plain("1", &[]);
    assert_eq!(
        value_of(
            "Math.random() >= 0 && Date.now() > 1.6e12 && new Date().getFullYear() > 2020",
            &message
        ),
        "true"
    );
}
