use crate::support::World;

#[test]
fn mistakes_of_an_input_are_told_at_their_place() {
    let world = World::new();
    for (fields, expected) in [
        (
            "{}",
            "t.yaml:1:17: input.events.all: give one of stream, category and all: true\n",
        ),
        (
            "{category: a, all: true}",
            "t.yaml:1:28: input.events.category: give one of stream, category and all: true\n",
        ),
        (
            "{category: a-b}",
            "t.yaml:1:28: input.events.category: a category cannot contain '-', which ends it in the name of a \
             stream\n",
        ),
        (
            "{all: true, from: later}",
            "t.yaml:1:35: input.events.from: expected start, end or a position, got \"later\"\n",
        ),
        (
            "{all: true, typos: [a]}",
            "t.yaml:1:29: unknown field \"typos\" in input.events, did you mean \"types\"?\n",
        ),
        (
            "{category: a, consumer_group: {member: 2, size: 2}}",
            "t.yaml:1:56: input.events.consumer_group.member: members of a group of 2 are 0 to 1\n",
        ),
        (
            "{all: true, consumer_group: {member: 0, size: 2}}",
            "t.yaml:1:45: input.events.consumer_group: a consumer group shares a category; set category\n",
        ),
        ("{category: a, from: 12}", ""),
    ] {
        let text = format!("input: {{events: {fields}}}\noutput: {{kept: {{}}}}\n");
        assert_eq!(world.check(&text), expected, "for {fields}");
    }
}

#[test]
fn mistakes_of_an_output_are_told_at_their_place() {
    let world = World::new();
    for (fields, expected) in [
        (
            "{type: t}",
            "t.yaml:2:18: missing required field \"stream\" in output.events\n",
        ),
        (
            "{stream: s, type: ''}",
            "t.yaml:2:36: output.events.type: the type is empty\n",
        ),
        (
            "{stream: s, type: t, expected_version: none}",
            "t.yaml:2:57: output.events.expected_version: the expected version must be a number >= -1, any, exists or \
             noStream, not \"none\"\n",
        ),
        ("{stream: s, type: t, expected_version: -1, metadata: {a: b}}", ""),
        ("{stream: s, type: t, metadata: '{\"a\": 1}'}", ""),
    ] {
        let text = format!("input: {{stdin: {{}}}}\noutput: {{events: {fields}}}\n");
        assert_eq!(world.check(&text), expected, "for {fields}");
    }
}
