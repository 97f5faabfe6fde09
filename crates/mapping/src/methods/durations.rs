//! Durations as text: `1h15m30.5s`.

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Returns nanoseconds. The text is a sign and decimal numbers with a unit each, or `0`.
pub(super) fn parse(text: &str) -> Result<i64, String> {
    let refuse = |why: &str| {
        Err(format!(
            "cannot parse {text:?} as a duration such as `1h15m30.5s`: {why}"
        ))
    };
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return refuse("it is empty");
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_bytes = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .count();
        let (number, after) = rest.split_at_checked(number_bytes).unwrap_or_default();
        let unit_bytes = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit_bytes).unwrap_or_default();
        let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return refuse("each number needs a unit of ns, us, ms, s, m, h");
        };
        let Some(part) = nanos_of(number, *nanos) else {
            return refuse("a number has no digits, or too many");
        };
        total += part;
        if total > i128::from(i64::MAX) {
            return refuse("it is longer than 292 years");
        }
        rest = after;
    }
    let total = if is_negative { -total } else { total };
    i64::try_from(total).or_else(|_| refuse("it is longer than 292 years"))
}

/// Digits of the fraction beyond one nanosecond are cut off.
fn nanos_of(number: &str, unit_nanos: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !is_digits(fraction) || whole.len() > 19 {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let scaled: i128 = fraction
        .get(..fraction.len().min(18))?
        .bytes()
        .fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0'));
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len().min(18)).ok()?)?;
    whole
        .checked_mul(unit_nanos)?
        .checked_add(scaled.checked_mul(unit_nanos)? / scale)
}
