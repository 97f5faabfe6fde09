//! What a script may return, and the message of each failure.

use super::*;

#[test]
fn nothing_one_or_many() {
    let message = plain("1", &[("a", "1")]);
    for code in [
        "",
        "return",
        "return null",
        "return undefined",
        "return []",
        "return [null, undefined]",
    ] {
        let returned = Bench::body(code).run(&message);
        assert!(matches!(returned, Ok(ScriptOutput::Nothing)), "{code} {returned:?}");
    }
    let many = Bench::body("return [msg, null, {payload: 2, meta: msg.meta}, {...msg, payload: 3}]").run(&message);
    let Ok(ScriptOutput::Many(replies)) = many else {
        panic!("{many:?}")
    };
    let seen: Vec<_> = replies.into_iter().map(|reply| applied(reply, &message)).collect();
    let meta = vec![("a".to_owned(), "1".to_owned())];
    assert_eq!(
        seen,
        [
            ("same 1".into(), meta.clone()),
            ("2".into(), meta.clone()),
            ("3".into(), meta)
        ]
    );
    assert_eq!(payload("return {meta: msg.meta}", &message), "missing");
}

#[test]
fn what_is_no_message_is_refused() {
    let message = plain("1", &[]);
    for code in [
        "return 1",
        "return 'x'",
        "return true",
        "return () => 1",
        "return new Date()",
        "return Symbol()",
    ] {
        let failure = failure(code, &message);
        assert_eq!(failure.kind, FailureKind::BadReturn, "{code}");
        assert_eq!(
            failure.text,
            "code must return a message object or array of message objects"
        );
    }
    for code in ["return [1]", "return [msg, 'x']", "return [[msg]]"] {
        let failure = failure(code, &message);
        assert_eq!(failure.kind, FailureKind::BadReturn, "{code}");
        assert_eq!(failure.text, "array elements must be message objects");
    }
}

#[test]
fn what_has_no_data_form_is_refused() {
    let message = plain("1", &[]);
    for (code, text) in [
        (
            "const a = {}; a.a = a; msg.payload = a; return msg",
            "payload cannot be used: an object contains itself",
        ),
        (
            "msg.payload = [() => 1]; return msg",
            "payload cannot be used: a function has no data form",
        ),
        (
            "msg.payload = Symbol(); return msg",
            "payload cannot be used: a symbol has no data form",
        ),
        (
            "msg.meta.x = [msg.meta]; return msg",
            "meta.x cannot be used: an object contains itself",
        ),
        (
            "let a = []; for (let i = 0; i < 200; i++) a = [a]; msg.payload = a; return msg",
            "payload cannot be used: arrays and objects are nested deeper than 128 levels",
        ),
    ] {
        let failure = failure(code, &message);
        assert_eq!(
            (failure.kind, failure.text.as_str()),
            (FailureKind::BadReturn, text),
            "{code}"
        );
    }
    // One part may appear many times.
    assert_eq!(
        payload("const a = [1]; msg.payload = [a, a]; return msg", &message),
        "[[1],[1]]"
    );
}

#[test]
fn exceptions_say_what_and_where() {
    let message = plain("1", &[]);
    let mut wrong = Vec::new();
    for (code, text) in [
        (
            "return msg.missing.field;",
            "TypeError: cannot read property 'field' of undefined (line 1, column 8)",
        ),
        ("\n  throw new Error('boom')", "Error: boom (line 2, column 13)"),
        (
            "undefined_name",
            "ReferenceError: undefined_name is not defined (line 1, column 1)",
        ),
        ("x = 1", "ReferenceError: x is not defined (line 1, column 1)"),
        (
            "function inner() { null.x }\n\ninner()",
            "TypeError: cannot read property 'x' of null (line 1, column 19)",
        ),
        (
            "JSON.parse('{')",
            "SyntaxError: Expected property name or '}' in JSON at position 1 (line 1 column 2) (line 1, column 5)",
        ),
        ("throw 'text'", "text"),
        ("throw {code: 7}", "{ code: 7 }"),
        ("throw null", "null"),
        ("throw undefined", "null"),
        (
            "throw new Proxy({}, {get() { throw 1 }, ownKeys() { throw 2 }})",
            "an exception whose text cannot be read",
        ),
        (
            "const e = new Error('m'); e.name = 'Mine'; throw e",
            "Mine: m (line 1, column 15)",
        ),
        (
            "class Bad extends Error { constructor() { super('own'); this.name = 'Bad' } }; throw new Bad()",
            "Bad: own (line 1, column 42)",
        ),
        (
            "const e = new Error('x'); Object.defineProperty(e, 'message', {get() { throw 1 }}); throw e",
            "an exception whose text cannot be read (line 1, column 15)",
        ),
    ] {
        let failure = failure(code, &message);
        if (failure.kind, failure.text.as_str()) != (FailureKind::Exception, text) {
            wrong.push(format!("{code}\n  gave {failure:?}\n  not  {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn getters_that_throw_while_the_result_is_read_fail_the_message() {
    let message = plain("1", &[]);
    for code in [
        "return {get payload() { throw new Error('late') }}",
        "return {payload: 1, get meta() { throw new Error('late') }}",
        "return {payload: {get a() { throw new Error('late') }}}",
        "return {payload: 1, meta: {get a() { throw new Error('late') }}}",
        "return [{payload: 1}, {get payload() { throw new Error('late') }}]",
        "return new Proxy({}, {getOwnPropertyDescriptor() { throw new Error('late') }})",
        "Object.defineProperty(msg.meta, 'a', {get() { throw new Error('late') }, enumerable: true}); return msg",
        "msg.payload = new Proxy({a: 1}, {get() { throw new Error('late') }}); return msg",
    ] {
        let failure = failure(code, &message);
        assert_eq!(failure.kind, FailureKind::Exception, "{code}");
        assert!(failure.text.starts_with("Error: late"), "{code}: {}", failure.text);
    }
}

#[test]
fn promises_run_before_the_result_is_read() {
    let message = plain("1", &[]);
    assert_eq!(
        payload(
            "Promise.resolve().then(() => { msg.payload = 2 }); return msg",
            &message
        ),
        "2"
    );
    assert_eq!(
        payload("(async () => { await null; msg.payload = 3 })(); return msg", &message),
        "3"
    );
    assert_eq!(
        payload("Promise.reject(new Error('nobody')); return msg", &message),
        "same 1"
    );
}
