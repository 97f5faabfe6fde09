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
            "input: {kafka: {addresses: [a], topics: [t, \"u:0-3\"], consumer_group: g}}",
            "input.kafka.topics: some entries name partitions and some do not",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [\"t:0:5\"], consumer_group: g}}",
            "t.yaml:1:41: input.kafka.topics: \"t:0:5\": an offset cannot be set here",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [\"a(\"], regexp_topics: true, consumer_group: g}}",
            "t.yaml:1:41: input.kafka.topics: \"a(\" is no regular expression: unclosed group\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, session_timeout: 2s}}",
            "input.kafka.heartbeat_interval: it must be shorter than session_timeout",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, session_timeout: 1h}}",
            "t.yaml:1:82: input.kafka.session_timeout: expected 1s to 30m\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, start_offset: latest, start_from_oldest: true}}",
            "input.kafka.start_from_oldest: start_offset says the same; keep only one\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, start_offset: newest}}",
            "t.yaml:1:79: input.kafka.start_offset: expected one of earliest, latest, committed, got the text \"newest\", did you mean \"latest\"?\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, group_instance_id: a, instance_id: b}}",
            "input.kafka.instance_id: group_instance_id means the same; keep only one\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, checkpoint_limit: 0}}",
            "input.kafka.checkpoint_limit: expected a whole number",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, timeout: 1s}}",
            "t.yaml:1:74: input.kafka.timeout: expected 2s to 5m\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, fetch_max_bytes: 1}}",
            "t.yaml:1:82: input.kafka.fetch_max_bytes: expected 1 kB to 1 GB\n",
        ),
        (
            "input: {kafka: {addresses: [a], topics: [t], consumer_group: g, batching: {byte_size: 1GiB}}}",
            "a batch has at most 16 MiB",
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
            "output: {kafka: {addresses: [a], topic: t, timestamp: 1, timestamp_ms: 2}}",
            "t.yaml:2:55: output.kafka.timestamp: timestamp_ms means the same in milliseconds; keep only one\n",
        ),
        (
            "output: {kafka: {addresses: [a], topic: t, ack_replicas: false, idempotent_write: true}}",
            "t.yaml:2:83: output.kafka.idempotent_write: it needs ack_replicas: true\n",
        ),
        (
            "output: {kafka: {addresses: [a], topic: t, compression: brotli}}",
            "t.yaml:2:57: output.kafka.compression: expected one of none, gzip, snappy, lz4, zstd, got the text \"brotli\"\n",
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

/// The fields of files of the reference system, each with the value of its documentation.
#[test]
fn the_fields_of_other_files_are_taken_and_the_client_takes_their_values() {
    let world = World::new();
    for fields in [
        "topics: [a, 'b,c'], start_offset: committed, multi_header: true",
        "topics: ['b:0-3', 'c:1'], start_from_oldest: false",
        "topics: ['^a', 'b$'], regexp_topics: true, start_offset: latest",
        "topics: [a], rack_id: r, timeout: 10s, fetch_max_bytes: 50MiB, checkpoint_limit: 1024, auto_replay_nacks: true",
        "topics: [a], batching: {count: 0, byte_size: 0, period: '', check: '', processors: []}",
        "topics: [a], batching: {count: 100, period: 1s}, commit_period: 5s",
        "topics: [a], session_timeout: 1m, heartbeat_interval: 3s, instance_id: x",
        "topics: [a], session_timeout: 30m, group_instance_id: x",
    ] {
        let text = format!(
            "input: {{kafka_franz: {{seed_brokers: [localhost:1], consumer_group: g, {fields}}}}}\noutput: {{kept: {{}}}}"
        );
        assert_eq!(world.check(&text), "", "{fields}");
        // An input whose client refuses its settings ends.
        let running = world.start(&text);
        let is_told = || running.trouble().contains("no broker answers") || running.handle.failure().is_some();
        crate::world::until("it looks for its broker", is_told);
        assert_eq!(running.handle.failure(), None, "{fields}");
        world.stop(running);
    }
}
