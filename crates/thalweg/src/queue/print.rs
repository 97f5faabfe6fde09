//! Tables for people.

use serde_json::Value;

use super::buffer::is_buffer;
use crate::text_table::table;

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn rows(values: &Value, fields: &[&str]) -> Vec<Vec<String>> {
    let row = |value: &Value| fields.iter().map(|field| text(&value[*field])).collect();
    values.as_array().into_iter().flatten().map(row).collect()
}

pub fn queues(answer: &Value) -> String {
    let fields = ["name", "partitions", "durability", "depth", "bytes", "groups"];
    let mut rows = rows(&answer["queues"], &fields);
    // The other rows of this column count messages.
    for row in rows
        .iter_mut()
        .filter(|row| row.first().is_some_and(|name| is_buffer(name)))
    {
        if let Some(depth) = row.get_mut(3) {
            depth.push_str(" parcels");
        }
    }
    table(&fields, &rows)
}

/// `messages` is the number in a buffer, whose own counts are parcels.
pub fn queue(shown: &Value, stats: &Value, messages: Option<u64>) -> String {
    let buffer = shown["name"].as_str().is_some_and(is_buffer);
    let mut out = String::new();
    let mut line = |title: &str, value: &str| out.push_str(&format!("{title:<12}{value}\n"));
    line("name", &text(&shown["name"]));
    line("durability", &text(&shown["durability"]));
    if let Some(messages) = messages {
        line("messages", &messages.to_string());
    }
    line(if buffer { "parcels" } else { "depth" }, &text(&shown["depth"]));
    line("bytes", &text(&shown["bytes"]));
    for (what, paused) in shown["paused"].as_object().into_iter().flatten() {
        if paused == true {
            out.push_str(&format!("{:<12}{what}\n", "paused"));
        }
    }
    out.push_str(&format!(
        "{:<12}{:.1}\n",
        "oldest, s",
        stats["oldest_seconds"].as_f64().unwrap_or_default()
    ));
    let fields = [
        "name",
        "mode",
        "backlog",
        "ready",
        "leased",
        "waiting",
        "delayed",
        "dead",
        "delivered",
    ];
    out.push_str(match buffer {
        true => "\ngroups (in parcels, each of up to claim_batch messages)\n",
        false => "\ngroups\n",
    });
    out.push_str(&table(&fields, &rows(&stats["groups"], &fields)));
    out.push_str(&format!("\n\nsettings\n{:#}", shown["settings"]));
    out
}

pub fn letters(answer: &Value) -> String {
    let letter = |letter: &Value| {
        let of = |name: &str| text(&letter["properties"][format!("x-dlq-{name}")]);
        let payload = ["text", "json", "base64"]
            .iter()
            .map(|form| &letter[*form])
            .find(|value| !value.is_null());
        let payload: String = text(payload.unwrap_or(&Value::Null))
            .chars()
            .take(60)
            .map(plain)
            .collect();
        vec![
            text(&letter["id"]),
            of("group"),
            of("reason"),
            of("deliveries"),
            of("moved-at"),
            of("detail"),
            payload,
        ]
    };
    let rows: Vec<Vec<String>> = answer["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .map(letter)
        .collect();
    table(
        &["id", "group", "reason", "deliveries", "moved at", "detail", "payload"],
        &rows,
    )
}

/// Replaces control characters, which a terminal might interpret.
fn plain(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_stand_to_the_right() {
        let answer = json!({"queues": [
            {"name": "pumps", "partitions": 10, "durability": "fsync", "depth": 7, "bytes": 1200, "groups": 2},
            {"name": "q", "partitions": 1, "durability": "os", "depth": 123456, "bytes": 3, "groups": 0},
        ]});
        let expected = "\
name   partitions  durability  depth   bytes  groups
pumps          10  fsync            7   1200       2
q               1  os          123456      3       0";
        assert_eq!(queues(&answer), expected);
    }

    #[test]
    fn what_a_buffer_counts_is_not_taken_for_messages() {
        let shown = json!({"name": "buffer.main", "durability": "fsync", "depth": 7, "bytes": 9000, "settings": {}});
        let stats = json!({"groups": [{"name": "flow", "backlog": 7}]});
        let counted = queue(&shown, &stats, Some(6500));
        assert!(counted.contains("messages    6500\nparcels     7\n"), "{counted}");
        let uncounted = queue(&shown, &stats, None);
        for text in [&counted, &uncounted] {
            assert!(
                text.contains("\nparcels     7\n") && text.contains("groups (in parcels"),
                "{text}"
            );
            assert!(!text.contains("depth"), "{text}");
        }
        let listed = queues(&json!({"queues": [shown]}));
        assert!(listed.contains("7 parcels"), "{listed}");
    }

    #[test]
    fn a_payload_cannot_command_the_terminal() {
        let answer = json!({"messages": [{"id": "dlq.q:0:1", "properties": {"x-dlq-reason": "rejected"}, "text": "a\u{1b}[2Jb\nc"}]});
        let shown = letters(&answer);
        assert!(shown.ends_with("a [2Jb c"), "{shown:?}");
        assert_eq!(shown.lines().count(), 2);
    }
}
