//! Inputs that are too long or too large bail out to QuickJS.

use super::*;

/// Without counting, each of these would take seconds or gigabytes.
#[test]
fn hostile_messages_end_at_quickjs_soon() {
    let commas = message(Value::text("a,".repeat(500_000)));
    let letters = message(Value::text("ä".repeat(200_000)));
    let many: Object = (0..60_000)
        .map(|i| (format!("member{i}").into(), Value::I64(i)))
        .collect();
    let many = message(many.into());
    let mut deep = Value::I64(1);
    for _ in 0..3000 {
        deep = Value::Array(vec![deep].into());
    }
    let deep = message(deep);
    for (code, message) in [
        ("msg.meta.n = msg.payload.split(/[,;]/).length; return msg", &commas),
        (
            "msg.meta.n = msg.payload.replaceAll(',', msg.payload).length; return msg",
            &commas,
        ),
        (
            "msg.meta.n = msg.payload.replaceAll('a', \"$`$'\").length; return msg",
            &commas,
        ),
        ("msg.meta.n = msg.payload.match(/./g).length; return msg", &commas),
        (
            "msg.meta.n = msg.payload.replace(/a.*b|a/g, '').length; return msg",
            &commas,
        ),
        (
            "let n = 0; for (const c of msg.payload) n += c.length; msg.meta.n = n; return msg",
            &commas,
        ),
        (
            "let n = 0; for (let i = 0; i < msg.payload.length; i++) n += msg.payload.charAt(i).length; return msg",
            &letters,
        ),
        (
            "const a = msg.payload.split(''); while (a.length) a.shift(); return msg",
            &letters,
        ),
        (
            "for (let i = 0; i < 40000; i++) msg.meta['k' + i] = i; return msg",
            &letters,
        ),
        (
            "for (let i = 0; i < 40000; i++) cache.set('k', i); return msg",
            &letters,
        ),
        ("if (msg.payload.value > 5) msg.meta.high = 'y'; return msg", &many),
        ("msg.meta.n = Object.keys(msg.payload).length; return msg", &many),
        ("msg.payload = {value: msg.payload}; return msg", &deep),
        (
            "const a = []; for (let i = 0; i < 100; i++) a.push(msg.payload); msg.payload = a; return msg",
            &commas,
        ),
    ] {
        let mut both = Both::new(ScriptForm::Body, code).unwrap_or_else(|why| panic!("{code}: {why}"));
        let began = std::time::Instant::now();
        let outcome = both.native.run(message, &message.meta, true);
        // Not a promise of a time, but it must not take minutes.
        assert!(began.elapsed() < Duration::from_secs(20), "{code}");
        assert!(matches!(outcome, NativeOutcome::Bail(_)), "{code}");
    }
}

/// QuickJS truncates it; native code would not.
#[test]
fn a_long_line_of_the_console_is_left_to_quickjs() {
    for code in [
        "console.log(msg.payload); return msg",
        "console.log('a', 1, msg.payload); return msg",
        "console.log([msg.payload]); return msg",
        "console.log({text: msg.payload}); return msg",
    ] {
        let mut both = Both::new(ScriptForm::Body, code).unwrap();
        let fits = message(Value::text("ä".repeat(10_000)));
        assert_eq!(both.compare(&fits), Ok(()), "{code}");
        let long = message(Value::text("ä".repeat(100_000)));
        assert_eq!(both.compare(&long), Err("a long line for the console"), "{code}");
    }
}

#[test]
fn deep_and_long_scripts_are_left_to_quickjs() {
    let sum = format!("msg.meta.x = 'a'{}; return msg", " + 'x'".repeat(5000));
    let signs = format!("msg.meta.x = {}1; return msg", "- ".repeat(3000));
    let blocks = format!("{}msg.meta.x = 1;{} return msg", "{ ".repeat(500), " }".repeat(500));
    let long = format!("{} return msg", "msg.meta.x = 1;".repeat(10_000));
    for code in [sum, signs, blocks, long] {
        if let Err(why) = Both::new(ScriptForm::Body, &code) {
            assert!(!why.contains("parse"), "{why}");
            continue;
        }
        panic!("{}", &code[..60]);
    }
}

#[test]
fn a_cache_without_room_is_told_by_quickjs_and_changes_nothing_here() {
    let code = "cache.set('k' + msg.meta.own, msg.payload); cache.delete('k0'); return msg";
    let limits = ScriptLimits {
        memory: 4 << 20,
        ..limits()
    };
    let mut both = Both::within(limits, 100, ScriptForm::Body, code).unwrap();
    let mut of = |n: usize, bytes: usize| {
        let mut message = message(Value::text("x".repeat(bytes)));
        message.meta.set("own", n.to_string());
        let native = both.compare(&message);
        let quickjs = both.quickjs.run(0, &message, &message.meta);
        (native, quickjs.map(drop).map_err(|failure| failure.text))
    };
    for n in 0..11 {
        assert_eq!(of(n, 400_000), (Ok(()), Ok(())), "{n}");
    }
    let (native, quickjs) = of(11, 400_000);
    assert_eq!(native, Err("a full cache"));
    assert_eq!(
        quickjs.unwrap_err(),
        "cache.set: the cache would hold 4400200 bytes, more than 4194304; delete keys, keep less, or raise \
         scripting.memory (line 1, column 31)"
    );
    // A smaller value may replace the existing one.
    assert_eq!(of(3, 100_000), (Ok(()), Ok(())));
    assert_eq!(of(11, 200_000), (Ok(()), Ok(())));
}
