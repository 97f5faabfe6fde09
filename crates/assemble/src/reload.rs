//! Finds the keys that changed in a reloaded configuration. `queues.list` is applied; all others are reported as
//! needing a restart.

use std::collections::BTreeSet;

use thalweg_config::Node;

/// Sections whose keys are reported one by one.
const SECTIONS: &[&str] = &[
    "http",
    "log",
    "queues",
    "mqtt",
    "events",
    "ingest",
    "lake",
    "query",
    "memory",
    "auth",
    "logger",
    "scripting",
];
/// The key that is applied.
pub(crate) const LIST: &str = "queues.list";

/// Paths that differ, except [`LIST`].
pub(crate) fn changed_keys(old: &Node, new: &Node) -> Vec<String> {
    let mut changed = Vec::new();
    for key in keys(Some(old), Some(new)) {
        let (before, after) = (old.get(key), new.get(key));
        if before == after {
            continue;
        }
        if !SECTIONS.contains(&key) {
            changed.push(key.to_owned());
            continue;
        }
        for inner in keys(before, after) {
            let (before, after) = (
                before.and_then(|node| node.get(inner)),
                after.and_then(|node| node.get(inner)),
            );
            let path = format!("{key}.{inner}");
            if before != after && path != LIST {
                changed.push(path);
            }
        }
    }
    changed
}

pub(crate) fn list_of(config: &Node) -> Option<&Node> {
    config.get("queues")?.get("list")
}

/// The keys of both, in alphabetical order.
fn keys<'a>(one: Option<&'a Node>, other: Option<&'a Node>) -> BTreeSet<&'a str> {
    let maps = [one, other].into_iter().flatten().filter_map(Node::as_map);
    maps.flat_map(|map| map.iter().map(|(key, _)| key.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_named_by_their_path_and_the_list_of_queues_is_none_of_them() {
        let read = |text| Node::parse(text).unwrap();
        let old = "{input: {stdin: {}}, http: {address: \"127.0.0.1:1\", enabled: true}, queues: {list: [1]}}";
        let more = "{input: {stdin: {}}, http: {enabled: true, address: \"127.0.0.1:1\"}, queues: {list: [1, 2]}}";
        assert_eq!(changed_keys(&read(old), &read(more)), Vec::<String>::new());
        assert_ne!(list_of(&read(old)), list_of(&read(more)));
        let other =
            "{input: {generate: {}}, http: {enabled: true}, queues: {auto_create: true}, log: {durability: os}}";
        assert_eq!(
            changed_keys(&read(old), &read(other)),
            ["http.address", "input", "log.durability", "queues.auto_create"]
        );
    }
}
