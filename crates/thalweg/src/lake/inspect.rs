//! `thalweg lake tables`, `files` and `history`: reads the committed state from the files, whoever writes them.

use anyhow::Result;
use serde_json::json;
use thalweg_lake::inspect::{self, CommitSummary, FileSummary, Lake, TableSummary};

use super::args::{FilesOptions, HistoryOptions, TablesOptions};
use crate::{out, text_table};

pub fn tables(options: &TablesOptions) -> Result<()> {
    let (runtime, place) = (crate::runtime()?, options.place.open()?);
    let lake = runtime.block_on(Lake::open(place.site()))?;
    let mut tables = Vec::new();
    for name in lake.names() {
        tables.push(runtime.block_on(inspect::table(&lake, name))?);
    }
    if options.json {
        out::line(json!(tables))?;
        return Ok(());
    }
    if tables.is_empty() {
        out::complain("there are no tables yet");
        return Ok(());
    }
    let titles = [
        "table", "version", "rows", "files", "size", "columns", "promoted", "from", "to", "levels", "sealed",
    ];
    out::line(text_table::table(
        &titles,
        &tables.iter().map(table).collect::<Vec<_>>(),
    ))?;
    Ok(())
}

fn table(table: &TableSummary) -> Vec<String> {
    vec![
        table.table.clone(),
        table.version.to_string(),
        table.rows.to_string(),
        table.files.to_string(),
        text_table::bytes(table.bytes),
        table.columns.to_string(),
        table.promoted.to_string(),
        text_table::or_dash(table.first_date.as_deref()),
        text_table::or_dash(table.last_date.as_deref()),
        levels(&table.levels),
        table.sealed.to_string(),
    ]
}

/// `0:12 1:3`: files by how often their rows were merged.
fn levels(levels: &std::collections::BTreeMap<u32, u64>) -> String {
    let levels: Vec<String> = levels.iter().map(|(level, files)| format!("{level}:{files}")).collect();
    match levels.is_empty() {
        true => "-".to_owned(),
        false => levels.join(" "),
    }
}

pub fn files(options: &FilesOptions) -> Result<()> {
    let (runtime, place) = (crate::runtime()?, options.place.open()?);
    let lake = runtime.block_on(Lake::open(place.site()))?;
    let newest = lake.newest(&options.table, thalweg_delta::SnapshotDetail::Counts);
    let (_, snapshot) = runtime.block_on(newest)?;
    let files = inspect::files(&snapshot, options.date.as_deref());
    if options.json {
        for file in &files {
            if !out::line(json!(file))? {
                break;
            }
        }
        return Ok(());
    }
    let titles = ["file", "rows", "size", "level", "sealed", "first", "last", "written"];
    out::line(text_table::table(&titles, &files.iter().map(file).collect::<Vec<_>>()))?;
    Ok(())
}

fn file(file: &FileSummary) -> Vec<String> {
    vec![
        file.path.clone(),
        text_table::or_dash(file.rows),
        text_table::bytes(file.bytes),
        file.level.to_string(),
        if file.sealed { "yes" } else { "no" }.to_owned(),
        text_table::or_dash(file.first_time.as_deref()),
        text_table::or_dash(file.last_time.as_deref()),
        file.written.clone(),
    ]
}

pub fn history(options: &HistoryOptions) -> Result<()> {
    let (runtime, place) = (crate::runtime()?, options.place.open()?);
    let lake = runtime.block_on(Lake::open(place.site()))?;
    let commits = inspect::history(&lake, &options.table, options.limit);
    let commits = runtime.block_on(commits)?;
    if options.json {
        for commit in &commits {
            if !out::line(json!(commit))? {
                break;
            }
        }
        return Ok(());
    }
    let titles = [
        "version",
        "time",
        "operation",
        "files",
        "rows",
        "size",
        "levels",
        "sealed",
        "table files",
        "table rows",
        "table size",
        "new columns",
    ];
    out::line(text_table::table(
        &titles,
        &commits.iter().map(commit).collect::<Vec<_>>(),
    ))?;
    Ok(())
}

fn commit(commit: &CommitSummary) -> Vec<String> {
    // Added and removed: +1 -32.
    let both = |come: String, gone: String, is_gone: bool| match is_gone {
        true => format!("+{come} -{gone}"),
        false => format!("+{come}"),
    };
    let (come, gone) = (&commit.added, &commit.removed);
    vec![
        commit.version.to_string(),
        text_table::or_dash(commit.time.as_deref()),
        commit.operation.clone(),
        both(come.files.to_string(), gone.files.to_string(), gone.files > 0),
        both(come.rows.to_string(), gone.rows.to_string(), gone.rows > 0),
        both(
            text_table::bytes(come.bytes),
            text_table::bytes(gone.bytes),
            gone.bytes > 0,
        ),
        levels(&commit.levels),
        commit.sealed.to_string(),
        commit.table.files.to_string(),
        commit.table.rows.to_string(),
        text_table::bytes(commit.table.bytes),
        match commit.columns.len() {
            0 => "-".to_owned(),
            1..=3 => commit.columns.join(" "),
            more => format!("{more} columns"),
        },
    ]
}
