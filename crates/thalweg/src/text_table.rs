//! Tables and sizes for people.

/// Columns as wide as their widest entry, with numbers right-aligned.
pub fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let width = |n: usize, title: &str| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(n))
            .map(|cell| cell.chars().count());
        cells.chain([title.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = titles.iter().enumerate().map(|(n, title)| width(n, title)).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| match is_number(cell) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
    let lines = std::iter::once(line(&titles)).chain(rows.iter().map(|row| line(row)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a cell is a number, with or without a unit.
fn is_number(cell: &str) -> bool {
    let (digits, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    digits.parse::<f64>().is_ok() && unit.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'%')
}

/// `123.4 MiB`: a size with its significant digits.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    // A value that would be shown as 1024 moves to the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS.get(unit).unwrap_or(&"")),
    }
}

/// `-` for an unknown value.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// One line of at most `characters_max` characters, without control characters.
pub fn short(text: &str, characters_max: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(characters_max).map(plain).collect();
    if text.chars().nth(characters_max).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_is_read_best() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn numbers_with_units_stand_to_the_right() {
        let rows = [vec!["a".to_owned(), bytes(7)], vec!["bb".to_owned(), bytes(7 << 20)]];
        assert_eq!(
            table(&["name", "size"], &rows),
            "name  size\na         7 B\nbb    7.0 MiB"
        );
        assert_eq!(short("ab\ncd", 4), "ab …");
    }
}
