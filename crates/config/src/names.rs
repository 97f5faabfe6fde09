//! Suggestions for unknown names: the nearest valid name, or the list of all valid ones.

use strsim::{damerau_levenshtein, levenshtein};

/// Largest edit distance at which a name is offered.
const DISTANCE_MAX: usize = 3;

/// How many characters of a text from outside a message quotes.
const QUOTED_CHARS_MAX: usize = 60;

/// The end of a message about an unknown name: `, did you mean "x"?` if a candidate is within three edits, else `;
/// valid names: a, b, c`.
pub fn nearest<S: AsRef<str>>(name: &str, candidates: impl IntoIterator<Item = S>) -> String {
    let candidates: Vec<S> = candidates.into_iter().collect();
    if let Some(found) = closest(name, &candidates) {
        return format!(", did you mean \"{found}\"?");
    }
    let names: Vec<&str> = candidates.iter().map(AsRef::as_ref).collect();
    if names.is_empty() {
        return "; none is accepted here".to_owned();
    }
    format!("; valid names: {}", names.join(", "))
}

/// The candidate with the fewest edits, at most three, that shares something with `name`. A difference in case alone
/// counts nothing.
pub fn closest<'c, S: AsRef<str>>(name: &str, candidates: &'c [S]) -> Option<&'c str> {
    let length = name.chars().count();
    let lower = name.to_lowercase();
    candidates
        .iter()
        .map(AsRef::as_ref)
        .filter_map(|candidate| {
            let other = candidate.chars().count();
            // The length check also keeps a key of megabytes away from the quadratic comparison.
            if length.abs_diff(other) > DISTANCE_MAX {
                return None;
            }
            let exact = levenshtein(name, candidate);
            let distance = exact.min(levenshtein(&lower, &candidate.to_lowercase()));
            (distance <= DISTANCE_MAX && distance < length.max(other)).then_some((distance, exact, candidate))
        })
        .min_by_key(|&(distance, exact, _)| (distance, exact))
        .map(|(_, _, candidate)| candidate)
}

/// Whether a name is a typo of another one: one letter added, missing or wrong, or two swapped. Names that differ in
/// digits or in a part of one or two letters, such as `line-1` and `line-2`, are probably distinct names.
pub fn is_slip(name: &str, meant: &str) -> bool {
    const LETTERS_MIN: usize = 4;
    let longest = name.chars().count().max(meant.chars().count());
    let shortest = name.chars().count().min(meant.chars().count());
    // The lengths are compared first, because the distance costs their product.
    if longest - shortest > 1 || longest < LETTERS_MIN || damerau_levenshtein(name, meant) != 1 {
        return false;
    }
    let (parts, others) = (parts(name), parts(meant));
    parts.len() != others.len()
        || parts
            .iter()
            .zip(&others)
            .filter(|(part, other)| part != other)
            .all(|(part, other)| {
                let is_short = |part: &str| part.chars().count() <= 2 || part.chars().all(|c| c.is_ascii_digit());
                !is_short(part) && !is_short(other)
            })
}

/// Runs of letters and of digits.
fn parts(name: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for word in name.split(|c: char| !c.is_alphanumeric()) {
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let is_other = |c: char| c.is_ascii_digit() != first.is_ascii_digit();
            let (part, after) = rest.split_at(rest.find(is_other).unwrap_or(rest.len()));
            parts.push(part);
            rest = after;
        }
    }
    parts
}

/// A text from outside in double quotes, escaped and truncated to fit one line.
pub(crate) fn quoted(text: &str) -> String {
    if text.chars().nth(QUOTED_CHARS_MAX).is_none() {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    format!("{:?}", format!("{start}..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_from_another_of_the_kind() {
        for (name, meant, expected) in [
            ("ordrs", "orders", true),
            ("orderss", "orders", true),
            ("ordesr", "orders", true),
            ("oders", "orders", true),
            ("plant-ordres", "plant-orders", true),
            ("plantorders", "plant-orders", true),
            ("orders", "orders", false),
            ("invoices", "orders", false),
            ("line-1", "line-2", false),
            ("line1", "line2", false),
            ("line", "line2", true),
            ("line-10", "line-1", false),
            ("orders-a", "orders-b", false),
            ("orders.eu", "orders.us", false),
            ("in", "on", false),
            ("", "a", false),
        ] {
            assert_eq!(is_slip(name, meant), expected, "{name} for {meant}");
        }
        assert!(!is_slip(&"a".repeat(1 << 20), "a"));
    }

    #[test]
    fn suggestions() {
        let names = ["endpoint", "subscribeEnabled", "pollRate", "qos"];
        let all = "; valid names: endpoint, subscribeEnabled, pollRate, qos";
        let cases = [
            ("subscribeEnable", ", did you mean \"subscribeEnabled\"?"),
            ("endpiont", ", did you mean \"endpoint\"?"),
            ("POLLRATE", ", did you mean \"pollRate\"?"),
            ("subscribed", all),
            ("x", all),
            ("", all),
        ];
        for (name, expected) in cases {
            assert_eq!(nearest(name, names), expected, "for {name}");
        }
        assert_eq!(nearest::<&str>("x", []), "; none is accepted here");
    }

    #[test]
    fn long_and_odd_texts_are_cut_and_escaped() {
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert_eq!(quoted(&"é".repeat(100)), format!("\"{}...\"", "é".repeat(60)));
        let huge = "x".repeat(1 << 20);
        assert_eq!(nearest(&huge, ["endpoint"]), "; valid names: endpoint");
    }
}
