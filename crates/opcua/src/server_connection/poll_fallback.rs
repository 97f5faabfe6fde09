//! Tags that are polled because the server has no room to monitor them. Room may come: other clients go, or the server forgets
//! subscriptions of a connection that broke. So they are asked for again, ever less often where it is in vain.

use std::time::Instant;

use super::ServerConnection;
use super::items::{AcquisitionMode, ItemIndex, MonitoringStage};

impl ServerConnection {
    /// What waits to be created is polled instead.
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
            self.room_retry.refused(Instant::now());
        }
    }

    /// Tries to monitor what is polled for want of room, if its time has come. It takes no longer than until the server's
    /// refusal to poll it again.
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
