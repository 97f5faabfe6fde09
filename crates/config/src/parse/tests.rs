use proptest::prelude::*;

use super::*;
use crate::node::ValueKind;

fn run(text: &str) -> (Option<Node>, String) {
    let diags = Diagnostics::new("f.yaml");
    let node = parse(&Arc::new(SourceMap::unchanged(text)), None, &diags);
    (node, diags.to_string())
}

fn good(text: &str) -> Node {
    let (node, messages) = run(text);
    assert_eq!(messages, "", "for {text}");
    node.unwrap()
}

#[test]
fn kinds_and_written_text() {
    let node = good("a: 007\nb: '007'\nc: true\nd: 1.50\ne:\nf: |\n  x\n  y\ng: !!str 5\nh: !!int \"5\"\ni: ! 5\n");
    let kinds = [
        ("a", ValueKind::Int, Some("007")),
        ("b", ValueKind::Str, Some("007")),
        ("c", ValueKind::Bool, Some("true")),
        ("d", ValueKind::Float, Some("1.50")),
        ("e", ValueKind::Null, None),
        ("f", ValueKind::Str, Some("x\ny\n")),
        ("g", ValueKind::Str, Some("5")),
        ("h", ValueKind::Int, Some("5")),
        ("i", ValueKind::Str, Some("5")),
    ];
    for (name, kind, text) in kinds {
        let value = node.get(name).unwrap();
        assert_eq!((value.kind(), value.scalar_text()), (kind, text), "for {name}");
    }
    assert_eq!(node.get("b").unwrap().as_i64(), Some(7));
    assert_eq!(node.get("d").unwrap().as_f64(), Some(1.5));
    assert_eq!(node.get("c").unwrap().as_str(), None);
    assert_eq!(good("").kind(), ValueKind::Null);
    assert_eq!(good("---\na: 1\n...\n").get("a").unwrap().as_i64(), Some(1));
    assert_eq!(good("{null: 1}").get("null").unwrap().as_i64(), Some(1));
}

#[test]
fn places_and_paths() {
    let node = good("input:\n  # é\n  opcua: {nodeIDs: [a, 'é', c]}\n  list:\n  - x: 1\n    y: 2\n");
    let input = node.get("input").unwrap();
    let ids = input.get("opcua").unwrap().get("nodeIDs").unwrap().as_seq().unwrap();
    assert_eq!(
        (ids[2].path(), ids[2].pos()),
        ("input.opcua.nodeIDs[2]".into(), Pos { line: 3, column: 29 })
    );
    let y = input.get("list").unwrap().as_seq().unwrap()[0].get("y").unwrap();
    assert_eq!(
        (y.path(), y.pos()),
        ("input.list[0].y".into(), Pos { line: 6, column: 8 })
    );
    let (key, _) = input.as_map().unwrap().entry("list").unwrap();
    assert_eq!(key.pos(), Pos { line: 4, column: 3 });
    assert_eq!(input.pos(), Pos { line: 3, column: 3 });
}

#[test]
fn places_inside_scripts() {
    let text = "a: |\n\n\n  let x;\n    é y\nb: !!str |2\n    let\n  z\nc: root = this\nd: \"one two\"\ne: >\n  f\ng: |\r\n  h\r\n  ij\r\n";
    let node = good(text);
    let place = |name: &str, line, column| {
        let pos = node.get(name).unwrap().text_pos(line, column);
        (pos.line, pos.column)
    };
    assert_eq!(node.get("a").unwrap().as_str(), Some("\n\nlet x;\n  é y\n"));
    assert_eq!(place("a", 3, 5), (4, 7));
    assert_eq!(place("a", 4, 5), (5, 7));
    assert_eq!(place("a", 4, 99), (5, 8));
    assert_eq!(place("b", 1, 3), (7, 5));
    assert_eq!(place("b", 2, 1), (8, 3));
    assert_eq!(place("c", 1, 6), (9, 9));
    assert_eq!(place("d", 1, 5), (10, 9));
    assert_eq!(place("e", 1, 1), (12, 3));
    assert_eq!(place("g", 2, 2), (15, 4));
    assert_eq!(place("c", 7, 1), (9, 4));
}

#[test]
fn anchors_and_merge_keys() {
    let text = "base: &b {x: 1, y: {z: 2}}\n\
                one: *b\n\
                two:\n  <<: *b\n  x: 9\n\
                three: {<<: [{x: 5}, *b], w: 3}\n\
                \"<<\": text\n\
                ? &k key\n: *k\n";
    let node = good(text);
    let z = node.get("one").unwrap().get("y").unwrap().get("z").unwrap();
    assert_eq!((z.path(), z.pos().line), ("one.y.z".into(), 1));
    assert_eq!(node.get("two").unwrap().to_json(), r#"{"x":9,"y":{"z":2}}"#);
    assert_eq!(node.get("two").unwrap().get("y").unwrap().path(), "two.y");
    assert_eq!(node.get("three").unwrap().to_json(), r#"{"w":3,"x":5,"y":{"z":2}}"#);
    assert_eq!(node.get("<<").unwrap().as_str(), Some("text"));
    assert_eq!(node.get("key").unwrap().as_str(), Some("key"));
}

#[test]
fn mistakes() {
    let cases = [
        (
            "a: 1\nb: 2\na: 3\n",
            "3:1: duplicate field \"a\", first given on line 1\n",
        ),
        (
            "input:\n  opcua: {x: 1, x: [1, {y: 2}]}\n",
            "2:17: duplicate field \"x\" in input.opcua, first given on line 2\n",
        ),
        ("a: !!int x\n", "1:4: !!int needs a whole number, got \"x\"\n"),
        (
            "a: !foo x\n",
            "1:4: unknown tag \"!foo\"; use !!str, !!int, !!float or !!bool\n",
        ),
        (
            "a: !!binary x\n",
            "1:4: unknown tag !!binary; use !!str, !!int, !!float or !!bool\n",
        ),
        (
            "a: !!seq {}\n",
            "1:4: unknown tag \"!!seq\"; use !!str, !!int, !!float or !!bool\n",
        ),
        (
            "a: {<<: 5}\n",
            "1:9: \"<<\" needs a mapping or a list of mappings, such as *defaults\n",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "2:1: a second document starts here; the file must hold only one\n",
        ),
        (
            "? [a]\n: 1\n",
            "1:3: the name of a field must be a text, not a list or a mapping\n",
        ),
        (": 1\n", "1:1: a field needs a name in front of the colon\n"),
        (
            "a: &x [*x]\n",
            "1:8: this alias is inside the value that it refers to\n",
        ),
        (
            "a: *x\n",
            "1:4: malformed YAML: while parsing node, found unknown anchor; define it with & in front of its first use\n",
        ),
        (
            "a: \u{0}b\n",
            "1:4: the character U+0000 is not allowed in YAML; write it as \"\\u0000\" in double quotes\n",
        ),
        (
            "a: \u{7f}\n",
            "1:4: the character U+007F is not allowed in YAML; write it as \"\\u007f\" in double quotes\n",
        ),
        (
            "a: b: c\n",
            "1:5: malformed YAML: mapping values are not allowed in this context; check the indentation, and quote a text that contains \": \"\n",
        ),
        (
            "a:\n\tb: 1\n",
            "2:1: malformed YAML: tabs disallowed within this context (block indentation); indent with spaces, not tabs\n",
        ),
        (
            "a: \"b\nc: d\n",
            "1:4: malformed YAML: invalid indentation in quoted scalar; close the quote opened here, or indent the lines after it\n",
        ),
        (
            "a: [1, 2\n",
            "2:1: malformed YAML: while parsing a flow sequence, expected ',' or ']'; close the list with ]\n",
        ),
        (
            "a: 1\nb\nc: 2\n",
            "3:1: malformed YAML: simple key expect ':'; a field needs a colon and a space after its name\n",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(run(text).1, format!("f.yaml:{expected}"), "for {text:?}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    good(&nested(DEPTH_MAX));
    let message = "f.yaml:1:65: lists and mappings are nested more than 64 deep\n";
    assert_eq!(run(&nested(DEPTH_MAX + 1)).1, message);
    assert!(run(&"- ".repeat(100_000)).1.contains("nested more than 64 deep"));
    assert!(run(&"[".repeat(100_000)).1.contains("nested more than 64 deep"));
    let tower = format!("a: &a {}\nb: {{c: *a}}\n", nested(DEPTH_MAX - 1));
    assert_eq!(
        run(&tower).1,
        "f.yaml:2:8: lists and mappings are nested more than 64 deep\n"
    );
}

#[test]
fn alias_bombs_end_with_one_message() {
    let mut lists = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    let mut maps = "a0: &a0 {a: 1, b: 1}\n".to_owned();
    for i in 1..30 {
        let before = i - 1;
        lists += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{before}"); 10].join(", "));
        maps += &format!("a{i}: &a{i} {{<<: *a{before}, x{i}: *a{before}, y{i}: *a{before}}}\n");
    }
    let message = "more than 1,000,000 values, counting an alias as all the values it stands for\n";
    for bomb in [lists, maps] {
        let (node, messages) = run(&bomb);
        assert!(node.is_none() && messages.ends_with(message), "{messages}");
    }
    let (node, messages) = run(&format!("[{}]", "1,".repeat(VALUES_MAX + 1)));
    assert!(node.is_none() && messages.ends_with(message), "{messages}");
}

#[test]
fn long_lines_are_located_quickly() {
    let text = format!("[{}]", "é,".repeat(300_000));
    let items = good(&text);
    let last = items.as_seq().unwrap().last().unwrap();
    assert_eq!(
        last.pos(),
        Pos {
            line: 1,
            column: 600_000
        }
    );
}

/// Text made of pieces with a meaning in YAML.
fn yaml_like() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        proptest::sample::select(vec![
            "a",
            "b: ",
            "- ",
            "? ",
            ": ",
            ":",
            "[",
            "]",
            "{",
            "}",
            ",",
            "&x ",
            "*x",
            "*x ",
            "<<: ",
            "!!int ",
            "!",
            "!!str",
            "!<",
            "|",
            "|+",
            "|2-",
            ">",
            "> ",
            "\"",
            "'",
            "\\",
            "\\u0041",
            "\\x",
            "#",
            " # ",
            "\n",
            "\r\n",
            "\r",
            "\n  ",
            "\n    ",
            "\t",
            "---",
            "---\n",
            "...\n",
            "%YAML 1.2\n",
            "%TAG ! x\n",
            "~",
            "007",
            "9223372036854775808",
            "1e999",
            ".inf",
            "é",
            "\u{FEFF}",
            "\u{2028}",
            "\u{0}",
            "@",
            "`",
            "${A}",
            "${A:",
            "${{",
            "${file:",
            "{{ .x }}",
            "%",
            "=",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,3}",
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// No text makes the loader panic, and a missing tree always comes with a reason.
    #[test]
    fn hostile_text_never_panics(text in yaml_like()) {
        let env = |name: &str| (name == "A").then(|| "x\n- y: 1".to_owned());
        let source = crate::source::SourceText::new("f.yaml", text.clone());
        let loaded = crate::load(&source, &env, &crate::LoadOptions::default());
        let _ = (loaded.config.to_yaml(), loaded.config.to_json(), loaded.diagnostics.to_string());
        let (node, messages) = run(&text);
        prop_assert!(node.is_some() || !messages.is_empty());
    }
}
