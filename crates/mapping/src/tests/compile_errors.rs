//! Compile errors: the position, the mistake, and what to write instead.

use super::{compile_error, compiler};

#[test]
fn errors_name_the_place_and_the_cure() {
    for (source, line, column, message) in [
        ("", 1, 1, "the mapping is empty; write `root = this`"),
        ("# nothing\n", 1, 1, "the mapping is empty; write `root = this`"),
        (
            "root = tmestamp_unix()",
            1,
            8,
            "unknown function `tmestamp_unix`, did you mean `timestamp_unix`?",
        ),
        (
            "root = this.a.upercase()",
            1,
            15,
            "unknown method `upercase`, did you mean `uppercase`?",
        ),
        (
            "root = this.a.\n  lenght()",
            2,
            3,
            "unknown method `lenght`, did you mean `length`?",
        ),
        (
            "root = foo.bar",
            1,
            8,
            "unknown name `foo`: a field of the input is written `this.foo`, a variable `$foo`, a metadata value `@foo`, a text \"foo\"",
        ),
        (
            "root = $x",
            1,
            8,
            "unknown variable `x`; there are none; a variable is set with `let x = ...` before it is used",
        ),
        (
            "let topic = 1\nroot = $topc",
            2,
            8,
            "unknown variable `topc`, did you mean `topic`?; a variable is set with `let topc = ...` before it is used",
        ),
        (
            "this.a = 1",
            1,
            8,
            "`this` is the input and cannot be assigned to: write `root.a = ...`",
        ),
        (
            "a = 1",
            1,
            1,
            "cannot assign to `a`: write `root.a = ...` or `let a = ...`",
        ),
        ("@foo = 1", 1, 6, "metadata is set with `meta foo = ...`"),
        (
            "root.a = 1 root.b = 2",
            1,
            12,
            "expected an operator or a line break, found `root`",
        ),
        (
            "root.a == 1\nroot.b = 2",
            2,
            1,
            "unexpected `root` after the expression; in a mapping of several lines each assigns something, as in `root.a = this.b`",
        ),
        ("root =", 1, 7, "expected an expression, found the end of the text"),
        ("root = 1 +", 1, 11, "expected an expression, found the end of the text"),
        (
            "root = (1",
            1,
            10,
            "expected `)` to close the parenthesis, found the end of the text",
        ),
        (
            "root = [1, 2",
            1,
            13,
            "expected `]` or `,` in the array, found the end of the text",
        ),
        (
            "root = {\"a\" 1}",
            1,
            13,
            "expected `:` after the member's name, found a number",
        ),
        ("root = {5: 1}", 1, 9, "the name of a member must be a string"),
        ("root = 'x'", 1, 8, "strings are written in double quotes"),
        (
            "root = \"x",
            1,
            8,
            "the string has no closing quote on its line; a text of several lines goes between \"\"\" and \"\"\"",
        ),
        ("root = \"\"\"x", 1, 8, "the string has no closing \"\"\""),
        (
            "root = \"\\q\"",
            1,
            9,
            "unknown escape in a string; a backslash itself is written `\\\\`, and a text between \"\"\" and \"\"\" has no escapes",
        ),
        (
            "root = this[0]",
            1,
            12,
            "a value is not indexed with brackets; write `.index(0)`, or `.get(\"a.b\")` for a path",
        ),
        (
            "root = this.foo-bar",
            1,
            17,
            "unknown name `bar`: a field of the input is written `this.bar`, a variable `$bar`, a metadata value `@bar`, a text \"bar\"",
        ),
        (
            "root = this.é",
            1,
            13,
            "expected a field, a method or `(` after `.`; names with other characters than letters, digits and `_` go in quotes, as in this.\"foo-bar\"",
        ),
        ("root = 1 & 2", 1, 10, "unexpected `&`; the logical operator is `&&`"),
        (
            "root = 1;",
            1,
            9,
            "unexpected `;`; statements are separated by line breaks",
        ),
        (
            "root = 5x",
            1,
            8,
            "this is not a number; numbers are written as 5, 0.5 or 1e6",
        ),
        (
            "root = if true { 1",
            1,
            19,
            "expected `}` after the branch, which is one expression, found the end of the text",
        ),
        (
            "root = match this { 1 => 2 3 => 4 }",
            1,
            28,
            "expected a line break, `,` or `}` after the case, found a number",
        ),
        (
            "if true { root = 1",
            1,
            19,
            "expected `}` after the statements, found the end of the text",
        ),
        ("root = 1 }", 1, 10, "unexpected `}`"),
        (
            "meta foo-bar = 1",
            1,
            9,
            "expected `=` after the metadata key, found `-`; keys with other characters than letters, digits and `_` go in quotes, as in meta \"foo.bar\" = 1",
        ),
        ("meta \"\" = 1", 1, 6, "a metadata key cannot be empty"),
        (
            "let 5 = 1",
            1,
            5,
            "expected a variable's name of letters, digits and `_` after `let`, found a number",
        ),
        (
            "map foo { root = 1 }",
            1,
            1,
            "`map` is not part of this language subset",
        ),
        ("root = $", 1, 8, "expected a variable's name after `$`"),
        (
            "root = this.map_each(this -> 1)",
            1,
            22,
            "`this` has a meaning already and cannot name a query's value",
        ),
    ] {
        let error = compile_error(source);
        assert_eq!(
            (error.line, error.column, error.message.as_str()),
            (line, column, message),
            "{source}"
        );
        assert!(error.to_string().starts_with(&format!("{line}:{column}: ")));
    }
}

#[test]
fn arguments_are_checked_against_the_parameters() {
    for (source, column, message) in [
        (
            "root = this.split()",
            13,
            "method `split` needs the argument `delimiter`",
        ),
        (
            "root = this.replace_all(\"a\")",
            13,
            "method `replace_all` needs the argument `new`",
        ),
        (
            "root = this.replace_all(old: \"a\", nw: \"b\")",
            35,
            "unknown argument of method `replace_all` `nw`, did you mean `new`?",
        ),
        (
            "root = this.split(\",\", 1)",
            24,
            "method `split` takes at most 1 argument(s): delimiter",
        ),
        ("root = this.uppercase(1)", 23, "method `uppercase` takes no arguments"),
        ("root = now(1)", 12, "function `now` takes no arguments"),
        (
            "root = this.split(5)",
            19,
            "argument `delimiter` of method `split` must be a string, not number",
        ),
        (
            "root = this.index(\"a\")",
            19,
            "argument `index` of method `index` must be an integer, not string",
        ),
        (
            "root = this.index(1.5)",
            19,
            "argument `index` of method `index` must be an integer, not number",
        ),
        (
            "root = this.split(x -> x)",
            19,
            "argument `delimiter` of method `split` is a value, not a query (`name -> ...`)",
        ),
        (
            "root = this.append(x -> x)",
            20,
            "method `append` takes values here, not a query (`name -> ...`)",
        ),
        (
            "root = this.trim(\"a\", cutset: \"b\")",
            23,
            "argument `cutset` of method `trim` is given twice",
        ),
        (
            "root = counter(min: this.a)",
            16,
            "this argument must be a literal integer",
        ),
        (
            "root = counter(5, 4)",
            8,
            "function `counter` counts from `min` to `max`, with 0 <= min <= max, not from 5 to 4",
        ),
        (
            "root = env(\"A\", no_cache: 1)",
            17,
            "argument `no_cache` of function `env` must be true or false, not number",
        ),
        (
            "root = this.map_each()",
            13,
            "method `map_each` needs the argument `query`",
        ),
    ] {
        let error = compile_error(source);
        assert_eq!(
            (error.line, error.column, error.message.as_str()),
            (1, column, message),
            "{source}"
        );
    }
}

/// `line:column` and the beginning of each mistake.
fn mistakes(source: &str) -> Vec<String> {
    let error = compile_error(source);
    let shown = error.all().map(|mistake| {
        let short: String = mistake.message.chars().take(24).collect();
        format!("{}:{} {short}", mistake.line, mistake.column)
    });
    shown.collect()
}

#[test]
fn all_mistakes_are_told_at_once() {
    let cases: &[(&str, &[&str])] = &[
        // Names and arguments, several in one statement and inside of each other.
        (
            "root.a = this.upcase() + foo\nroot.b = tmestamp(this.lenght())\nlet x = $y\nroot.c = $x",
            &[
                "1:15 unknown method `upcase`,",
                "1:26 unknown name `foo`: a fi",
                "2:10 unknown function `tmesta",
                "2:24 unknown method `lenght`,",
                "3:9 unknown variable `y`; th",
            ],
        ),
        (
            "root = this.replace_all(5, nw: 1).split(\",\", 2).index(\"a\")",
            &[
                "1:25 argument `old` of method",
                "1:28 unknown argument of meth",
                "1:46 method `split` takes at ",
                "1:55 argument `index` of meth",
            ],
        ),
        (
            "root = range()",
            &["1:8 function `range` needs t", "1:8 function `range` needs t"],
        ),
        // A statement that cannot be understood does not hide the next ones, and is no reason for others.
        (
            "root.a = (1\nroot.b = bar\nroot.c = 'x'\nroot.d = 5x\nroot.e = \"x\nroot.f = baz",
            &[
                "2:1 expected `)` to close th",
                "2:10 unknown name `bar`: a fi",
                "3:10 strings are written in d",
                "4:10 this is not a number; nu",
                "5:10 the string has no closin",
                "6:10 unknown name `baz`: a fi",
            ],
        ),
        (
            "root = {\n  \"a\": this.x.(,\n  \"b\": foo\n}\nlet n = [1\nroot.c = $n\nmeta k = bar",
            &[
                "2:16 expected an expression, ",
                "6:1 expected `]` or `,` in t",
                "7:10 unknown name `bar`: a fi",
            ],
        ),
        (
            "if this.a.( {\n  let b = 1\n}\nroot.x = $b\nroot.y = bar",
            &["2:3 expected an expression, ", "5:10 unknown name `bar`: a fi"],
        ),
        (
            "if this.a {\n  root.a = 1 +\n  root.b = foo\n} else {\n  root.c = bar\n}\nroot.d = baz",
            &[
                "3:10 expected an operator or ",
                "3:12 unknown name `foo`: a fi",
                "5:12 unknown name `bar`: a fi",
                "7:10 unknown name `baz`: a fi",
            ],
        ),
        (
            "if this.a { root.a = 1 + }\nroot.d = baz",
            &["1:26 expected an expression, ", "2:10 unknown name `baz`: a fi"],
        ),
        // What is assigned to, and how.
        (
            "this.a = 1\nb = foo\n@c = 3\nroot.d = 1 root.e = bar\nimport \"x\"\nmap y {\n  root = this\n}\nroot.f = baz",
            &[
                "1:8 `this` is the input and ",
                "2:1 cannot assign to `b`: wr",
                "2:5 unknown name `foo`: a fi",
                "3:4 metadata is set with `me",
                "4:12 expected an operator or ",
                "4:21 unknown name `bar`: a fi",
                "5:1 `import` is not part of ",
                "6:1 `map` is not part of thi",
                "9:10 unknown name `baz`: a fi",
            ],
        ),
        // One expression instead of statements.
        (
            "this.a.upcase() +\n  foo",
            &["1:8 unknown method `upcase`,", "2:3 unknown name `foo`: a fi"],
        ),
        (
            "root = [1,\n  foo,\n  bar\n]",
            &["2:3 unknown name `foo`: a fi", "3:3 unknown name `bar`: a fi"],
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(mistakes(source), *expected, "{source}");
    }
    let texts = compiler()
        .interpolation("${! foo }-${! 1 + }-${! bar.upcase() }-${! 1")
        .unwrap_err();
    let places: Vec<usize> = texts.all().map(|mistake| mistake.column).collect();
    assert_eq!(places, [5, 19, 25, 29, 45], "{texts:?}");
}

#[test]
fn a_flood_of_mistakes_ends_early() {
    for line in [
        "root.a = foo\n",
        "root.a = (\n",
        "}\n",
        "root.a = 'x\n",
        "if this.a {\n",
    ] {
        let error = compile_error(&line.repeat(100_000));
        let count = error.all().count();
        assert!((1..=100).contains(&count), "{line}: {count}");
    }
    let texts = compiler()
        .interpolation(&"${! foo } ${! ( }".repeat(10_000))
        .unwrap_err();
    assert!(texts.all().count() <= 101, "{}", texts.all().count());
}

#[test]
fn a_name_that_resembles_none_gets_the_whole_list() {
    let error = compile_error("root = frobnicate()");
    assert!(
        error
            .message
            .starts_with("unknown function `frobnicate`; there are: batch_index, batch_size, content, ")
    );
    assert!(
        error
            .message
            .ends_with(", throw, timestamp_unix, timestamp_unix_milli, timestamp_unix_nano, uuid_v4")
    );
    let error = compile_error("root = this.flatten_all_of_it()");
    assert!(
        error
            .message
            .starts_with("unknown method `flatten_all_of_it`; there are: abs, all, any, append, assign, bool, bytes, ")
    );
}

#[test]
fn everything_the_documentation_promises_exists() {
    let functions = "content json meta metadata error errored now timestamp_unix timestamp_unix_milli timestamp_unix_nano \
                     uuid_v4 random_int counter count hostname env batch_index batch_size range throw deleted nothing";
    let methods = "catch or string number bool type not_null not_empty length keys values index get exists merge append \
                   contains has_prefix has_suffix split join trim uppercase lowercase replace_all re_match re_replace \
                   re_replace_all format floor ceil round abs min max sum sort map_each filter fold parse_json format_json \
                   encode decode ts_parse ts_format ts_unix ts_unix_milli ts_unix_micro ts_unix_nano ts_strftime \
                   ts_strptime ts_tz ts_round parse_duration parse_timestamp parse_timestamp_strptime format_timestamp \
                   format_timestamp_strftime format_timestamp_unix format_timestamp_unix_milli format_timestamp_unix_micro \
                   format_timestamp_unix_nano int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 bytes slice \
                   unique flatten enumerated any all sort_by without assign key_values capitalize quote hash parse_csv \
                   re_find_all";
    let documentation = include_str!("../../../../docs/reference/mapping.md");
    let mut known: Vec<&str> = crate::functions::FUNCTIONS.iter().map(|spec| spec.name).collect();
    let mut promised: Vec<&str> = functions.split_whitespace().collect();
    known.sort_unstable();
    promised.sort_unstable();
    assert_eq!(known, promised);
    let mut known: Vec<&str> = crate::methods::all().map(|spec| spec.name).collect();
    let mut promised: Vec<&str> = methods.split_whitespace().collect();
    known.sort_unstable();
    promised.sort_unstable();
    assert_eq!(known, promised);
    for name in functions.split_whitespace().chain(methods.split_whitespace()) {
        assert!(
            documentation.contains(&format!("`{name}(")),
            "docs/reference/mapping.md does not show {name}"
        );
    }
}
