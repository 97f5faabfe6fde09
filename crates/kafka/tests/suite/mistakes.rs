//! Mistakes in a configuration, as an operator reads them.

use crate::world::World;

#[test]
fn mistakes_are_told_with_their_places() {
    let world = World::new();
    for (yaml, told) in [
        (
            "input: {kafka: {topics: [t], consumer_group: g}}",
            "t.yaml:1:16: input.kafka.addresses: no broker is set; set a list such as [\"localhost:9092\"]\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [\"a b\"], consumer_group: g}}",
            "t.yaml:1:41: input.kafka.topics: \"a b\" cannot be the name of a topic: only letters, digits, '.', '_' and '-' are allowed\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t]}}",
            "t.yaml:1:16: missing required field \"consumer_group\" in input.kafka\n",
        ),
        (
            "input: {uns: {umh_topic: \"a(\"}}",
            "t.yaml:1:26: input.uns.umh_topic: \"a(\" is no regular expression: unclosed group\n",
        ),
        (
            "input: {uns: {metadata_format: text}}",
            "t.yaml:1:32: input.uns.metadata_format: expected one of string, bytes, got the text \"text\"\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, fetch_buffer_bytes: 1kB}}",
            "t.yaml:1:85: input.kafka.fetch_buffer_bytes: expected 2 MB to 1 GB\n",
        ),
        (
            "input: {uns: {brokers: a}}",
            "t.yaml:1:15: unknown field \"brokers\" in input.uns",
        ),
    ] {
        let mistakes = world.check(&format!("{yaml}\noutput: {{drop: {{}}}}"));
        assert!(mistakes.contains(told), "{yaml}:\n{mistakes}");
    }
    let large: Vec<String> = (0..40).map(|n| format!("'{n}[\\pL\\pN]{{60}}'")).collect();
    let mistakes = world.check(&format!(
        "input: {{uns: {{umh_topics: [{}]}}}}\noutput: {{drop: {{}}}}",
        large.join(", ")
    ));
    assert!(
        mistakes.contains("input.uns.umh_topics: the expressions cannot be used together: "),
        "{mistakes}"
    );
    for (yaml, told) in [
        (
            "output: {kafka: {addresses: [a], topic: \"a/b\"}}",
            "t.yaml:2:41: output.kafka.topic: \"a/b\" cannot be the name of a topic",
        ),
        (
            "output: {kafka: {addresses: [a], topic: t, key: \"${! nonsense() }\"}}",
            "t.yaml:2:54: ",
        ),
        (
            "output: {kafka: {addresses: [a], topic: t, ack_replicas: false, idempotent_write: true}}",
            "t.yaml:2:83: output.kafka.idempotent_write: it needs ack_replicas: true\n",
        ),
        (
            "output: {kafka: {addresses: [a], topic: t, compression: zstd}}",
            "t.yaml:2:57: output.kafka.compression: expected one of none, gzip, snappy, lz4, got the text \"zstd\"\n",
        ),
        (
            "output: {uns: {broker_address: \"a:x\"}}",
            "t.yaml:2:32: output.uns.broker_address: expected host:port, got \"a:x\"\n",
        ),
        (
            "output: {uns: {schema_registry_url: \"localhost:8081\"}}",
            "t.yaml:2:37: output.uns.schema_registry_url: expected http://host:port or https://host:port, got \"localhost:8081\"\n",
        ),
    ] {
        let mistakes = world.check(&format!("input: {{stdin: {{}}}}\n{yaml}"));
        assert!(mistakes.contains(told), "{yaml}:\n{mistakes}");
    }
}

#[test]
fn a_legacy_topic_is_one_more_expression() {
    let world = World::new();
    let told = world.check("input: {uns: {topic: a}}\noutput: {drop: {}}");
    assert!(
        told.contains("warning") && told.contains("input.uns.topic is one more of umh_topics"),
        "{told}"
    );
}
