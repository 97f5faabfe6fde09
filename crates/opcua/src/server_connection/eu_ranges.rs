//! The span of a tag's EURange, for percent deadbands that are applied here because the server refuses filters.
//!
//! Until it is known the deadband is absolute 0.0. A query that fails temporarily is repeated a few times after growing
//! pauses. The deadband stays absolute 0.0 if the node has no range or it cannot be read, and a warning says which.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use opcua::types::{
    AttributeId, BrowsePath, BrowsePathResult, NodeId, ObjectId, QualifiedName, ReferenceTypeId, RelativePath,
    RelativePathElement, StatusCode, TimestampsToReturn, TranslateBrowsePathsToNodeIdsRequest,
};
use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;

use super::ServerConnection;
use super::items::ItemIndex;
use crate::call_size::CallSize;
use crate::channel::CallError;
use crate::deadband::Deadband;
use crate::session::{Session, read_id};
use crate::value::{DataValue, Decoder, StructureRegistry, ValueContent, status};

/// Ranges per call.
const PER_CALL: usize = 100;

/// Maximum attempts for one range.
const ATTEMPTS_MAX: u8 = 7;

/// Pauses between attempts; few attempts need no longest one.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::MAX);

/// Pending range queries.
pub(super) struct EuRangeLookups {
    wanted: Vec<EuRangeRequest>,
    /// Retries, by time.
    later: BTreeMap<(Instant, ItemIndex), u8>,
    chunk: CallSize,
    pub asking: FuturesUnordered<BoxFuture<'static, EuRangeAnswer>>,
}

/// The query for one item's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EuRangeRequest {
    item: ItemIndex,
    /// Failed attempts so far.
    attempts: u8,
}

/// The responses to one call.
pub(super) struct EuRangeAnswer {
    wants: Vec<EuRangeRequest>,
    spans: Result<Vec<Span>, CallError>,
}

type Span = Result<f64, NoSpan>;

/// Why there is no range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum NoSpan {
    #[error("the node has no EURange")]
    Absent,
    #[error("its EURange is not a numeric range")]
    Unusable,
    #[error("its EURange cannot be read: {0}")]
    Never(String),
    #[error("its EURange cannot be read at the moment: {0}")]
    NotNow(String),
}

impl NoSpan {
    fn of_status(status: u32) -> NoSpan {
        match status::says_never(status) {
            true => NoSpan::Never(status::text(status)),
            false => NoSpan::NotNow(status::text(status)),
        }
    }

    fn of_call(error: &CallError) -> NoSpan {
        match error {
            CallError::Refused(status) => NoSpan::of_status(*status),
            CallError::Timeout(_) => NoSpan::NotNow(error.to_string()),
            _ => NoSpan::Never(error.to_string()),
        }
    }
}

impl EuRangeLookups {
    pub fn new() -> EuRangeLookups {
        EuRangeLookups {
            wanted: Vec::new(),
            later: BTreeMap::new(),
            chunk: CallSize::new(0, PER_CALL, false),
            asking: FuturesUnordered::new(),
        }
    }

    /// Returns the queries for the next call.
    fn take(&mut self, now: Instant) -> Vec<EuRangeRequest> {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let (_, item) = *first.key();
            let attempts = first.remove();
            self.wanted.push(EuRangeRequest { item, attempts });
        }
        let size = self.chunk.get().min(self.wanted.len());
        self.wanted.drain(..size).collect()
    }

    /// Schedules a retry after a temporary failure. Returns false if the attempts are used up.
    fn postpone(&mut self, want: EuRangeRequest, now: Instant) -> bool {
        let attempts = want.attempts.saturating_add(1);
        let again = attempts < ATTEMPTS_MAX;
        if again {
            let pause = PAUSES.nominal(u32::from(want.attempts));
            self.later.insert((now + pause, want.item), attempts);
        }
        again
    }
}

impl ServerConnection {
    /// Queries wanted ranges, one call at a time.
    pub(super) fn ask_ranges(&mut self, session: &Session) {
        if !self.ranges.asking.is_empty() {
            return;
        }
        let mut wants = self.ranges.take(clock::now());
        wants.retain(|want| self.items.get(want.item).is_some());
        if wants.is_empty() {
            return;
        }
        let nodes: Vec<NodeId> = wants
            .iter()
            .filter_map(|want| self.items.get(want.item))
            .map(|item| self.node_id_of(item.node))
            .collect();
        let session = session.clone();
        self.ranges.asking.push(Box::pin(async move {
            EuRangeAnswer {
                wants,
                spans: spans(&session, nodes).await,
            }
        }));
    }

    pub(super) fn ranged(&mut self, ranged: EuRangeAnswer) {
        let EuRangeAnswer { wants, spans } = ranged;
        let spans = match spans {
            Ok(spans) => spans,
            // The connection will come back, and these are queried again.
            Err(CallError::Closed(_)) => return self.ranges.wanted.extend(wants),
            Err(error) if error.is_too_large() && self.ranges.chunk.refused(wants.len(), &error) => {
                return self.ranges.wanted.extend(wants);
            }
            Err(error) => vec![Err(NoSpan::of_call(&error)); wants.len()],
        };
        let now = clock::now();
        for (want, span) in wants.into_iter().zip(spans) {
            match span {
                Ok(span) => self.filter_by_range(want.item, span),
                Err(NoSpan::NotNow(_)) if self.ranges.postpone(want, now) => {}
                Err(why) => self.no_range(want.item, &why),
            }
        }
    }

    fn filter_by_range(&mut self, index: ItemIndex, span: f64) {
        let Some(node) = self.items.get(index).map(|item| item.node) else {
            return;
        };
        let deadband = self.deadband_of(node);
        self.items.filter_here(index, deadband, Some(span));
    }

    fn no_range(&self, index: ItemIndex, why: &NoSpan) {
        let Some(node) = self.items.get(index).map(|item| item.node) else {
            return;
        };
        let kind = match why {
            NoSpan::Absent => "eu_range",
            _ => "eu_range_unreadable",
        };
        self.context.component.warn_limited(kind, 1, || {
            let tag = crate::browse::describe(&self.context.table.read(), node);
            format!("the percent deadband of {tag} becomes absolute 0.0: {why}")
        });
    }

    /// Queries the range if a percent deadband is applied here.
    pub(super) fn want_range(&mut self, index: ItemIndex, deadband: Deadband) {
        if matches!(deadband, Deadband::Percent(_)) {
            let want = EuRangeRequest {
                item: index,
                attempts: 0,
            };
            self.ranges.wanted.push(want);
        }
    }
}

async fn spans(session: &Session, nodes: Vec<NodeId>) -> Result<Vec<Span>, CallError> {
    let count = nodes.len();
    let request = TranslateBrowsePathsToNodeIdsRequest {
        request_header: Default::default(),
        browse_paths: Some(nodes.into_iter().map(path).collect()),
    };
    let response = session.call(request).await?;
    let found: Vec<Result<NodeId, NoSpan>> = response.results.into_iter().flatten().map(target).collect();
    CallError::check_count(found.len(), count, "paths")?;
    let reads = found
        .iter()
        .flatten()
        .map(|id| read_id(id.clone(), AttributeId::Value))
        .collect::<Vec<_>>();
    let types = StructureRegistry::default();
    let values = match reads.is_empty() {
        true => Vec::new(),
        false => session.read(reads, TimestampsToReturn::Neither, 0.0, &types).await?,
    };
    let mut values = values.into_iter();
    let span_of = |id: Result<NodeId, NoSpan>| id.and_then(|_| span(&values.next().ok_or(NoSpan::Absent)?));
    Ok(found.into_iter().map(span_of).collect())
}

/// Returns the property that a path led to.
fn target(result: BrowsePathResult) -> Result<NodeId, NoSpan> {
    match result.status_code {
        StatusCode::BadNoMatch => return Err(NoSpan::Absent),
        status if status.is_bad() => return Err(NoSpan::of_status(status.bits())),
        _ => {}
    }
    let target = result.targets.into_iter().flatten().next();
    let id = target.map(|target| target.target_id.node_id).filter(|id| !id.is_null());
    id.ok_or(NoSpan::Absent)
}

/// The path from a variable to its property EURange.
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

fn span(value: &DataValue) -> Span {
    if status::is_bad(value.stamps.status) {
        return Err(NoSpan::of_status(value.stamps.status));
    }
    span_in(&value.content).ok_or(NoSpan::Unusable)
}

/// A Range is two doubles.
fn span_in(content: &ValueContent) -> Option<f64> {
    let body = content.body_of(ObjectId::Range_Encoding_DefaultBinary)?;
    let book = StructureRegistry::default();
    let mut decoder = Decoder::new(body, &book);
    let (low, high) = (decoder.f64().ok()?, decoder.f64().ok()?);
    Some(high - low).filter(|span| span.is_finite() && *span > 0.0)
}

#[cfg(test)]
mod tests;
