//! Each limit fails one message, and the next one works.

use super::*;

/// Runs `code` on a message with payload "bad", then on an ordinary one, and returns the first failure.
fn fails_once(code: &str, limits: ScriptLimits) -> Failure {
    let code = format!("if (msg.payload === 'bad') {{ {code} }} return msg");
    let mut bench = Bench::new(&[("defaults", ScriptForm::Body, &code)], limits);
    let failure = bench.run(&plain("bad", &[])).unwrap_err();
    for _ in 0..2 {
        assert!(
            matches!(bench.run(&plain("1", &[])), Ok(ScriptOutput::One(_))),
            "{code}"
        );
    }
    failure
}

#[test]
fn endless_scripts_are_stopped() {
    for code in [
        "while (true) {}",
        "for (;;) { try { for (;;) {} } catch {} finally { for (;;) {} } }",
        "const f = () => { try { f() } catch { } f() }; while (true) f()",
        "/^(a+)+$/.test('a'.repeat(40) + 'b')",
        "(function again() { Promise.resolve().then(again) })(); return msg",
        "(async () => { for (;;) await null })()",
        "return {get payload() { for (;;) {} }}",
        "return {payload: 1, meta: {get a() { for (;;) {} }}}",
        "throw {toString() { for (;;) {} }, get x() { for (;;) {} }}",
        "const e = new Error('x'); e.toString = () => { for (;;) {} }; throw e",
        "[1, 2, 3].sort(() => { for (;;) {} })",
        "console.log({get a() { for (;;) {} }})",
        "let o = {}; for (let i = 0; ; i++) o = {o, i: i % 7, s: `${i % 100}`}, i % 1000 || (o = {})",
        "const g = (function* () { try { for (;;) yield 1 } finally { for (;;) {} } })(); for (const x of g) {}",
        "new Proxy({}, {get() { for (;;) {} }}).x",
    ] {
        let failure = fails_once(code, test_limits());
        assert_eq!(failure.kind, FailureKind::Timeout, "{code}: {failure:?}");
        assert_eq!(
            failure.text, "the script ran longer than 300ms and was stopped",
            "{code}"
        );
    }
}

/// Uninterruptible operations are refused before they begin; ordinary arrays are not affected.
#[test]
fn built_in_functions_do_not_walk_over_lengths_that_nobody_has() {
    for code in [
        "Array.prototype.indexOf.call({length: 2 ** 52}, 1)",
        "Array.prototype.forEach.call({length: 2 ** 52}, () => {})",
        "new Array(2 ** 32 - 1).includes(1)",
        "const a = []; a.length = 2 ** 32 - 1; a.reverse()",
        "[].concat(new Array(2 ** 32 - 1))",
        "String(new Array(2 ** 32 - 1))",
        "Array.prototype.splice.call({length: 2 ** 50}, 0, 2 ** 49)",
    ] {
        let failure = fails_once(code, test_limits());
        assert!(
            failure.text.contains("an array of more than 16777216 elements"),
            "{code}: {failure:?}"
        );
    }
    let fine = "const a = ['b', 'a', ['c']]; msg.payload = [a.flat().sort().join('.'), a.indexOf('a'), [1].concat(2, [3]), \
                a.slice.length, a.slice.name, [3, 1].toSorted(), Array.prototype.map.call('ab', (c) => c + c)]; return msg";
    assert_eq!(
        payload(fine, &plain("1", &[])),
        "[\"a.b.c\",1,[1,2,3],2,\"slice\",[1,3],[\"aa\",\"bb\"]]"
    );
}

#[test]
fn memory_is_bounded_even_if_the_script_catches_the_error() {
    let limits = ScriptLimits {
        memory: 8 << 20,
        timeout: Duration::from_secs(20),
        ..ScriptLimits::default()
    };
    for code in [
        "const a = []; for (;;) a.push({n: a.length})",
        "let s = 'x'; for (;;) s = (s + s).replace('y', 'z')",
        "const a = []; try { for (;;) a.push(new Array(1000).fill(a.length)) } catch {} return msg",
        "new Array(1e7).fill(0)",
        "new Uint8Array(1e9)",
        "const m = new Map(); for (let i = 0; ; i++) m.set(i, 'x' + i)",
        "msg.payload = 'x'.repeat(1e6).split('').map((c) => ({c})); return msg",
    ] {
        let failure = fails_once(code, limits);
        assert_eq!(failure.kind, FailureKind::Limit, "{code}: {failure:?}");
        assert!(
            failure.text.starts_with("the script needed more than 8388608 bytes"),
            "{}",
            failure.text
        );
    }
}

#[test]
fn deep_recursion_is_stopped() {
    for code in [
        "(function f() { f() })()",
        "const o = {toString() { return `${o}` }}; `${o}`",
        "JSON.parse('['.repeat(1e5) + ']'.repeat(1e5)) && (() => { throw new RangeError('Maximum call stack size exceeded') })()",
    ] {
        let failure = fails_once(code, test_limits());
        assert_eq!(failure.kind, FailureKind::Limit, "{code}: {failure:?}");
        assert!(failure.text.contains("scripting.stack"), "{}", failure.text);
    }
    // If the script catches the error, nothing else happens.
    let caught = "let n = 0; try { (function f() { n++; f() })() } catch (e) { msg.payload = n > 100 } return msg";
    assert_eq!(payload(caught, &plain("1", &[])), "true");
}

#[test]
fn results_and_what_the_cache_holds_are_bounded() {
    let limits = ScriptLimits {
        results: 10,
        ..test_limits()
    };
    let failure = fails_once("return new Array(11).fill(msg)", limits);
    assert_eq!(failure.kind, FailureKind::Limit);
    assert_eq!(
        failure.text,
        "code returned 11 messages, more than 10; raise scripting.results if that is meant"
    );
    let failure = fails_once(
        "try { for (let i = 0; i < 200; i++) cache.set('k' + i, i) } catch {} return msg",
        limits,
    );
    assert_eq!(failure.kind, FailureKind::Limit);
    assert_eq!(
        failure.text,
        "cache.set: the cache holds 100 entries, which is its limit; delete keys, or raise scripting.cache_entries"
    );
    let failure = fails_once(
        "const s = 'x'.repeat(1e6); try { for (let i = 0; i < 90; i++) cache.set('k' + i, s) } catch {} return msg",
        limits,
    );
    assert_eq!(failure.kind, FailureKind::Limit);
    assert_eq!(
        failure.text,
        "cache.set: the cache would hold 68001282 bytes, more than 67108864; delete keys, keep less, or raise \
         scripting.memory"
    );
}

#[test]
fn small_values_that_describe_huge_ones_are_refused() {
    let limits = ScriptLimits {
        timeout: Duration::from_secs(20),
        ..ScriptLimits::default()
    };
    for code in [
        "msg.payload = []; msg.payload.length = 4e9; return msg",
        "let a = ['x']; for (let i = 0; i < 30; i++) a = [a, a]; msg.payload = a; return msg",
        "const s = 'x'.repeat(1e6); msg.payload = new Array(1000).fill(s); return msg",
        "const s = 'x'.repeat(1e6); msg.meta.x = new Array(1000).fill(s); return msg",
        "const s = 'x'.repeat(1e6); return new Array(1000).fill({payload: s})",
        "msg.meta.x = []; msg.meta.x.length = 4e9; return msg",
    ] {
        let failure = fails_once(code, limits);
        assert_eq!(failure.kind, FailureKind::Limit, "{code}: {failure:?}");
        assert!(
            failure.text.contains("larger than scripting.memory"),
            "{code}: {}",
            failure.text
        );
    }
}

#[test]
fn large_texts_pass() {
    for text in ["x".repeat(10 << 20), "ü".repeat(5 << 20), "日本".repeat(2 << 20)] {
        let message = plain(&text, &[]);
        assert!(payload("return msg", &message).starts_with("same "));
        assert_eq!(payload("msg.payload; return msg", &message), format!("same {text}"));
        assert_eq!(
            payload("msg.payload = msg.payload + '!'; return msg", &message),
            format!("\"{text}!\"")
        );
        assert_eq!(value_of("msg.payload.length > 1e6", &message), "true");
    }
}

#[test]
fn a_hundred_thousand_messages_leave_no_memory_behind() {
    let mut bench = Bench::new(
        &[
            (
                "defaults",
                ScriptForm::Body,
                "msg.meta['k' + (cache.exists('n') ? cache.get('n') : 0)] = 'v'; cache.set('n', Math.random());
                 const loop = {msg}; loop.loop = loop; msg.payload; (async () => { await null })();
                 if (Math.random() < 0.01) throw new Error('x'); return [msg, {payload: {a: [1]}, meta: {...msg.meta}}];",
            ),
            ("condition-0-if", ScriptForm::Condition, "var v = msg.meta.a; v == '1'"),
        ],
        test_limits(),
    );
    let message = plain("{\"n\":[1,2,3]}", &[("a", "1")]);
    let mut after_warm_up = 0;
    for i in 0..100_000 {
        let _may_throw = bench.run(&message);
        bench.engine.test(1, &message, &message.meta).unwrap();
        if i == 20_000 {
            after_warm_up = bench.engine.memory_bytes();
        }
    }
    let end = bench.engine.memory_bytes();
    // The collector lets garbage grow to half of the live memory before it runs.
    assert!(end < after_warm_up * 2, "{after_warm_up} bytes grew to {end}");
    assert!(bench.engine.live_objects() < 20_000, "{}", bench.engine.live_objects());
}

#[test]
fn a_long_line_of_the_console_is_cut() {
    let mut bench = Bench::body("console.log('ä'.repeat(100000)); console.log('ä'.repeat(100)); return msg");
    bench.run(&plain("1", &[])).unwrap();
    let lines = bench.lines();
    let (long, rest) = lines[0].split_at(lines[0].floor_char_boundary(64 << 10));
    assert_eq!((rest, long.len() + 1), ("…", 64 << 10), "within a character of 64 KiB");
    assert_eq!(lines[1], format!("'{}'", "ä".repeat(100)));
}

#[test]
fn too_little_memory_is_told_at_start() {
    let environment = Environment {
        limits: ScriptLimits {
            memory: 1 << 16,
            ..ScriptLimits::default()
        },
        console: Arc::new(Lines::default()),
        cache: Arc::new(Cache::new(1)),
        computed: &[],
        undefined_meta: crate::UndefinedMeta::Text,
        watch: CallWatch::default(),
    };
    let error = QuickJs::new(&[], environment).unwrap_err();
    assert_eq!(
        error.text,
        "scripting.memory is too small for a script engine; give it at least 1MiB"
    );
}

#[test]
fn what_a_program_did_is_counted() {
    let mut bench = Bench::body("if (msg.payload === 'bad') while (true) {} return msg");
    for payload in ["1", "bad", "2"] {
        let _result = bench.run(&plain(payload, &[]));
    }
    let stats = crate::ProgramStats {
        calls: 3,
        timeouts: 1,
        engines_made: 2,
        ..crate::ProgramStats::default()
    };
    assert_eq!(bench.engine.stats(), stats);
}
