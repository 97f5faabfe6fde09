//! To a script `msg` is an ordinary object, although most of it does not exist until it is read.

use super::*;

#[test]
fn payloads_look_as_their_json_does() {
    for (value, seen) in [
        (Value::U64(u64::MAX), "18446744073709552000"),
        (Value::F32(0.1), "0.1"),
        (Value::F64(-0.0), "0"),
        (Value::Bool(true), "true"),
        (Value::Null, "null"),
        (Value::text("a\"b"), "\"a\\\"b\""),
        (Value::Bytes(Arc::from(*b"hi")), "\"aGk=\""),
        (Value::Time(Ticks(0)), "\"1970-01-01T00:00:00Z\""),
        (Value::Decimal("1.50".into()), "1.5"),
        (Value::Status(7), "7"),
        (Value::from(vec![Value::I8(-1), Value::from("x")]), "[-1,\"x\"]"),
    ] {
        assert_eq!(value_of("JSON.stringify(msg.payload)", &sample(value)), json_text(seen));
    }
    for (raw, seen) in [
        ("{\"b\":1,\"a\":[true,null]}", "{\"b\":1,\"a\":[true,null]}"),
        ("text", "\"text\""),
        ("", "\"\""),
        ("NaN", "\"NaN\""),
        ("\"\\ud800\"", "\"\u{fffd}\""),
    ] {
        assert_eq!(
            value_of("JSON.stringify(msg.payload)", &plain(raw, &[])),
            json_text(seen)
        );
    }
    let guid = Value::Guid(thalweg_record::Guid {
        data1: 1,
        data2: 2,
        data3: 3,
        data4: [0; 8],
    });
    assert_eq!(value_of("msg.payload.Data4", &sample(guid)), "\"AAAAAAAAAAA=\"");
}

fn json_text(text: &str) -> String {
    let mut out = String::new();
    thalweg_record::json::write_string(text, &mut out);
    out
}

#[test]
fn a_payload_that_is_set_to_what_it_was_is_known_by_that_where_its_text_depends_on_it() {
    let set = [
        "msg.payload = msg.payload; return msg",
        "msg.payload = 2500000; return msg",
        "msg.payload += 1; msg.payload--; return msg",
        "const {payload} = msg; return {payload, meta: msg.meta}",
        "return {...msg}",
        "return [Object.assign(msg, {payload: msg.payload})]",
    ];
    let left = [
        "return msg",
        "if (msg.payload > 1) msg.meta.high = 'yes'; return msg",
        "const before = msg.payload; return msg",
    ];
    let reply = |code: &str, value: i64| match Bench::body(code).run(&sample(Value::I64(value))).unwrap() {
        ScriptOutput::One(reply) => reply.payload,
        ScriptOutput::Many(mut replies) => replies.remove(0).payload,
        other => panic!("expected messages, got {other:?}"),
    };
    for code in set {
        assert_eq!(reply(code, 2_500_000), PayloadReply::Again, "{code}");
    }
    for code in left {
        assert_eq!(reply(code, 2_500_000), PayloadReply::Same, "{code}");
    }
    assert_eq!(reply("msg.payload = msg.payload; return msg", 25), PayloadReply::Same);
}

#[test]
fn an_untouched_payload_keeps_every_digit() {
    let big = || sample(Value::U64(18_446_744_073_709_551_615));
    assert_eq!(payload("return msg", &big()), "same 18446744073709551615");
    assert_eq!(
        payload("return {payload: msg.payload, meta: {}}", &big()),
        "same 18446744073709551615"
    );
    assert_eq!(
        payload("msg.payload += 1; msg.payload -= 1e5; return msg", &big()),
        "18446744073709451000"
    );
    let raw = plain("{ \"a\": 9007199254740993, \"b\": 1.10 }", &[]);
    assert_eq!(
        payload("return msg", &raw),
        "same { \"a\": 9007199254740993, \"b\": 1.10 }"
    );
    assert_eq!(
        payload("msg.payload.b; return msg", &raw),
        "same { \"a\": 9007199254740993, \"b\": 1.10 }"
    );
    // Unchanged parts of a changed payload keep their digits too.
    assert_eq!(
        payload("msg.payload.c = 2; return msg", &raw),
        "{\"a\":9007199254740993,\"b\":1.10,\"c\":2}"
    );
    assert_eq!(
        payload("delete msg.payload.b; return msg", &raw),
        "{\"a\":9007199254740993}"
    );
    assert_eq!(
        payload("msg.payload = [msg.payload.a]; return msg", &raw),
        "[9007199254740992]"
    );
    let array = sample(Value::from(vec![Value::I64(i64::MAX), Value::I64(1)]));
    assert_eq!(
        payload("msg.payload[1] = 2; return msg", &array),
        "[9223372036854775807,2]"
    );
    assert_eq!(
        payload("msg.payload.push(3); return msg", &array),
        "[9223372036854775807,1,3]"
    );
}

#[test]
fn the_payload_has_one_identity() {
    let raw = plain("{\"a\":1}", &[]);
    assert_eq!(value_of("msg.payload === msg.payload", &raw), "true");
    assert_eq!(payload("const p = msg.payload; p.a = 5; return msg", &raw), "{\"a\":5}");
    assert_eq!(payload("msg.payload = 1; return msg", &raw), "1");
    assert_eq!(payload("delete msg.payload; return msg", &raw), "missing");
    assert_eq!(
        value_of("'payload' in msg && Object.keys(msg).sort().join()", &raw),
        "\"meta,payload\""
    );
    assert_eq!(
        value_of("JSON.stringify({...msg, meta: 0})", &raw),
        "\"{\\\"meta\\\":0,\\\"payload\\\":{\\\"a\\\":1}}\""
    );
}

#[test]
fn metadata_behaves_as_an_ordinary_object() {
    let message = || plain("1", &[("a", "1"), ("b", "2")]);
    for (expression, seen) in [
        ("Object.keys(msg.meta).join()", "\"a,b,_keys\""),
        (
            "JSON.stringify(msg.meta)",
            "\"{\\\"a\\\":\\\"1\\\",\\\"b\\\":\\\"2\\\",\\\"_keys\\\":\\\"a,b\\\"}\"",
        ),
        (
            "(() => { let s = ''; for (const k in msg.meta) s += k; return s })()",
            "\"ab_keys\"",
        ),
        (
            "JSON.stringify({...msg.meta})",
            "\"{\\\"a\\\":\\\"1\\\",\\\"b\\\":\\\"2\\\",\\\"_keys\\\":\\\"a,b\\\"}\"",
        ),
        ("Object.assign({}, msg.meta).b", "\"2\""),
        ("Object.entries(msg.meta).length", "3"),
        ("(({a, ...rest}) => Object.keys(rest).join())(msg.meta)", "\"b,_keys\""),
        ("'a' in msg.meta", "true"),
        ("'c' in msg.meta", "false"),
        ("'toString' in msg.meta", "true"),
        ("msg.meta.hasOwnProperty('a')", "true"),
        ("Object.prototype.hasOwnProperty.call(msg.meta, 'toString')", "false"),
        ("Object.hasOwn(msg.meta, 'b')", "true"),
        ("msg.meta.propertyIsEnumerable('b')", "true"),
        ("msg.meta === msg.meta", "true"),
        ("msg.meta.c === undefined", "true"),
        ("msg.meta.constructor === Object", "true"),
        ("Object.getPrototypeOf(msg.meta) === Object.prototype", "true"),
        ("msg.meta instanceof Object", "true"),
        ("Object.prototype.toString.call(msg.meta)", "\"[object Object]\""),
        ("String(msg.meta)", "\"[object Object]\""),
        ("typeof msg.meta", "\"object\""),
        ("Array.isArray(msg.meta)", "false"),
        (
            "delete msg.meta.a && !('a' in msg.meta) && msg.meta.a === undefined",
            "true",
        ),
        ("delete msg.meta.nothing", "true"),
        (
            "(msg.meta.a = 'x', delete msg.meta.a, msg.meta.a === undefined)",
            "true",
        ),
        ("(msg.meta.a = 5, typeof msg.meta.a)", "\"number\""),
        (
            "JSON.stringify(Object.getOwnPropertyDescriptor(msg.meta, 'a'))",
            "\"{\\\"value\\\":\\\"1\\\",\\\"writable\\\":true,\\\"enumerable\\\":true,\\\"configurable\\\":true}\"",
        ),
        ("Object.isExtensible(msg.meta) && !Object.isFrozen(msg.meta)", "true"),
        ("Object.isFrozen(Object.freeze(msg.meta)) && msg.meta.a", "\"1\""),
        (
            "(Object.seal(msg.meta), msg.meta.a = 'y', Object.keys(msg.meta).join() + msg.meta.a)",
            "\"a,b,_keysy\"",
        ),
        ("Object.create(msg.meta).a", "\"1\""),
        (
            "(() => { const o = Object.create(msg.meta); o.a = 'own'; return msg.meta.a + Object.keys(o) })()",
            "\"1a\"",
        ),
        ("Reflect.set(msg.meta, 'z', 1) && msg.meta.z", "1"),
        ("Reflect.ownKeys(msg.meta).length", "3"),
        ("(msg.meta[Symbol.for('s')] = 1, Object.keys(msg.meta).length)", "3"),
        ("(msg.meta[7] = 'seven', msg.meta['7'])", "\"seven\""),
        (
            "(msg.meta.__proto__ = {inherited: 1}, msg.meta.inherited + Object.keys(msg.meta).length)",
            "4",
        ),
        (
            "(Object.defineProperty(msg.meta, 'a', {get: () => 'got'}), msg.meta.a)",
            "\"got\"",
        ),
        (
            "(Object.defineProperty(msg.meta, 'a', {writable: false}), msg.meta.a)",
            "\"1\"",
        ),
        ("new Map(Object.entries(msg.meta)).get('a')", "\"1\""),
        ("msg.meta?.a ?? 'none'", "\"1\""),
    ] {
        assert_eq!(value_of(expression, &message()), seen, "{expression}");
    }
}

#[test]
fn opcua_metadata_is_read_with_its_stamps() {
    let message = sample(Value::U32(1));
    assert_eq!(value_of("msg.meta.opcua_tag_name", &message), "\"FastUInt1\"");
    assert_eq!(
        value_of("msg.meta.opcua_source_timestamp", &message),
        "\"1970-01-01T00:00:00.000000Z\""
    );
    assert_eq!(value_of("Object.keys(msg.meta).length", &message), "8");
}

#[test]
fn only_changes_come_back() {
    let message = plain("1", &[("a", "1"), ("b", "2")]);
    let mut bench = Bench::body("msg.meta.c = 'new'; delete msg.meta.a; msg.meta.b = msg.meta.b; return msg");
    let Ok(ScriptOutput::One(reply)) = bench.run(&message) else {
        panic!()
    };
    let MetaReply::Changes(changes) = reply.meta else {
        panic!()
    };
    let changes: Vec<_> = changes.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(changes, ["c=new", "a=", "b=2"]);
}

#[test]
fn a_replaced_meta_counts_as_a_whole() {
    let message = || plain("1", &[("a", "1"), ("b", "2")]);
    let meta = |code: &str| -> String {
        let (_, meta) = outcome(code, &message());
        meta.iter().map(|(k, v)| format!("{k}={v} ")).collect()
    };
    assert_eq!(meta("msg.meta = {c: 3}; return msg"), "c=3 ");
    assert_eq!(meta("msg.meta = {...msg.meta, c: 3, a: ''}; return msg"), "b=2 c=3 ");
    assert_eq!(meta("return {payload: 1}"), "");
    assert_eq!(meta("return {payload: 1, meta: null}"), "");
    assert_eq!(meta("return {payload: 1, meta: 'text'}"), "");
    assert_eq!(meta("return {payload: 1, meta: ['a']}"), "");
    assert_eq!(meta("return {...msg}"), "a=1 b=2 ");
    assert_eq!(meta("return JSON.parse(JSON.stringify(msg))"), "a=1 b=2 ");
    assert_eq!(meta("return Object.assign({}, msg, {payload: 7})"), "a=1 b=2 ");
    assert_eq!(meta("msg.meta._keys = 'mine'; return msg"), "a=1 b=2 ");
    assert_eq!(meta("Object.freeze(msg.meta); return msg"), "a=1 b=2 ");
    assert_eq!(meta("return new Proxy(msg, {})"), "a=1 b=2 ");
}

#[test]
fn metadata_values_become_text() {
    for (expression, text) in [
        ("'text'", "text"),
        ("42", "42"),
        ("9007199254740992", "9007199254740992"),
        ("2 ** 60", "1.152921504606847e+18"),
        ("0.5", "0.5"),
        ("2500000.5", "2.5000005e+06"),
        ("1e-7", "1e-07"),
        ("-0", "-0"),
        ("NaN", "NaN"),
        ("Infinity", "+Inf"),
        ("true", "true"),
        ("null", "<nil>"),
        ("undefined", "<nil>"),
        ("['a', 1, null, [true]]", "[a 1 <nil> [true]]"),
        ("({l: 'w', k: {v: 1}})", "map[k:map[v:1] l:w]"),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("new Date(NaN)", "Invalid Date"),
        ("12345678901234567890n", "12345678901234567890"),
        ("Symbol('s')", "Symbol(s)"),
        ("new String('boxed')", "boxed"),
        ("new Number(7)", "7"),
        ("new Set([1, 2])", "[1 2]"),
        ("new Map([['k', 1]])", "[[k 1]]"),
        ("new Uint8Array([1, 2])", "[1 2]"),
        ("Math.max", "[Function: max]"),
        ("/re/", "map[]"),
        ("'\\ud800'", "\u{fffd}"),
        ("''", ""),
    ] {
        assert_eq!(meta_text(expression), text, "{expression}");
    }
}

#[test]
fn payload_values_become_typed() {
    let message = plain("{}", &[]);
    for (expression, json) in [
        ("1", "1"),
        ("-0", "-0"),
        ("1.5", "1.5"),
        ("2 ** 53", "9007199254740992"),
        ("2 ** 60", "1152921504606847000"),
        ("12345678901234567890n", "12345678901234567890"),
        ("10n ** 30n", "1000000000000000000000000000000"),
        ("[1, , undefined]", "[1,null,null]"),
        ("({a: undefined, [Symbol()]: 1})", "{\"a\":null}"),
        ("new Date(0)", "\"1970-01-01T00:00:00.000Z\""),
        ("new Set([1])", "[1]"),
        ("new Float64Array(2)", "[0,0]"),
        ("new Boolean(false)", "false"),
        ("'\\ud83d'", "\"\u{fffd}\""),
        ("'😀'", "\"😀\""),
        ("({__proto__: {a: 1}, b: 2})", "{\"b\":2}"),
        ("JSON.parse('{\"__proto__\":1}')", "{\"__proto__\":1}"),
    ] {
        assert_eq!(value_of(expression, &message), json, "{expression}");
    }
    assert_eq!(payload("return {payload: undefined}", &message), "null");
    let nan = Bench::body("return {payload: 0 / 0}").run(&message).unwrap();
    assert!(matches!(nan, ScriptOutput::One(Reply { payload: PayloadReply::New(Value::F64(n)), .. }) if n.is_nan()));
}

#[test]
fn console_lines_have_the_documented_form() {
    let mut bench = Bench::body(
        r"console.log('it\'s', 1, 2500000, 0.1, -0, NaN, -Infinity, true, null, undefined);
          console.debug({b: [1, 'x'], a: 1, 'b c': {}}, []);
          console.info('a\n\t\\\b\f\r'); console.warn(new Date(0)); console.error(new TypeError('bad'));
          const o = {n: 1}; o.self = o; console.log(o); console.log(msg.meta); console.log(); console.log(1n, Symbol('s'));
          console.log(() => 1, function named() {});",
    );
    let returned = bench.run(&plain("1", &[("k", "v")])).unwrap();
    assert!(matches!(returned, ScriptOutput::Nothing), "{returned:?}");
    assert_eq!(
        bench
            .lines
            .0
            .lock()
            .iter()
            .map(|(level, _)| *level)
            .take(6)
            .collect::<Vec<_>>(),
        [
            ConsoleLevel::Info,
            ConsoleLevel::Debug,
            ConsoleLevel::Info,
            ConsoleLevel::Warn,
            ConsoleLevel::Error,
            ConsoleLevel::Info
        ]
    );
    assert_eq!(
        bench.lines(),
        [
            r"'it\'s' 1 2500000 0.1 -0 NaN -Infinity true null null",
            "{ a: 1, b: [ 1, 'x' ], 'b c': {} } []",
            r"'a\n\t\\\b\f\r'",
            "1970-01-01T00:00:00.000Z",
            "TypeError: bad",
            "{ n: 1, self: [Circular] }",
            "{ _keys: 'k', k: 'v' }",
            "",
            "1 Symbol(s)",
            "[Function (anonymous)] [Function: named]",
        ]
    );
}

#[test]
fn the_cache_keeps_data_between_messages() {
    let mut bench = Bench::body(
        "if (!cache.exists('n')) { cache.get('n'); cache.set('n', 0); cache.set('', 1); }
         cache.set('n', cache.get('n') + 1); cache.set('o', {list: [1, {a: null}]}); cache.delete('gone');
         return {payload: [cache.get('n'), cache.get('o').list[1].a, cache.exists('o'), cache.exists('gone')]};",
    );
    for n in 1..3 {
        let Ok(ScriptOutput::One(reply)) = bench.run(&plain("", &[])) else {
            panic!()
        };
        assert_eq!(applied(reply, &plain("", &[])).0, format!("[{n},null,true,false]"));
    }
    assert_eq!(
        bench.lines(),
        [
            "cache.get: key \"n\" not found. Use cache.exists(key) to check before reading.",
            "cache.set failed: cache: key must not be empty",
        ]
    );
    assert_eq!(bench.cache.get("n"), Some(Value::I64(2)));
}

#[test]
fn conditions_give_the_truth_of_their_last_value() {
    let message = plain("{\"n\":5}", &[("k", "v")]);
    for (code, truth) in [
        ("true", true),
        ("", false),
        ("msg.payload.n > 4", true),
        ("msg.payload.n > 4;", true),
        ("msg.meta.k === 'w'", false),
        ("'text'", true),
        ("''", false),
        ("var n = msg.payload.n; n > 4", true),
        ("let n = msg.payload.n; n > 5", false),
        ("const n = 1; if (n > 0) { true } else { false }", true),
        ("if (msg.meta.k == 'v') { false } else { true }", false),
        ("function f(m) { return m.payload.n } f(msg) == 5", true),
        ("x = 3; x == 3", true),
        ("this.y = 1, y == 1", true),
        ("{a: 1}", true),
        ("{}", false),
        ("'use strict'; true", true),
        ("1; var a = 2", true),
        ("for (var i = 0; i < 3; i++) i", true),
        ("switch (msg.meta.k) { case 'v': true; break; default: false }", true),
        ("class A {} typeof A === 'function'", true),
        ("/^v$/.test(msg.meta.k)", true),
    ] {
        let mut bench = Bench::condition(code);
        for _ in 0..3 {
            assert_eq!(bench.test(&message), Ok(truth), "{code}");
        }
    }
    // The message is unchanged, whatever the condition did to it.
    let mut bench = Bench::condition("msg.payload.n = 7; msg.meta.k = 'x'; msg.payload.n == 7");
    assert_eq!(bench.test(&message), Ok(true));
    assert_eq!(message.meta.get("k").as_deref(), Some("v"));
}

/// QuickJS reuses the number of a name once nothing refers to the name any more.
#[test]
fn names_that_a_script_makes_up_are_not_taken_for_each_other() {
    let message = plain("\"k\"", &[("low_k", "1"), ("high_k", "2")]);
    let code = "for (let i = 0; i < 5000; i++) msg.meta['x' + i];
        const seen = [];
        for (const part of ['low_', 'high_', 'none_', 'low_']) seen.push(msg.meta[part + msg.payload] ?? '-');
        return {payload: seen.join(' '), meta: {}}";
    assert_eq!(outcome(code, &message).0, "\"1 2 - 1\"");
}

#[test]
fn long_names_and_texts_are_what_they_are() {
    let (name, text) = ("n".repeat(5000), "t".repeat(5000));
    let message = plain("1", &[(&name, &text), ("short", "s")]);
    for code in [
        "return {payload: 1, meta: {...msg.meta}}",
        "for (const name of Object.keys(msg.meta)) msg.meta[name] += '!'; return msg",
    ] {
        let more = if code.contains('!') { "!" } else { "" };
        let expected = [
            (name.clone(), format!("{text}{more}")),
            ("short".to_owned(), format!("s{more}")),
        ];
        let mut seen = outcome(code, &message).1;
        seen.retain(|(name, _)| name != "_keys");
        assert_eq!(seen, expected);
    }
}
