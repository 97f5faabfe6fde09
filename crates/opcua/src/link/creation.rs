//! Monitored items on their way: chunks, the subscription each goes to, up to four calls in flight, and what every
//! answer means.

use std::collections::VecDeque;

use opcua::types::{DeleteMonitoredItemsRequest, ExtensionObject};
use thalweg_record::Ticks;

use super::items::{Item, ItemIndex, Items, Stage, Way};
use super::{Link, Queue};
use crate::channel::CallError;
use crate::chunk::ChunkSize;
use crate::deadband::Deadband;
use crate::failures::What;
use crate::gaps::{Gap, GapReason};
use crate::node_id;
use crate::node_table::{FailureReason, ItemState, NO_NODE, NodeIndex};
use crate::session::Session;
use crate::subscribe::create::{Sampling, Wanted, create};
use crate::subscribe::{CreateOutcome, Filters, Subscription, SubscriptionSettings};
use crate::tag_path;
use crate::value::{status, types};

/// Calls that create items in flight.
const IN_FLIGHT_MAX: usize = 4;

pub(super) struct Creation {
    queue: Queue,
    pub chunk: ChunkSize,
    pub filters: Filters,
    in_flight: usize,
    /// Which of them decides whether filters are sent.
    deciding: bool,
}

/// The answer to one call.
pub(super) struct Done {
    subscription: u16,
    items: Vec<ItemIndex>,
    deciding: bool,
    result: Result<Vec<CreateOutcome>, CallError>,
}

impl Creation {
    pub fn new() -> Creation {
        Creation {
            queue: VecDeque::new(),
            chunk: ChunkSize::new(0, 50, true),
            filters: Filters::Undecided,
            in_flight: 0,
            deciding: false,
        }
    }
}

impl Link {
    pub(super) fn enqueue(&mut self, index: ItemIndex) {
        if let Some(item) = self.items.get_mut(index)
            && item.way == Way::Monitor
        {
            item.stage = Stage::Waiting;
            self.creation.queue.push_back(index);
        }
    }

    /// Sends as many calls as may be in flight. An error is the loss of the connection.
    pub(super) async fn create_items(&mut self, session: &Session) -> Result<(), CallError> {
        while self.creation.in_flight < IN_FLIGHT_MAX && !self.creation.queue.is_empty() {
            let undecided = self.creation.filters == Filters::Undecided;
            if undecided && self.creation.deciding {
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

    /// The number of a subscription that takes more items; a new one if none does.
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
            Err(error @ (CallError::Closed(_) | CallError::Timeout(_))) => Err(error),
            Err(error) => {
                self.no_subscription(&error);
                Ok(None)
            }
        }
    }

    /// The server gives no further subscription: its own limit on items per subscription may be the higher one.
    fn no_subscription(&mut self, error: &CallError) {
        let spread: Vec<&mut Subscription> = self
            .subscriptions
            .iter_mut()
            .filter(|subscription| !subscription.lost && !subscription.in_doubt)
            .collect();
        let any = !spread.is_empty();
        for subscription in spread {
            subscription.items_max = subscription.items_max.saturating_mul(2);
        }
        self.context.component.warn_limited("no_subscription", 1, || {
            format!("the server gives no further subscription ({error}); those that exist take more items, or tags are polled")
        });
        if !any {
            let waiting: Vec<ItemIndex> = self.creation.queue.drain(..).collect();
            waiting.into_iter().for_each(|index| self.poll_instead(index));
        }
    }

    /// Items for one call, as many as the subscription has room for.
    fn next_chunk(&mut self, subscription: u16) -> Vec<ItemIndex> {
        let Some(target) = self.subscriptions.get_mut(usize::from(subscription)) else {
            return Vec::new();
        };
        let room = target
            .items_max
            .saturating_sub(target.items)
            .min(self.creation.chunk.get());
        let mut chunk = Vec::with_capacity(room);
        while chunk.len() < room {
            let Some(index) = self.creation.queue.pop_front() else {
                break;
            };
            let Some(item) = self.items.get_mut(index) else {
                continue;
            };
            if item.way != Way::Monitor || item.stage != Stage::Waiting {
                continue;
            }
            item.stage = Stage::Asked;
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
        let wanted: Vec<Wanted> = chunk.iter().filter_map(|index| self.wanted(*index)).collect();
        let config = &self.context.config;
        let sampling = Sampling {
            interval_ms: config.sampling_interval_ms,
            queue_size: config.queue_size,
        };
        let session = session.clone();
        self.creation.in_flight += 1;
        self.creating.push(Box::pin(async move {
            let result = create(&session, id, wanted, sampling).await;
            Done {
                subscription,
                items: chunk,
                deciding,
                result,
            }
        }));
    }

    fn wanted(&mut self, index: ItemIndex) -> Option<Wanted> {
        let (node, without_filter) = self.items.get(index).map(|item| (item.node, item.without_filter))?;
        let deadband = self.deadband_of(node);
        let client = without_filter || self.creation.filters == Filters::Client;
        let filter = match client {
            true => {
                self.items.filter_here(index, deadband, None);
                self.want_range(index, deadband);
                ExtensionObject::null()
            }
            false => deadband.to_filter(),
        };
        Some(Wanted {
            node_id: self.node_id_of(node),
            handle: Items::handle(index),
            filter,
        })
    }

    pub(super) fn node_id_of(&self, node: NodeIndex) -> opcua::types::NodeId {
        match node {
            NO_NODE => crate::heartbeat::node(),
            node => self.context.table.read().node_id(node),
        }
    }

    /// The deadband of a tag: the first rule that matches its NodeID or path, else the default; none for what is not a
    /// number.
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

    pub(super) fn created(&mut self, done: Done) {
        self.creation.in_flight -= 1;
        if done.deciding {
            self.creation.deciding = false;
        }
        match done.result {
            Ok(outcomes) => {
                self.creation.chunk.succeeded();
                if done.deciding {
                    let refused = outcomes.contains(&CreateOutcome::WithoutFilter);
                    self.creation.filters = if refused { Filters::Client } else { Filters::Server };
                }
                let pairs: Vec<(ItemIndex, CreateOutcome)> = done.items.into_iter().zip(outcomes).collect();
                self.settle(done.subscription, &pairs);
            }
            Err(error) => self.create_failed(done.subscription, done.items, &error),
        }
    }

    fn settle(&mut self, subscription: u16, pairs: &[(ItemIndex, CreateOutcome)]) {
        let table = self.context.table.clone();
        let mut table = table.write();
        let (mut created, mut released) = (false, 0);
        let mut full = (Vec::new(), 0);
        for (index, outcome) in pairs {
            let Some(item) = self.items.get_mut(*index) else {
                continue;
            };
            let node = item.node;
            match *outcome {
                CreateOutcome::Created { id } => {
                    item.stage = Stage::Created;
                    item.monitored_id = id;
                    table.set_state(node, ItemState::Monitored);
                    self.context.failures.remove(What::Item, node);
                    created = true;
                    continue;
                }
                CreateOutcome::WithoutFilter if !item.without_filter => {
                    item.without_filter = true;
                    item.stage = Stage::Waiting;
                    self.creation.queue.push_back(*index);
                }
                CreateOutcome::Full { status } => {
                    full.0.push(*index);
                    full.1 = status;
                }
                CreateOutcome::WithoutFilter => self.refused(*index, FILTER_REFUSED_TWICE, &mut table),
                CreateOutcome::Failed { status } => self.refused(*index, status, &mut table),
            }
            released += 1;
        }
        drop(table);
        if let Some(subscription) = self.subscriptions.get_mut(usize::from(subscription)) {
            subscription.items = subscription.items.saturating_sub(released);
        }
        self.full(subscription, full.0, full.1);
        if created {
            self.context.health.served();
        }
    }

    /// The subscription takes no more. One that holds nothing tells that the server as a whole takes no more.
    fn full(&mut self, subscription: u16, items: Vec<ItemIndex>, status: u32) {
        if items.is_empty() {
            return;
        }
        let created_in = |item: &Item| item.subscription == subscription && item.stage == Stage::Created;
        let held = self.items.iter().filter(|(_, item)| created_in(item)).count();
        if let Some(subscription) = self.subscriptions.get_mut(usize::from(subscription)) {
            subscription.items_max = held;
        }
        if held > 0 {
            items.into_iter().for_each(|index| self.enqueue(index));
            return;
        }
        self.context
            .component
            .warn_limited("items_max", items.len() as u64, || {
                format!(
                    "the server takes no more monitored items ({}); further tags are polled",
                    status::text(status)
                )
            });
        items.into_iter().for_each(|index| self.poll_instead(index));
    }

    fn poll_instead(&mut self, index: ItemIndex) {
        self.items.set_way(index, Way::Poll);
    }

    fn refused(&mut self, index: ItemIndex, status: u32, table: &mut crate::node_table::NodeTable) {
        let Some(item) = self.items.get_mut(index) else { return };
        item.stage = Stage::Failed;
        let node = item.node;
        if node == NO_NODE {
            self.context.component.warn_limited("heartbeat", 1, || {
                format!(
                    "the server's clock cannot be monitored as a heartbeat: {}",
                    status::text(status)
                )
            });
            return;
        }
        let reason = FailureReason::of_status(status);
        table.set_state(node, ItemState::Failed(reason));
        self.context.failures.add(What::Item, node, status, None);
        self.context.metrics.item_refused(reason);
        self.context.component.warn_limited(reason.as_str(), 1, || {
            format!(
                "{} cannot be monitored: {}",
                crate::browse::describe(table, node),
                status::text(status)
            )
        });
    }

    fn create_failed(&mut self, subscription: u16, items: Vec<ItemIndex>, error: &CallError) {
        let count = items.len();
        if let Some(subscription) = self.subscriptions.get_mut(usize::from(subscription)) {
            subscription.items = subscription.items.saturating_sub(count);
            match error {
                // Whether the items exist is unknown; creating them again could make every value come twice.
                CallError::Closed(_) | CallError::Timeout(_) | CallError::Unreadable(_) | CallError::TooLarge => {
                    subscription.in_doubt = true;
                }
                CallError::Refused(status) if status::says_no_subscription(*status) => subscription.lost = true,
                CallError::Refused(_) | CallError::RequestTooLarge => {}
            }
        }
        if let Some(status) = error.status().filter(|status| status::says_full(*status)) {
            return self.full(subscription, items, status);
        }
        let in_doubt = !matches!(error, CallError::Refused(_) | CallError::RequestTooLarge);
        let subscription_gone = error.status().is_some_and(status::says_no_subscription);
        let smaller = self.creation.chunk.too_large(count);
        if in_doubt || subscription_gone || smaller {
            items.into_iter().for_each(|index| self.enqueue(index));
            return;
        }
        // One item alone is refused as a whole call: it has failed.
        let status = error.status().unwrap_or(0);
        let table = self.context.table.clone();
        let mut table = table.write();
        items
            .into_iter()
            .for_each(|index| self.refused(index, status, &mut table));
    }

    /// The connection is gone with calls unanswered.
    pub(super) fn abandon_creating(&mut self) {
        self.creating = Default::default();
        self.creation.in_flight = 0;
        self.creation.deciding = false;
        let asked: Vec<(ItemIndex, u16)> = self
            .items
            .iter()
            .filter(|(_, item)| item.way == Way::Monitor && item.stage == Stage::Asked)
            .map(|(index, item)| (index, item.subscription))
            .collect();
        for (index, subscription) in asked {
            if let Some(subscription) = self.subscriptions.get_mut(usize::from(subscription)) {
                subscription.in_doubt = true;
                subscription.items = subscription.items.saturating_sub(1);
            }
            self.enqueue(index);
        }
    }

    /// Makes subscriptions anew that are lost or in doubt: their items wait to be created, and what they would have
    /// reported since they were last heard of is a gap.
    pub(super) async fn replace_broken(&mut self, session: &Session) -> Result<(), CallError> {
        for number in 0..self.subscriptions.len() {
            let Some(old) = self.subscriptions.get(number).filter(|old| old.lost || old.in_doubt) else {
                continue;
            };
            let (id, heard_at, was_lost, items_max) = (old.id, old.heard_at, old.lost, old.items_max);
            if !was_lost {
                Subscription::delete(session, id).await;
            }
            let settings = SubscriptionSettings::from(&*self.context.config);
            let new = Subscription::create(session, &settings).await?;
            if let Some(slot) = self.subscriptions.get_mut(number) {
                *slot = Subscription { items_max, ..new };
            }
            let number = number as u16;
            let of_this = |item: &Item| item.way == Way::Monitor && item.subscription == number;
            let created: Vec<ItemIndex> = self
                .items
                .iter()
                .filter(|(_, item)| of_this(item) && item.stage == Stage::Created)
                .map(|(index, _)| index)
                .collect();
            let gap = Gap {
                from: heard_at,
                to: Ticks::now(),
            };
            self.gap(GapReason::Recreated, gap, |item| {
                of_this(item) && item.stage == Stage::Created
            });
            created.into_iter().for_each(|index| self.enqueue(index));
        }
        Ok(())
    }

    pub(super) async fn delete_items(&mut self, session: &Session, items: &[ItemIndex]) {
        let mut by_subscription: hashbrown::HashMap<u16, Vec<u32>> = hashbrown::HashMap::new();
        for index in items {
            let Some(item) = self.items.get(*index) else { continue };
            if item.way == Way::Monitor && item.stage == Stage::Created {
                by_subscription
                    .entry(item.subscription)
                    .or_default()
                    .push(item.monitored_id);
            }
            self.items.set_way(*index, Way::Nowhere);
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

/// A server that refuses an item with and without a filter.
const FILTER_REFUSED_TWICE: u32 = 0x8045_0000;
