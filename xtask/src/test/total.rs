//! Counts the tests of all runners, and keeps what those printed that failed.

/// Lines kept of one test program's failures: the end of a log must stay readable.
const FAILURE_LINES: usize = 200;

#[derive(Default)]
pub(super) struct TestTotal {
    pub passed: u64,
    pub failed: u64,
    /// The lines between the two headings `failures:` of Rust's runner: what the failed tests printed.
    failures: Vec<String>,
    reading_failures: bool,
    lines_of_program: usize,
}

impl TestTotal {
    /// Reads a line of Rust's runner, such as `test result: ok. 26 passed; 0 failed; ...`.
    pub fn add_cargo(&mut self, line: &str) {
        if line == "failures:" {
            // The second heading begins a list of mere names.
            self.reading_failures = !self.reading_failures;
            self.lines_of_program = 0;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
            self.reading_failures = false;
        } else if self.reading_failures {
            self.keep(line);
        } else if is_death(line) {
            self.failures.push(line.to_owned());
        }
    }

    /// Reads a line of Node's runner: `# pass 12`, `# fail 0`, `not ok 3 - the name of a test`.
    pub fn add_tap(&mut self, line: &str) {
        let number = |prefix: &str| {
            line.strip_prefix(prefix)
                .and_then(|n| n.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.passed += number("# pass ");
        self.failed += number("# fail ");
        if line.trim_start().starts_with("not ok ") {
            self.failures.push(line.trim_start().to_owned());
        }
    }

    /// Adds something that failed outside of a runner.
    pub fn add_failure(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }

    /// What failed, with what it printed; empty if everything passed.
    pub fn failures(&self) -> String {
        match self.failures.is_empty() {
            true => String::new(),
            false => format!("\nfailures of all runners:\n{}\n", self.failures.join("\n")),
        }
    }

    fn keep(&mut self, line: &str) {
        self.lines_of_program += 1;
        match self.lines_of_program {
            ..=FAILURE_LINES => self.failures.push(line.to_owned()),
            n if n == FAILURE_LINES + 1 => self.failures.push("… the rest stands above".to_owned()),
            _ => {}
        }
    }
}

/// Whether a program ended without a result of its own: `tests: e2e: signal: 6 (SIGABRT)`.
fn is_death(line: &str) -> bool {
    line.contains(": signal: ") || line.contains(": exit status: ")
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_both_runners_are_added_up() {
        let mut total = TestTotal::default();
        total.add_cargo(
            "test result: FAILED. 26 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.35s",
        );
        total.add_tap("# pass 12");
        total.add_tap("# fail 2");
        total.add_tap("# tests 14");
        assert_eq!((total.passed, total.failed), (38, 3));
        assert_eq!(total.failures(), "");
    }

    #[test]
    fn what_failed_tests_printed_is_told_at_the_end() {
        let mut total = TestTotal::default();
        let output = "test one ... ok\ntest two ... FAILED\n\nfailures:\n\n---- two stdout ----\nleft: 1\n\nfailures:\n    two\n\n\
                      test result: FAILED. 1 passed; 1 failed; 0 ignored\na crate: unit tests: exit status: 101";
        output.lines().for_each(|line| total.add_cargo(line));
        total.add_tap("not ok 3 - a page");
        total.add_failure("the packages: no tar");
        let told = total.failures();
        for part in [
            "---- two stdout ----\nleft: 1",
            "exit status: 101",
            "not ok 3 - a page",
            "the packages: no tar",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert!(!told.contains("test one") && !told.contains("    two"), "{told}");
        assert_eq!((total.passed, total.failed), (1, 2));
    }

    #[test]
    fn a_flood_of_one_program_is_cut() {
        let mut total = TestTotal::default();
        total.add_cargo("failures:");
        (0..1000).for_each(|n| total.add_cargo(&format!("line {n}")));
        total.add_cargo("failures:");
        total.add_cargo("failures:");
        total.add_cargo("another");
        let told = total.failures();
        assert!(
            told.contains("line 199\n…") && !told.contains("line 200") && told.contains("another"),
            "{told}"
        );
    }
}
