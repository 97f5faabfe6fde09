//! `thalweg reference`: writes the pages of docs/reference, generated from the readers of the configuration, from the
//! command line, and from the tables of errors and metrics.

mod errors;
mod metrics;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use thalweg_assemble::{ReferenceEntry, ReferenceKind, reference};

use crate::cli::{Cli, ReferenceOptions};
use crate::list::plural;

/// The begin of every page.
const MADE: &str = "<!-- Made by `cargo xtask docs` from the code. Changes of this file are lost. -->\n\n";

pub fn main(options: &ReferenceOptions) -> anyhow::Result<ExitCode> {
    let all = reference();
    for kind in ReferenceKind::ALL {
        let page = page(kind, all.iter().filter(|entry| entry.kind == kind));
        write(&options.folder, &format!("{}.md", plural(kind)), &page)?;
    }
    write(&options.folder, "commands.md", &commands())?;
    write(&options.folder, "errors.md", &errors::page())?;
    write(&options.folder, "metrics.md", &metrics::page())?;
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn title(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

fn page<'a>(kind: ReferenceKind, entries: impl Iterator<Item = &'a ReferenceEntry>) -> String {
    let mut text = format!("# {}\n\n{MADE}", title(&plural(kind)));
    for entry in entries {
        let _ = write!(text, "## `{}`\n\n{}\n\n", entry.name, entry.about);
        if entry.fields.is_empty() {
            continue;
        }
        text.push_str("| field | type | default | |\n|---|---|---|---|\n");
        for field in &entry.fields {
            let default = match (&field.default, field.is_required) {
                (_, true) => "required".to_owned(),
                (Some(default), _) if default.is_empty() => "`\"\"`".to_owned(),
                (Some(default), _) => format!("`{}`", cell(default)),
                (None, _) => String::new(),
            };
            let example = match field.example.is_empty() {
                true => String::new(),
                false => format!(" Example: `{}`", cell(&field.example)),
            };
            let _ = writeln!(
                text,
                "| `{}` | {} | {default} | {}{example} |",
                field.path,
                cell(&field.kind),
                cell(&field.sentence)
            );
        }
        text.push('\n');
    }
    text
}

/// Escapes a text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The help texts of all visible commands.
fn commands() -> String {
    let mut text = format!("# Commands\n\n{MADE}");
    let mut command = Cli::command();
    command.build();
    describe(&command, &mut text);
    text
}

fn describe(command: &clap::Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    // Independent of the width of the current terminal.
    let help = command.clone().term_width(100).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "## `{name}`\n\n```text\n{}\n```\n\n", lines.join("\n").trim());
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        describe(below, text);
    }
}
