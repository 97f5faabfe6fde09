//! Compares the output of a command with the one in a tutorial. Times and ids always differ from run to run, numbers where the
//! page says so; `…` stands for anything within a line, and for any number of lines on a line of its own.

/// What a page shows.
#[derive(Debug)]
pub struct ExpectedOutput {
    lines: Vec<String>,
    numbers_differ: bool,
}

const ANYTHING: &str = "…";
/// Replaces what differs from run to run.
const VARIABLE: char = '#';

impl ExpectedOutput {
    pub fn new(text: &str, numbers_differ: bool) -> ExpectedOutput {
        ExpectedOutput {
            lines: comparable(text, numbers_differ),
            numbers_differ,
        }
    }

    pub fn nothing() -> ExpectedOutput {
        ExpectedOutput::new("", false)
    }

    pub fn is(&self, output: &str) -> bool {
        matching(&self.lines, &comparable(output, self.numbers_differ), true).is_some()
    }

    /// Looks for the lines in an output, from line `from` on, and returns the line after them.
    pub fn end_in(&self, output: &str, from: usize) -> Option<usize> {
        let lines = comparable(output, self.numbers_differ);
        (from..lines.len()).find_map(|begin| Some(begin + matching(&self.lines, lines.get(begin..)?, false)?))
    }
}

/// How many of the lines match the expected ones; `None` if they do not, or if `all` lines must match and some are left.
fn matching(expected: &[String], lines: &[String], all: bool) -> Option<usize> {
    let Some((first, others)) = expected.split_first() else {
        return (!all || lines.is_empty()).then_some(0);
    };
    if first == ANYTHING {
        return (0..=lines.len()).find_map(|left_out| Some(left_out + matching(others, lines.get(left_out..)?, all)?));
    }
    let (line, rest) = lines.split_first()?;
    match is_line(first, line) {
        true => matching(others, rest, all).map(|count| count + 1),
        false => None,
    }
}

fn is_line(expected: &str, line: &str) -> bool {
    let mut parts: Vec<&str> = expected.split(ANYTHING).collect();
    let last = parts.pop().unwrap_or_default();
    let mut rest = line;
    for (n, part) in parts.iter().enumerate() {
        let after = match n {
            0 => rest.strip_prefix(*part),
            _ => rest.split_once(*part).map(|(_, after)| after),
        };
        let Some(after) = after else { return false };
        rest = after;
    }
    match parts.is_empty() {
        true => rest == last,
        false => rest.ends_with(last),
    }
}

/// The lines as a terminal shows them, without empty ones at both ends, with single spaces, and without what differs.
fn comparable(text: &str, numbers_differ: bool) -> Vec<String> {
    let lines = text.split('\n').map(|line| {
        let line = without_escapes(line);
        // A progress bar is drawn over the one before.
        let line = line.trim_end().rsplit('\r').next().unwrap_or_default();
        masked(&squeezed(line), numbers_differ)
    });
    let mut lines: Vec<String> = lines.skip_while(String::is_empty).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Removes colours and other commands to a terminal.
fn without_escapes(line: &str) -> String {
    let mut shown = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            shown.push(c);
        } else if chars.next() == Some('[') {
            let _end = chars.find(|c| ('@'..='~').contains(c));
        }
    }
    shown
}

/// The width of a column depends on its content.
fn squeezed(line: &str) -> String {
    let mut squeezed = String::new();
    for c in line.chars() {
        if !([' ', '-', '─'].contains(&c) && squeezed.ends_with(c)) {
            squeezed.push(c);
        }
    }
    squeezed
}

fn masked(line: &str, numbers_differ: bool) -> String {
    let mut masked = String::new();
    let (mut rest, mut in_word) = (line, false);
    while let Some(first) = rest.chars().next() {
        let variable = length_of_uuid(rest)
            .or_else(|| length_of_hexadecimal(rest).filter(|_| numbers_differ))
            .filter(|_| !in_word)
            .or_else(|| length_of_time(rest))
            .or_else(|| length_of_number(rest).filter(|_| numbers_differ));
        let length = variable.unwrap_or(first.len_utf8());
        match variable {
            Some(_) => masked.push(VARIABLE),
            None => masked.push(first),
        }
        in_word = variable.is_none() && first.is_alphanumeric();
        rest = rest.get(length..).unwrap_or_default();
    }
    masked
}

/// The form has a 0 for each digit.
fn has_form(text: &str, form: &str, is_digit: impl Fn(&u8) -> bool) -> bool {
    let is_as_in_form = |(form, byte): (u8, &u8)| if form == b'0' { is_digit(byte) } else { form == *byte };
    text.len() >= form.len() && form.bytes().zip(text.as_bytes()).all(is_as_in_form)
}

fn is_hexadecimal(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn length_of_uuid(text: &str) -> Option<usize> {
    const FORM: &str = "00000000-0000-0000-0000-000000000000";
    has_form(text, FORM, is_hexadecimal).then_some(FORM.len())
}

/// RFC 3339, in UTC.
fn length_of_time(text: &str) -> Option<usize> {
    const FORM: &str = "0000-00-00T00:00:00";
    let (fraction, _) = text.get(FORM.len()..)?.split_once('Z')?;
    let is_fraction = fraction.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (is_fraction && has_form(text, FORM, u8::is_ascii_digit)).then_some(FORM.len() + fraction.len() + 1)
}

/// A hash, or a part of a receipt.
fn length_of_hexadecimal(text: &str) -> Option<usize> {
    let digits = text.bytes().take_while(is_hexadecimal).count();
    let (number, after) = text.split_at_checked(digits)?;
    let is_word = !after.starts_with(char::is_alphanumeric) && number.contains(|c: char| c.is_ascii_digit());
    (digits >= 8 && is_word).then_some(digits)
}

fn length_of_number(text: &str) -> Option<usize> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let after = text.get(whole..)?.strip_prefix('.').unwrap_or_default();
    let fraction = digits(after);
    let ends_word = !after.get(fraction..)?.starts_with(char::is_alphanumeric);
    match (whole, fraction) {
        (0, _) => None,
        (_, fraction) if fraction > 0 && ends_word => Some(whole + 1 + fraction),
        _ => Some(whole),
    }
}

#[test]
fn an_output_is_compared_without_what_differs_from_run_to_run() {
    for (expected, printed, numbers_differ, is_equal) in [
        ("a\nb\n", "a\r\nb\r\n", false, true),
        ("a\nb\n", "a\n", false, false),
        ("a\n", "a\nb\n", false, false),
        ("…\nb\n", "x\ny\nb\n", false, true),
        ("a\n…\n", "a\n", false, true),
        ("a … b … c\n", "a 1 b 2 b c\n", false, true),
        ("a … b\n", "a 1 c\n", false, false),
        ("…Killed…\n", "line 3: 17 Killed   thalweg\n", false, true),
        ("+---+\n| a |\n", "+-----+\n|   a |\n", false, true),
        ("3 rows\n", "4 rows\n", false, false),
        ("3 rows\n", "40.5 rows\n", true, true),
        (
            "at 2026-11-29T19:31:26.280695Z\n",
            "at 2027-01-01T00:00:00Z\n",
            false,
            true,
        ),
        (
            "[\"01a228dd-fe81-7000-8000-000001032f29\",0]\n",
            "[\"0190b5c2-8a4e-7cc0-9d2b-6f3a1f0f7c11\",0]\n",
            false,
            true,
        ),
        ("jobs:0:0:1:16.1.6b0c8135\n", "jobs:0:0:1:16.2.7fe01234\n", true, true),
        ("jobs:0:0:1:16.1.6b0c8135\n", "jobs:0:0:1:16.1.7fe01234\n", false, false),
        ("done\n", "\r\x1b[Khalf\r\x1b[K\x1b[1mdone\x1b[0m\n", false, true),
    ] {
        let output = ExpectedOutput::new(expected, numbers_differ);
        assert_eq!(output.is(printed), is_equal, "{expected:?} and {printed:?}");
    }
}

#[test]
fn lines_are_found_after_others() {
    let expected = ExpectedOutput::new("b\nc\n", false);
    assert_eq!(expected.end_in("a\nb\nb\nc\nd\n", 0), Some(4));
    assert_eq!(expected.end_in("a\nb\nc\nd\n", 2), None);
    assert_eq!(expected.end_in("", 0), None);
}
