//! The tables of hops in `ARCHITECTURE.md`: what each row names, in the order of the rows.

use thalweg_tests::beside;

/// The path of one message.
pub(super) struct HopTable {
    /// The heading, such as `Follow one event`.
    pub title: String,
    pub hops: Vec<Hop>,
}

/// A row: a function that the message passes.
pub(super) struct Hop {
    /// The whole path, such as `thalweg_queue::produce::Queue::produce`.
    pub function: String,
    /// The path from the root of the repository.
    pub file: String,
}

impl HopTable {
    /// All of the page, in its order.
    pub fn all() -> Vec<HopTable> {
        let page = std::fs::read_to_string(beside("../ARCHITECTURE.md")).unwrap();
        let mut tables: Vec<HopTable> = Vec::new();
        let mut heading = "";
        for line in page.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                heading = title;
            }
            let Some((number, hop)) = Hop::of_row(line) else {
                continue;
            };
            if number == 1 {
                tables.push(HopTable {
                    title: heading.to_owned(),
                    hops: Vec::new(),
                });
            }
            let table = tables.last_mut().unwrap();
            table.hops.push(hop);
            assert_eq!(
                number,
                table.hops.len(),
                "{heading}: the hops are not numbered in their order"
            );
        }
        tables
    }

    /// The one with this heading.
    pub fn of(title: &str) -> HopTable {
        let found = HopTable::all().into_iter().find(|table| table.title == title);
        found.unwrap_or_else(|| panic!("ARCHITECTURE.md has no hops below the heading {title:?}"))
    }

    /// A hop in messages: its number and its function without the crate and modules.
    pub fn name(&self, index: usize) -> String {
        let function = self.hops.get(index).map_or("", |hop| hop.function.as_str());
        let start = function.rmatch_indices("::").nth(1).map_or(0, |(at, _)| at + 2);
        format!("{} {}", index + 1, function.get(start..).unwrap_or_default())
    }
}

impl Hop {
    /// Parses `| 1 | what happens | function | file |`.
    fn of_row(line: &str) -> Option<(usize, Hop)> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, _, function, file, ""] = cells.as_slice() else {
            return None;
        };
        let code = |cell: &str| Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned());
        let hop = Hop {
            function: code(function)?,
            file: code(file)?,
        };
        Some((number.parse().ok()?, hop))
    }

    /// Whether work beside the message calls the function, too: the log stores the messages and the bookkeeping of the whole
    /// process.
    pub fn is_shared(&self) -> bool {
        self.function.starts_with("thalweg_log::")
    }
}
