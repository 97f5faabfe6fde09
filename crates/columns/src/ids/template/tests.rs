use proptest::prelude::*;

use super::*;

fn template(body: &str) -> String {
    TemplateBuilder::default().template(body).unwrap_or("-").to_owned()
}

#[track_caller]
fn all(expected: &[(&str, &str)]) {
    for (body, expected) in expected {
        assert_eq!(template(body), *expected, "{body}");
    }
}

#[test]
fn each_rule_takes_what_it_is_for() {
    all(&[
        (r#"said "hello \"you\" there" twice"#, "said <str> twice"),
        ("file 'a b' isn't the users' one", "file <str> isn ' t the users ' one"),
        ("an \"open quote", "an \" open quote"),
        ("see https://x.org/a?b=1#c, ok", "see <url> ok"),
        ("of=s3+http://b/c d", "of = <url> d"),
        ("http:// is none", "http : / / is none"),
        ("mail first.last+x@mail.example.org.", "mail <email> ."),
        ("root@localhost", "root @ localhost"),
        ("id 123e4567-e89b-12d3-a456-426614174000 done", "id <uuid> done"),
        ("deadbeef-dead-beef-dead-beefdeadbeef, x", "<uuid> , x"),
        (
            "at 2026-11-23T10:11:12.345678Z and 2026-11-23 10:11:12,345 +01:00",
            "at <time> and <time> <num> : <num>",
        ),
        ("2026-11-23T10:11+0100 2026-11-23", "<time>*"),
        ("10:11:12 x 10:11 y", "<time> x <num> : <num> y"),
        ("Nov  3 10:11:12 host Nov 23 said", "<time> host nov <num> said"),
        ("2026-13-23 99:11:12", "<num> <num> <num>* : <num> : <num>"),
        ("from 10.0.0.1:8080 to 10.0.0.300 x", "from <ip> to <num> . <num> x"),
        ("1.2.3.4. [::1]:80 [fe80::1] fe80::1:2 ::1: a::", "<ip> . <ip>* : <ip>"),
        ("std::vec a:b c: d", "std : : vec a : b c : d"),
        ("open /var/log/x.log: no", "open <path> : no"),
        (
            r"C:\Users\me and src/a/b.rs:12 and/or 3/4 \\host\share",
            "<path> and <path> : <num> and / or <num> / <num> <path>",
        ),
        ("./a/b ~/x . ..", "<path> ~ <path> . . ."),
        ("0x1F 1234abcd abcdefab 12345678 1234567", "<hex>* abcdefab <hex> <num>"),
        ("took 12ms 1.5s 2h45m 3µs -4us 5d 6w", "took <dur>* <id>"),
        ("12B 1.5kB 3KiB 4MB 5MiB 6GB 7GiB 8TB", "<size>* <id>"),
        ("-1 +2.5 3e10 4.5E-3 50% 1e 2.x", "<num>* <id> <num> . x"),
        ("i18n x1 1x Äb2 ÄB", "<id>* Äb"),
        ("Hello, WORLD!  a_b [x]", "hello , world ! a _ b [ x ]"),
        ("→ ok ✓", "→ ok ✓"),
    ]);
}

#[test]
fn runs_of_one_placeholder_are_one() {
    all(&[
        ("[1, 2,3  4]", "[ <num>* ]"),
        ("[1]", "[ <num> ]"),
        ("1, 2, x", "<num>* , x"),
        ("1,, a1", "<num> , , <id>"),
        ("5-3 5 -3", "<num> <num>*"),
        (r#""a""b" "c""#, "<str> <str>*"),
        ("1 a1 2", "<num> <id> <num>"),
    ]);
    let many: String = (0..600).map(|number| format!("{number},")).collect();
    assert_eq!(
        template(&format!("sizes {many} end")),
        "sizes <num>* ,",
        "it is cut within"
    );
    assert_eq!(template(&format!("sizes {}, end", &many[..1200])), "sizes <num>* , end");
}

#[test]
fn a_template_ends_after_64_tokens() {
    let words = |count: usize| vec!["w"; count].join(" ");
    assert_eq!(template(&words(70)), words(64));
    let last_is_run = format!("{} 1, 2, 3, w", words(63));
    assert_eq!(template(&last_is_run), format!("{} <num>*", words(63)));
    assert_eq!(
        template(&format!("{} 1, w", words(62))),
        format!("{} <num> ,", words(62))
    );
}

#[test]
fn only_the_first_line_counts_and_no_colour() {
    all(&[
        ("  \t first\r\nsecond", "first"),
        (
            "\x1b[31;1mred\x1b[0m and \x1b]0;title\x07on \x1b]8;;x\x1b\\off \x1bMup",
            "red and on off up",
        ),
        ("\x1b[0m\n  x", "x"),
        ("cut \x1b[", "cut"),
        ("", "-"),
        (" \n ", "-"),
        ("\x1b[0m", "-"),
    ]);
    let long = format!("{}ä", "x".repeat(TEXT_BYTES_MAX - 1));
    assert_eq!(template(&long), "x".repeat(TEXT_BYTES_MAX - 1));
}

#[test]
fn of_an_object_text_and_names_count() {
    all(&[
        (
            r#"{"msg":"took 5 ms","a":{"b":[1]},"Z":null}"#,
            "took <num> ms {Z,a,msg}",
        ),
        (r#"{"msg":"two","message":"one"}"#, "one {message,msg}"),
        (r#"{"message":7,"event":"three"}"#, "three {event,message}"),
        (r#" {"a":1, "a":2} "#, "{a}"),
        ("{}", "{}"),
        (r#"{"log":"x\ny"}"#, "x {log}"),
        (r#"{"log":"x" 1}"#, "{ <str> : <str> <num> }"),
        (r#"{"a":1} and {"b":2}"#, "{ <str> : <num> } and { <str> : <num> }"),
        (r#"["a"]"#, "[ <str> ]"),
    ]);
    let long = format!(r#"{{"msg":"{}"}}"#, "w ".repeat(100));
    assert_eq!(template(&long), format!("{}{{msg}}", "w ".repeat(64)));
}

#[test]
fn a_fingerprint_is_that_of_the_template() {
    let mut templates = TemplateBuilder::default();
    let of = |text: &str| Some(xxh3_64(text.as_bytes()) as i64);
    assert_eq!(templates.fingerprint("User 17 logged in"), of("user <num> logged in"));
    assert_eq!(templates.fingerprint(r#"{"a":1}"#), of("{a}"));
    assert_eq!(templates.fingerprint(" "), None);
}

/// A random value of one kind.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[1-9][0-9]{0,6}",
        "[1-9][0-9]{0,3}(ms|s|m|h)",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "\"[a-z 0-9,;]{0,20}\"",
        "https://[a-z]{1,8}\\.org/[a-z0-9/?=&]{0,20}",
        "(/[a-z]{1,6}){1,5}",
        "20[0-9]{2}-0[1-9]-1[0-9]T1[0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?Z",
        "1[0-9]\\.[0-9]{1,2}\\.1[0-9]{2}\\.2[0-4][0-9](:[1-9][0-9]{1,3})?",
        "[a-z]{1,6}\\.[a-z]{1,6}@[a-z]{1,6}\\.com",
        "[1-9][0-9]{0,3}\\.[0-9]{1,3}(kB|MiB)",
        "0x[0-9a-f]{1,16}",
    ]
}

/// Words and values; values are marked.
fn message() -> impl Strategy<Value = Vec<(String, bool)>> {
    let word = "[g-z][a-z]{0,7}".prop_map(|word| (word, false));
    prop::collection::vec(prop_oneof![word, value().prop_map(|value| (value, true))], 1..20)
}

proptest! {
    #[test]
    fn what_varies_makes_no_difference(message in message(), others in prop::collection::vec(value(), 20)) {
        let first: Vec<&str> = message.iter().map(|(part, _)| part.as_str()).collect();
        // Replaces each value by another one of its kind, if there is one.
        let other = |((part, is_value), other): (&'_ (String, bool), &'_ String)| {
            let replaces = *is_value && template(part) == template(other);
            if replaces { other.clone() } else { part.clone() }
        };
        let second: Vec<String> = message.iter().zip(&others).map(other).collect();
        let found = template(&first.join(" "));
        prop_assert_eq!(&found, &template(&second.join(" ")));
        for (word, _) in message.iter().filter(|(_, is_value)| !is_value) {
            prop_assert!(found.split(' ').any(|token| token == word), "{} in {}", word, found);
        }
    }

    #[test]
    fn any_text_has_one(text in "\\PC{0,200}|[a-f0-9:./\\\\ \"'\\-_@,\\[\\]%T{}]{0,300}") {
        let mut templates = TemplateBuilder::default();
        let first = templates.template(&text).map(str::to_owned);
        if let Some(first) = &first {
            prop_assert!(first.len() <= 3 * text.len() + 16, "{} of {}", first.len(), text.len());
        }
        // Earlier templates have no effect.
        templates.template("1, 2, 3, x");
        prop_assert_eq!(templates.template(&text).map(str::to_owned), first);
    }
}
