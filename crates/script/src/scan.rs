//! Scans the words of a script to choose its realm.
//!
//! The choice affects only what works, never what is safe: every realm isolates calls (see [`crate::quickjs`]), but in
//! the cheapest one the built-in objects cannot be extended. So a wrong guess here costs speed, or gives a script that
//! extends built-in objects in a hidden way a clear error; it never leaks anything to the next call.

use std::borrow::Cow;

/// How the calls of a script are isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Realm {
    /// Globals and built-in objects are frozen. Nothing to clean up.
    Sealed,
    /// Built-in objects are frozen, globals are removed after each call.
    Tidy,
    /// Everything can be changed; the engine is discarded after each call.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// A string, template or regular expression.
    Text,
    Mark(&'a str),
    Number,
}

const BUILT_IN: &[&str] = &[
    "AggregateError",
    "Array",
    "ArrayBuffer",
    "Atomics",
    "BigInt",
    "BigInt64Array",
    "BigUint64Array",
    "Boolean",
    "DOMException",
    "DataView",
    "Date",
    "Error",
    "EvalError",
    "FinalizationRegistry",
    "Float16Array",
    "Float32Array",
    "Float64Array",
    "Function",
    "Infinity",
    "Int16Array",
    "Int32Array",
    "Int8Array",
    "Iterator",
    "JSON",
    "Map",
    "Math",
    "NaN",
    "Number",
    "Object",
    "Promise",
    "Proxy",
    "RangeError",
    "ReferenceError",
    "Reflect",
    "RegExp",
    "Set",
    "SharedArrayBuffer",
    "String",
    "Symbol",
    "SyntaxError",
    "TypeError",
    "URIError",
    "Uint16Array",
    "Uint32Array",
    "Uint8Array",
    "Uint8ClampedArray",
    "WeakMap",
    "WeakRef",
    "WeakSet",
    "atob",
    "btoa",
    "cache",
    "console",
    "decodeURI",
    "decodeURIComponent",
    "encodeURI",
    "encodeURIComponent",
    "escape",
    "eval",
    "isFinite",
    "isNaN",
    "parseFloat",
    "parseInt",
    "performance",
    "queueMicrotask",
    "unescape",
    "undefined",
];

/// Whether the name is defined for every script.
pub(crate) fn is_built_in(name: &str) -> bool {
    BUILT_IN.contains(&name) || matches!(name, "arguments" | "globalThis")
}

/// Functions of `Object` and `Reflect` that change their first argument.
const CHANGING: &[&str] = &[
    "assign",
    "defineProperties",
    "defineProperty",
    "deleteProperty",
    "freeze",
    "preventExtensions",
    "seal",
    "set",
    "setPrototypeOf",
];

/// The realm for a strict function body, or for a non-strict program (`sloppy`).
pub(crate) fn realm(code: &str, sloppy: bool) -> Realm {
    let tokens = tokens(code);
    let mut realm = Realm::Sealed;
    for (i, token) in tokens.iter().enumerate() {
        match token {
            Token::Word(word) => realm = realm.max(word_realm(&tokens, i, word, sloppy)),
            // In non-strict code, assigning to an undeclared name creates a global.
            Token::Mark(mark) if sloppy && is_assignment(mark) => realm = realm.max(Realm::Tidy),
            _ => {}
        }
    }
    realm
}

/// Names that give access to more than the message: the time, randomness, garbage collection, or code created at run
/// time, which may use all of these.
const UNREPEATABLE: &[&str] = &[
    "Date",
    "FinalizationRegistry",
    "Proxy",
    "Reflect",
    "Symbol",
    "WeakRef",
    "__proto__",
    "async",
    "await",
    "callee",
    "constructor",
    "getOwnPropertyDescriptor",
    "getOwnPropertyDescriptors",
    "getOwnPropertyNames",
    "getPrototypeOf",
    "import",
    "performance",
    "prototype",
    "random",
];

/// Whether the result of a call depends only on what it reads of its message. Calls of `console` and `cache` are
/// detected at run time. A name from the list above that is assembled from pieces is not detected.
pub(crate) fn is_repeatable(code: &str) -> bool {
    // Also in texts; and names may be written with escapes.
    if code.contains("constructor") || code.contains("\\u") || code.contains("\\x") {
        return false;
    }
    let tokens = tokens(code);
    let before = |i: usize| i.checked_sub(1).and_then(|before| tokens.get(before));
    let member = |i: usize| matches!(tokens.get(i + 1), Some(Token::Mark(".")));
    let is_returned = |i: usize| {
        let ends = matches!(tokens.get(i + 1), None | Some(Token::Mark(";" | "}")));
        ends && before(i) == Some(&Token::Word("return"))
    };
    tokens.iter().enumerate().all(|(i, token)| match token {
        Token::Word(_) if matches!(before(i), Some(Token::Mark("." | "?."))) && !is_unrepeatable(token) => true,
        // Any use other than a member by name may reach `random`.
        Token::Word("Math") => member(i),
        // Iterating over it as a whole shows its properties in another order if the payload is created on read.
        Token::Word("msg") => member(i) || is_returned(i),
        token => !is_unrepeatable(token),
    })
}

fn is_unrepeatable(token: &Token<'_>) -> bool {
    matches!(token, Token::Word(word) if UNREPEATABLE.contains(word))
}

fn word_realm(tokens: &[Token<'_>], i: usize, word: &str, sloppy: bool) -> Realm {
    let before = i.checked_sub(1).and_then(|b| tokens.get(b)).copied();
    let member = matches!(before, Some(Token::Mark("." | "?.")));
    if member {
        return if word == "__proto__" {
            Realm::Open
        } else {
            Realm::Sealed
        };
    }
    match word {
        // Code created at run time runs in non-strict mode and may set any global.
        "eval" => return Realm::Open,
        "Function" if before != Some(Token::Word("instanceof")) => return Realm::Open,
        "globalThis" => return Realm::Tidy.max(changes_at(tokens, i)),
        "this" if sloppy => return Realm::Tidy.max(changes_at(tokens, i)),
        "var" | "function" | "class" if sloppy => return Realm::Tidy,
        _ => {}
    }
    if BUILT_IN.contains(&word) {
        return changes_at(tokens, i);
    }
    Realm::Sealed
}

/// Whether the expression that starts with a built-in object at `start` changes it or something inside it.
fn changes_at(tokens: &[Token<'_>], start: usize) -> Realm {
    let token = |i: usize| tokens.get(i).copied();
    let before = start.checked_sub(1).and_then(token);
    if matches!(before, Some(Token::Word("let" | "const" | "class"))) {
        return Realm::Sealed;
    }
    let mut at = start + 1;
    let mut last_member = None;
    loop {
        match token(at) {
            Some(Token::Mark("." | "?.")) => {
                last_member = match token(at + 1) {
                    Some(Token::Word(name)) => Some(name),
                    _ => None,
                };
                at += 2;
            }
            Some(Token::Mark("[")) => at = after_bracket(tokens, at),
            _ => break,
        }
    }
    let assigned = matches!(token(at), Some(Token::Mark(mark)) if is_assignment(mark));
    let stepped = matches!(before, Some(Token::Mark("++" | "--") | Token::Word("delete")));
    let global = matches!(token(start), Some(Token::Word("globalThis" | "this")));
    if assigned || stepped {
        // A new global is no built-in object: `globalThis.count = 1`.
        let known = last_member.is_none_or(|name| BUILT_IN.contains(&name));
        let shallow = at <= start + 3;
        return if global && shallow && !known {
            Realm::Tidy
        } else {
            Realm::Open
        };
    }
    let changing_call = token(at) == Some(Token::Mark("(")) && last_member.is_some_and(|name| CHANGING.contains(&name));
    match token(at + 1) {
        Some(Token::Word(target)) if changing_call && (BUILT_IN.contains(&target) || target == "globalThis") => {
            Realm::Open
        }
        _ => Realm::Sealed,
    }
}

fn after_bracket(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Mark("[") => depth += 1,
            Token::Mark("]") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

fn is_assignment(mark: &str) -> bool {
    matches!(
        mark,
        "=" | "+="
            | "-="
            | "*="
            | "/="
            | "%="
            | "**="
            | "<<="
            | ">>="
            | ">>>="
            | "&="
            | "|="
            | "^="
            | "&&="
            | "||="
            | "??="
            | "++"
            | "--"
    )
}

const MARKS: &[&str] = &[
    ">>>=", "...", "===", "!==", "**=", "<<=", ">>=", ">>>", "&&=", "||=", "??=", "=>", "==", "!=", "<=", ">=", "&&",
    "||", "??", "?.", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<", ">>", "**",
];

/// Words and marks of a script. Comments are skipped; code inside `${}` of a template is scanned like the rest.
fn tokens(code: &str) -> Vec<Token<'_>> {
    placed_tokens(code).into_iter().map(|(_, token)| token).collect()
}

/// The first unmatched closing bracket, with its byte offset in the script.
pub(crate) fn unmatched_closer(code: &str) -> Option<(usize, &str)> {
    let mut open = Vec::new();
    for (offset, token) in placed_tokens(code) {
        let Token::Mark(mark) = token else { continue };
        match mark {
            "(" | "[" | "{" => open.push(mark),
            ")" | "]" | "}" => {
                let opener = match mark {
                    ")" => "(",
                    "]" => "[",
                    _ => "{",
                };
                if open.pop() != Some(opener) {
                    return Some((offset, mark));
                }
            }
            _ => {}
        }
    }
    None
}

/// The byte offset of an `import()`, which would load a module. A method of that name is none: `{import() {}}`.
pub(crate) fn import_call(code: &str) -> Option<usize> {
    let tokens = placed_tokens(code);
    let at = |i: Option<usize>| i.and_then(|i| tokens.get(i)).copied();
    // For each open bracket, the `import` in front of it.
    let mut open: Vec<Option<usize>> = Vec::new();
    for (i, (_, token)) in tokens.iter().enumerate() {
        match token {
            Token::Mark("(") => open.push(match (at(i.checked_sub(2)), at(i.checked_sub(1))) {
                (Some((_, Token::Mark("." | "?." | "#"))), _) => None,
                (_, Some((offset, Token::Word("import")))) => Some(offset),
                _ => None,
            }),
            Token::Mark(")") => {
                let import = open.pop().flatten();
                if import.is_some() && !matches!(at(Some(i + 1)), Some((_, Token::Mark("{")))) {
                    return import;
                }
            }
            _ => {}
        }
    }
    None
}

/// The byte offset of a `return` that begins the code.
pub(crate) fn first_return(code: &str) -> Option<usize> {
    match placed_tokens(code).first() {
        Some((offset, Token::Word("return"))) => Some(*offset),
        _ => None,
    }
}

/// An expression without the semicolons at its end, so that it may be written like a statement. Everything else keeps its
/// place; comments may follow.
pub fn without_final_semicolons(expression: &str) -> Cow<'_, str> {
    let tokens = placed_tokens(expression);
    let semicolons = tokens.iter().rev().take_while(|(_, token)| *token == Token::Mark(";"));
    let Some((before, after)) = semicolons
        .last()
        .and_then(|(first, _)| expression.split_at_checked(*first))
    else {
        return Cow::Borrowed(expression);
    };
    // Only semicolons and comments follow the first one.
    Cow::Owned(format!("{before}{}", after.replace(';', " ")))
}

/// The word of an expression that is nothing but a word, beside comments.
pub fn only_word(expression: &str) -> Option<&str> {
    match placed_tokens(expression).as_slice() {
        [(_, Token::Word(word))] => Some(*word),
        _ => None,
    }
}

/// The tokens with their byte offsets.
fn placed_tokens(code: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens: Vec<(usize, Token<'_>)> = Vec::new();
    let mut rest = code;
    // Depth of braces inside each open `${`.
    let mut templates: Vec<usize> = Vec::new();
    while let Some(c) = rest.chars().next() {
        let offset = code.len() - rest.len();
        let last = tokens.last().map(|(_, token)| *token);
        let mut push = |token| tokens.push((offset, token));
        let taken = if c.is_whitespace() {
            c.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if is_word(c) {
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            let (word, _) = rest.split_at(end);
            let number = word.starts_with(|c: char| c.is_ascii_digit());
            push(if number { Token::Number } else { Token::Word(word) });
            end
        } else if c == '"' || c == '\'' {
            let end = quoted_end(rest, c);
            push(Token::Text);
            end
        } else if c == '`' || (c == '}' && templates.last() == Some(&0)) {
            if c == '}' {
                templates.pop();
            }
            let (end, open) = template_end(rest);
            if open {
                templates.push(0);
            }
            push(Token::Text);
            end
        } else if c == '/' && regex_may_start(last) {
            push(Token::Text);
            regex_end(rest)
        } else {
            let mark = MARKS.iter().copied().find(|mark| rest.starts_with(mark));
            let mark = mark.or(rest.get(..c.len_utf8())).unwrap_or_default();
            match (mark, templates.last_mut()) {
                ("{", Some(depth)) => *depth += 1,
                ("}", Some(depth)) => *depth -= 1,
                _ => {}
            }
            push(Token::Mark(mark));
            mark.len()
        };
        rest = rest.get(taken.max(1)..).unwrap_or_default();
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn quoted_end(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return i + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// The end of a template's text that starts with a backtick or the closing `}` of a placeholder, and whether another
/// placeholder follows.
fn template_end(text: &str) -> (usize, bool) {
    let mut escaped = false;
    let mut dollar = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            '`' if !escaped => return (i + 1, false),
            '{' if dollar => return (i + 1, true),
            _ => {}
        }
        dollar = c == '$' && !escaped;
        escaped = c == '\\' && !escaped;
    }
    (text.len(), false)
}

fn regex_may_start(before: Option<Token<'_>>) -> bool {
    match before {
        None => true,
        Some(Token::Mark(mark)) => !matches!(mark, ")" | "]" | "}" | "++" | "--"),
        Some(Token::Word(word)) => matches!(
            word,
            "return"
                | "typeof"
                | "case"
                | "in"
                | "of"
                | "delete"
                | "void"
                | "throw"
                | "new"
                | "else"
                | "do"
                | "instanceof"
        ),
        Some(Token::Text | Token::Number) => false,
    }
}

fn regex_end(text: &str) -> usize {
    let (mut escaped, mut class) = (false, false);
    for (i, c) in text.char_indices().skip(1) {
        match c {
            '\n' => return i,
            '[' if !escaped => class = true,
            ']' if !escaped => class = false,
            '/' if !escaped && !class => return i + 1,
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_scripts_run_sealed() {
        for code in [
            "msg.meta.location_path = 'a'; return msg;",
            "return {payload: Math.round(msg.payload), meta: {...msg.meta, Map: 1}};",
            "const has = Object.prototype.hasOwnProperty.call(msg.meta, 'x'); let Map = {}; return msg",
            "// globalThis = eval('x')\nlet s = 'globalThis.x = 1'; let t = `a${ {a: 'b'}.a }Math.x = 1`; return msg",
            "let r = /Math.x = 1/.test(msg.payload) / 2; Object.assign(msg.meta, {a: 1}); return msg",
            "class A extends Error { constructor() { super(); this.name = 'A' } } throw new A()",
            "if (Number.MAX_SAFE_INTEGER == 1 || Array.isArray(msg.payload)) return msg",
            "if (msg.f instanceof Function) return msg",
        ] {
            assert_eq!(realm(code, false), Realm::Sealed, "{code}");
        }
    }

    #[test]
    fn scripts_that_set_globals_are_tidied() {
        for code in [
            "globalThis.n = (globalThis.n || 0) + 1",
            "const g = globalThis; return msg",
        ] {
            assert_eq!(realm(code, false), Realm::Tidy, "{code}");
        }
        for code in [
            "x = 5; x > 3",
            "var a = 1; a > 0",
            "this.y = 1",
            "n++ > 1",
            "function f() {} f()",
        ] {
            assert_eq!(realm(code, true), Realm::Tidy, "{code}");
        }
        assert_eq!(
            realm("msg.payload >= 5 && msg.meta.a === 'b' && (() => 1)()", true),
            Realm::Sealed
        );
    }

    #[test]
    fn scripts_that_extend_built_in_objects_get_an_engine_of_their_own() {
        for code in [
            "Array.prototype.last = function() { return this[this.length - 1] }",
            "Math.answer = 42",
            "Object.defineProperty(String.prototype, 'x', {value: 1})",
            "Object.assign(console, {log() {}})",
            "console.log = () => 0",
            "`${Math.x = 1}`",
            "parseInt = 5",
            "delete Math.PI",
            "++Math.n",
            "String['prototype']['y'] = 1",
            "msg.__proto__.x = 1",
            "globalThis.Math.x = 1",
            "new Function('return 1')()",
            "eval('var a')",
            "(0, eval)('var a')",
        ] {
            assert_eq!(realm(code, false), Realm::Open, "{code}");
        }
    }

    #[test]
    fn the_bracket_too_many_is_found() {
        assert_eq!(unmatched_closer("a(`${b}`) }; {"), Some((10, "}")));
        assert_eq!(unmatched_closer("if (x) { y[0] /* } */ '}' }"), None);
        assert_eq!(unmatched_closer("f(]"), Some((2, "]")));
    }

    #[test]
    fn an_import_is_found_and_a_method_of_that_name_is_none() {
        for (code, found) in [
            ("import('a')", Some(0)),
            ("return 1 + import /* x */ (msg.a)", Some(11)),
            ("`${import('a')}`", Some(3)),
            ("f(import(g(1)), 2)", Some(2)),
            ("({import(a) { return import('b') }})", Some(21)),
            ("msg.import('a')", None),
            ("msg?.import('a')", None),
            ("({import() {}, async import(a = (1)) {}})", None),
            ("class { #import() {} m() { this.#import() } }", None),
            ("({import: 1}).import", None),
            ("'import(1)' + `import(2)` + /import(3)/ // import(4)", None),
            ("reimport(1)", None),
            ("import", None),
            (")(import(", None),
        ] {
            assert_eq!(import_call(code), found, "{code}");
        }
    }

    #[test]
    fn semicolons_at_the_end_go_and_nothing_else() {
        for (code, left) in [
            ("a;", "a "),
            ("a ; ;\n", "a    \n"),
            ("a; // b; c", "a  // b  c"),
            ("a /* ; */; /* ; */", "a /* ; */  /*   */"),
            ("a;b", "a;b"),
            ("a;b;", "a;b "),
            ("';'", "';'"),
            ("`;`;", "`;` "),
            ("a // b;", "a // b;"),
            (";", " "),
            ("", ""),
        ] {
            assert_eq!(without_final_semicolons(code), left, "{code}");
        }
        assert_eq!(only_word(" größe // b"), Some("größe"));
        assert_eq!(["a.b", "1", "'a'", "", "(a)"].map(only_word), [None; 5]);
    }

    #[test]
    fn broken_code_is_read_to_its_end() {
        for code in ["'", "`${", "/a", "/*", "a[", "\"\\", "`${`${`", "}}}", "é='ü"] {
            let _realm = realm(code, true);
            let _found = (
                import_call(code),
                without_final_semicolons(code),
                only_word(code),
                first_return(code),
            );
        }
    }
}
