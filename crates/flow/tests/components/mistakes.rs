//! Mistakes in a configuration: each is reported at its place, and none is taken for something else.

use crate::harness::World;

#[test]
fn values_of_the_wrong_type_are_errors_at_their_place() {
    let input = "input: {given: {}}";
    let output = "output: {kept: {}}";
    for (text, expected) in [
        (
            format!("{input}\n{output}\npipeline: {{processors: [{{switch: [{{check: {{}}, processors: []}}]}}]}}"),
            "t.yaml:3:43: pipeline.processors[0].switch[0].check: expected a text, got a mapping\n",
        ),
        (
            format!("{input}\n{output}\npipeline: {{processors: [{{switch: [{{check: [a], processors: []}}]}}]}}"),
            "t.yaml:3:43: pipeline.processors[0].switch[0].check: expected a text, got a list\n",
        ),
        (
            format!("{input}\n{output}\npipeline: {{processors: [{{log: {{message: a, fields: [b]}}}}]}}"),
            "t.yaml:3:52: pipeline.processors[0].log.fields: expected a mapping of fields, got a list\n",
        ),
        (
            format!("{input}\n{output}\npipeline: {{processors: [{{log: {{message: {{a: b}}}}}}]}}"),
            "t.yaml:3:41: pipeline.processors[0].log.message: expected a text, got a mapping\n",
        ),
        (
            format!("{input}\noutput: {{file: {{path: [a, b]}}}}"),
            "t.yaml:2:23: output.file.path: expected a text, got a list\n",
        ),
        (
            format!("input: {{generate: {{mapping: {{n: 1}}}}}}\n{output}"),
            "t.yaml:1:29: input.generate.mapping: expected a text, got a mapping\n",
        ),
        (
            format!("{input}\n{output}\npipeline: {{processors: [{{sleep: {{duration: [1s]}}}}]}}"),
            "t.yaml:3:44: pipeline.processors[0].sleep.duration: expected a text, got a list\n",
        ),
        (
            format!("{input}\noutput: {{broker: {{outputs: []}}}}"),
            "t.yaml:2:10: a broker needs at least one entry in outputs\n",
        ),
        (
            format!("{input}\noutput: {{broker: {{copies: 0, outputs: [{{kept: {{}}}}]}}}}"),
            "t.yaml:2:27: output.broker.copies: expected a whole number from 1 to 256, got the number 0\n",
        ),
    ] {
        assert_eq!(World::new().check(&format!("{text}\n")), expected, "for {text}");
    }
}

#[test]
fn processors_are_checked_wherever_they_stand() {
    for (text, line) in [
        (
            "input: {resource: r}\noutput: {kept: {}}\ninput_resources: [{label: r, given: {}, processors: [{nonsense: {}}]}]",
            3,
        ),
        (
            "input: {given: {}}\noutput: {resource: r}\noutput_resources: [{label: r, kept: {}, processors: [{nonsense: {}}]}]",
            3,
        ),
        (
            "input: {given: {}}\noutput: {broker: {outputs: [{kept: {}, processors: [{nonsense: {}}]}]}}",
            2,
        ),
        (
            "input: {broker: {inputs: [{given: {}, processors: [{nonsense: {}}]}]}}\noutput: {kept: {}}",
            1,
        ),
    ] {
        let messages = World::new().check(&format!("{text}\n"));
        assert_eq!(messages.lines().count(), 1, "{messages}");
        assert!(messages.starts_with(&format!("t.yaml:{line}:")), "{messages}");
        assert!(messages.contains("unknown processor \"nonsense\""), "{messages}");
    }
}

#[test]
fn resources_that_name_each_other_in_a_circle_are_found() {
    let messages = World::new().check(
        "input: {resource: a}\noutput: {kept: {}}\ninput_resources: [{label: a, resource: b}, {label: b, resource: a}]\n",
    );
    assert!(
        messages.contains("do resources name each other in a circle?"),
        "{messages}"
    );
}
