//! `thalweg queue dlq`: dead letters of a queue.

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use super::args::{Dlq, DlqList, DlqSelect};
use super::client::{Client, segment};
use super::{of, print, tell};

const PAGE: u64 = 1000;

pub fn run(client: &Client, command: &Dlq, as_json: bool) -> Result<()> {
    match command {
        Dlq::List(list) => {
            let letters = json!({"messages": letters(client, list)?});
            tell(as_json, &letters, || print::letters(&letters))
        }
        Dlq::Show(show) => {
            let (queue, _) = show
                .id
                .split_once(':')
                .context("an id has the form dlq.<queue>:<partition>:<offset>")?;
            let letter = client.get(&of(queue, &format!("/messages/{}", segment(&show.id))))?;
            tell(as_json, &letter, || format!("{letter:#}"))
        }
        Dlq::Resend(resend) => {
            let mut body = select(&resend.select)?;
            for (name, value) in [("to", &resend.to), ("delay", &resend.delay)] {
                if let Some(value) = value {
                    body.insert(name.to_owned(), value.as_str().into());
                }
            }
            let answer = client.post(&of(&resend.select.name, "/dlq:resend"), &body.into())?;
            tell(as_json, &answer, || format!("{} messages sent again", answer["resent"]))
        }
        Dlq::Purge(purge) => {
            let answer = client.post(&of(&purge.name, "/dlq:purge"), &select(purge)?.into())?;
            tell(as_json, &answer, || {
                format!("{} dead letters thrown away", answer["purged"])
            })
        }
    }
}

fn letters(client: &Client, list: &DlqList) -> Result<Vec<Value>> {
    let fields = list.filter.fields();
    let filter: String = fields
        .iter()
        .map(|(name, value)| format!("&{name}={}", segment(value)))
        .collect();
    let (mut letters, mut after) = (Vec::new(), String::new());
    while (letters.len() as u64) < list.limit {
        let limit = PAGE.min(list.limit - letters.len() as u64);
        let page = client.get(&of(&list.name, &format!("/dlq?limit={limit}{filter}{after}")))?;
        letters.extend(page["messages"].as_array().cloned().unwrap_or_default());
        if page["next"].is_null() {
            break;
        }
        after = format!("&after={}", page["next"]);
    }
    Ok(letters)
}

/// Ids, a filter, or all by name: nothing is taken for want of a word.
fn select(select: &DlqSelect) -> Result<Map<String, Value>> {
    let filter = select.filter.fields();
    let chosen = match (select.ids.is_empty(), filter.is_empty(), select.all) {
        (false, true, _) => ("ids", json!(select.ids)),
        (true, false, false) | (true, true, true) => {
            let filter: Map<String, Value> = filter
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).into()))
                .collect();
            ("filter", Value::from(filter))
        }
        _ => bail!("which dead letters? Give ids, or a filter such as --reason rejected, or --all"),
    };
    Ok(Map::from_iter([(chosen.0.to_owned(), chosen.1)]))
}
