//! How the limit is divided, and the texts of mistakes.

use thalweg_config::{LoadOptions, SourceText, load};

use super::*;

fn config(text: &str) -> Config {
    let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    assert_eq!(loaded.diagnostics.to_string(), "");
    loaded.config
}

fn share(name: &str, wanted: u64, floor: u64, given: bool) -> MemoryShare {
    MemoryShare {
        name: name.to_owned(),
        wanted: wanted << 20,
        floor: floor << 20,
        given: given.then_some(Pos { line: 3, column: 7 }),
    }
}

/// Shares of users that want nothing.
fn nothing() -> MemoryShares<MemoryShare> {
    let none = || share("nothing", 0, 0, false);
    MemoryShares {
        lake: none(),
        query: none(),
        query_cache: none(),
        queues: none(),
        queue_dedup: None,
        queue_state: None,
        log: None,
        events: None,
        ingest: None,
        mqtt: None,
        compaction: None,
        flows: Vec::new(),
        dead_letter: None,
    }
}

/// The sizes in MiB, and the messages.
fn divided(limit: &str, shares: &MemoryShares<MemoryShare>) -> (MemoryShares<usize>, String) {
    let diagnostics = Diagnostics::new("f.yaml");
    let sizes = divide(&config(&format!("memory: {{limit: {limit}}}")), shares, &diagnostics);
    (sizes.map(|bytes| bytes >> 20), diagnostics.to_string())
}

#[test]
fn what_the_file_gives_is_kept_and_the_rest_shrinks_to_what_is_left() {
    let fits = MemoryShares {
        lake: share("a", 300, 16, false),
        query: share("b", 200, 16, true),
        ..nothing()
    };
    let (sizes, messages) = divided("1GiB", &fits);
    assert_eq!(messages, "");
    assert_eq!(sizes.lake, 300);
    assert_eq!(sizes.query, 200);
    let given = MemoryShares {
        lake: share("a", 300, 16, false),
        query: share("b", 900, 16, true),
        compaction: Some(share("c", 100, 16, false)),
        ..nothing()
    };
    let (sizes, messages) = divided("1GiB", &given);
    assert_eq!(messages, "");
    assert_eq!(sizes.query, 900);
    let compaction = sizes.compaction.unwrap();
    assert!(
        sizes.lake >= 16 && compaction >= 16 && sizes.iter().sum::<usize>() <= 1024,
        "{sizes:?}"
    );
    assert!(sizes.lake > compaction, "{sizes:?}");
}

#[test]
fn sizes_that_are_no_part_of_the_limit_are_errors_that_name_their_fields() {
    let lake = |mib: u64| share("lake.memory", mib, 16, true);
    for (shares, expected) in [
        (
            MemoryShares {
                lake: lake(8),
                ..nothing()
            },
            "f.yaml:3:7: lake.memory: expected at least 16 MiB\n",
        ),
        (
            MemoryShares {
                lake: lake(2048),
                ..nothing()
            },
            "f.yaml:3:7: lake.memory: 2 GiB are more than memory.limit (1 GiB), of which it is a part; lower it or \
             raise memory.limit\n",
        ),
        (
            MemoryShares {
                lake: lake(700),
                query: share("query.memory", 100, 16, false),
                flows: vec![FlowShare {
                    name: "a".to_owned(),
                    share: share("buffer.memory.limit", 400, 1, true),
                }],
                ..nothing()
            },
            "f.yaml:3:7: the parts of memory.limit add up to at least 1116 MiB (lake.memory 700 MiB, \
             buffer.memory.limit 400 MiB), and memory.limit is 1 GiB; lower one of them or raise memory.limit\n",
        ),
    ] {
        assert_eq!(divided("1GiB", &shares).1, expected);
    }
}

#[test]
fn flows_share_a_part_of_the_limit_unless_the_file_gives_each_its_own() {
    let flow = |name: &str, buffer: &str| {
        format!("- {{name: {name}, input: {{stdin: {{}}}}, {buffer} output: {{drop: {{}}}}}}\n")
    };
    let text = format!(
        "memory: {{limit: 400MiB}}\nflows:\n{}{}{}",
        flow("a", ""),
        flow("b", "buffer: {memory: {}},"),
        flow("c", "buffer: {memory: {limit: 80MiB}},")
    );
    let config_of_three = config(&text);
    let flows = of_flows(&config_of_three);
    let sizes: Vec<(&str, u64, bool)> = flows
        .iter()
        .map(|FlowShare { name, share }| (name.as_str(), share.wanted >> 20, share.given.is_some()))
        .collect();
    assert_eq!(sizes, [("a", 33, false), ("b", 33, false), ("c", 80, true)]);
    assert!(of_dead_letter(&config_of_three).is_none());
    let many = of_flows(&config(
        "memory: {limit: 64GiB}\ninput: {stdin: {}}\noutput: {drop: {}}\n",
    ));
    assert_eq!(many[0].share.wanted, FLOW_BYTES);
}
