mod change;
mod log;
mod text;

use proptest::prelude::*;
use thalweg_config::{Diagnostics, Node};

use super::*;

fn read(text: &str) -> (QueueSettings, String) {
    let diags = Diagnostics::new("f");
    let settings = QueueSettings::read(&Node::parse(text).unwrap(), &diags);
    (settings, diags.to_string())
}

/// The settings of a text without mistakes.
fn good(text: &str) -> QueueSettings {
    let (settings, messages) = read(text);
    assert_eq!(messages, "", "for {text}");
    settings
}

#[test]
fn defaults_are_those_of_the_specification() {
    let table = "
partitions: 10
ordering: partition
lane_window: 1
topics: []
default_group: default
max_message_size: 1MiB
max_depth: 100000
max_bytes: 1GiB
overflow: reject
block_timeout: 10s
ttl: 168h
visibility_timeout: 30s
claim_batch: 100
max_in_flight: 1000
max_pending: 100000
retry: {max_retries: 10, initial_backoff: 5s, max_backoff: 5m, multiplier: 2.0, jitter: 0.1, total_timeout: 3h}
consumer_timeout: 30s
dedup_window: 0
dlq: {enabled: true, on_expire: false, on_overflow: false}
group_expiry: 168h
retention: {mode: settled, max_age: 0, max_bytes: 0, max_messages: 0, protect_streams: false}
compaction: {enabled: false, lag: 5m, interval: 10m, tombstone_age: 24h}
groups: []
";
    let written = good(table);
    assert_eq!(written, QueueSettings::default());
    assert_eq!(good("{}"), written);
    assert_eq!(written.durability, None);
    // Equality with a default read from the same text proves little, so the numbers themselves are checked.
    assert_eq!(
        (written.partitions, written.max_depth, written.max_bytes),
        (10, 100_000, 1 << 30)
    );
    assert_eq!(written.ttl, Duration::from_secs(604_800));
    assert_eq!(written.retry.total_timeout, Duration::from_secs(10_800));
}

#[test]
fn the_example_of_the_specification_is_read() {
    let text = r##"
auto_create: false
list:
  - name: pumps
    topics: ["plant/+/pump/#"]
    partitions: 16
    max_depth: 5000000
    overflow: block
    ttl: 72h
    retry: {max_retries: 8, initial_backoff: 2s, max_backoff: 2m}
    dlq: {enabled: true, on_expire: true, webhook: "https://ops.example/dead"}
    groups: [{name: alarms, mode: work}, {name: live, mode: stream, start: latest}]
  - name: setpoints
    partitions: 1
    ordering: strict
    retention: {mode: policy, max_age: 720h, max_bytes: 2GiB}
    compaction: {enabled: true}
"##;
    let diags = Diagnostics::new("f");
    let queues = QueuesSettings::read(Some(&Node::parse(text).unwrap()), &diags);
    let told = diags.to_string();
    assert!(
        told.lines().count() == 1 && told.contains("topics need the MQTT broker"),
        "all but topics is there: {told}"
    );
    let [(first, pumps), (second, setpoints)] = queues.list.as_slice() else {
        panic!("two queues, not {}", queues.list.len());
    };
    assert_eq!((first.as_str(), second.as_str()), ("pumps", "setpoints"));
    assert_eq!((pumps.partitions, pumps.max_depth), (16, 5_000_000));
    assert_eq!(pumps.retry.initial_backoff, Duration::from_secs(2));
    assert_eq!(
        pumps.retry.multiplier, 2.0,
        "what is not given in a nested mapping has its default"
    );
    assert_eq!(pumps.dlq.webhook.as_deref(), Some("https://ops.example/dead"));
    let live = GroupSettings {
        start: GroupStart::Latest,
        ..GroupSettings::new("live", GroupMode::Stream)
    };
    assert_eq!(pumps.groups, [GroupSettings::new("alarms", GroupMode::Work), live]);
    assert_eq!(setpoints.ordering, QueueOrdering::Strict);
    assert_eq!(setpoints.retention.max_age, 720 * HOUR);
    assert!(setpoints.compaction.enabled);
}

#[test]
fn a_rule_that_is_broken_is_named_with_its_key() {
    for (text, expected) in [
        ("partitions: 0", "partitions: expected a whole number from 1 to 1000"),
        ("partitions: 1001", "partitions: expected a whole number from 1 to 1000"),
        ("ordering: strict", "ordering: strict needs partitions: 1, got 10"),
        ("ordering: sorted", "ordering: expected one of none, partition, strict"),
        ("lane_window: 0", "lane_window: expected a whole number from 1 to 1000"),
        (
            "lane_window: 1001",
            "lane_window: expected a whole number from 1 to 1000",
        ),
        (
            "{ordering: none, lane_window: 2}",
            "lane_window: without ordering there are no lanes",
        ),
        ("topics: [a/#/b]", "topics: \"a/#/b\": # must be the last level"),
        ("topics: [a, b, a]", "topics: \"a\" is given twice"),
        ("default_group: a/b", "default_group: a name has only"),
        (
            "durability: safe",
            "durability: expected one of fsync, interval, os, memory",
        ),
        (
            "max_message_size: 25MiB",
            "max_message_size: expected a size from 1B to 24MiB, got 25MiB",
        ),
        ("max_message_size: 0", "max_message_size: expected a size from 1B"),
        ("max_depth: -1", "max_depth: expected a whole number of at least 0"),
        ("overflow: drop", "overflow: expected one of reject, block, drop-oldest"),
        ("block_timeout: 0s", "block_timeout: expected a duration from 1ms to 1h"),
        ("ttl: forever", "ttl: expected a duration"),
        (
            "visibility_timeout: 999ms",
            "visibility_timeout: expected a duration from 1s to 12h",
        ),
        (
            "visibility_timeout: 43201s",
            "visibility_timeout: expected a duration from 1s to 12h",
        ),
        (
            "claim_batch: 10001",
            "claim_batch: expected a whole number from 1 to 10000",
        ),
        ("max_in_flight: 0", "max_in_flight: expected a whole number from 1"),
        (
            "max_pending: 0",
            "max_pending: expected a whole number from 1 to 4194304",
        ),
        (
            "retry: {max_retries: -1}",
            "retry.max_retries: expected a whole number from 0",
        ),
        (
            "retry: {initial_backoff: -1s}",
            "retry.initial_backoff: expected a duration",
        ),
        (
            "retry: {max_backoff: 4s}",
            "retry.max_backoff: 4s is less than initial_backoff, 5s",
        ),
        ("retry: {multiplier: 0.9}", "retry.multiplier: must be at least 1"),
        ("retry: {jitter: 1.1}", "retry.jitter: must be from 0 to 1"),
        ("retry: {jitter: -0.1}", "retry.jitter: must be from 0 to 1"),
        (
            "consumer_timeout: 0",
            "consumer_timeout: expected a duration from 1s to 12h",
        ),
        ("dedup_window: 25h", "dedup_window: expected a duration from 0s to 24h"),
        (
            "dlq: {on_overflow: true}",
            "dlq: on_overflow needs overflow: drop-oldest",
        ),
        (
            "dlq: {enabled: false, on_expire: true}",
            "dlq.on_expire: needs enabled: true",
        ),
        (
            "dlq: {webhook: ops.example}",
            "dlq.webhook: must be an address beginning with https://",
        ),
        (
            "dlq: {webhook: \"https://\"}",
            "dlq.webhook: must be an address such as",
        ),
        (
            "dlq: {webhook: \"https://u:p@ops.example/\"}",
            "dlq.webhook: must have no user or password",
        ),
        (
            "dlq: {webhook: \"https://ops.example:99999/\"}",
            "dlq.webhook: must be an address such as https://ops.example:8443",
        ),
        (
            "dlq: {webhook: \"http://:80/\"}",
            "dlq.webhook: must be an address such as",
        ),
        (
            "dlq: {webhook: \"http://[::1]:x/\"}",
            "dlq.webhook: must be an address such as",
        ),
        ("retention: {max_age: 1h}", "retention.max_age: needs mode: policy"),
        (
            "retention: {max_bytes: 1GiB}",
            "retention.max_bytes: needs mode: policy",
        ),
        (
            "retention: {max_messages: 1}",
            "retention.max_messages: needs mode: policy",
        ),
        (
            "retention: {protect_streams: true}",
            "retention.protect_streams: needs mode: policy",
        ),
        (
            "compaction: {enabled: true}",
            "compaction: compaction needs retention.mode: policy",
        ),
        (
            "compaction: {interval: 0s}",
            "compaction.interval: expected a duration from 1s",
        ),
        ("groups: [{mode: work}]", "missing required field \"name\" in groups[0]"),
        ("groups: [{name: a/b}]", "groups[0].name: a name has only"),
        (
            "groups: [{name: ''}]",
            "groups[0].name: a name must have 1 to 128 characters",
        ),
        (
            "groups: [{name: a, mode: queue}]",
            "groups[0].mode: expected one of work, stream",
        ),
        (
            "groups: [{name: a, start: first}]",
            "groups[0].start: expected earliest, latest, offset:17",
        ),
        (
            "groups: [{name: a, start: 'offset:-1'}]",
            "groups[0].start: expected earliest",
        ),
        (
            "groups: [{name: a, filter: a#}]",
            "groups[0].filter: + and # must be the whole of a level",
        ),
        (
            "groups: [{name: a}, {name: a, filter: '#'}]",
            "groups[1]: group \"a\" with this filter is declared twice",
        ),
        (
            "partition: 3",
            "unknown field \"partition\", did you mean \"partitions\"?",
        ),
        ("retry: {retries: 3}", "unknown field \"retries\" in retry"),
        ("name: x", "unknown field \"name\""),
        ("[]", "expected a mapping of fields, got a list"),
    ] {
        let (_, messages) = read(text);
        assert_eq!(messages.lines().count(), 1, "for {text}: {messages}");
        assert!(messages.contains(expected), "for {text}: {messages}");
    }
}

#[test]
fn limits_themselves_are_allowed() {
    for text in [
        "{partitions: 1000, lane_window: 1000, claim_batch: 10000, max_message_size: 24MiB, visibility_timeout: 12h}",
        "{partitions: 1, ordering: strict, lane_window: 8, visibility_timeout: 1s}",
        "{max_depth: 0, max_bytes: 0, ttl: 0, retry: {max_retries: 0, initial_backoff: 0, max_backoff: 0, total_timeout: 0}}",
        "{retry: {multiplier: 1, jitter: 1}, dlq: {on_overflow: true}, overflow: drop-oldest}",
        "groups: [{name: a}, {name: a, filter: 'x/#'}, {name: b, start: 'time:2026-03-01T06:00:00Z'}]",
    ] {
        good(text);
    }
}

#[test]
fn lists_and_filters_have_an_end_and_say_where() {
    let many = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(", ");
    let (topic, group) = (|n: usize| format!("t{n}"), |n: usize| format!("{{name: g{n}}}"));
    let filter = |levels: usize| format!("topics: [{}]", vec!["a"; levels].join("/"));
    for (fits, exceeds, expected) in [
        (
            format!("topics: [{}]", many(1000, &topic)),
            format!("topics: [{}]", many(1001, &topic)),
            "topics: a queue has at most 1000 filters; use wildcards",
        ),
        (
            format!("groups: [{}]", many(1000, &group)),
            format!("groups: [{}]", many(1001, &group)),
            "groups: a queue declares at most 1000 groups",
        ),
        (filter(128), filter(129), "a filter has at most 128 levels"),
        (
            format!("topics: [{}]", "x".repeat(65_535)),
            format!("topics: [{}]", "x".repeat(65_536)),
            "a filter has at most 65535 bytes",
        ),
    ] {
        good(&fits);
        let (_, messages) = read(&exceeds);
        assert!(messages.contains(expected), "{messages:.300}");
    }
    let queues = |count: usize| {
        let diags = Diagnostics::new("f");
        let list = many(count, &|n| format!("{{name: q{n}, partitions: 1}}"));
        QueuesSettings::read(Some(&Node::parse(&format!("list: [{list}]")).unwrap()), &diags);
        diags.to_string()
    };
    assert_eq!(queues(10_000), "");
    assert!(queues(10_001).contains("list: at most 10000 queues can be declared"));
}

#[test]
fn a_patch_replaces_what_it_names_and_leaves_the_rest() {
    let text = "{partitions: 4, topics: [a], durability: os, retry: {max_retries: 3, jitter: 0.5}, groups: [{name: g}], \
                dlq: {webhook: 'http://x'}}";
    let old = good(text);
    let diags = Diagnostics::new("f");
    let patch = Node::parse("{retry: {max_retries: 5}, topics: [b, c], ttl: 1h, groups: null}").unwrap();
    let new = old.patch(&patch, &diags);
    assert_eq!(diags.to_string(), "");
    let mut expected = old.clone();
    expected.retry.max_retries = 5;
    expected.topics = vec!["b".into(), "c".into()];
    expected.ttl = HOUR;
    assert_eq!(new, expected);
    assert_eq!(old.patch(&Node::parse("{}").unwrap(), &diags), old);
    let emptied = old.patch(&Node::parse("{topics: [], groups: []}").unwrap(), &diags);
    assert!(emptied.topics.is_empty() && emptied.groups.is_empty());
}

#[test]
fn a_patch_meets_the_rules_together_with_what_was_set_before() {
    let old = good("retry: {initial_backoff: 1m}");
    let diags = Diagnostics::new("body");
    old.patch(&Node::parse("{retry: {max_backoff: 30s}}").unwrap(), &diags);
    let expected = "body:1:23: retry.max_backoff: 30s is less than initial_backoff, 1m; raise it\n";
    assert_eq!(diags.to_string(), expected);
}

#[test]
fn json_has_the_units_that_a_person_writes() {
    let json = good("{topics: [a/b], retention: {mode: policy, max_age: 90m}, durability: os}").to_json();
    assert_eq!(json["visibility_timeout"], "30s");
    assert_eq!(json["max_bytes"], "1GiB");
    assert_eq!(json["retention"]["max_age"], "1h30m");
    assert_eq!(json["durability"], "os");
    assert_eq!(json["topics"], serde_json::json!(["a/b"]));
    assert_eq!(json["dlq"].get("webhook"), None);
}

#[test]
fn internal_queues_refuse_only_what_the_disk_refuses() {
    let lake = QueueSettings::of_lake();
    assert_eq!((lake.max_depth, lake.max_bytes, lake.ttl), (0, 0, Duration::ZERO));
    assert_eq!(lake.max_message_size, 32 << 20);
    let diags = Diagnostics::new("stored");
    let node = Node::parse(&lake.to_json().to_string()).unwrap();
    assert_eq!(
        (QueueSettings::stored(&node, &diags), diags.has_errors()),
        (lake.clone(), false)
    );
    assert_eq!(lake.retention.mode, RetentionMode::Settled);
    assert_eq!(lake.groups, [GroupSettings::new("lake", GroupMode::Stream)]);
    let dead = QueueSettings::of_dead_letters(&QueueSettings::default());
    assert_eq!(dead.partitions, 1);
    assert_eq!(
        (dead.retention.mode, dead.retention.max_age),
        (RetentionMode::Policy, 720 * HOUR)
    );
    assert!(!dead.dlq.enabled);
    assert_eq!(
        (dead.max_depth, dead.ttl),
        (0, Duration::ZERO),
        "a full one would stop its source"
    );
}

#[test]
fn declared_queues_have_free_and_unique_names() {
    for (text, expected) in [
        (
            "list: [{name: a}, {name: a}]",
            "f:1:26: list[1].name: queue \"a\" is declared twice",
        ),
        (
            "list: [{name: lake.x}]",
            "list[0].name: names beginning with dlq., lake. or buffer. are reserved",
        ),
        ("list: [{name: dlq.x}]", "are reserved"),
        ("list: [{name: ../x}]", "list[0].name: a name has only letters"),
        ("list: [{partitions: 3}]", "missing required field \"name\" in list[0]"),
        ("list: {name: a}", "list: expected a list"),
        (
            "list: [{name: a, topics: [x]}]",
            "list[0].topics: topics need the MQTT broker, which this version does not have",
        ),
        (
            "list: [{name: a, groups: [{name: g}, {name: g, filter: x}]}]",
            "list[0].groups: group \"g\" is declared with two filters",
        ),
        ("autocreate: true", "did you mean \"auto_create\"?"),
    ] {
        let diags = Diagnostics::new("f");
        QueuesSettings::read(Some(&Node::parse(text).unwrap()), &diags);
        let messages = diags.to_string();
        assert_eq!(messages.lines().count(), 1, "for {text}: {messages}");
        assert!(messages.contains(expected), "for {text}: {messages}");
    }
    let diags = Diagnostics::new("f");
    let list: String = (0..101)
        .map(|n| format!("  - {{name: q{n}, partitions: 1000}}\n"))
        .collect();
    QueuesSettings::read(Some(&Node::parse(&format!("list:\n{list}")).unwrap()), &diags);
    assert!(diags.to_string().contains("101000 partitions together"), "{diags}");
    assert_eq!(
        QueuesSettings::read(None, &Diagnostics::new("f")),
        QueuesSettings::default()
    );
}

#[test]
fn a_name_leaves_room_for_that_of_its_dead_letters() {
    let name = "x".repeat(125);
    for (dlq, allowed) in [("true", false), ("false", true)] {
        let diags = Diagnostics::new("f");
        let text = format!("{{name: {name}, dlq: {{enabled: {dlq}}}}}");
        QueueSettings::read_named(&Node::parse(&text).unwrap(), &diags);
        assert_eq!(!diags.has_errors(), allowed, "{diags}");
    }
}

#[test]
fn a_webhook_is_any_address_of_the_web_without_a_secret_in_it() {
    for url in [
        "http://127.0.0.1:8080",
        "http://[::1]:80/dead",
        "https://[2001:db8::1]",
        "https://ops.example/dead?queue=a:b@c#x",
    ] {
        let text = format!("dlq: {{webhook: {url:?}}}");
        let diags = Diagnostics::new("f.yaml");
        let settings = QueueSettings::read(&Node::parse(&text).unwrap(), &diags);
        assert_eq!(
            (diags.to_string().as_str(), settings.dlq.webhook.as_deref()),
            ("", Some(url))
        );
    }
}
