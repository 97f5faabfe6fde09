//! Notes which rows of a file have no time or no body, and which columns there are instead, for the error that says so.

use std::fmt::Write as _;

use super::cell::CellValue;
use super::time;

/// The rows whose values are examined.
const SAMPLE_ROWS: u64 = 1000;
/// The columns that are noted, and those that are shown.
const COLUMNS_MAX: usize = 256;
const SHOWN_MAX: usize = 40;
/// How much of a value is shown.
const SAMPLE_CHARACTERS: usize = 30;
/// If none of so many rows has a time, or a body, the rest need not be read.
const ENOUGH_ROWS: u64 = 100_000;
/// Numbers that may be times are between 1990 and 2100.
const PLAUSIBLE: std::ops::Range<i128> = 631_152_000_000_000_000..4_102_444_800_000_000_000;

/// Whether a number, read as a time in nanoseconds, is likely to be one.
pub(super) fn is_plausible(nanos: i128) -> bool {
    PLAUSIBLE.contains(&nanos)
}

/// What a row that was added has.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundFields {
    pub time: bool,
    pub body: bool,
}

/// Counts rows without a time or a body.
#[derive(Debug)]
pub(crate) struct MissingFields {
    /// Whether the table has bodies.
    has_body: bool,
    rows: u64,
    without_time: u64,
    without_body: u64,
    columns: Vec<SeenColumn>,
}

#[derive(Debug)]
struct SeenColumn {
    name: String,
    sample: String,
    values: u64,
    /// Values that can be read as times.
    times: u64,
    /// Values that are texts and no numbers, and their bytes.
    texts: u64,
    text_bytes: u64,
}

impl MissingFields {
    pub fn new(has_body: bool) -> MissingFields {
        MissingFields {
            has_body,
            rows: 0,
            without_time: 0,
            without_body: 0,
            columns: Vec::new(),
        }
    }

    /// Notes a value of the row that is being read.
    pub(super) fn value(&mut self, name: &str, value: CellValue<'_>) {
        if self.rows >= SAMPLE_ROWS {
            return;
        }
        let at = self.columns.iter().position(|column| column.name == name);
        let at = match at {
            Some(at) => at,
            None if self.columns.len() < COLUMNS_MAX => {
                self.columns.push(SeenColumn::new(name, value));
                self.columns.len() - 1
            }
            None => return,
        };
        if let Some(column) = self.columns.get_mut(at) {
            column.note(value);
        }
    }

    /// Notes a row that was added.
    pub(super) fn row(&mut self, found: FoundFields) {
        self.rows += 1;
        self.without_time += u64::from(!found.time);
        self.without_body += u64::from(self.has_body && !found.body);
    }

    /// Whether so many rows lack a field that the rest need not be read.
    pub fn is_hopeless(&self) -> bool {
        self.rows >= ENOUGH_ROWS && self.rows == self.without_time.max(self.without_body)
    }

    /// What most rows lack, and how to say where it is; `None` if most rows have all.
    pub fn advice(&self) -> Option<String> {
        let lack = |without: u64| without * 2 > self.rows;
        let (time, body) = (lack(self.without_time), lack(self.without_body));
        let what = match (time, body) {
            (true, true) => format!("no time, and {} no body", self.without_body),
            (true, false) => "no time".to_owned(),
            (false, true) => "no body".to_owned(),
            (false, false) => return None,
        };
        let without = if time { self.without_time } else { self.without_body };
        let mut text = format!("{without} of {} rows have {what}", self.rows);
        text.push_str(&self.shown_columns());
        let by_time = time.then(|| self.likely_time()).flatten();
        let by_body = body.then(|| self.likely_body(by_time)).flatten();
        text.push_str(if time && body {
            "; say which they are with"
        } else {
            "; say which it is with"
        });
        for (is_missing, column, role) in [(time, by_time, "time"), (body, by_body, "body")] {
            if is_missing {
                let name = column.map_or("COLUMN", |column| column.name.as_str());
                let _ = write!(text, " --map {}", in_shell(&format!("{name}={role}")));
            }
        }
        if by_time.is_some_and(|column| column.times * 2 < column.values) {
            text.push_str(" and --time-format FORMAT");
        }
        Some(text)
    }

    fn shown_columns(&self) -> String {
        if self.columns.is_empty() {
            return "; they have no columns at all".to_owned();
        }
        let shown = self.columns.iter().take(SHOWN_MAX).map(|column| {
            let SeenColumn { name, sample, .. } = column;
            format!("{name} ({sample})")
        });
        let shown: Vec<String> = shown.collect();
        let more = match self.columns.len().saturating_sub(SHOWN_MAX) {
            0 => "",
            _ => " and more",
        };
        format!("; the columns are {}{more}", shown.join(", "))
    }

    /// The column that most likely has the time: one whose values are times, else one whose name says so.
    fn likely_time(&self) -> Option<&SeenColumn> {
        let has_times = |column: &&SeenColumn| column.times * 2 > column.values;
        let first = |is_it: &dyn Fn(&&SeenColumn) -> bool| self.columns.iter().find(is_it);
        first(&|column| has_times(column) && column.names_time())
            .or_else(|| first(&has_times))
            .or_else(|| first(&|column| column.names_time() && column.texts > 0))
    }

    /// The column with the longest texts.
    fn likely_body(&self, time: Option<&SeenColumn>) -> Option<&SeenColumn> {
        let is_text = |column: &&SeenColumn| {
            column.texts * 2 > column.values && column.times == 0 && time.is_none_or(|time| time.name != column.name)
        };
        let texts = self.columns.iter().filter(is_text);
        texts.max_by_key(|column| column.text_bytes / column.texts.max(1))
    }
}

impl SeenColumn {
    fn new(name: &str, value: CellValue<'_>) -> SeenColumn {
        let mut text = String::new();
        value.write(&mut text);
        let sample = match text.char_indices().nth(SAMPLE_CHARACTERS) {
            Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
            None => format!("{text:?}"),
        };
        SeenColumn {
            name: name.to_owned(),
            sample,
            values: 0,
            times: 0,
            texts: 0,
            text_bytes: 0,
        }
    }

    fn note(&mut self, value: CellValue<'_>) {
        self.values += 1;
        let is_time = match value {
            CellValue::Time(_) => true,
            CellValue::Number(digits) => is_time_in_digits(digits),
            CellValue::Text(text) => match time::of_number(text.trim()) {
                Some(_) => is_time_in_digits(text.trim()),
                None => time::of_text(text).is_some(),
            },
            _ => false,
        };
        self.times += u64::from(is_time);
        if let CellValue::Text(text) = value
            && time::of_number(text.trim()).is_none()
        {
            self.texts += 1;
            self.text_bytes += text.len() as u64;
        }
    }

    fn names_time(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        ["time", "date", "stamp", "when"].iter().any(|part| name.contains(part))
    }
}

fn is_time_in_digits(digits: &str) -> bool {
    time::of_number(digits).is_some_and(is_plausible)
}

/// A word of a shell's command line.
fn in_shell(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_.@=-".contains(letter);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(rows: &[&[(&str, CellValue<'_>)]], found: FoundFields) -> MissingFields {
        let mut missing = MissingFields::new(true);
        for row in rows {
            row.iter().for_each(|(name, value)| missing.value(name, *value));
            missing.row(found);
        }
        missing
    }

    #[test]
    fn it_says_what_to_write() {
        let neither = FoundFields {
            time: false,
            body: false,
        };
        let rows: [&[(&str, CellValue<'_>)]; 2] = [
            &[
                ("id", CellValue::Number("7")),
                ("When it was", CellValue::Text("2024-01-02 03:04:05")),
                ("what", CellValue::Text("the pump has stopped")),
                ("who", CellValue::Text("ann")),
            ],
            &[("id", CellValue::Number("8")), ("what", CellValue::Text("it runs"))],
        ];
        assert_eq!(
            noted(&rows, neither).advice().unwrap(),
            "2 of 2 rows have no time, and 2 no body; the columns are id (\"7\"), When it was (\"2024-01-02 03:04:05\"), \
             what (\"the pump has stopped\"), who (\"ann\"); say which they are with --map 'When it was=time' --map what=body"
        );
        let no_time = FoundFields {
            time: false,
            body: true,
        };
        let strange: [&[(&str, CellValue<'_>)]; 1] = [&[("date_of", CellValue::Text("02/Jan/2024"))]];
        assert!(
            noted(&strange, no_time)
                .advice()
                .unwrap()
                .ends_with("; say which it is with --map date_of=time and --time-format FORMAT")
        );
        let none: [&[(&str, CellValue<'_>)]; 1] = [&[("n", CellValue::Number("1700000000"))]];
        let of_number = noted(&none, no_time).advice().unwrap();
        assert!(of_number.ends_with("with --map n=time"), "{of_number}");
        let nothing: [&[(&str, CellValue<'_>)]; 1] = [&[]];
        let of_nothing = noted(&nothing, neither).advice().unwrap();
        assert!(
            of_nothing.contains("no columns at all") && of_nothing.contains("--map COLUMN=time"),
            "{of_nothing}"
        );
    }

    #[test]
    fn half_of_the_rows_may_lack_them() {
        let mut missing = MissingFields::new(true);
        for time in [true, false] {
            missing.row(FoundFields { time, body: true });
        }
        assert_eq!(missing.advice(), None);
        missing.row(FoundFields {
            time: false,
            body: true,
        });
        assert!(missing.advice().unwrap().starts_with("2 of 3 rows have no time; "));
        let mut points = MissingFields::new(false);
        points.row(FoundFields {
            time: true,
            body: false,
        });
        assert_eq!(points.advice(), None, "only logs have bodies");
        assert!(!points.is_hopeless());
    }
}
