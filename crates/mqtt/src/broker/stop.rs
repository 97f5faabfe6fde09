//! The end of a broker, in order.

use super::Broker;
use crate::action::Action;

impl Broker {
    /// Commits what was received and what clients have acknowledged, and ends the journal. Nothing more comes: the listeners have
    /// been stopped before.
    pub async fn shut_down(&self) {
        let progress = std::mem::take(&mut *self.dirty.lock());
        self.journal.push(Action::Progress(progress));
        self.journal.close();
        self.journal.settled().await;
    }
}
