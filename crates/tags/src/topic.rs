//! Topics of the unified namespace: builds and checks a topic from its four parts, or returns why there is none.
//!
//! A topic is `umh.v1.<location>.<contract>[.<virtual path>].<name>`. Parts are joined as they are and the whole is
//! parsed again: the contract is the first segment after level 0 that starts with `_` and is not the last one. So a dot
//! in the name extends the virtual path, and a location segment that starts with `_` becomes the contract. Every topic
//! that [`build`] returns passes [`check`]; [`build_of_source`] alone keeps names that it refuses.

const PREFIX: &str = "umh.v1";

/// Why there is no topic. The texts are those of the reference system, which consumers know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error("topic construction failed: level0 is required - set using SetLevel0() or SetLocationLevels()")]
    NoLevel0,
    #[error(
        "topic construction failed: data contract is required - set using SetDataContract() with a value starting with \
         underscore"
    )]
    NoContract,
    #[error("topic construction failed: name is required - set using SetName() with the final topic identifier")]
    NoName,
    #[error("topic cannot be empty")]
    Empty,
    #[error("topic must start with umh.v1")]
    Prefix,
    #[error("topic must have at least: umh.v1.level0._contract.name")]
    TooShort,
    #[error("level0 cannot be empty")]
    EmptyLevel0,
    #[error("topic must contain a data contract (segment starting with '_') and it cannot be the final segment")]
    ContractMissing,
    #[error("data contract cannot be just an underscore")]
    ContractUnderscore,
    #[error("topic name (final segment) cannot be empty")]
    EmptyName,
    #[error("virtual path segment at index {0} cannot be empty")]
    EmptyVirtualSegment(usize),
    #[error("topic validation failed: level0 cannot start with underscore (topic: {0})")]
    Level0Underscore(String),
    #[error("topic validation failed: location sublevel at index {0} cannot be empty (topic: {1})")]
    EmptySublevel(usize, String),
    #[error("topic validation failed: location sublevel at index {0} cannot start with underscore (topic: {1})")]
    SublevelUnderscore(usize, String),
    #[error("topic contained invalid characters and was rejected: '{topic}' -> '{cleaned}'")]
    Characters { topic: String, cleaned: String },
    #[error("topic contained multiple consecutive dots and was rejected: '{0}'")]
    ConsecutiveDots(String),
    #[error("topic contained leading or trailing dots and was rejected: '{0}'")]
    OuterDots(String),
}

/// Joins the parts and checks the result. `virtual_path_text` is the text from the metadata, see [`virtual_path`].
pub fn build(
    location_path: &str,
    data_contract: &str,
    virtual_path_text: &str,
    tag_name: &str,
) -> Result<String, TopicError> {
    if location_path.split('.').next().unwrap_or_default().is_empty() {
        return Err(TopicError::NoLevel0);
    }
    if data_contract.is_empty() {
        return Err(TopicError::NoContract);
    }
    if tag_name.is_empty() {
        return Err(TopicError::NoName);
    }
    let parts = [location_path, data_contract, virtual_path(virtual_path_text), tag_name];
    let mut topic = String::with_capacity(PREFIX.len() + parts.iter().map(|part| part.len() + 1).sum::<usize>());
    topic.push_str(PREFIX);
    for part in parts.iter().filter(|part| !part.is_empty()) {
        topic.push('.');
        topic.push_str(part);
    }
    check(&topic)?;
    Ok(topic)
}

/// Like [`build`], for a name that comes from a source and not from a script: it keeps spaces and letters of all languages,
/// so that the tag is found under the name that its source gives it. Only its dots and its control characters are checked.
pub(crate) fn build_of_source(
    location_path: &str,
    data_contract: &str,
    virtual_path_text: &str,
    name: &str,
) -> Result<String, TopicError> {
    if name.chars().all(is_allowed) || name.chars().any(char::is_control) {
        return build(location_path, data_contract, virtual_path_text, name);
    }
    let plain: String = name.chars().map(allowed_or_underscore).collect();
    let mut topic = build(location_path, data_contract, virtual_path_text, &plain)?;
    topic.truncate(topic.len() - plain.len());
    topic.push_str(name);
    Ok(topic)
}

/// The virtual path of a metadata text: trimmed, and empty for the words that scripts use for "none".
pub fn virtual_path(text: &str) -> &str {
    let text = text.trim();
    let none = ["null", "nil", "<nil>", "undefined"];
    if none.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return "";
    }
    text
}

/// The parts of a text that begins like a topic: location, contract, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicParts<'a> {
    /// Level 0 and the sublevels, joined with dots.
    pub location: &'a str,
    pub contract: &'a str,
    /// Segments after the contract; empty if there are none.
    pub path: &'a str,
}

impl TopicParts<'_> {
    /// `None` if the text has another prefix or no contract. Nothing else is checked, and the contract may be the last
    /// segment.
    pub fn of(text: &str) -> Option<TopicParts<'_>> {
        let rest = text.strip_prefix(PREFIX)?.strip_prefix('.')?;
        let (location, contract_on) = rest.split_at_checked(rest.find("._")?)?;
        let contract_on = contract_on.strip_prefix('.')?;
        let (contract, path) = contract_on.split_once('.').unwrap_or((contract_on, ""));
        Some(TopicParts {
            location,
            contract,
            path,
        })
    }

    pub fn level0(&self) -> &str {
        self.location.split('.').next().unwrap_or_default()
    }

    pub fn sublevels(&self) -> impl Iterator<Item = &str> {
        self.location.split('.').skip(1)
    }
}

/// Splits a topic at its contract. The path ends with the name.
pub fn place(topic: &str) -> Result<TopicParts<'_>, TopicError> {
    check(topic)?;
    TopicParts::of(topic).ok_or(TopicError::ContractMissing)
}

/// Splits a topic into its place, whose path is the virtual path, and its name.
pub fn parts(topic: &str) -> Result<(TopicParts<'_>, &str), TopicError> {
    check(topic)?;
    let (place, name) = topic.rsplit_once('.').ok_or(TopicError::TooShort)?;
    Ok((TopicParts::of(place).ok_or(TopicError::ContractMissing)?, name))
}

/// Checks that a text is a topic.
pub fn check(topic: &str) -> Result<(), TopicError> {
    if topic.is_empty() {
        return Err(TopicError::Empty);
    }
    let segments: Vec<&str> = topic.split('.').collect();
    let rest = match segments.as_slice() {
        ["umh", "v1", rest @ ..] => rest,
        _ => return Err(TopicError::Prefix),
    };
    let [level0, after @ ..] = rest else {
        return Err(TopicError::TooShort);
    };
    let [.., name] = after else {
        return Err(TopicError::TooShort);
    };
    if after.len() < 2 {
        return Err(TopicError::TooShort);
    }
    if level0.is_empty() {
        return Err(TopicError::EmptyLevel0);
    }
    let inner = after.get(..after.len() - 1).unwrap_or_default();
    let Some(at) = inner.iter().position(|segment| segment.starts_with('_')) else {
        return Err(TopicError::ContractMissing);
    };
    if inner.get(at) == Some(&"_") {
        return Err(TopicError::ContractUnderscore);
    }
    if name.is_empty() {
        return Err(TopicError::EmptyName);
    }
    let virtual_segments = inner.get(at + 1..).unwrap_or_default();
    if let Some(i) = virtual_segments.iter().position(|segment| segment.is_empty()) {
        return Err(TopicError::EmptyVirtualSegment(i));
    }
    if level0.starts_with('_') {
        return Err(TopicError::Level0Underscore(topic.to_owned()));
    }
    check_sublevels(inner.get(..at).unwrap_or_default(), topic)?;
    check_text(topic)
}

fn check_sublevels(sublevels: &[&str], topic: &str) -> Result<(), TopicError> {
    for (i, segment) in sublevels.iter().enumerate() {
        if segment.is_empty() {
            return Err(TopicError::EmptySublevel(i + 1, topic.to_owned()));
        }
        if segment.starts_with('_') {
            return Err(TopicError::SublevelUnderscore(i + 1, topic.to_owned()));
        }
    }
    Ok(())
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn allowed_or_underscore(c: char) -> char {
    if is_allowed(c) { c } else { '_' }
}

fn check_text(topic: &str) -> Result<(), TopicError> {
    if !topic.chars().all(is_allowed) {
        return Err(TopicError::Characters {
            topic: topic.to_owned(),
            cleaned: topic.chars().map(allowed_or_underscore).collect(),
        });
    }
    if topic.contains("..") {
        return Err(TopicError::ConsecutiveDots(topic.to_owned()));
    }
    if topic.starts_with('.') || topic.ends_with('.') {
        return Err(TopicError::OuterDots(topic.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_become_topics() {
        for (parts, topic) in [
            (
                ["enterprise", "_historian", "", "temp"],
                "umh.v1.enterprise._historian.temp",
            ),
            (["a.b.c", "_raw", "motor.axis", "x"], "umh.v1.a.b.c._raw.motor.axis.x"),
            (["a", "_raw", "  motor ", "x"], "umh.v1.a._raw.motor.x"),
            (["a", "_raw", "NULL", "x"], "umh.v1.a._raw.x"),
            (["a", "_raw", "Undefined", "x"], "umh.v1.a._raw.x"),
            (["a", "_raw", "<nil>", "x"], "umh.v1.a._raw.x"),
            (["a", "_raw", "nil", "x"], "umh.v1.a._raw.x"),
            (["a", "_raw", "", "x.y"], "umh.v1.a._raw.x.y"),
            (["a._b.c", "_raw", "", "x"], "umh.v1.a._b.c._raw.x"),
            (["a", "_raw_v1", "", "_x-1"], "umh.v1.a._raw_v1._x-1"),
            (["a", "raw", "_v", "x"], "umh.v1.a.raw._v.x"),
        ] {
            let [location, contract, path, name] = parts;
            assert_eq!(build(location, contract, path, name).as_deref(), Ok(topic));
        }
    }

    #[test]
    fn a_name_of_a_source_is_kept_and_its_dots_are_checked() {
        let build = |name: &str| build_of_source("a", "_raw", "motor", name);
        for name in ["x", "oil temp", "Kühler", "温度", "ü.ö", "_", "ä", "a/b+#"] {
            assert_eq!(build(name), Ok(format!("umh.v1.a._raw.motor.{name}")));
        }
        for name in ["", ".ü", "ü.", "ü..ö", "a\nü", "a\u{7f}"] {
            assert!(build(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn each_fault_has_its_text() {
        for (parts, text) in [
            (
                [".a", "_c", "", "n"],
                "topic construction failed: level0 is required - set using SetLevel0() or SetLocationLevels()",
            ),
            (
                ["", "", "", ""],
                "topic construction failed: level0 is required - set using SetLevel0() or SetLocationLevels()",
            ),
            (
                ["a", "", "", ""],
                "topic construction failed: data contract is required - set using SetDataContract() with a value starting with underscore",
            ),
            (
                ["a", "_c", "", ""],
                "topic construction failed: name is required - set using SetName() with the final topic identifier",
            ),
            (
                ["a", "c", "", "n"],
                "topic must contain a data contract (segment starting with '_') and it cannot be the final segment",
            ),
            (
                ["a", "c", "", "_n"],
                "topic must contain a data contract (segment starting with '_') and it cannot be the final segment",
            ),
            (["a", "_", "", "n"], "data contract cannot be just an underscore"),
            (["a", "_c", "", "n."], "topic name (final segment) cannot be empty"),
            (
                ["a", "_c", "x..y", "n"],
                "virtual path segment at index 1 cannot be empty",
            ),
            (
                ["a", "_c", ".x", "n"],
                "virtual path segment at index 0 cannot be empty",
            ),
            (
                ["_a", "_c", "", "n"],
                "topic validation failed: level0 cannot start with underscore (topic: umh.v1._a._c.n)",
            ),
            (
                ["a..b", "_c", "", "n"],
                "topic validation failed: location sublevel at index 1 cannot be empty (topic: umh.v1.a..b._c.n)",
            ),
            (
                ["a.b.", "_c", "", "n"],
                "topic validation failed: location sublevel at index 2 cannot be empty (topic: umh.v1.a.b.._c.n)",
            ),
            (
                ["a b", "_c", "", "ü$"],
                "topic contained invalid characters and was rejected: 'umh.v1.a b._c.ü$' -> 'umh.v1.a_b._c.__'",
            ),
        ] {
            let [location, contract, path, name] = parts;
            assert_eq!(build(location, contract, path, name).unwrap_err().to_string(), text);
        }
        for (topic, text) in [
            ("", "topic cannot be empty"),
            ("umh.v2.a._c.n", "topic must start with umh.v1"),
            ("umh.v1x.a._c.n", "topic must start with umh.v1"),
            ("umh.v1", "topic must have at least: umh.v1.level0._contract.name"),
            ("umh.v1.a._c", "topic must have at least: umh.v1.level0._contract.name"),
            ("umh.v1.._c.n", "level0 cannot be empty"),
        ] {
            assert_eq!(check(topic).unwrap_err().to_string(), text);
        }
        assert_eq!(
            TopicError::SublevelUnderscore(1, "t".into()).to_string(),
            "topic validation failed: location sublevel at index 1 cannot start with underscore (topic: t)"
        );
        assert_eq!(
            TopicError::ConsecutiveDots("a..b".into()).to_string(),
            "topic contained multiple consecutive dots and was rejected: 'a..b'"
        );
        assert_eq!(
            TopicError::OuterDots(".a".into()).to_string(),
            "topic contained leading or trailing dots and was rejected: '.a'"
        );
    }

    #[test]
    fn topics_are_taken_apart_at_the_contract() {
        for (topic, [location, contract, path, name]) in [
            ("umh.v1.a._c.n", ["a", "_c", "", "n"]),
            ("umh.v1.a.b.c._raw_v1.x.y._n", ["a.b.c", "_raw_v1", "x.y", "_n"]),
            ("umh.v1.a._b._c.n", ["a", "_b", "_c", "n"]),
        ] {
            let place = TopicParts {
                location,
                contract,
                path,
            };
            assert_eq!(parts(topic), Ok((place, name)));
            assert_eq!(place.level0(), "a");
        }
        assert_eq!(parts("umh.v1.a._c"), Err(TopicError::TooShort));
        let classic = TopicParts::of("umh.v1.a.b._historian").unwrap();
        assert_eq!(
            (classic.location, classic.contract, classic.path),
            ("a.b", "_historian", "")
        );
        assert_eq!(classic.sublevels().collect::<Vec<_>>(), ["b"]);
        for text in ["umh.v1._c", "umh.v1.a.b", "umh.v2.a._c.n", "umh.v1", ""] {
            assert_eq!(TopicParts::of(text), None, "{text}");
        }
    }

    #[test]
    fn a_topic_has_a_contract_and_a_path() {
        for (topic, contract, path) in [
            ("umh.v1.a._raw.x", "_raw", "x"),
            ("umh.v1.a.b_c._pump_v2.motor._axis.x", "_pump_v2", "motor._axis.x"),
        ] {
            let place = place(topic).unwrap();
            assert_eq!((place.contract, place.path), (contract, path));
        }
        assert_eq!(place("umh.v1.a.b.x"), Err(TopicError::ContractMissing));
    }

    proptest! {
        /// For any parts the result is a valid topic, or an error whose text can be shown.
        #[test]
        fn any_parts_give_a_valid_topic_or_an_error(
            location in "[a-z_. ]{0,8}|\\PC{0,6}", contract in "_?[a-z._]{0,5}|\\PC{0,6}",
            path in "[a-z_. ]{0,6}|null|\\PC{0,6}", name in "[a-z_. ]{0,5}|\\PC{0,6}",
        ) {
            match build(&location, &contract, &path, &name) {
                Ok(topic) => {
                    prop_assert_eq!(check(&topic), Ok(()));
                    let TopicParts { contract: name, path, .. } = super::place(&topic).unwrap();
                    prop_assert!(name.len() > 1 && name.starts_with('_') && !path.is_empty());
                    let end = [".", name, ".", path].concat();
                    prop_assert!(topic.ends_with(&end));
                    let segments: Vec<&str> = topic.split('.').collect();
                    prop_assert!(segments.len() >= 5 && segments.iter().all(|s| !s.is_empty()));
                    prop_assert!(!segments[2].starts_with('_'));
                    prop_assert!(segments[3..segments.len() - 1].iter().any(|s| s.len() > 1 && s.starts_with('_')));
                    let (place, name) = parts(&topic).unwrap();
                    let joined = ["umh.v1", place.location, place.contract, place.path, name];
                    let joined = joined.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
                    prop_assert_eq!(joined, topic);
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
