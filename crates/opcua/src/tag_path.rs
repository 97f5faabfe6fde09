//! Paths of tags: sanitized browse names from the root down, joined by dots.

use crate::node_id;
use crate::node_table::{NodeIndex, NodeTable};

/// Each character outside `[a-zA-Z0-9_-]` becomes `_`.
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

/// The path by names alone, which several nodes may share.
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

/// The path by which a tag is known: as [`plain`], or with its NodeID at the end where that makes it the only one.
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
