use proptest::prelude::*;

use super::*;
use crate::node::{Key, NodePath};
use crate::source::Pos;

const HERE: Pos = Pos { line: 1, column: 1 };

#[test]
fn yaml_is_readable_and_masks_secrets() {
    let text = "input:\n  opcua:\n    endpoint: opc.tcp://u:pw@h:1\n    password: hunter2\n    username: ''\n    token:\n    \
                nodeIDs: [ns=2;s=a, 'x: y', 'yes', '5', 007, [1, []]]\n    code: |\n      if (x) {\n\n        y;\n      }\n    \
                password2: x\nlist:\n- a: {}\n  b: !!float 5\n- 'it''s'\n- \"two\\nlines\"\n";
    let node = Node::parse(text).unwrap();
    let expected = "input:
  opcua:
    endpoint: \"opc.tcp://u:!!!SECRET_SCRUBBED!!!@h:1\"
    password: \"!!!SECRET_SCRUBBED!!!\"
    username: \"\"
    token: null
    nodeIDs:
      - ns=2;s=a
      - \"x: y\"
      - \"yes\"
      - \"5\"
      - 007
      - - 1
        - []
    code: |
      if (x) {

        y;
      }
    password2: x
list:
  - a: {}
    b: !!float \"5\"
  - \"it's\"
  - |-
    two
    lines
";
    assert_eq!(node.to_yaml(), expected);
    assert_eq!(Node::parse("").unwrap().to_yaml(), "null\n");
    assert_eq!(Node::parse("{}").unwrap().to_yaml(), "{}\n");
}

#[test]
fn json_is_valid_and_keeps_digits() {
    let text = "{a: 18446744073709551615, b: 1.50, c: 1e300, d: .inf, e: \"\\u0001\\\"\u{2028}\", f: 0x10, g: -0.0, secret: {x: [1, '', y]}}";
    let json = Node::parse(text).unwrap().to_json();
    let expected = r#"{"a":18446744073709551615,"b":1.5,"c":1e300,"d":".inf","e":"\u0001\"\u2028","f":16,"g":-0,"secret":{"x":[1,"","y"]}}"#;
    assert_eq!(json, expected);
    serde_json::from_str::<serde_json::Value>(&json).unwrap();
}

#[test]
fn values_in_a_list_under_a_secret_name_are_masked() {
    let node = Node::parse("password: [one, 2]\n").unwrap();
    assert_eq!(node.to_json(), format!(r#"{{"password":["{MASK}","{MASK}"]}}"#));
}

#[derive(Debug, Clone)]
enum Shape {
    Text(String),
    Plain(String),
    Seq(Vec<Shape>),
    Map(Vec<(String, Shape)>),
}

fn build(shape: &Shape, path: NodePath) -> Node {
    let value = match shape {
        Shape::Text(text) => NodeValue::Scalar(Scalar::new(text.as_str(), ScalarValue::Str)),
        Shape::Plain(text) => NodeValue::Scalar(Scalar::new(text.as_str(), resolve(text))),
        Shape::Seq(items) => NodeValue::Seq(
            items
                .iter()
                .enumerate()
                .map(|(i, item)| build(item, path.index(i)))
                .collect(),
        ),
        Shape::Map(fields) => {
            let mut entries: Vec<(Key, Node)> = Vec::new();
            for (name, value) in fields {
                if entries.iter().all(|(key, _)| key.as_str() != name) {
                    entries.push((Key::new(name.as_str(), HERE), build(value, path.key(name.as_str()))));
                }
            }
            NodeValue::Map(Mapping::new(entries))
        }
    };
    Node::new(HERE, path, value)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        "[a-c :#'\"\t\n-]{0,16}",
        "([ab:]{0,3}\n){1,4}[a ]{0,2}",
        any::<String>(),
        proptest::sample::select(vec![
            "", "~", "null", "<<", "- a", "a:", "---", "...", "? x", "|", "0x1", "1_0", "\u{FEFF}"
        ])
        .prop_map(str::to_owned),
        (900usize..1100).prop_map(|n| "k".repeat(n)),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let plain = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        proptest::sample::select(vec![
            "true", "FALSE", "null", "~", ".nan", "-.inf", "007", "0x1F", "1_000", "1."
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![text().prop_map(Shape::Text), plain.prop_map(Shape::Plain)];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Shape::Seq),
            proptest::collection::vec((text(), inner), 0..6).prop_map(Shape::Map),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The written YAML reads back as the same tree.
    #[test]
    fn yaml_round_trip(shape in shape()) {
        let node = build(&shape, NodePath::default());
        let written = yaml(&node, SecretMasking::Show);
        let read = Node::parse(&written).map_err(|e| TestCaseError::fail(format!("{e}\n{written}")))?;
        prop_assert!(read == node, "{}\n{:?}", written, shape);
    }

    /// The written JSON is valid, and as YAML it is the same tree as far as JSON can express it.
    #[test]
    fn json_is_always_valid(shape in shape()) {
        let node = build(&shape, NodePath::default());
        let written = json(&node, SecretMasking::Show);
        prop_assert!(serde_json::from_str::<serde_json::Value>(&written).is_ok(), "{}", written);
    }
}
