//! Counts the messages in queues that buffer flows. Such a queue counts parcels of many messages each, which a user
//! would mistake for messages. The properties of a parcel state how many messages it has, and how many came before it
//! in its partition. The first and the last parcel of each partition therefore give the number of messages in the
//! buffer.

use anyhow::Result;
use serde_json::Value;

use super::of;

/// The prefix of queue names that belong to buffers of flows.
const PREFIX: &str = "buffer.";

pub fn is_buffer(queue: &str) -> bool {
    queue.starts_with(PREFIX)
}

/// The messages that the flow has not passed on; `None` if another program has stored records there. `get` requests a
/// path.
pub fn messages(queue: &str, stats: &Value, get: impl Fn(&str) -> Result<Value>) -> Result<Option<u64>> {
    // The position of each partition; the only group of a buffer is its flow.
    let positions = &stats["groups"][0]["positions"];
    let mut messages = 0;
    for (n, partition) in stats["partitions"].as_array().into_iter().flatten().enumerate() {
        let offset = |value: &Value| value.as_u64().unwrap_or_default();
        let (first, next) = (offset(&partition["first"]), offset(&partition["next"]));
        let from = first.max(offset(&positions[n]));
        if from >= next {
            continue;
        }
        let parcel = |at: u64| get(&of(queue, &format!("/messages?partition={n}&from={at}&limit=1")));
        let (oldest, newest) = (parcel(from)?, parcel(next - 1)?);
        let Some(newest) = newest["messages"].get(0) else {
            // It was passed on since the statistics were read.
            continue;
        };
        let (Some(oldest), Some(newest)) = (ParcelLabel::of(&oldest["messages"][0]), ParcelLabel::of(newest)) else {
            return Ok(None);
        };
        messages += (newest.before + newest.messages).saturating_sub(oldest.before);
    }
    Ok(Some(messages))
}

/// The label of a parcel.
struct ParcelLabel {
    messages: u64,
    /// Messages in its partition before it.
    before: u64,
}

impl ParcelLabel {
    fn of(parcel: &Value) -> Option<ParcelLabel> {
        let number = |name: &str| parcel["properties"][name].as_str()?.parse().ok();
        Some(ParcelLabel {
            messages: number("messages")?,
            before: number("before")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stats(partitions: &[(u64, u64, u64)]) -> Value {
        let ends: Vec<Value> = partitions
            .iter()
            .map(|(first, next, _)| json!({"first": first, "next": next}))
            .collect();
        let positions: Vec<u64> = partitions.iter().map(|(_, _, position)| *position).collect();
        json!({"partitions": ends, "groups": [{"name": "flow", "positions": positions}]})
    }

    fn page(messages: &str, before: &str) -> Value {
        json!({"messages": [{"properties": {"messages": messages, "before": before}}]})
    }

    #[test]
    fn messages_are_counted_from_the_first_parcel_that_is_not_handed_on_to_the_last() {
        let of_two = stats(&[(2, 9, 5), (0, 0, 0), (4, 5, 3), (7, 8, 8)]);
        let found = messages("buffer.a", &of_two, |path| {
            Ok(match path {
                "/queues/buffer.a/messages?partition=0&from=5&limit=1" => page("10", "1000"),
                "/queues/buffer.a/messages?partition=0&from=8&limit=1" => page("250", "1700"),
                "/queues/buffer.a/messages?partition=2&from=4&limit=1" => page("3", "70"),
                other => panic!("{other}"),
            })
        });
        assert_eq!(found.unwrap(), Some(950 + 3));
    }

    #[test]
    fn what_is_handed_on_meanwhile_does_not_count_and_what_no_flow_has_stored_cannot_be_counted() {
        let one = stats(&[(0, 2, 0)]);
        let gone = messages("buffer.a", &one, |_| Ok(json!({"messages": []})));
        assert_eq!(gone.unwrap(), Some(0));
        for strange in [page("many", "0"), json!({"messages": [{"id": "buffer.a:0:0"}]})] {
            let found = messages("buffer.a", &one, |_| Ok(strange.clone()));
            assert_eq!(found.unwrap(), None, "{strange}");
        }
        assert!(messages("buffer.a", &one, |_| anyhow::bail!("not_authorized")).is_err());
    }

    #[test]
    fn only_queues_of_flows_are_buffers() {
        assert!(is_buffer("buffer.main") && !is_buffer("buffers") && !is_buffer("dlq.buffer.main"));
    }
}
