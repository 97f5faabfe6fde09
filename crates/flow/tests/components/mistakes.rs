//! Mistakes in a configuration: each is reported at its position, and none is misread as something else.

use std::sync::Arc;

use thalweg_flow::{Buffer, BufferSpec, BuildContext, BuildError};

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
    assert!(messages.contains("check whether resources form a circle"), "{messages}");
}

/// A buffer in a flow that is only checked.
struct AnyBuffer;

impl BufferSpec for AnyBuffer {
    fn build(&self, _: &BuildContext, _: usize) -> Result<Buffer, BuildError> {
        Err(BuildError::new("it is not to be run"))
    }
}

#[test]
fn nothing_holds_messages_back_after_an_input_that_waits_for_answers() {
    let mut world = World::new();
    world.registry.buffer("", |_, _, _| Some(Arc::new(AnyBuffer)));
    let at = |place: &str| {
        format!(
            "t.yaml:{place}: trip holds messages back until later ones come, but the input delivers these only after the \
             earlier ones are acknowledged, so nothing would flow; say waits: false, or move it to the pipeline of a flow \
             with buffer: {{queue: {{}}}}\n"
        )
    };
    let pipeline = "output: {kept: {}}\npipeline: {processors: [{mapping: root = this}, {trip: holds}]}";
    for (text, expected) in [
        (format!("input: {{given: {{waits: true}}}}\n{pipeline}"), at("3:50")),
        (format!("input: {{given: {{waits: false}}}}\n{pipeline}"), String::new()),
        (
            "input: {given: {waits: true}}\noutput: {kept: {}}\npipeline: {processors: [{trip: joins}]}".to_owned(),
            String::new(),
        ),
        // At any position of either.
        (
            format!("input: {{broker: {{inputs: [{{given: {{}}}}, {{given: {{waits: true}}}}]}}}}\n{pipeline}"),
            at("3:50"),
        ),
        (
            format!("input: {{resource: r}}\n{pipeline}\ninput_resources: [{{label: r, given: {{waits: true}}}}]"),
            at("3:50"),
        ),
        (
            "input: {given: {waits: true}}\noutput: {kept: {}, processors: [{switch: [{processors: [{trip: holds}]}]}]}"
                .to_owned(),
            at("2:34"),
        ),
        (
            "input: {given: {waits: true}, processors: [{try: [{catch: [{trip: holds}]}]}]}\noutput: {kept: {}}".to_owned(),
            at("1:45"),
        ),
        // Processors inside a broker run before the buffer, all others after it.
        (
            format!("input: {{given: {{waits: true}}}}\n{pipeline}\nbuffer: {{queue: {{}}}}"),
            String::new(),
        ),
        (
            "input: {resource: r}\noutput: {kept: {}}\nbuffer: {queue: {}}\n\
             input_resources: [{label: r, given: {waits: true}, processors: [{trip: holds}]}]"
                .to_owned(),
            String::new(),
        ),
        (
            "input: {broker: {inputs: [{given: {waits: true}, processors: [{trip: holds}]}]}}\noutput: {kept: {}}\n\
             buffer: {queue: {}}"
                .to_owned(),
            at("1:64"),
        ),
    ] {
        assert_eq!(world.check(&format!("{text}\n")), expected, "for {text}");
    }
}
