//! The span of a tag's EURange, for percent deadbands that are applied here because the server refuses filters.

use opcua::types::{
    AttributeId, BrowsePath, ExpandedNodeId, NodeId, ObjectId, QualifiedName, ReferenceTypeId, RelativePath,
    RelativePathElement, TimestampsToReturn, TranslateBrowsePathsToNodeIdsRequest,
};
use thalweg_record::{Structured, Value};

use super::Link;
use super::items::ItemIndex;
use crate::channel::CallError;
use crate::deadband::Deadband;
use crate::node_id::NodeSpec;
use crate::session::{Session, read_id};
use crate::value::{Content, DataValue, Decoder, TypeBook};

/// Spans of these items, where their nodes have a range.
pub(super) struct Ranged {
    items: Vec<ItemIndex>,
    spans: Result<Vec<Option<f64>>, CallError>,
}

impl Link {
    /// Asks for ranges that are wanted, one call at a time. Until they are known the deadband is absolute 0.0.
    pub(super) fn ask_ranges(&mut self, session: &Session) {
        if self.ranges_wanted.is_empty() || !self.ranging.is_empty() {
            return;
        }
        let size = self.ranges_chunk.get().min(self.ranges_wanted.len());
        let some: Vec<ItemIndex> = self.ranges_wanted.drain(..size).collect();
        let nodes: Vec<NodeId> = some
            .iter()
            .filter_map(|index| self.items.get(*index))
            .map(|item| self.node_id_of(item.node))
            .collect();
        let session = session.clone();
        self.ranging.push(Box::pin(async move {
            Ranged {
                items: some,
                spans: spans(&session, nodes).await,
            }
        }));
    }

    pub(super) fn ranged(&mut self, ranged: Ranged) {
        let Ranged { items, spans } = ranged;
        let spans = match spans {
            Ok(spans) => spans,
            // The connection will come back, and these are asked for again.
            Err(CallError::Closed(_)) => return self.ranges_wanted.extend(items),
            Err(error) if error.is_too_large() && self.ranges_chunk.too_large(items.len()) => {
                return self.ranges_wanted.extend(items);
            }
            Err(_) => vec![None; items.len()],
        };
        let without = spans.iter().filter(|span| span.is_none()).count() as u64;
        if without > 0 {
            self.context.component.warn_limited("eu_range", without, || {
                "a percent deadband becomes absolute 0.0, since the node has no EURange".to_owned()
            });
        }
        for (index, span) in items.into_iter().zip(spans) {
            let Some(node) = self.items.get(index).map(|item| item.node) else {
                continue;
            };
            let deadband = self.deadband_of(node);
            self.items.filter_here(index, deadband, span);
        }
    }

    /// A percent deadband that this end applies needs its range.
    pub(super) fn want_range(&mut self, index: ItemIndex, deadband: Deadband) {
        if matches!(deadband, Deadband::Percent(_)) {
            self.ranges_wanted.push(index);
        }
    }
}

async fn spans(session: &Session, nodes: Vec<NodeId>) -> Result<Vec<Option<f64>>, CallError> {
    let count = nodes.len();
    let request = TranslateBrowsePathsToNodeIdsRequest {
        request_header: Default::default(),
        browse_paths: Some(nodes.into_iter().map(path).collect()),
    };
    let response = session.call(request).await?;
    let found: Vec<Option<NodeId>> = response
        .results
        .into_iter()
        .flatten()
        .map(|result| {
            result
                .targets
                .unwrap_or_default()
                .into_iter()
                .next()
                .map(|target| target.target_id)
        })
        .map(|target: Option<ExpandedNodeId>| target.map(|target| target.node_id).filter(|id| !id.is_null()))
        .collect();
    if found.len() != count {
        return Err(CallError::Unreadable(format!(
            "the server answered {} of {count} paths",
            found.len()
        )));
    }
    let reads = found
        .iter()
        .flatten()
        .map(|id| read_id(id.clone(), AttributeId::Value))
        .collect::<Vec<_>>();
    if reads.is_empty() {
        return Ok(vec![None; count]);
    }
    let mut values = session
        .read(reads, TimestampsToReturn::Neither, 0.0, &TypeBook::default())
        .await?
        .into_iter();
    let span_of = |id: &Option<NodeId>| id.as_ref().and_then(|_| values.next()).and_then(|value| span(&value));
    Ok(found.iter().map(span_of).collect())
}

/// From a variable to its property EURange.
fn path(node: NodeId) -> BrowsePath {
    BrowsePath {
        starting_node: node,
        relative_path: RelativePath {
            elements: Some(vec![RelativePathElement {
                reference_type_id: ReferenceTypeId::HasProperty.into(),
                is_inverse: false,
                include_subtypes: true,
                target_name: QualifiedName::new(0, "EURange"),
            }]),
        },
    }
}

/// A Range is two doubles.
fn span(value: &DataValue) -> Option<f64> {
    let Content::Value(Value::Structured(structured)) = &value.content else {
        return None;
    };
    let Structured::Extension { type_id, body } = &**structured else {
        return None;
    };
    let encoding = NodeSpec::parse(type_id).ok()?.resolve(&[]).ok()?;
    if encoding != ObjectId::Range_Encoding_DefaultBinary {
        return None;
    }
    let book = TypeBook::default();
    let mut decoder = Decoder::new(body, &book);
    let (low, high) = (decoder.f64().ok()?, decoder.f64().ok()?);
    Some(high - low).filter(|span| span.is_finite() && *span > 0.0)
}
