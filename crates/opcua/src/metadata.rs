//! The constant metadata of a tag: built once per tag from the node table, shared by all its messages.

use std::sync::Arc;

use opcua::types::NodeId;
use thalweg_record::{MetaMap, Text, Value, key};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::TagGroupMode;
use crate::node_table::{NodeIndex, NodeTable};
use crate::value::types;
use crate::{node_id, tag_path};

pub(crate) const TAG_TYPE: &str = "opcua_tag_type";

/// The kind of a tag's values, for metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagType {
    Number,
    Bool,
    String,
}

impl TagType {
    pub fn of(value: &Value) -> TagType {
        match value {
            Value::Bool(_) => TagType::Bool,
            Value::Status(_) => TagType::String,
            value if value.is_number() => TagType::Number,
            _ => TagType::String,
        }
    }

    /// The kind of the values that a data type announces, for a tag that has had none. Arrays are not known from it.
    pub fn of_data_type(data_type: Option<&NodeId>) -> TagType {
        let built_in = data_type.and_then(types::built_in);
        match data_type {
            Some(_) if built_in == Some(types::BOOLEAN) => TagType::Bool,
            // Enumerations are encoded as Int32.
            Some(id) if types::is_numeric(id) || built_in == Some(types::INT32) => TagType::Number,
            _ => TagType::String,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            TagType::Number => "number",
            TagType::Bool => "bool",
            TagType::String => "string",
        }
    }
}

/// The metadata of a variable.
pub(crate) fn of_node(table: &NodeTable, index: NodeIndex, tag_type: TagType, mode: TagGroupMode) -> Arc<MetaMap> {
    let path = tag_path::unique(table, index);
    let name = tag_path::sanitized(table.name(index));
    let group = match mode {
        TagGroupMode::Clean if table.is_named_by_id(index) => path,
        TagGroupMode::Clean => match path.rfind('.') {
            Some(dot) => path.get(..dot).unwrap_or_default().to_owned(),
            None => name.clone(),
        },
        TagGroupMode::Reference => reference_group(&path, table.name(index), &name),
    };
    let tag = Tag {
        node_id: &table.node_id(index),
        browse_name: table.name(index),
        description: table.description(index),
        access_level: table.access_level(index),
        data_type: table.data_type(index),
        name: &name,
        group: &group,
        tag_type,
    };
    tag.build()
}

/// Removes the first occurrence of the raw name, wherever it is.
fn reference_group(path: &str, raw_name: &str, name: &str) -> String {
    let cut = path.replacen(raw_name, "", 1);
    let group = cut.strip_suffix('.').unwrap_or(&cut);
    if group.is_empty() {
        name.to_owned()
    } else {
        group.to_owned()
    }
}

/// The metadata of the server's clock as the heartbeat.
pub(crate) fn of_heartbeat(node: &NodeId) -> Arc<MetaMap> {
    let utc_time = NodeId::new(0, 294u32);
    let tag = Tag {
        node_id: node,
        browse_name: "CurrentTime",
        description: "",
        access_level: 1,
        data_type: Some(&utc_time),
        name: "CurrentTime",
        group: "heartbeat",
        tag_type: TagType::String,
    };
    tag.build()
}

struct Tag<'a> {
    node_id: &'a NodeId,
    browse_name: &'a str,
    description: &'a str,
    access_level: u8,
    data_type: Option<&'a NodeId>,
    name: &'a str,
    group: &'a str,
    tag_type: TagType,
}

impl Tag<'_> {
    fn build(&self) -> Arc<MetaMap> {
        let id = node_id::text(self.node_id);
        let series = xxh3_64(id.as_bytes());
        let path = if self.group == self.name { "" } else { self.group };
        let data_type = self.data_type.map(types::metadata_name).unwrap_or_default();
        let access_level = access_level_text(self.access_level);
        let entries: [(&'static str, &str); 10] = [
            ("opcua_attr_accesslevel", &access_level),
            ("opcua_attr_browsename", self.browse_name),
            ("opcua_attr_datatype", &data_type),
            ("opcua_attr_description", self.description),
            ("opcua_attr_nodeclass", "NodeClassVariable"),
            (key::OPCUA_NODE, &id),
            ("opcua_tag_group", self.group),
            ("opcua_tag_name", self.name),
            ("opcua_tag_path", path),
            (TAG_TYPE, self.tag_type.as_str()),
        ];
        // The keys are static, so their texts cost nothing per tag.
        let entries = entries.map(|(key, value)| (Text::new_static(key), Text::new(value)));
        Arc::new(MetaMap::new(entries, Some(series)))
    }
}

fn access_level_text(level: u8) -> String {
    let name = match level {
        0 => "None",
        1 => "CurrentRead",
        2 => "CurrentWrite",
        4 => "HistoryRead",
        8 => "HistoryWrite",
        16 => "SemanticChange",
        32 => "StatusWrite",
        64 => "TimestampWrite",
        combined => return format!("AccessLevelType({combined})"),
    };
    format!("AccessLevelType{name}")
}

#[cfg(test)]
mod tests;
