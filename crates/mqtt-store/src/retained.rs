//! The newest retained message of each topic, found by filter. The bodies are in the log; here are their places.
//!
//! Topics are in byte order, and a search goes through them with leaps over what cannot match. It visits at most a given number of
//! topics and says where it goes on, so a subscriber of `#` gets a million messages at its own pace and nothing waits for it.

use std::collections::BTreeMap;
use std::ops::Bound;

use thalweg_mqtt_wire::topic;

/// Retained messages by topic.
#[derive(Clone, Debug)]
pub struct RetainedIndex<T> {
    by_topic: BTreeMap<Box<str>, T>,
    topic_bytes: usize,
}

impl<T> Default for RetainedIndex<T> {
    fn default() -> RetainedIndex<T> {
        RetainedIndex {
            by_topic: BTreeMap::new(),
            topic_bytes: 0,
        }
    }
}

/// A part of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedPage<T> {
    pub found: Vec<(Box<str>, T)>,
    /// Where the search goes on. `None`: it has ended.
    pub next: Option<String>,
}

impl<T: Clone> RetainedIndex<T> {
    pub fn len(&self) -> usize {
        self.by_topic.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_topic.is_empty()
    }

    /// Bytes of all topics.
    pub fn topic_bytes(&self) -> usize {
        self.topic_bytes
    }

    pub fn get(&self, topic: &str) -> Option<&T> {
        self.by_topic.get(topic)
    }

    /// Sets the message of a topic. Returns the one before.
    pub fn insert(&mut self, topic: &str, message: T) -> Option<T> {
        if let Some(known) = self.by_topic.get_mut(topic) {
            return Some(std::mem::replace(known, message));
        }
        self.topic_bytes += topic.len();
        self.by_topic.insert(topic.into(), message)
    }

    pub fn remove(&mut self, topic: &str) -> Option<T> {
        let removed = self.by_topic.remove(topic);
        if removed.is_some() {
            self.topic_bytes -= topic.len();
        }
        removed
    }

    /// Visits up to `visits` topics from `from` on, which is empty at first, and returns those that match the filter.
    pub fn find(&self, filter: &str, from: &str, visits: usize) -> RetainedPage<T> {
        let search = RetainedSearch::of(filter);
        let mut page = RetainedPage {
            found: Vec::new(),
            next: None,
        };
        let mut at: String = from.max(search.prefix).to_owned();
        let mut topics = self.topics_from(&at);
        for _ in 0..visits {
            let Some((topic, message)) = topics.next() else {
                return page;
            };
            if !topic.starts_with(search.prefix) {
                return page;
            }
            match search.look(topic) {
                SearchStep::Match => page.found.push((topic.clone(), message.clone())),
                SearchStep::Next => {}
                SearchStep::Leap(to) => {
                    at = to;
                    topics = self.topics_from(&at);
                }
            }
        }
        page.next = topics.next().map(|(topic, _)| topic.to_string());
        page
    }

    fn topics_from(&self, from: &str) -> std::collections::btree_map::Range<'_, Box<str>, T> {
        self.by_topic.range::<str, _>((Bound::Included(from), Bound::Unbounded))
    }
}

struct RetainedSearch<'a> {
    filter: &'a str,
    /// What each topic that matches begins with.
    prefix: &'a str,
}

enum SearchStep {
    Match,
    /// The next topic may match.
    Next,
    /// No topic before this one matches.
    Leap(String),
}

/// The byte behind `/`: what begins with a path and this is behind all that is below the path.
const BEHIND_SLASH: char = '0';

impl<'a> RetainedSearch<'a> {
    fn of(filter: &'a str) -> RetainedSearch<'a> {
        let wildcard = filter.find(['+', '#']).unwrap_or(filter.len());
        let literal = filter.get(..wildcard).unwrap_or_default();
        // `a/#` matches `a`, too.
        let prefix = match filter.ends_with('#') && wildcard + 1 == filter.len() {
            true => literal.strip_suffix('/').unwrap_or(literal),
            false => literal,
        };
        RetainedSearch { filter, prefix }
    }

    fn look(&self, text: &str) -> SearchStep {
        if topic::matches(self.filter, text) {
            return SearchStep::Match;
        }
        // Bytes of the levels that match, with their slashes.
        let mut start = 0;
        let mut levels = text.split('/').peekable();
        for wanted in self.filter.split('/') {
            let Some(level) = levels.next() else {
                // The topic is too short; what is below it may match.
                return SearchStep::Next;
            };
            match wanted {
                // Only topics that begin with `$` get here.
                "#" => return SearchStep::Next,
                "+" => {}
                _ if wanted == level => {}
                _ => return self.leap(text, start, wanted),
            }
            start += level.len() + 1;
        }
        // The topic is too long: all below its matching levels is, too.
        match text.get(..start.saturating_sub(1)) {
            Some(path) if levels.peek().is_some() => SearchStep::Leap(format!("{path}{BEHIND_SLASH}")),
            _ => SearchStep::Next,
        }
    }

    /// The level of `text` at `start` is not the wanted one.
    fn leap(&self, text: &str, start: usize, wanted: &str) -> SearchStep {
        let path = text.get(..start).unwrap_or_default();
        let exact = format!("{path}{wanted}");
        if text < exact.as_str() {
            return SearchStep::Leap(exact);
        }
        // Topics such as `wanted-1` stand between `wanted` and what is below it.
        let below = format!("{exact}/");
        if text < below.as_str() {
            return SearchStep::Leap(below);
        }
        match path.strip_suffix('/') {
            Some(parent) => SearchStep::Leap(format!("{parent}{BEHIND_SLASH}")),
            // There is no other first level to look for.
            None => SearchStep::Leap(format!("{exact}{BEHIND_SLASH}").max(format!("{text}\0"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["a", "b", "a-", "a0", "", "$x", "ä"])
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
        /// Against the definition, in pages of any size, while topics come and go between them.
        #[test]
        fn a_filter_finds_the_topics_that_it_matches(
            topics in prop::collection::btree_set(topic(), 0..40), filter in filter(), visits in 1..10_usize,
            removed in prop::collection::vec(topic(), 0..10),
        ) {
            let mut index = RetainedIndex::default();
            for (n, topic) in topics.iter().enumerate() {
                index.insert(topic, n);
                prop_assert_eq!(index.insert(topic, n), Some(n));
            }
            prop_assert_eq!(index.topic_bytes(), topics.iter().map(String::len).sum::<usize>());
            let (mut found, mut from, mut removed) = (Vec::new(), String::new(), removed.into_iter());
            let mut gone = Vec::new();
            loop {
                let page = index.find(&filter, &from, visits);
                found.extend(page.found.into_iter().map(|(topic, _)| topic.to_string()));
                let Some(next) = page.next else { break };
                prop_assert!(next > from, "{} {}", next, from);
                from = next;
                gone.extend(removed.next().filter(|topic| index.remove(topic).is_some()));
            }
            let all: Vec<&String> = topics.iter().filter(|topic| topic::matches(&filter, topic)).collect();
            let sorted = found.is_sorted_by(|a, b| a < b);
            prop_assert!(sorted, "{:?}", found);
            for topic in &found {
                prop_assert!(all.contains(&topic), "{}", topic);
            }
            for topic in all {
                prop_assert!(found.contains(topic) || gone.contains(topic), "{} {}", filter, topic);
            }
        }
    }

    #[test]
    fn a_search_leaps_over_what_cannot_match() {
        let mut index = RetainedIndex::default();
        for site in 0..100 {
            for machine in 0..1_000 {
                index.insert(&format!("site{site}/m{machine}/state"), ());
            }
            index.insert(&format!("site{site}/total"), ());
        }
        let visited = |filter: &str| {
            let (mut from, mut visits, mut found) = (String::new(), 0, 0);
            loop {
                let page = index.find(filter, &from, 1);
                (visits, found) = (visits + 1, found + page.found.len());
                match page.next {
                    Some(next) => from = next,
                    None => return (found, visits),
                }
            }
        };
        let (found, visits) = visited("+/total");
        assert!(found == 100 && visits <= 310, "{found} {visits}");
        let (found, visits) = visited("site7/+/state");
        assert!(found == 1_000 && visits <= 1_010, "{found} {visits}");
        let (found, visits) = visited("+/m7/#");
        assert!(found == 100 && visits <= 410, "{found} {visits}");
        assert_eq!(visited("nothing/#").0, 0);
        assert_eq!(visited("#").0, 100_100);
    }
}
