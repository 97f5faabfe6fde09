//! `thalweg events streams`, `categories`: prints all of them, as the server returns them, one per line.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use super::args::{EventsEndpoint, EventsStreams};
use super::client::EventsClient;
use crate::out;

/// Streams of one request, the most that the server returns.
const PAGE: usize = 1000;

#[derive(Deserialize)]
struct ListedStream {
    stream: String,
}

pub fn streams(options: &EventsStreams) -> Result<()> {
    let client = EventsClient::new(&options.server)?;
    let mut cursor = String::new();
    loop {
        let call = json!(["ns.streams", {"prefix": options.prefix, "cursor": cursor, "limit": PAGE}]);
        let mut page = client.elements(&call)?;
        let mut is_empty = true;
        while let Some(text) = page.next()? {
            let named: ListedStream = serde_json::from_str(&text).context("the answer has a stream without a name")?;
            ensure!(
                is_empty && cursor.is_empty() || named.stream > cursor,
                "the server returned stream {} after {cursor}: it does not advance, so the list would never end",
                named.stream
            );
            (cursor, is_empty) = (named.stream, false);
            if !out::line(text)? {
                return Ok(());
            }
        }
        // A server may return fewer than requested.
        if is_empty {
            return Ok(());
        }
    }
}

pub fn categories(server: &EventsEndpoint) -> Result<()> {
    let mut all = EventsClient::new(server)?.elements(&json!(["ns.categories"]))?;
    while let Some(text) = all.next()? {
        if !out::line(text)? {
            break;
        }
    }
    Ok(())
}
