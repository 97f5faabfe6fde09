//! Topic names, topic filters, and which of them match (standard 4.7).

/// Whether a text may be the topic of a message: it is not empty and has no wildcard. Texts are checked for U+0000 when they
/// are read.
#[inline]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && memchr::memchr2(b'+', b'#', text.as_bytes()).is_none()
}

/// Whether a text may be a filter: it is not empty, and wildcards fill their level, `#` the last one [MQTT-4.7.1-1, -2].
#[inline]
pub fn is_filter(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_level_start = |at: usize| at == 0 || bytes.get(at - 1) == Some(&b'/');
    !bytes.is_empty()
        && memchr::memchr2_iter(b'+', b'#', bytes).all(|at| match bytes.get(at) {
            Some(b'+') => is_level_start(at) && matches!(bytes.get(at + 1), None | Some(b'/')),
            _ => is_level_start(at) && at + 1 == bytes.len(),
        })
}

/// The number of levels.
#[inline]
pub fn levels(text: &str) -> usize {
    1 + memchr::memchr_iter(b'/', text.as_bytes()).count()
}

/// Whether a filter matches a topic: byte for byte, `+` one level, also an empty one, `#` the parent and all below it. A
/// wildcard in the first level matches no topic that begins with `$` [MQTT-4.7.2-1].
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut topic = topic.split('/');
    let mut filter = filter.split('/');
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
}

/// The parts of a subscription's filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedFilter<'a> {
    /// The name of the group behind `$share/`. `None`: the subscription is not shared.
    pub group: Option<&'a str>,
    pub filter: &'a str,
}

impl<'a> SharedFilter<'a> {
    /// Takes a well-formed filter apart. `None`: it begins with `$share` and has no valid name or filter behind it
    /// [MQTT-4.8.2-1, -2].
    pub fn of(text: &'a str) -> Option<SharedFilter<'a>> {
        let group = match text.strip_prefix("$share") {
            Some("") => return None,
            Some(rest) => rest.strip_prefix('/'),
            None => None,
        };
        let Some(group) = group else {
            return Some(SharedFilter {
                group: None,
                filter: text,
            });
        };
        let (name, filter) = group.split_once('/')?;
        (is_name(name) && is_filter(filter)).then_some(SharedFilter {
            group: Some(name),
            filter,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_wildcards() {
        for name in ["a", "/", "a/b", " ", "$SYS/x", "ä/\u{feff}"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "+", "#", "a/+", "a#b"] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn wildcards_fill_their_level() {
        for filter in ["a", "/", "+", "#", "a/#", "+/+", "/+", "+/a/#", "a//b", "$SYS/#"] {
            assert!(is_filter(filter), "{filter}");
        }
        for filter in ["", "#/a", "a#", "a/#/b", "a+", "+a", "a/b+", "a/#b", "##", "++"] {
            assert!(!is_filter(filter), "{filter}");
        }
    }

    /// The examples of the standard, and the borders.
    #[test]
    fn filters_match_as_the_standard_says() {
        for (filter, topic, is_match) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("sport/#", "sport", true),
            ("#", "sport", true),
            ("#", "/", true),
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/a", false),
            ("+/monitor/Clients", "$SYS/monitor/Clients", false),
            ("$SYS/#", "$SYS/a", true),
            ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
            ("ACCOUNTS", "Accounts", false),
            ("a/b", "a/b/", false),
            ("a//b", "a//b", true),
            ("a/+/b", "a//b", true),
            ("a/b/#", "a", false),
            ("a", "a/b", false),
            ("+/$x", "a/$x", true),
        ] {
            assert_eq!(matches(filter, topic), is_match, "{filter} {topic}");
        }
    }

    #[test]
    fn shared_filters_have_a_name_and_a_filter() {
        let shared = |group, filter| Some(SharedFilter { group, filter });
        assert_eq!(SharedFilter::of("$share/g/a/#"), shared(Some("g"), "a/#"));
        assert_eq!(SharedFilter::of("$share/g//a"), shared(Some("g"), "/a"));
        assert_eq!(SharedFilter::of("$shared/g/a"), shared(None, "$shared/g/a"));
        assert_eq!(SharedFilter::of("a/$share"), shared(None, "a/$share"));
        for wrong in [
            "$share",
            "$share/",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/+/a",
            "$share/#",
        ] {
            assert_eq!(SharedFilter::of(wrong), None, "{wrong}");
        }
    }
}
