//! Tag paths: sanitized browse names from the root down, joined by dots.

use crate::node_id;
use crate::node_table::{NodeIndex, NodeTable};

/// Replaces each character outside `[a-zA-Z0-9_-]` by `_`.
pub(crate) fn sanitize(name: &str, out: &mut String) {
    out.extend(name.chars().map(|c| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            c
        } else {
            '_'
        }
    }));
}

pub(crate) fn sanitized(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    sanitize(name, &mut out);
    out
}

/// Returns the path of names only, which several nodes may share.
pub(crate) fn plain(table: &NodeTable, index: NodeIndex) -> String {
    let mut path = String::new();
    for (i, node) in table.chain(index).into_iter().enumerate() {
        if i > 0 {
            path.push('.');
        }
        sanitize(table.name(node), &mut path);
    }
    path
}

/// Returns the unique path of a tag: as [`plain`], or with the NodeID as its last part where the names are not unique.
pub(crate) fn unique(table: &NodeTable, index: NodeIndex) -> String {
    let path = plain(table, index);
    if !table.is_named_by_id(index) {
        return path;
    }
    let parent = path.rfind('.').map_or("", |dot| path.get(..=dot).unwrap_or_default());
    let mut renamed = parent.to_owned();
    sanitize(&node_id::text(&table.node_id(index)), &mut renamed);
    renamed
}
