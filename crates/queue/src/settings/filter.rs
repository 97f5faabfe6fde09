//! MQTT filters in settings: checks that a text is a filter of ordinary topics.

/// Maximum length of a filter in bytes, as in MQTT.
const FILTER_BYTES_MAX: usize = 65_535;
const LEVELS_MAX: usize = 128;

/// Checks a filter over ordinary topics: `+` is one level, `#` all that remain. The error reads as a full clause after
/// the filter.
pub fn check_filter(filter: &str) -> Result<(), &'static str> {
    if filter.is_empty() {
        return Err("a filter must not be empty; # matches every topic");
    }
    if filter.len() > FILTER_BYTES_MAX {
        return Err("a filter has at most 65535 bytes");
    }
    if filter.contains('\0') {
        return Err("a filter must not have the character U+0000");
    }
    if filter.starts_with('$') {
        return Err("topics beginning with $ are not ordinary ones; name a filter without $");
    }
    let mut levels = filter.split('/');
    if levels.clone().count() > LEVELS_MAX {
        return Err("a filter has at most 128 levels");
    }
    while let Some(level) = levels.next() {
        if level == "#" && levels.clone().next().is_some() {
            return Err("# must be the last level of a filter");
        }
        if level.len() > 1 && level.contains(['+', '#']) {
            return Err("+ and # must be the whole of a level, as in a/+/b or a/#");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_whole_levels_and_the_rest_comes_last() {
        let levels = |count: usize| vec!["a"; count].join("/");
        for filter in [
            "#",
            "+",
            "a",
            "/",
            "a/+/b",
            "a/#",
            "+/+",
            "plant/+/pump/#",
            " ",
            "ü/$x",
            &levels(128),
        ] {
            assert_eq!(check_filter(filter), Ok(()), "{filter}");
        }
        for filter in [
            "",
            "#/a",
            "a/#/b",
            "a+",
            "a/b#",
            "##",
            "a/++",
            "$queue/x",
            "$SYS/#",
            "a\0",
            &levels(129),
        ] {
            assert!(check_filter(filter).is_err(), "{filter}");
        }
        assert!(check_filter(&"a".repeat(65_536)).is_err());
    }
}
