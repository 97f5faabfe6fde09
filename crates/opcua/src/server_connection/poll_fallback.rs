//! Tags that are polled because the server has no room to monitor them. Room may become free: other clients disconnect,
//! or the server drops subscriptions of a broken connection. So monitoring is retried, less and less often while it
//! fails.

use std::time::Instant;

use thalweg_kit::clock;

use super::ServerConnection;
use super::items::{AcquisitionMode, ItemIndex, MonitoringStage};

impl ServerConnection {
    /// Polls the items that wait to be created.
    pub(super) fn poll_the_rest(&mut self) {
        let waiting: Vec<ItemIndex> = self.creation.take_waiting();
        let wanted = |index: &ItemIndex| {
            self.items
                .get(*index)
                .is_some_and(|item| item.way == AcquisitionMode::Monitor && item.stage == MonitoringStage::Waiting)
        };
        let waiting: Vec<ItemIndex> = waiting.into_iter().filter(wanted).collect();
        waiting.into_iter().for_each(|index| self.poll_instead(index));
    }

    pub(super) fn poll_instead(&mut self, index: ItemIndex) {
        self.items.set_way(index, AcquisitionMode::Poll);
        if let Some(item) = self.items.get_mut(index) {
            item.lacks_room = true;
            self.room_retry.refused(clock::now());
        }
    }

    /// Tries to monitor items that are polled for lack of room, if due. A refused item is polled again as soon as the
    /// server answers.
    pub(super) fn retry_room(&mut self, now: Instant) {
        if !self.room_retry.take_due(now) {
            return;
        }
        let lacking: Vec<ItemIndex> = self
            .items
            .iter()
            .filter(|(_, item)| item.lacks_room && item.way == AcquisitionMode::Poll)
            .map(|(index, _)| index)
            .collect();
        for index in lacking {
            self.items.set_way(index, AcquisitionMode::Monitor);
            self.enqueue(index);
        }
    }
}
