//! The actions of a Delta commit that this program writes and reads.
//!
//! A commit file has one JSON object per line, each with one member that names the action. Unknown actions and members
//! are ignored when read, as the protocol requires.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    CommitInfo(CommitInfo),
    Protocol(Protocol),
    #[serde(rename = "metaData")]
    Metadata(Metadata),
    Add(Add),
    Remove(Remove),
    Txn(Txn),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitInfo {
    #[serde(default)]
    pub timestamp: i64,
    #[serde(default)]
    pub operation: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operation_parameters: BTreeMap<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_info: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_blind_append: Option<bool>,
}

impl CommitInfo {
    /// The info of a commit by this program. `operation` is `WRITE` if rows are added and none removed.
    pub fn of(operation: &str, now_unix_ms: i64) -> CommitInfo {
        CommitInfo {
            timestamp: now_unix_ms,
            operation: operation.to_owned(),
            operation_parameters: BTreeMap::new(),
            engine_info: Some(concat!("thalweg/", env!("CARGO_PKG_VERSION")).to_owned()),
            is_blind_append: Some(operation == "WRITE"),
        }
    }

    /// Whether this program made the commit.
    pub fn is_own(&self) -> bool {
        self.engine_info
            .as_deref()
            .is_some_and(|engine| engine.starts_with("thalweg/"))
    }
}

/// What a reader and a writer must support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Protocol {
    pub min_reader_version: i32,
    pub min_writer_version: i32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reader_features: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writer_features: Vec<String>,
}

impl Protocol {
    /// The versions that every Delta reader and writer supports.
    pub fn plain() -> Protocol {
        Protocol {
            min_reader_version: 1,
            min_writer_version: 2,
            reader_features: vec![],
            writer_features: vec![],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub format: Format,
    pub schema_string: String,
    pub partition_columns: Vec<String>,
    #[serde(default)]
    pub configuration: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_time: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    pub provider: String,
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

impl Default for Format {
    fn default() -> Format {
        Format {
            provider: "parquet".to_owned(),
            options: BTreeMap::new(),
        }
    }
}

/// Adds a file to the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Add {
    /// Relative to the table, URL-encoded.
    pub path: String,
    #[serde(default)]
    pub partition_values: BTreeMap<String, Option<String>>,
    pub size: u64,
    pub modification_time: i64,
    pub data_change: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, Option<String>>>,
    /// Only read: tables with deletion vectors are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_vector: Option<serde_json::Value>,
}

/// Removes a file from the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    pub path: String,
    #[serde(default)]
    pub data_change: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<i64>,
}

/// How far an application has written. The newest one of an `app_id` counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Txn {
    pub app_id: String,
    pub version: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<i64>,
}

impl Txn {
    /// The last day of the year 9999. Checkpoints, also those of other writers, drop transactions that are older than
    /// the table's retention. With this date they never do, so an idle table keeps its log offsets.
    pub const NEVER_FORGOTTEN_MS: i64 = 253_402_214_400_000;

    /// Whether the table drops it once it is too old.
    pub fn is_forgettable(&self) -> bool {
        self.last_updated.is_some_and(|at| at < Self::NEVER_FORGOTTEN_MS)
    }
}

/// Encodes a commit file.
pub fn encode(actions: &[Action]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for action in actions {
        // These types always have a JSON form: map keys are texts, and floats are checked to be finite where they are
        // built.
        serde_json::to_writer(&mut bytes, action).expect("actions have a JSON form");
        bytes.push(b'\n');
    }
    bytes
}

/// The known actions of a commit file. An error means that the file is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Vec<Action>, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))?;
    let mut actions = Vec::new();
    let mut lines = 0;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        lines += 1;
        let value: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(line).map_err(|e| format!("line {}: {e}", number + 1))?;
        let known = ["commitInfo", "protocol", "metaData", "add", "remove", "txn"];
        if !value.keys().any(|key| known.contains(&key.as_str())) {
            continue;
        }
        let action = serde_json::from_value(value.into()).map_err(|e| format!("line {}: {e}", number + 1))?;
        actions.push(action);
    }
    if lines == 0 {
        return Err("the file is empty".to_owned());
    }
    Ok(actions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_reads_back_and_unknown_actions_are_skipped() {
        let actions = vec![
            Action::Protocol(Protocol::plain()),
            Action::Add(Add {
                path: "date=2031-05-06/x.parquet".into(),
                partition_values: [("date".to_owned(), Some("2031-05-06".to_owned()))].into(),
                size: 3,
                modification_time: 4,
                data_change: true,
                stats: Some("{}".into()),
                tags: None,
                deletion_vector: None,
            }),
            Action::Txn(Txn {
                app_id: "a".into(),
                version: 7,
                last_updated: None,
            }),
        ];
        let mut bytes = encode(&actions);
        bytes.extend_from_slice(b"{\"domainMetadata\":{\"domain\":\"x\"}}\n");
        assert_eq!(decode(&bytes).unwrap(), actions);
    }

    #[test]
    fn a_torn_commit_is_an_error_that_names_the_line() {
        let bytes = encode(&[Action::Protocol(Protocol::plain()), Action::Protocol(Protocol::plain())]);
        let torn = bytes.get(..bytes.len() - 5).unwrap();
        assert!(decode(torn).unwrap_err().starts_with("line 2"));
        assert!(decode(b"").is_err());
        assert!(decode(&[0; 64]).is_err());
    }
}
