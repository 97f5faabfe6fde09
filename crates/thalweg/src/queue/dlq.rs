//! `thalweg queue dlq`: dead letters of a queue.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use super::args::{DlqCommand, DlqFilter, DlqList, DlqSelect};
use super::client::{QueueClient, segment};
use super::{of, print, tell};
use crate::out;

const PAGE: u64 = 1000;
/// Letters resent or purged by one request.
const PART: usize = 1000;

pub fn run(client: &QueueClient, command: &DlqCommand, as_json: bool) -> Result<ExitCode> {
    match command {
        DlqCommand::List(list) => {
            let letters = json!({"messages": letters(client, list)?});
            tell(as_json, &letters, || print::letters(&letters))
        }
        DlqCommand::Show(show) => {
            let (queue, _) = show
                .id
                .split_once(':')
                .context("an id has the form dlq.<queue>:<partition>:<offset>")?;
            let letter = client.get(&of(queue, &format!("/messages/{}", segment(&show.id))))?;
            tell(as_json, &letter, || format!("{letter:#}"))
        }
        DlqCommand::Resend(resend) => {
            let mut body = Map::new();
            for (name, value) in [("to", &resend.to), ("delay", &resend.delay)] {
                if let Some(value) = value {
                    body.insert(name.to_owned(), value.as_str().into());
                }
            }
            let ids = ids(client, &resend.select)?;
            let resent = in_parts(client, &resend.select.name, &ids, "resend", &body)?;
            tell(as_json, &json!({"resent": resent}), || {
                format!("{resent} messages sent again")
            })
        }
        DlqCommand::Purge(purge) => {
            let ids = ids(client, &purge.select)?;
            // Ids that somebody has typed are meant.
            let what = format!(
                "{} dead letters of the queue {} will be deleted.",
                ids.len(),
                purge.select.name
            );
            if !out::is_meant(what, purge.yes || !purge.select.ids.is_empty())? {
                return Ok(ExitCode::FAILURE);
            }
            let purged = in_parts(client, &purge.select.name, &ids, "purge", &Map::new())?;
            tell(as_json, &json!({"purged": purged}), || {
                format!("{purged} dead letters deleted")
            })
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Many letters take many commits, so they are processed in parts with a progress line. Letters that die meanwhile are
/// not included: a letter that is sent again may die again at once.
fn in_parts(client: &QueueClient, queue: &str, ids: &[String], action: &str, more: &Map<String, Value>) -> Result<u64> {
    let path = of(queue, &format!("/dlq:{action}"));
    let shown = ids.len() > PART && std::io::stderr().is_terminal();
    let mut done = 0;
    for part in ids.chunks(PART) {
        let mut body = more.clone();
        body.insert("ids".to_owned(), json!(part));
        let answer = client.post(&path, &body.into());
        let answer = answer.map_err(|error| match done {
            0 => error,
            _ => error.context(format!("after {done} of {} dead letters", ids.len())),
        })?;
        done += answer["resent"].as_u64().or(answer["purged"].as_u64()).unwrap_or(0);
        if shown {
            // Overwrites the previous line. A failed write only loses progress output.
            let _ = write!(std::io::stderr(), "\r{done} of {} dead letters", ids.len());
        }
    }
    if shown {
        out::complain("");
    }
    Ok(done)
}

fn letters(client: &QueueClient, list: &DlqList) -> Result<Vec<Value>> {
    let mut letters = Vec::new();
    each_page(client, &list.name, &list.filter, list.limit, |page| {
        letters.extend_from_slice(page)
    })?;
    Ok(letters)
}

/// Passes up to `most` matching letters, oldest first, page by page.
fn each_page(
    client: &QueueClient,
    queue: &str,
    filter: &DlqFilter,
    most: u64,
    mut page: impl FnMut(&[Value]),
) -> Result<()> {
    let fields = filter.fields();
    let filter: String = fields
        .iter()
        .map(|(name, value)| format!("&{name}={}", segment(value)))
        .collect();
    let (mut left, mut after) = (most, String::new());
    while left > 0 {
        let limit = PAGE.min(left);
        let answer = client.get(&of(queue, &format!("/dlq?limit={limit}{filter}{after}")))?;
        let letters = answer["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        left -= left.min(letters.len() as u64);
        page(letters);
        if answer["next"].is_null() {
            break;
        }
        after = format!("&after={}", answer["next"]);
    }
    Ok(())
}

/// The given ids, those that match the filter, or all with --all. Without any of these nothing is selected.
fn ids(client: &QueueClient, select: &DlqSelect) -> Result<Vec<String>> {
    let filter = select.filter.fields();
    match (select.ids.is_empty(), filter.is_empty(), select.all) {
        (false, true, _) => Ok(select.ids.clone()),
        (true, false, false) | (true, true, true) => {
            let mut ids = Vec::new();
            each_page(client, &select.name, &select.filter, u64::MAX, |page| {
                ids.extend(
                    page.iter()
                        .filter_map(|letter| letter["id"].as_str())
                        .map(str::to_owned),
                );
            })?;
            Ok(ids)
        }
        _ => bail!("no dead letters are named; give ids, or a filter such as --reason rejected, or --all"),
    }
}
