//! SUBSCRIBE and UNSUBSCRIBE of a client (specification section 5).

use std::sync::atomic::Ordering::Relaxed;

use thalweg_mqtt_store::Subscription;
use thalweg_mqtt_wire::{ReasonCode, Subscribe, SubscribeOptions, Unsubscribe};

use super::{ClientConnection, PacketResult};
use crate::access::FilterAccess;
use crate::action::{Action, SubscribeAction, UnsubscribeAction};
use crate::shared;

impl ClientConnection {
    pub(super) fn subscribe(&mut self, subscribe: &Subscribe) -> PacketResult {
        let mut room = {
            let state = self.source.session.lock();
            self.broker
                .settings
                .subscriptions
                .saturating_sub(state.stored.subscriptions.len())
        };
        let filters = subscribe.filters().map(|(filter, options)| {
            let is_known = self.source.session.lock().stored.subscriptions.contains_key(filter);
            self.refused_filter(filter).map_or(Ok(()), Err)?;
            if !is_known {
                room = room.checked_sub(1).ok_or(ReasonCode::QuotaExceeded)?;
            }
            let options = SubscribeOptions {
                qos: options.qos.min(self.broker.settings.max_qos),
                ..options
            };
            Ok((
                filter.into(),
                Subscription {
                    options,
                    id: subscribe.subscription_id,
                },
            ))
        });
        let filters = filters.collect();
        self.push(Action::Subscribe(SubscribeAction {
            source: self.source.clone(),
            packet_id: subscribe.packet_id,
            filters,
        }));
        Ok(())
    }

    fn refused_filter(&self, filter: &str) -> Option<ReasonCode> {
        let matched = match filter.starts_with(shared::PREFIX) {
            true => match shared::parts(filter) {
                Some((_, filter)) => filter,
                None => return Some(ReasonCode::TopicFilterInvalid),
            },
            false => filter,
        };
        if matched.starts_with("$queue/") || matched.starts_with("$dlq/") {
            return Some(ReasonCode::TopicFilterInvalid);
        }
        if self.access.filter(matched) == FilterAccess::Nothing {
            self.broker.counters.denied_subscriptions.fetch_add(1, Relaxed);
            return Some(ReasonCode::NotAuthorized);
        }
        let is_deep = matched.split('/').count() > self.broker.settings.max_topic_levels;
        is_deep.then_some(ReasonCode::TopicFilterInvalid)
    }

    pub(super) fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) -> PacketResult {
        self.push(Action::Unsubscribe(UnsubscribeAction {
            source: self.source.clone(),
            packet_id: unsubscribe.packet_id,
            filters: unsubscribe.filters().map(Into::into).collect(),
        }));
        Ok(())
    }
}
