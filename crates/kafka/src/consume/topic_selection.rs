//! The field `topics`: names, regular expressions, or single partitions of topics.

use std::collections::{BTreeMap, BTreeSet};

use regex::RegexSet;

use crate::cluster;

/// The most partitions that an entry may name.
const PARTITIONS_MAX: i32 = 10_000;
/// Maximum topics that expressions may select, because all of them are described in each probe.
const SELECTED_MAX: usize = 1000;
/// Topics of the brokers themselves, which no expression selects.
const INTERNAL: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

/// What is read.
#[derive(Clone, Debug)]
pub enum TopicSelection {
    /// The group assigns the partitions of these topics.
    Names(Vec<String>),
    /// The group assigns the partitions of all topics whose name one of the expressions finds.
    Patterns(RegexSet),
    /// These partitions are read, whoever else reads them.
    Partitions(BTreeMap<String, BTreeSet<i32>>),
}

impl TopicSelection {
    /// Reads the entries, each of which may be a list with commas. Errors are sentences.
    pub fn parse(entries: &[String], are_patterns: bool) -> Result<TopicSelection, Vec<String>> {
        if are_patterns {
            return patterns(entries).map(TopicSelection::Patterns);
        }
        let (mut names, mut partitions, mut errors) = (Vec::new(), BTreeMap::new(), Vec::new());
        for entry in entries.iter().flat_map(|entry| entry.split(',')) {
            let entry = entry.trim();
            match entry.split_once(':') {
                None => names.push(entry.to_owned()),
                Some((name, numbers)) => {
                    let of_topic: &mut BTreeSet<i32> = partitions.entry(name.to_owned()).or_default();
                    match range(numbers) {
                        Ok(numbers) => of_topic.extend(numbers),
                        Err(error) => errors.push(format!("\"{entry}\": {error}")),
                    }
                }
            }
        }
        errors.extend(
            names
                .iter()
                .chain(partitions.keys())
                .filter_map(|name| cluster::check_topic(name).err()),
        );
        if !names.is_empty() && !partitions.is_empty() {
            errors.push(
                "some entries name partitions and some do not; the group assigns all partitions or none: use two inputs with two groups"
                    .to_owned(),
            );
        }
        match (errors.is_empty(), partitions.is_empty()) {
            (false, _) => Err(errors),
            (true, true) => Ok(TopicSelection::Names(names)),
            (true, false) => Ok(TopicSelection::Partitions(partitions)),
        }
    }

    /// The names of the topics; none if they have to be found.
    pub fn names(&self) -> Vec<String> {
        match self {
            TopicSelection::Names(names) => names.clone(),
            TopicSelection::Patterns(_) => Vec::new(),
            TopicSelection::Partitions(partitions) => partitions.keys().cloned().collect(),
        }
    }

    /// Returns those of the topics of a cluster that the expressions select.
    pub fn matching<'n>(patterns: &RegexSet, names: impl Iterator<Item = &'n str>) -> Result<Vec<String>, String> {
        let selected = names.filter(|name| !INTERNAL.contains(name) && patterns.is_match(name));
        let selected: BTreeSet<&str> = selected.collect();
        match selected.len() <= SELECTED_MAX {
            true => Ok(selected.into_iter().map(str::to_owned).collect()),
            false => Err(format!(
                "the expressions in topics select {} topics, and at most {SELECTED_MAX} can be read; use narrower ones",
                selected.len()
            )),
        }
    }
}

fn patterns(entries: &[String]) -> Result<RegexSet, Vec<String>> {
    let wrong = entries.iter().filter_map(|entry| {
        let error = regex::Regex::new(entry).err()?.to_string();
        let last = error.lines().last().unwrap_or_default().trim();
        let why = last.strip_prefix("error: ").unwrap_or(last);
        Some(format!("\"{entry}\" is no regular expression: {why}"))
    });
    let wrong: Vec<String> = wrong.collect();
    match wrong.is_empty() {
        true => {
            RegexSet::new(entries).map_err(|error| vec![format!("the expressions cannot be used together: {error}")])
        }
        false => Err(wrong),
    }
}

/// Parses `3` or `0-3`.
fn range(text: &str) -> Result<std::ops::RangeInclusive<i32>, String> {
    let expected = || "expected a partition such as machines:0, or a range such as machines:0-3".to_owned();
    if text.contains(':') {
        return Err("an offset cannot be set here; set the offset of the consumer group instead".to_owned());
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<i32>().ok().filter(|number| *number >= 0);
    let (first, last) = (number(first).ok_or_else(expected)?, number(last).ok_or_else(expected)?);
    if first > last {
        return Err("the range is empty; write the smaller number first".to_owned());
    }
    if last - first >= PARTITIONS_MAX {
        return Err(format!("a range has at most {PARTITIONS_MAX} partitions"));
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[&str], are_patterns: bool) -> Result<TopicSelection, Vec<String>> {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        TopicSelection::parse(&entries, are_patterns)
    }

    #[test]
    fn topics_are_names_or_partitions() {
        assert_eq!(parse(&["a", "b, c"], false).unwrap().names(), ["a", "b", "c"]);
        let TopicSelection::Partitions(partitions) = parse(&["a:3", "b:0-2", "b:2-4,a:1"], false).unwrap() else {
            panic!("partitions are named");
        };
        let numbers: Vec<(&str, Vec<i32>)> = partitions
            .iter()
            .map(|(name, numbers)| (name.as_str(), numbers.iter().copied().collect()))
            .collect();
        assert_eq!(numbers, [("a", vec![1, 3]), ("b", vec![0, 1, 2, 3, 4])]);
    }

    #[test]
    fn mistakes_are_told() {
        for (entries, told) in [
            (&["a:x"][..], "\"a:x\": expected a partition such as"),
            (&["a:3-1"], "the range is empty"),
            (&["a:-1"], "expected a partition"),
            (&["a:0:7"], "an offset cannot be set here"),
            (&["a:0-2000000000"], "at most 10000 partitions"),
            (&["a", "b:0"], "some entries name partitions and some do not"),
            (&["a b"], "cannot be the name of a topic"),
            (&["a,"], "the name of a topic is empty"),
        ] {
            let errors = parse(entries, false).unwrap_err().join("\n");
            assert!(errors.contains(told), "{entries:?}: {errors}");
        }
        let errors = parse(&["a(", "b", "["], true).unwrap_err();
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0], "\"a(\" is no regular expression: unclosed group");
    }

    #[test]
    fn expressions_select_topics_but_none_of_the_brokers_own() {
        let TopicSelection::Patterns(patterns) = parse(&["^plant-", "s$"], true).unwrap() else {
            panic!("they are expressions");
        };
        let names = ["xplant-1", "plant-1", "lines", "__consumer_offsets", "plant-1"];
        let selected = TopicSelection::matching(&patterns, names.into_iter()).unwrap();
        assert_eq!(selected, ["lines", "plant-1"]);
    }

    #[test]
    fn expressions_that_select_too_many_topics_select_none() {
        let patterns = RegexSet::new(["."]).unwrap();
        let names: Vec<String> = (0..=SELECTED_MAX).map(|n| format!("t{n}")).collect();
        let select = |names: &[String]| TopicSelection::matching(&patterns, names.iter().map(String::as_str));
        assert_eq!(select(&names[1..]).unwrap().len(), SELECTED_MAX);
        let told = select(&names).unwrap_err();
        assert!(
            told.contains("select 1001 topics, and at most 1000 can be read"),
            "{told}"
        );
    }
}
