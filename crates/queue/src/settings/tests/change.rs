use thalweg_log::Durability;

use super::good;

fn change(old: &str, new: &str, depth: u64) -> Result<(), String> {
    let answer = good(old).may_become(&good(new), depth, Durability::Fsync);
    answer.map_err(|error| {
        assert_eq!(error.code(), "invalid_config");
        error.to_string()
    })
}

#[test]
fn partitions_only_grow_and_where_there_is_order_only_in_an_empty_queue() {
    assert_eq!(change("partitions: 4", "partitions: 5", 0), Ok(()));
    assert_eq!(
        change("{partitions: 4, ordering: none}", "{partitions: 5, ordering: none}", 9),
        Ok(())
    );
    let error = change("partitions: 4", "partitions: 5", 9).unwrap_err();
    assert!(
        error.starts_with("partitions: 4 may become 5 only while the queue is empty"),
        "{error}"
    );
    for ordering in ["none", "partition"] {
        let of = |partitions: u32| format!("{{partitions: {partitions}, ordering: {ordering}}}");
        assert!(
            change(&of(5), &of(4), 0)
                .unwrap_err()
                .starts_with("partitions: 5 cannot become 4")
        );
    }
    let giving_order_up = change("partitions: 4", "{partitions: 5, ordering: none}", 9);
    assert!(
        giving_order_up.is_err(),
        "messages that are there were promised an order"
    );
}

#[test]
fn a_stricter_order_needs_an_empty_queue_and_a_looser_one_does_not() {
    let [none, partition, strict] =
        ["none", "partition", "strict"].map(|o| format!("{{partitions: 1, ordering: {o}}}"));
    for (old, new) in [(&none, &partition), (&none, &strict), (&partition, &strict)] {
        assert_eq!(change(old, new, 0), Ok(()));
        assert!(
            change(old, new, 1).unwrap_err().starts_with("ordering: "),
            "{old} to {new}"
        );
        assert_eq!(change(new, old, 1), Ok(()), "{new} to {old}");
    }
}

#[test]
fn durability_stays_what_the_queue_has() {
    // The queue has fsync.
    for old in ["{}", "durability: fsync"] {
        for new in ["{}", "durability: fsync"] {
            assert_eq!(change(old, new, 9), Ok(()), "{old} to {new}");
        }
        for new in ["durability: interval", "durability: os", "durability: memory"] {
            assert!(
                change(old, new, 0).unwrap_err().starts_with("durability: fsync cannot"),
                "{old} to {new}"
            );
        }
    }
    let by_default = good("{}").may_become(&good("durability: memory"), 9, Durability::Memory);
    assert!(by_default.is_ok(), "it is memory already, by the section log");
}

#[test]
fn a_declared_group_keeps_its_mode() {
    let work = "groups: [{name: a}, {name: b}]";
    assert_eq!(change(work, "groups: []", 9), Ok(()));
    assert_eq!(
        change(work, "groups: [{name: c, mode: stream}, {name: b, start: latest}]", 9),
        Ok(())
    );
    assert_eq!(
        change(work, "groups: [{name: b, mode: stream, filter: 'x/#'}]", 9),
        Ok(())
    );
    let error = change(work, "groups: [{name: b, mode: stream}]", 0).unwrap_err();
    assert!(error.starts_with("groups: group b has mode work"), "{error}");
}

#[test]
fn everything_else_may_change() {
    let new = "{lane_window: 3, ttl: 1s, max_depth: 1, max_message_size: 1KiB, visibility_timeout: 1s, overflow: block, \
               retry: {max_retries: 0}, dlq: {enabled: false}, topics: [x], retention: {mode: policy, max_age: 1h}, \
               compaction: {enabled: true}, dedup_window: 1m}";
    assert_eq!(change("{}", new, 9), Ok(()));
    assert_eq!(change(new, "{}", 9), Ok(()));
}
