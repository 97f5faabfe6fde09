//! Creates monitored items: chunks, the choice of the subscription, up to four calls in flight, and the handling of
//! every response.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use opcua::types::{DeleteMonitoredItemsRequest, ExtensionObject};
use thalweg_kit::clock;

use super::items::{AcquisitionMode, Item, ItemIndex, ItemTable, MonitoringStage};
use super::sampling::SamplingIntervals;
use super::{ItemQueue, ServerConnection, WATCH_PERIOD};
use crate::call_size::CallSize;
use crate::channel::{CallError, CallFailureKind};
use crate::concurrency_limit::ConcurrencyLimit;
use crate::deadband::Deadband;
use crate::failures::NodeFailureKind;
use crate::node_id;
use crate::node_table::{FailureReason, ItemState, NO_NODE, NodeIndex};
use crate::session::Session;
use crate::subscribe::create::{NewMonitoredItem, create};
use crate::subscribe::{CreateOutcome, FilterStrategy, Subscription, SubscriptionSettings};
use crate::tag_path;
use crate::value::{status, types};

/// An item that is requested alone and times out this often counts as failed.
const IN_VAIN_MAX: u8 = 3;

/// Maximum CreateMonitoredItems calls in flight.
const IN_FLIGHT_MAX: usize = 4;

pub(super) struct ItemCreation {
    queue: ItemQueue,
    pub chunk: CallSize,
    /// The size at the start of this session.
    pub chunk_first: CallSize,
    pub filters: FilterStrategy,
    pub sampling: SamplingIntervals,
    /// Consecutive timeouts of calls with one item alone.
    in_vain: HashMap<ItemIndex, u8>,
    pace: ConcurrencyLimit,
    /// The server refuses all work until then, so nothing is sent.
    rests_until: Option<Instant>,
    in_flight: HashMap<u64, CreateCall>,
    /// The number of the last call.
    calls: u64,
    /// Whether the call that decides about filters is in flight.
    deciding: bool,
    /// A subscription that is being filled up.
    probe: Option<Probe>,
}

/// Servers may refuse a whole call that exceeds the remaining room. Calls of half the size each time, one at a time,
/// fill a subscription completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    slot: u16,
    /// The size of the next call.
    size: usize,
}

/// The subscription for the items of a pending call. Its slot may contain another subscription when the response
/// arrives, so the server's id shows whether the response still applies.
#[derive(Clone, Copy)]
struct CreateCall {
    slot: u16,
    subscription_id: u32,
    items: usize,
    is_probe: bool,
}

/// The response to one call.
pub(super) struct CreateCallResult {
    call: u64,
    items: Vec<ItemIndex>,
    deciding: bool,
    result: Result<Vec<CreateOutcome>, CallError>,
    lasted: Duration,
}

impl ItemCreation {
    pub fn new(sampling: SamplingIntervals) -> ItemCreation {
        ItemCreation {
            queue: VecDeque::new(),
            chunk: CallSize::new(0, 50, true),
            chunk_first: CallSize::new(0, 50, true),
            filters: FilterStrategy::Undecided,
            sampling,
            in_vain: HashMap::new(),
            pace: ConcurrencyLimit::of(IN_FLIGHT_MAX),
            rests_until: None,
            in_flight: HashMap::new(),
            calls: 0,
            deciding: false,
            probe: None,
        }
    }

    /// Resets the state for a new session, whose call size has been set.
    pub fn begin_session(&mut self) {
        self.chunk_first = self.chunk.clone();
        self.sampling.begin_session();
        self.in_vain.clear();
    }

    pub fn take_waiting(&mut self) -> Vec<ItemIndex> {
        self.queue.drain(..).collect()
    }

    /// Handles a failed call for these items: adjusts the size and number of later calls. Returns whether the items are
    /// requested again.
    fn failed(&mut self, items: &[ItemIndex], error: &CallError, lasted: Duration) -> bool {
        let count = items.len();
        let subscription_gone = error.status().is_some_and(status::says_no_subscription);
        let failure = error.failure();
        if matches!(
            failure,
            CallFailureKind::TimedOut | CallFailureKind::Later | CallFailureKind::TooMany
        ) {
            self.pace.slow_down(lasted);
        }
        match failure {
            CallFailureKind::Lost => {}
            CallFailureKind::TimedOut => {
                self.chunk.timed_out(count);
                return !matches!(items, [alone] if self.is_in_vain_again(*alone));
            }
            CallFailureKind::Later => self.rest(),
            _ if subscription_gone => {}
            CallFailureKind::TooMany | CallFailureKind::TooLarge | CallFailureKind::Other => {
                return self.chunk.refused(count, error);
            }
        }
        true
    }

    /// Counts a timeout of an item that was requested alone. Returns true at the limit, because each timeout causes a
    /// gap for the other items of its subscription.
    fn is_in_vain_again(&mut self, item: ItemIndex) -> bool {
        let times = self.in_vain.entry(item).or_insert(0);
        *times += 1;
        let is_enough = *times >= IN_VAIN_MAX;
        if is_enough {
            self.in_vain.remove(&item);
        }
        is_enough
    }

    /// Pauses until the periodic check, unless something else wakes the loop earlier.
    fn rest(&mut self) {
        self.rests_until = Some(clock::now() + WATCH_PERIOD);
    }

    fn is_resting(&self) -> bool {
        self.rests_until.is_some_and(|until| clock::now() < until)
    }

    /// Whether items of a subscription are in pending calls.
    pub fn is_on_its_way(&self, slot: usize) -> bool {
        self.in_flight.values().any(|asked| usize::from(asked.slot) == slot)
    }

    /// A subscription was removed, and later slots have moved up. Its calls are forgotten; their items are requested
    /// again when the responses arrive.
    pub fn slot_removed(&mut self, removed: u16) {
        self.in_flight.retain(|_, asked| asked.slot != removed);
        self.probe = self.probe.filter(|probe| probe.slot != removed);
        let asked = self.in_flight.values_mut().map(|asked| &mut asked.slot);
        let probed = self.probe.iter_mut().map(|probe| &mut probe.slot);
        for slot in asked.chain(probed).filter(|slot| **slot > removed) {
            *slot -= 1;
        }
    }
}

/// Items on the server that are no longer wanted.
#[derive(Default)]
pub(super) struct SurplusItems {
    subscription_id: u32,
    ids: Vec<u32>,
}

impl SurplusItems {
    pub fn new(subscription_id: u32, ids: Vec<u32>) -> SurplusItems {
        SurplusItems { subscription_id, ids }
    }
}

impl ServerConnection {
    pub(super) fn enqueue(&mut self, index: ItemIndex) {
        if let Some(item) = self.items.get_mut(index)
            && item.way == AcquisitionMode::Monitor
        {
            item.stage = MonitoringStage::Waiting;
            self.creation.queue.push_back(index);
        }
    }

    /// Sends as many calls as may be in flight. An error means the loss of the connection.
    pub(super) async fn create_items(&mut self, session: &Session) -> Result<(), CallError> {
        if self.creation.queue.is_empty() || self.creation.is_resting() || self.is_miscounted() {
            return Ok(());
        }
        while self.creation.in_flight.len() < self.creation.pace.get() && !self.creation.queue.is_empty() {
            let undecided = self.creation.filters == FilterStrategy::Undecided;
            if undecided && self.creation.deciding {
                return Ok(());
            }
            if self.creation.probe.is_some() && !self.creation.in_flight.is_empty() {
                return Ok(());
            }
            let Some(subscription) = self.subscription_with_room(session).await? else {
                return Ok(());
            };
            let chunk = self.next_chunk(subscription);
            if chunk.is_empty() {
                continue;
            }
            self.creation.deciding |= undecided;
            self.call_create(session, subscription, chunk, undecided);
        }
        Ok(())
    }

    /// Returns a subscription that accepts more items; creates one if there is none.
    async fn subscription_with_room(&mut self, session: &Session) -> Result<Option<u16>, CallError> {
        let found = self.subscriptions.iter().position(Subscription::has_room);
        if let Some(number) = found.and_then(|number| u16::try_from(number).ok()) {
            return Ok(Some(number));
        }
        let settings = SubscriptionSettings::from(&*self.context.config);
        match Subscription::create(session, &settings).await {
            Ok(subscription) => {
                self.subscriptions.push(subscription);
                Ok(u16::try_from(self.subscriptions.len() - 1).ok())
            }
            Err(error) if is_about_the_connection(&error) => Err(error),
            Err(error) if error.failure() == CallFailureKind::Later => {
                self.creation.rest();
                Ok(None)
            }
            Err(error) => {
                self.no_subscription(&error);
                Ok(None)
            }
        }
    }

    /// The server refuses further subscriptions: its own limit on items per subscription may be higher than ours. If
    /// every subscription is known to be full, the remaining tags are polled.
    fn no_subscription(&mut self, error: &CallError) {
        let mut grown = false;
        for subscription in self.subscriptions.iter_mut() {
            if subscription.is_usable() && !subscription.full {
                subscription.items_max = subscription.items_max.saturating_mul(2);
                grown = true;
            }
        }
        self.context.component.warn_limited("no_subscription", 1, || {
            format!("the server creates no further subscription ({error}); existing subscriptions get more items, or tags are polled")
        });
        // Calls in flight may still be refused and find room elsewhere; items that wait now do not.
        if !grown {
            self.poll_the_rest();
        }
    }

    /// Returns items for one call, as many as the subscription has room for.
    fn next_chunk(&mut self, subscription: u16) -> Vec<ItemIndex> {
        let Some(target) = self.subscriptions.get_mut(usize::from(subscription)) else {
            return Vec::new();
        };
        let probe = self.creation.probe.filter(|probe| probe.slot == subscription);
        let room = target
            .items_max
            .saturating_sub(target.items)
            .min(self.creation.chunk.get())
            .min(probe.map_or(usize::MAX, |probe| probe.size));
        let mut chunk = Vec::with_capacity(room);
        while chunk.len() < room {
            let Some(index) = self.creation.queue.pop_front() else {
                break;
            };
            let Some(item) = self.items.get_mut(index) else {
                continue;
            };
            if item.way != AcquisitionMode::Monitor || item.stage != MonitoringStage::Waiting {
                continue;
            }
            item.stage = MonitoringStage::Asked;
            item.subscription = subscription;
            chunk.push(index);
        }
        target.items += chunk.len();
        chunk
    }

    fn call_create(&mut self, session: &Session, subscription: u16, chunk: Vec<ItemIndex>, deciding: bool) {
        let Some(id) = self
            .subscriptions
            .get(usize::from(subscription))
            .map(|subscription| subscription.id)
        else {
            return;
        };
        let wanted: Vec<NewMonitoredItem> = chunk.iter().filter_map(|index| self.wanted(*index)).collect();
        let config = &self.context.config;
        let queue_size = config.queue_size;
        let session = session.clone();
        self.creation.calls += 1;
        let call = self.creation.calls;
        let asked = CreateCall {
            slot: subscription,
            subscription_id: id,
            items: chunk.len(),
            is_probe: self.creation.probe.is_some_and(|probe| probe.slot == subscription),
        };
        self.creation.in_flight.insert(call, asked);
        let start = clock::now();
        self.creating.push(Box::pin(async move {
            let result = create(&session, id, wanted, queue_size).await;
            CreateCallResult {
                call,
                items: chunk,
                deciding,
                result,
                lasted: start.elapsed(),
            }
        }));
    }

    fn wanted(&mut self, index: ItemIndex) -> Option<NewMonitoredItem> {
        let (node, without_filter) = self.items.get(index).map(|item| (item.node, item.without_filter))?;
        let deadband = self.deadband_of(node);
        let client = without_filter || self.creation.filters == FilterStrategy::Client;
        let filter = match client {
            true => {
                self.items.filter_here(index, deadband, None);
                self.want_range(index, deadband);
                ExtensionObject::null()
            }
            false => deadband.to_filter(),
        };
        Some(NewMonitoredItem {
            node_id: self.node_id_of(node),
            handle: ItemTable::handle(index),
            filter,
            sampling_ms: self.begin_sampling(index),
        })
    }

    pub(super) fn node_id_of(&self, node: NodeIndex) -> opcua::types::NodeId {
        match node {
            NO_NODE => crate::heartbeat::node(),
            node => self.context.table.read().node_id(node),
        }
    }

    /// Returns the deadband of a tag: the first rule that matches its NodeID or path, otherwise the default; none if it
    /// is not numeric.
    pub(super) fn deadband_of(&self, node: NodeIndex) -> Deadband {
        if node == NO_NODE {
            return Deadband::None;
        }
        let table = self.context.table.read();
        if !table.data_type(node).is_some_and(types::is_numeric) {
            return Deadband::None;
        }
        let config = &self.context.config;
        if config.deadband_rules.is_empty() {
            return config.deadband;
        }
        let id = node_id::text(&table.node_id(node));
        let path = tag_path::unique(&table, node);
        let rule = config
            .deadband_rules
            .iter()
            .find(|rule| rule.pattern.is_match(&id) || rule.pattern.is_match(&path));
        rule.map_or(config.deadband, |rule| rule.deadband)
    }

    /// Processes the response to a call. Returns items that must be deleted on the server. An error means the loss of
    /// the connection.
    pub(super) fn created(&mut self, done: CreateCallResult) -> Result<SurplusItems, CallError> {
        if done.deciding {
            self.creation.deciding = false;
        }
        let asked = self.creation.in_flight.remove(&done.call).filter(|asked| {
            let holder = self.subscriptions.get(usize::from(asked.slot));
            holder.is_some_and(|subscription| subscription.id == asked.subscription_id)
        });
        let Some(asked) = asked else {
            // The subscription was replaced or given up meanwhile, and its items are gone with it.
            done.items.into_iter().for_each(|index| self.ask_again(index));
            return Ok(SurplusItems::default());
        };
        match done.result {
            Ok(outcomes) => {
                self.creation.chunk.succeeded();
                self.creation.pace.answered(done.lasted, asked.items);
                if done.deciding {
                    let refused = outcomes
                        .iter()
                        .any(|outcome| matches!(outcome, CreateOutcome::WithoutFilter { .. }));
                    self.creation.filters = if refused {
                        FilterStrategy::Client
                    } else {
                        FilterStrategy::Server
                    };
                }
                let pairs: Vec<(ItemIndex, CreateOutcome)> = done.items.into_iter().zip(outcomes).collect();
                Ok(self.settle(asked, &pairs))
            }
            Err(error) => {
                self.create_failed(asked, done.items, &error, done.lasted);
                match error.failure() {
                    CallFailureKind::Lost => Err(error),
                    _ => Ok(SurplusItems::default()),
                }
            }
        }
    }

    fn settle(&mut self, asked: CreateCall, pairs: &[(ItemIndex, CreateOutcome)]) -> SurplusItems {
        let table = self.context.table.clone();
        let mut table = table.write();
        let (mut created, mut released) = (0, 0);
        let mut is_any_tag = false;
        let mut full = (Vec::new(), 0);
        let mut unwanted = SurplusItems {
            subscription_id: asked.subscription_id,
            ids: Vec::new(),
        };
        for (index, outcome) in pairs {
            let Some(item) = self.items.get_mut(*index) else {
                continue;
            };
            let node = item.node;
            if let CreateOutcome::Created { id, sampling_ms } = *outcome {
                // The tag may have been removed meanwhile, or removed and added again in a later call.
                if item.way != AcquisitionMode::Monitor || item.stage == MonitoringStage::Created {
                    unwanted.ids.push(id);
                    released += 1;
                    continue;
                }
                item.stage = MonitoringStage::Created;
                if std::mem::take(&mut item.lacks_room) {
                    self.room_retry.succeeded();
                }
                item.monitored_id = id;
                item.subscription = asked.slot;
                table.set_state(node, ItemState::Monitored);
                self.context.failures.remove(NodeFailureKind::Item, node);
                if self.converter.is_heartbeat(*index) {
                    self.heartbeat_sampling = Duration::from_millis(sampling_ms.into());
                    self.heartbeat_retry.succeeded();
                }
                created += 1;
                is_any_tag |= node != NO_NODE;
                self.creation.in_vain.remove(index);
                self.sampled(*index);
                continue;
            }
            released += 1;
            if item.way != AcquisitionMode::Monitor || item.stage != MonitoringStage::Asked {
                continue;
            }
            let is_filter = matches!(outcome, CreateOutcome::WithoutFilter { .. }) && !item.without_filter;
            match *outcome {
                CreateOutcome::Created { .. } => {}
                CreateOutcome::WithoutFilter { .. } if is_filter => {
                    item.without_filter = true;
                    item.stage = MonitoringStage::Waiting;
                    self.creation.queue.push_back(*index);
                }
                CreateOutcome::Full { status } => {
                    full.0.push(*index);
                    full.1 = status;
                }
                CreateOutcome::WithoutFilter { status } | CreateOutcome::Failed { status } => {
                    if self.sample_slower(*index, status) {
                        self.enqueue(*index);
                    } else {
                        self.refused(*index, status, None, &mut table);
                    }
                }
            }
        }
        drop(table);
        if let Some(subscription) = self.subscriptions.get_mut(usize::from(asked.slot)) {
            subscription.items = subscription.items.saturating_sub(released);
        }
        if created > 0 {
            self.useful += created;
            if is_any_tag {
                self.context.health.served();
            }
            if !full.0.is_empty() {
                // The per-item results have shown how many the server accepts.
                self.filled(asked.slot);
            } else if asked.is_probe {
                self.probed(asked);
            }
        }
        self.full(asked.slot, full.0, full.1);
        unwanted
    }

    /// A call of half the refused size was accepted: about half of that room is left. Continues down to single items
    /// until one is refused.
    fn probed(&mut self, asked: CreateCall) {
        if let Some(probe) = self.creation.probe.as_mut().filter(|probe| probe.slot == asked.slot) {
            probe.size = (probe.size / 2).max(1);
        }
    }

    /// The subscription has as many items as the server allows.
    fn filled(&mut self, slot: u16) {
        self.creation.probe = None;
        let held = self.held(slot);
        if let Some(subscription) = self.subscriptions.get_mut(usize::from(slot)) {
            subscription.items_max = held;
            subscription.full = true;
        }
    }

    /// The number of items of a subscription, including those in pending calls.
    fn held(&self, slot: u16) -> usize {
        let created_in = |item: &Item| item.subscription == slot && item.stage == MonitoringStage::Created;
        let created = self.items.iter().filter(|(_, item)| created_in(item)).count();
        let asked = self.creation.in_flight.values().filter(|asked| asked.slot == slot);
        created + asked.map(|asked| asked.items).sum::<usize>()
    }

    /// The subscription does not accept that many more. If an empty one refuses a single item, the server as a whole
    /// accepts no more.
    fn full(&mut self, slot: u16, items: Vec<ItemIndex>, status: u32) {
        let count = items.len();
        if count == 0 {
            return;
        }
        let is_full = self
            .subscriptions
            .get(usize::from(slot))
            .is_none_or(|subscription| subscription.full);
        if count > 1 || self.held(slot) > 0 {
            if count > 1 && !is_full {
                let size = self.creation.probe.map_or(count / 2, |probe| probe.size.min(count / 2));
                self.creation.probe = Some(Probe { slot, size });
            } else {
                self.filled(slot);
            }
            items.into_iter().for_each(|index| self.ask_again(index));
            return;
        }
        self.context.component.warn_limited("items_max", count as u64, || {
            format!(
                "the server accepts no more monitored items ({}); further tags are polled",
                status::text(status)
            )
        });
        self.creation.probe = None;
        items.into_iter().for_each(|index| self.poll_instead(index));
        self.poll_the_rest();
    }

    /// Queues an item of a failed call again, unless it is no longer to be monitored.
    fn ask_again(&mut self, index: ItemIndex) {
        if self
            .items
            .get(index)
            .is_some_and(|item| item.stage == MonitoringStage::Asked)
        {
            self.enqueue(index);
        }
    }

    /// Deletes items in the background; a failure does not matter, because the next check finds them.
    pub(super) fn delete_unwanted(&self, session: &Session, unwanted: SurplusItems) {
        if unwanted.ids.is_empty() {
            return;
        }
        let request = DeleteMonitoredItemsRequest {
            request_header: Default::default(),
            subscription_id: unwanted.subscription_id,
            monitored_item_ids: Some(unwanted.ids),
        };
        let session = session.clone();
        tokio::spawn(async move { session.call(request).await });
    }

    /// `why` supplements the status.
    fn refused(
        &mut self,
        index: ItemIndex,
        status: u32,
        why: Option<String>,
        table: &mut crate::node_table::NodeTable,
    ) {
        let tried = self.sampling_given_up(index);
        let Some(item) = self.items.get_mut(index) else { return };
        item.stage = MonitoringStage::Failed;
        let node = item.node;
        if node == NO_NODE {
            return self.heartbeat_refused(status);
        }
        let reason = FailureReason::of_status(status);
        table.set_state(node, ItemState::Failed(reason));
        let text = match (why, tried) {
            (Some(why), _) => Some(why),
            (None, Some(tried)) => Some(format!("{} ({tried})", status::text(status))),
            (None, None) => None,
        };
        self.context.component.warn_limited(reason.as_str(), 1, || {
            format!(
                "{} cannot be monitored: {}",
                crate::browse::describe(table, node),
                text.clone().unwrap_or_else(|| status::text(status))
            )
        });
        self.context.failures.add(NodeFailureKind::Item, node, status, text);
        self.context.metrics.item_refused(reason);
    }

    fn create_failed(&mut self, asked: CreateCall, items: Vec<ItemIndex>, error: &CallError, lasted: Duration) {
        let count = items.len();
        if let Some(subscription) = self.subscriptions.get_mut(usize::from(asked.slot)) {
            subscription.items = subscription.items.saturating_sub(count);
            match error {
                // Whether the items exist is unknown; creating them again could duplicate every value.
                CallError::Closed(_) | CallError::Timeout(_) | CallError::Unreadable(_) | CallError::TooLarge => {
                    subscription.in_doubt = true;
                }
                CallError::WrongCount { .. } => subscription.miscounted = true,
                CallError::Refused(status) if status::says_timed_out(*status) => subscription.in_doubt = true,
                CallError::Refused(status) if status::says_no_subscription(*status) => subscription.lost = true,
                CallError::Refused(_) | CallError::RequestTooLarge => {}
            }
        }
        if let Some(status) = error.status().filter(|status| status::says_full(*status)) {
            return self.full(asked.slot, items, status);
        }
        if self.creation.failed(&items, error, lasted) {
            items.into_iter().for_each(|index| self.ask_again(index));
            return;
        }
        // A call for one item was refused as a whole: the item has failed, unless its interval is the cause.
        if let Some(status) = error.status()
            && items.iter().all(|index| self.sample_slower(*index, status))
        {
            items.into_iter().for_each(|index| self.ask_again(index));
            return;
        }
        let status = error.nearest_status();
        let why = error.status().is_none().then(|| error.to_string());
        let table = self.context.table.clone();
        let mut table = table.write();
        for index in items {
            if self
                .items
                .get(index)
                .is_some_and(|item| item.stage == MonitoringStage::Asked)
            {
                self.refused(index, status, why.clone(), &mut table);
            }
        }
    }

    /// The connection was lost with pending calls.
    pub(super) fn abandon_creating(&mut self) {
        self.creating = Default::default();
        self.creation.deciding = false;
        self.creation.probe = None;
        for (_, asked) in self.creation.in_flight.drain() {
            let slot = self.subscriptions.get_mut(usize::from(asked.slot));
            if let Some(subscription) = slot.filter(|subscription| subscription.id == asked.subscription_id) {
                subscription.in_doubt = true;
                subscription.items = subscription.items.saturating_sub(asked.items);
            }
        }
        let asked: Vec<ItemIndex> = self
            .items
            .iter()
            .filter(|(_, item)| item.way == AcquisitionMode::Monitor && item.stage == MonitoringStage::Asked)
            .map(|(index, _)| index)
            .collect();
        asked.into_iter().for_each(|index| self.enqueue(index));
    }

    pub(super) async fn delete_items(&mut self, session: &Session, items: &[ItemIndex]) {
        let mut by_subscription: HashMap<u16, Vec<u32>> = HashMap::new();
        for index in items {
            let Some(item) = self.items.get(*index) else { continue };
            if item.way == AcquisitionMode::Monitor && item.stage == MonitoringStage::Created {
                by_subscription
                    .entry(item.subscription)
                    .or_default()
                    .push(item.monitored_id);
            }
            self.items.set_way(*index, AcquisitionMode::Nowhere);
        }
        for (number, ids) in by_subscription {
            let Some(subscription) = self.subscriptions.get_mut(usize::from(number)) else {
                continue;
            };
            subscription.items = subscription.items.saturating_sub(ids.len());
            let subscription_id = subscription.id;
            for part in ids.chunks(self.creation.chunk.get()) {
                let request = DeleteMonitoredItemsRequest {
                    request_header: Default::default(),
                    subscription_id,
                    monitored_item_ids: Some(part.to_vec()),
                };
                let _gone = session.call(request).await;
            }
        }
    }
}

/// Whether creating a subscription failed because of the connection or its session, and not because the server has no
/// room.
pub(super) fn is_about_the_connection(error: &CallError) -> bool {
    match error {
        CallError::Closed(_) | CallError::Timeout(_) => true,
        CallError::Refused(status) => status::says_session_gone(*status),
        CallError::Unreadable(_) | CallError::WrongCount { .. } | CallError::TooLarge | CallError::RequestTooLarge => {
            false
        }
    }
}

#[cfg(test)]
mod tests;
