use super::*;
use crate::describe::describe;

/// Reads `text` below the path `input.opcua` and returns the messages.
fn run<T>(text: &str, read: impl FnOnce(&mut Fields<'_>) -> T) -> (T, String) {
    let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let diags = Diagnostics::new("flow.yaml");
    let node = Node::parse(&format!("input:\n  opcua:\n{indented}")).unwrap();
    let node = node.get("input").unwrap().get("opcua").unwrap();
    let mut f = Fields::new(node, &diags);
    let value = read(&mut f);
    f.finish();
    (value, diags.to_string())
}

#[test]
fn given_values_and_defaults() {
    let text = "s: 007\nb: 'true'\ni: \"500\"\nf: 3\nd: 1m30s\nz: 2MiB\nl: [a, 5, true]\nm: {a: 1, b: }\no: sign\n\
                e: ' '\nn:\n";
    let ((), messages) = run(text, |f| {
        assert_eq!(f.string("s", "x"), "007");
        assert!(f.bool("b", false));
        assert_eq!(f.int("i", 0), 500);
        assert_eq!(f.float("f", 0.0), 3.0);
        assert_eq!(f.duration("d", "5s"), Duration::from_secs(90));
        assert_eq!(f.size("z", "1"), 2 << 20);
        assert_eq!(f.string_list("l"), ["a", "5", "true"]);
        assert_eq!(
            f.string_map("m"),
            [("a".into(), "1".into()), ("b".into(), String::new())]
        );
        assert_eq!(f.one_of("o", &["none", "sign"], ""), "sign");
        assert_eq!(f.string("n", "null is absent"), "null is absent");
        assert_eq!(f.opt_int("absent"), None);
        assert_eq!(f.duration("absent", "300ms"), Duration::from_millis(300));
        assert_eq!(f.size("absent", "10GiB"), 10 << 30);
        assert_eq!(f.one_of("absent", &["none", "sign"], ""), "");
        assert_eq!(f.opt_one_of("o", &["none", "sign"]), Some("sign"));
        assert_eq!(f.opt_one_of("absent", &["none", "sign"]), None);
        assert_eq!(f.opt_int_in("i", 1..=500), Some(500));
        assert_eq!(f.opt_int_in("absent", 1..=500), None);
        assert_eq!(f.duration_or_empty("d", None), Some(Duration::from_secs(90)));
        assert_eq!(f.duration_or_empty("e", Some("1s")), None);
        assert_eq!(f.duration_or_empty("absent", Some("1s")), Some(Duration::from_secs(1)));
        assert_eq!(f.duration_or_empty("absent", None), None);
        let mut nested = f.fields("absent2");
        assert_eq!(nested.string("type", "absolute"), "absolute");
        nested.finish();
        assert!(f.opt_fields("absent3").is_none());
    });
    assert_eq!(messages, "");
}

type Read = fn(&mut Fields<'_>);

#[test]
fn wrong_types_are_named_with_place_and_cure() {
    let cases: [(&str, Read, &str); 25] = [
        (
            "v: fast",
            |f| {
                f.int("v", 0);
            },
            "expected a whole number, got the text \"fast\"",
        ),
        (
            "v: 1.5",
            |f| {
                f.int("v", 0);
            },
            "expected a whole number, got the number 1.5",
        ),
        (
            "v: true",
            |f| {
                f.int("v", 0);
            },
            "expected a whole number, got true",
        ),
        (
            "v: []",
            |f| {
                f.int("v", 0);
            },
            "expected a whole number, got a list",
        ),
        (
            "v: 99999999999999999999",
            |f| {
                f.int("v", 0);
            },
            "expected a whole number, got the number 99999999999999999999",
        ),
        (
            "v: 20",
            |f| {
                f.int_in("v", 1, 1..=16);
            },
            "expected a whole number from 1 to 16, got the number 20",
        ),
        (
            "v: -1",
            |f| {
                f.int_in("v", 1, 0..=i64::MAX);
            },
            "expected a whole number of at least 0, got the number -1",
        ),
        (
            "v: x",
            |f| {
                f.float("v", 0.0);
            },
            "expected a number, got the text \"x\"",
        ),
        (
            "v: .nan",
            |f| {
                f.float("v", 0.0);
            },
            "expected a number, got the number .nan",
        ),
        (
            "v: yes",
            |f| {
                f.bool("v", false);
            },
            "expected true or false, got the text \"yes\"",
        ),
        (
            "v: {a: 1}",
            |f| {
                f.string("v", "");
            },
            "expected a text, got a mapping",
        ),
        (
            "v: 5",
            |f| {
                f.duration("v", "1s");
            },
            "expected a duration such as 500ms, 10s or 1h30m, got the number 5; add a unit, for example 5s",
        ),
        (
            "v: soon",
            |f| {
                f.duration("v", "1s");
            },
            "expected a duration such as 500ms, 10s or 1h30m, got the text \"soon\"",
        ),
        (
            "v: []",
            |f| {
                f.duration("v", "1s");
            },
            "expected a duration such as 500ms, 10s or 1h30m, got a list",
        ),
        (
            "v: 10QB",
            |f| {
                f.size("v", "1");
            },
            "expected a size such as 1048576, 500MB or 10GiB, got the text \"10QB\"",
        ),
        (
            "v: -5",
            |f| {
                f.size("v", "1");
            },
            "expected a size of 0 or more, got the number -5",
        ),
        (
            "v: abslute",
            |f| {
                f.one_of("v", &["none", "absolute"], "none");
            },
            "expected one of none, absolute, got the text \"abslute\", did you mean \"absolute\"?",
        ),
        (
            "v: 5",
            |f| {
                f.one_of("v", &["none", "absolute"], "none");
            },
            "expected one of none, absolute, got the number 5",
        ),
        (
            "v: ns=2;i=5",
            |f| {
                f.string_list("v");
            },
            "expected a list, got the text \"ns=2;i=5\"; for example v: [\"ns=2;i=5\"]",
        ),
        (
            "v: {a: 1}",
            |f| {
                f.list("v");
            },
            "expected a list, got a mapping; start each entry with \"- \"",
        ),
        (
            "v: [1]",
            |f| {
                f.string_map("v");
            },
            "expected a mapping of fields, got a list",
        ),
        (
            "v: [1]",
            |f| f.fields("v").finish(),
            "expected a mapping of fields, got a list",
        ),
        (
            "password: [x]",
            |f| {
                f.string("password", "");
            },
            "expected a text, got a list",
        ),
        (
            "password: abc",
            |f| {
                f.int("password", 0);
            },
            "expected a whole number, got a secret value",
        ),
        (
            "v: \"a\\nb\"",
            |f| {
                f.int("v", 0);
            },
            "expected a whole number, got the text \"a\\nb\"",
        ),
    ];
    for (text, read, expected) in cases {
        let name = text.split(':').next().unwrap();
        let column = 5 + name.len() + 2;
        let expected = format!("flow.yaml:3:{column}: input.opcua.{name}: {expected}\n");
        assert_eq!(run(text, read).1, expected, "for {text}");
    }
}

#[test]
fn unknown_missing_and_legacy_fields() {
    let text = "insecure: true\nsubscribeEnable: true\nzzzzzzzz: 1\ndeadband: {tpye: x}\nlist: [{nam: a}]\n";
    let ((), messages) = run(text, |f| {
        f.bool("subscribeEnabled", false);
        assert_eq!(f.required_string("endpoint"), "");
        let mut deadband = f.fields("deadband");
        deadband.string("type", "");
        deadband.finish();
        for item in f.list("list") {
            let mut item = Fields::new(&item, f.diags());
            item.required_string("name");
            item.finish();
        }
        assert!(f.legacy("insecure", "has no effect").is_some());
        assert!(f.legacy("autoReconnect", "has no effect").is_none());
        assert_eq!(f.pos_of("insecure"), Pos { line: 3, column: 15 });
        f.error("list", "is too short");
    });
    let expected = "\
flow.yaml:3:5: missing required field \"endpoint\" in input.opcua
flow.yaml:3:5: warning: input.opcua.insecure has no effect
flow.yaml:4:5: unknown field \"subscribeEnable\" in input.opcua, did you mean \"subscribeEnabled\"?
flow.yaml:5:5: unknown field \"zzzzzzzz\" in input.opcua; valid names: subscribeEnabled, endpoint, deadband, list
flow.yaml:6:16: unknown field \"tpye\" in input.opcua.deadband, did you mean \"type\"?
flow.yaml:7:11: input.opcua.list: is too short
flow.yaml:7:12: missing required field \"name\" in input.opcua.list[0]
flow.yaml:7:13: unknown field \"nam\" in input.opcua.list[0], did you mean \"name\"?
";
    assert_eq!(messages, expected);
}

#[test]
fn what_is_no_mapping_is_reported_once() {
    let diags = Diagnostics::new("flow.yaml");
    let node = Node::parse("[1]").unwrap();
    let mut f = Fields::new(&node, &diags);
    f.required_string("endpoint");
    f.int("pollRate", 1);
    f.finish();
    assert_eq!(
        diags.to_string(),
        "flow.yaml:1:1: expected a mapping of fields, got a list\n"
    );
}

#[test]
fn chilled_makes_unknown_fields_warnings() {
    let diags = Diagnostics::new("flow.yaml").with_chilled(true);
    let node = Node::parse("pollrate: 1\n").unwrap();
    let mut f = Fields::new(&node, &diags);
    f.int("pollRate", 1);
    f.required_string("x");
    f.finish();
    let expected = "flow.yaml:1:1: missing required field \"x\"\n\
                    flow.yaml:1:1: warning: unknown field \"pollrate\", did you mean \"pollRate\"?\n";
    assert_eq!(diags.to_string(), expected);
}

#[test]
fn a_reader_describes_its_fields() {
    let docs = describe(|node, diags| {
        let mut f = Fields::new(node, diags);
        f.required_string("endpoint");
        f.int("pollRate", 1000);
        f.float("samplingInterval", 0.0);
        f.one_of("mode", &["a", "b"], "a");
        f.opt_int_in("claim_batch", 1..=10_000);
        f.duration_or_empty("period", None);
        f.required_node("topic", kind::INTERPOLATED);
        f.node_or("processors", kind::PROCESSOR_LIST, "[]");
        f.node("roles", &kind::list_of(&["read", "write"]));
        f.legacy("insecure", "has no effect");
        let mut deadband = f.fields("deadband");
        deadband.duration("max_time", "5s");
        deadband.finish();
        for condition in f.list("conditions") {
            let mut condition = Fields::new(&condition, diags);
            condition.required_string("if");
            condition.finish();
        }
        if let Some(mut tls) = f.opt_fields("tls") {
            tls.opt_string("cert_file");
            tls.finish();
        }
        f.finish();
    });
    let lines: Vec<String> = docs
        .iter()
        .map(|d| format!("{} | {} | {:?} | {}", d.name, d.kind, d.default, d.required))
        .collect();
    let expected = [
        "endpoint | text | None | true",
        "pollRate | whole number | Some(\"1000\") | false",
        "samplingInterval | number | Some(\"0.0\") | false",
        "mode | one of a, b | Some(\"a\") | false",
        "claim_batch | whole number from 1 to 10000 | None | false",
        "period | duration | None | false",
        "topic | interpolated text | None | true",
        "processors | list of processors | Some(\"[]\") | false",
        "roles | list of read, write | None | false",
        "deadband | mapping | None | false",
        "deadband.max_time | duration | Some(\"5s\") | false",
        "conditions | list | Some(\"[]\") | false",
        "conditions[].if | text | None | true",
        "tls | mapping | None | false",
        "tls.cert_file | text | None | false",
    ];
    assert_eq!(lines, expected);
}
