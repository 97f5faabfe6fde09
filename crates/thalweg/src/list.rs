//! `thalweg list`: prints the components and sections that a configuration can use, and the fields of one.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use thalweg_assemble::{ReferenceEntry, ReferenceField, ReferenceKind, reference};

use crate::cli::ListOptions;
use crate::out;

/// The kinds that are listed by default; sections and buffers are listed on request.
const USUAL: [ReferenceKind; 3] = [ReferenceKind::Input, ReferenceKind::Processor, ReferenceKind::Output];
/// Sentences are wrapped at this width.
const WIDTH: usize = 100;

pub fn main(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let all = reference();
    let text = match &options.what {
        None => USUAL.into_iter().map(|kind| names(kind, &all)).collect(),
        Some(what) => match ReferenceKind::ALL.into_iter().find(|kind| plural(*kind) == *what) {
            Some(kind) => names(kind, &all),
            None => fields(what, &all)?,
        },
    };
    out::text_as_is(text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn plural(kind: ReferenceKind) -> String {
    format!("{}s", kind.name())
}

fn names(kind: ReferenceKind, all: &[ReferenceEntry]) -> String {
    let title = plural(kind);
    let mut text = format!("{}{}:\n", title[..1].to_uppercase(), &title[1..]);
    let own = all.iter().filter(|entry| entry.kind == kind);
    own.for_each(|entry| text.extend(["  ", entry.name, "\n"]));
    text
}

/// The fields of all components and sections with this name.
fn fields(name: &str, all: &[ReferenceEntry]) -> anyhow::Result<String> {
    let mut text = String::new();
    for entry in all.iter().filter(|entry| entry.name == name) {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{} {}", entry.kind.name(), entry.name);
        wrapped(&entry.about, 2, &mut text);
        entry.fields.iter().for_each(|field| show(field, &mut text));
    }
    if text.is_empty() {
        let hint = thalweg_config::nearest(name, all.iter().map(|entry| entry.name));
        bail!("there is no component and no section \"{name}\"{hint}");
    }
    Ok(text)
}

fn show(field: &ReferenceField, text: &mut String) {
    let _ = write!(text, "\n  {}", field.path);
    let notes = [
        (!field.kind.is_empty()).then(|| field.kind.clone()),
        field.is_required.then(|| "required".to_owned()),
        field.default.as_ref().map(|default| match default.as_str() {
            "" => "default \"\"".to_owned(),
            default => format!("default {default}"),
        }),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    if !notes.is_empty() {
        let _ = write!(text, " ({})", notes.join(", "));
    }
    text.push('\n');
    wrapped(&field.sentence, 4, text);
    if !field.example.is_empty() {
        let _ = writeln!(text, "    Example: {}", field.example);
    }
}

fn wrapped(sentence: &str, indent: usize, out: &mut String) {
    let mut used = 0;
    for word in sentence.split_whitespace() {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > WIDTH {
            out.push('\n');
            used = 0;
        }
        match used {
            0 => out.extend(std::iter::repeat_n(' ', indent)),
            _ => out.push(' '),
        }
        used += len + if used == 0 { indent } else { 1 };
        out.push_str(word);
    }
    out.push('\n');
}
