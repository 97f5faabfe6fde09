//! Delivers responses to the flow: decodes, converts, counts and sends; buffers them before paths are final.

use std::time::Duration;

use opcua::types::{NodeId, StatusCode};
use thalweg_flow::SinkClosed;
use thalweg_kit::clock;
use thalweg_record::{DropReason, FilterReason, Ticks};

use super::ServerConnection;
use super::first_browse_buffer::BufferedGap;
use super::items::{AcquisitionMode, ItemIndex, ItemTable, MonitoringStage};
use crate::channel::{AnswerBody, CallError};
use crate::failures::NodeFailureKind;
use crate::gaps::{Gap, GapReason};
use crate::metrics::DiscardReason;
use crate::node_table::{FailureReason, ItemState, NO_NODE, NodeIndex};
use crate::poll::{self, PollBatch, PollFailureAction, Tick};
use crate::session::Session;
use crate::value::answers::{self, ClientHandleValue};
use crate::value::{DataValue, ValueContent, status};

/// The response to one part of a poll cycle.
pub(super) struct PollAnswer {
    part: PollBatch,
    result: Result<AnswerBody, CallError>,
    lasted: Duration,
}

impl ServerConnection {
    /// Sends `self.values` to the flow as one batch. Waits while the flow is full.
    pub(super) async fn deliver(&mut self) -> Result<(), SinkClosed> {
        self.context.metrics.values.inc_by(self.values.len() as u64);
        self.useful += self.values.len() as u64;
        if self.paths_final {
            self.pass_on().await?;
        } else {
            self.hold();
        }
        // Set after waiting for the flow, so that the wait does not count as silence.
        self.last_data = clock::now();
        Ok(())
    }

    async fn pass_on(&mut self) -> Result<(), SinkClosed> {
        let parts = self.context.sink.parts(self.values.len());
        let converted = self
            .converter
            .convert(&mut self.values, &mut self.items, &mut self.gaps, parts);
        let metrics = &self.context.metrics;
        metrics.values_suppressed.inc_by(converted.suppressed as u64);
        let status_only = converted.without_value + converted.bad_values;
        metrics.status_only.inc_by(status_only as u64);
        metrics.overflows.inc_by(converted.overflows as u64);
        metrics.discarded(DiscardReason::UnknownItem, converted.unknown);
        for gap in &converted.gaps {
            metrics.gap(GapReason::Overflow, gap.length());
        }
        if converted.overflows > 0 {
            self.context
                .component
                .warn_limited("overflow", converted.overflows as u64, || {
                    "the server's queues overflowed and values were lost; raise queueSize or lower publishingInterval"
                        .to_owned()
                });
        }
        if converted.heartbeat {
            self.last_heartbeat = clock::now();
        }
        if let Some(newest) = converted.newest {
            metrics.value_age.observe(age(newest, Ticks::now()));
        }
        let entered = converted.entered();
        if entered == 0 {
            return Ok(());
        }
        let (metrics, ages) = (self.context.metrics.clone(), converted.ages);
        let mut ack = self.context.sink.enter(entered, move |_| {
            let now = Ticks::now();
            for aged in ages {
                metrics.settled_age.observe_many(age(aged.oldest, now), aged.values);
            }
        });
        if converted.without_value > 0 {
            ack.filtered(FilterReason::NoValue, converted.without_value);
        }
        if converted.too_large > 0 {
            ack.dropped(DropReason::TooLarge, converted.too_large);
            self.context
                .component
                .warn_limited("too_large", converted.too_large as u64, || {
                    format!(
                        "a value was dropped: its array has more than {} elements, or all arrays of one answer have more than {} together",
                        crate::channel::ARRAY_ELEMENTS_MAX,
                        crate::value::ANSWER_ELEMENTS_MAX
                    )
                });
        }
        if converted.messages.is_empty() {
            ack.delivered();
            return Ok(());
        }
        self.context.sink.send_parts(converted.messages, ack).await
    }

    /// Buffers values until paths are final. Values that do not fit are a gap of their items.
    fn hold(&mut self) {
        let config = &self.context.config;
        self.held
            .bound(self.context.memory.of_waiting_values(config.connections));
        let lost = self.held.add(&mut self.values, config.queue_size as usize);
        if lost.values == 0 {
            return;
        }
        if lost.for_memory {
            self.context
                .component
                .warn_limited("held_back", lost.values as u64, || {
                    "values are buffered until the browse is complete, and the buffer is full; raise memory.limit"
                        .to_owned()
                });
        }
        self.context.metrics.discarded(DiscardReason::HeldBack, lost.values);
        let now = Ticks::now();
        let gap = Gap {
            from: lost.since.unwrap_or(now),
            to: now,
        };
        let items = lost.items.into_iter().filter_map(ItemTable::of_handle);
        let nodes: hashbrown::HashSet<NodeIndex> = items
            .filter_map(|index| self.items.get(index))
            .map(|item| item.node)
            .collect();
        // The lost values are older than all buffered ones.
        let count = self
            .items
            .set_gap(&mut self.gaps, gap, |item| nodes.contains(&item.node));
        self.count_gap(GapReason::Overflow, gap, count);
    }

    /// Paths are final: buffered values are sent first.
    pub(super) async fn release_held(&mut self) -> Result<(), SinkClosed> {
        const BATCH: usize = 10_000;
        let (values, gaps) = self.held.take();
        let (mut rest, mut passed) = (values.into_iter(), 0);
        for gap in gaps.into_iter().map(Some).chain([None]) {
            let until = gap.as_ref().map_or(usize::MAX, |gap| gap.values_before);
            loop {
                self.values.extend(rest.by_ref().take(BATCH.min(until - passed)));
                if self.values.is_empty() {
                    break;
                }
                passed += self.values.len();
                self.pass_on().await?;
            }
            if let Some(BufferedGap { gap, nodes, .. }) = gap {
                self.items
                    .set_gap(&mut self.gaps, gap, |item| nodes.contains(&item.node));
            }
        }
        Ok(())
    }

    /// Decodes values into `self.values`, and learns missing structure types first.
    pub(super) async fn learn_and_decode<T>(
        &mut self,
        session: &Session,
        decode: impl Fn(&crate::value::StructureRegistry, &mut Vec<ClientHandleValue>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        self.values.clear();
        let decoded = decode(&self.types, &mut self.values)?;
        let missing = self.types.take_missing();
        if missing.is_empty() || self.type_learner.is_resting() {
            return Ok(decoded);
        }
        self.type_learner
            .learn(session, &mut self.types, missing, &self.context.component)
            .await;
        self.values.clear();
        decode(&self.types, &mut self.values)
    }

    /// Handles ticks of the poll clock.
    pub(super) fn poll_ticked(&mut self, ticks: Vec<Tick>) {
        for tick in ticks {
            match tick {
                Tick::Start => self.poller.start(self.items.polled()),
                Tick::Skipped { cycles, since } => {
                    self.context.metrics.poll_overruns.inc_by(cycles);
                    let gap = Gap {
                        from: since,
                        to: Ticks::now(),
                    };
                    self.gap(GapReason::PollSkipped, gap, |item| item.way == AcquisitionMode::Poll);
                }
            }
        }
    }

    pub(super) fn poll_items(&mut self, session: &Session) {
        while let Some(part) = self.poller.next_part() {
            let nodes: Vec<NodeId> = part
                .iter()
                .map(|index| self.items.get(*index).map_or(NO_NODE, |item| item.node))
                .map(|node| self.node_id_of(node))
                .collect();
            let (session, start) = (session.clone(), clock::now());
            self.polling.push(Box::pin(async move {
                let result = poll::read(session, nodes).await;
                PollAnswer {
                    part,
                    result,
                    lasted: start.elapsed(),
                }
            }));
        }
    }

    /// Handles the response to one part of a cycle.
    pub(super) async fn polled(&mut self, session: &Session, polled: PollAnswer) -> Result<(), SinkClosed> {
        let PollAnswer { part, result, lasted } = polled;
        let decoded = match result {
            Ok(body) => self.decode_read(session, &body, &part).await,
            Err(error) => Err(error),
        };
        match decoded {
            Ok(()) => {
                self.poller.answered(&part, lasted);
                self.deliver().await
            }
            Err(error) => {
                let verdict = self.poller.failed(&part, &error, lasted);
                if verdict != PollFailureAction::ReadAgain && !matches!(error, CallError::Closed(_)) {
                    self.part_lost(&part, &error, verdict);
                }
                Ok(())
            }
        }
    }

    /// A part of a cycle was not read: its values since the previous cycle are missing.
    fn part_lost(&mut self, part: &PollBatch, error: &CallError, verdict: PollFailureAction) {
        let gap = Gap {
            from: self.poller.previous_start(),
            to: Ticks::now(),
        };
        let touched: hashbrown::HashSet<ItemIndex> = part.iter().copied().collect();
        self.gap_of_items(GapReason::PollSkipped, gap, &touched);
        let (PollFailureAction::Failed, [index]) = (verdict, part.as_slice()) else {
            return self
                .context
                .component
                .warn_limited("poll", 1, || format!("a read of {} nodes failed: {error}", part.len()));
        };
        // Splitting does not help this node.
        let Some(node) = self
            .items
            .get(*index)
            .map(|item| item.node)
            .filter(|node| *node != NO_NODE)
        else {
            return;
        };
        self.read_failed(*index, node, error.nearest_status(), Some(error.to_string()));
    }

    /// A node that cannot be read is not read in every cycle until its retry.
    fn read_failed(&mut self, index: ItemIndex, node: NodeIndex, status: u32, text: Option<String>) {
        {
            let mut table = self.context.table.write();
            table.set_state(node, ItemState::Failed(FailureReason::of_status(status)));
            self.context.component.warn_limited("read", 1, || {
                format!(
                    "{} cannot be read: {}",
                    crate::browse::describe(&table, node),
                    text.clone().unwrap_or_else(|| status::text(status))
                )
            });
        }
        self.context.failures.add(NodeFailureKind::Read, node, status, text);
        self.items.set_way(index, AcquisitionMode::Nowhere);
        if let Some(item) = self.items.get_mut(index) {
            item.stage = MonitoringStage::Failed;
        }
    }

    /// Decodes a read into `self.values`, by handle, and updates node states from the statuses.
    async fn decode_read(&mut self, session: &Session, body: &AnswerBody, part: &PollBatch) -> Result<(), CallError> {
        let handles: Vec<u32> = part.iter().map(|index| ItemTable::handle(*index)).collect();
        self.learn_and_decode(session, |types, values| {
            let read = answers::read(body, types)?;
            CallError::check_count(read.len(), handles.len(), "reads")?;
            values.extend(handles.iter().copied().zip(read));
            Ok(())
        })
        .await?;
        self.note_read_states();
        Ok(())
    }

    /// Updates node states: a node that cannot be read has failed until it can be read again, and is not read meanwhile.
    fn note_read_states(&mut self) {
        let table = self.context.table.clone();
        let mut changed: Vec<(ItemIndex, u32)> = Vec::new();
        {
            let table = table.read();
            for (handle, value) in &self.values {
                let Some(index) = ItemTable::of_handle(*handle) else {
                    continue;
                };
                // A tag that was removed meanwhile is left alone.
                let polled = self.items.get(index).filter(|item| item.way == AcquisitionMode::Poll);
                let Some(node) = polled.map(|item| item.node).filter(|node| *node != NO_NODE) else {
                    continue;
                };
                let failed = failure_of(value);
                let known = table.state(node);
                let same = match failed {
                    Some(status) => known == ItemState::Failed(FailureReason::of_status(status)),
                    None => known == ItemState::Polled,
                };
                if !same {
                    changed.push((index, failed.unwrap_or(0)));
                }
            }
        }
        for (index, status) in changed {
            let Some(node) = self.items.get(index).map(|item| item.node) else {
                continue;
            };
            if status != 0 {
                self.read_failed(index, node, status, None);
                continue;
            }
            table.write().set_state(node, ItemState::Polled);
            self.context.failures.remove(NodeFailureKind::Read, node);
            self.context.health.served();
        }
    }

    pub(super) fn gap_of_items(&mut self, reason: GapReason, gap: Gap, touched: &hashbrown::HashSet<ItemIndex>) {
        let nodes: hashbrown::HashSet<u32> = touched
            .iter()
            .filter_map(|index| self.items.get(*index))
            .map(|item| item.node)
            .collect();
        self.gap(reason, gap, |item| nodes.contains(&item.node));
    }
}

/// Returns the age; zero if the server's clock is ahead of ours.
fn age(time: Ticks, now: Ticks) -> Duration {
    let ticks = now.0.saturating_sub(time.0).max(0).unsigned_abs();
    Duration::from_nanos(ticks.saturating_mul(100))
}

/// Returns a status that concerns the node itself, without a value.
fn failure_of(value: &DataValue) -> Option<u32> {
    const OF_THE_NODE: [StatusCode; 6] = [
        StatusCode::BadNodeIdUnknown,
        StatusCode::BadNodeIdInvalid,
        StatusCode::BadAttributeIdInvalid,
        StatusCode::BadNotReadable,
        StatusCode::BadUserAccessDenied,
        StatusCode::BadIndexRangeInvalid,
    ];
    let status = value.stamps.status;
    let concerns = status::is_one_of(status, &OF_THE_NODE);
    (concerns && value.content == ValueContent::Nothing).then_some(status)
}
