use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "", "$x"])
}

fn topic() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..5)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic is not empty", |topic| !topic.is_empty())
}

fn filter() -> impl Strategy<Value = String> {
    let levels = prop::collection::vec(prop_oneof![3 => level(), 2 => Just("+")], 0..4);
    (levels, any::<bool>())
        .prop_map(|(mut levels, has_rest)| {
            if has_rest {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("a filter is not empty", |filter| !filter.is_empty())
}

proptest! {
    /// Against the definition, over filters that come and go.
    #[test]
    fn a_topic_matches_the_filters_that_the_standard_says(
        steps in prop::collection::vec((filter(), any::<bool>()), 1..60), topics in prop::collection::vec(topic(), 1..20),
    ) {
        let (mut index, mut model) = (FilterIndex::default(), BTreeMap::new());
        for (filter, is_added) in steps {
            if is_added || model.is_empty() {
                let (id, is_new) = index.add(&filter);
                prop_assert_eq!(is_new, !model.contains_key(&filter));
                let entry = model.entry(filter.clone()).or_insert((id, 0));
                prop_assert_eq!(entry.0, id);
                entry.1 += 1;
            } else {
                let nth = filter.len() % model.len();
                let (filter, (id, users)) = model.iter_mut().nth(nth).unwrap();
                *users -= 1;
                prop_assert_eq!(index.remove(*id), *users == 0);
                if *users == 0 {
                    let filter = filter.clone();
                    model.remove(&filter);
                    prop_assert_eq!(index.find(&filter), None);
                }
            }
        }
        prop_assert_eq!(index.len(), model.len());
        for (filter, (id, _)) in &model {
            prop_assert_eq!((index.find(filter), index.text(*id)), (Some(*id), filter.as_str()));
        }
        for topic in topics {
            let mut found = Vec::new();
            index.matches(&topic, &mut found);
            let mut found: Vec<&str> = found.into_iter().map(|id| index.text(id)).collect();
            found.sort_unstable();
            let expected: Vec<&str> = model.keys().map(String::as_str).filter(|filter| topic::matches(filter, &topic)).collect();
            prop_assert_eq!(found, expected, "{}", topic);
        }
        let ids: Vec<(FilterId, u32)> = model.values().copied().collect();
        for (id, users) in ids {
            for _ in 0..users {
                index.remove(id);
            }
        }
        // Nothing is left over.
        prop_assert_eq!((index.len(), index.levels.len(), index.edges.len(), index.text_bytes), (0, 0, 0, 0));
        prop_assert_eq!(index.nodes.len(), index.free_nodes.len() + 1);
    }
}

#[test]
fn a_filter_takes_less_than_150_bytes_beside_its_text() {
    let mut index = FilterIndex::default();
    let mut text = 0;
    for n in 0..200_000 {
        for filter in [
            format!("site/+/line/{n}/#"),
            format!("site/berlin/line/{n}/temperature"),
        ] {
            text += filter.len();
            index.add(&filter);
        }
    }
    let each = (index.bytes() - text) / index.len();
    assert!(each <= 150, "{each} bytes");
    let mut found = Vec::new();
    index.matches("site/berlin/line/77/temperature", &mut found);
    let mut found: Vec<&str> = found.into_iter().map(|id| index.text(id)).collect();
    found.sort_unstable();
    assert_eq!(found, ["site/+/line/77/#", "site/berlin/line/77/temperature"]);
}

#[test]
fn topics_of_very_many_levels_are_matched_without_a_stack() {
    let mut index = FilterIndex::default();
    let deep = vec!["+"; 100_000].join("/");
    index.add(&deep);
    index.add("#");
    let topic = vec!["a"; 100_000].join("/");
    let mut found = Vec::new();
    index.matches(&topic, &mut found);
    assert_eq!(found.len(), 2);
}
