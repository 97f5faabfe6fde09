//! What is due at a time: the ends of sessions, and wills. All of a broker's deadlines are in one queue, so nothing runs while
//! nothing is due.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::time::Micros;
use thalweg_mqtt_store::SessionId;
use thalweg_mqtt_store::deadlines::DeadlineQueue;
use tokio::sync::Notify;

use crate::action::Action;
use crate::broker::Broker;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TimerKind {
    Will,
    Expiry,
}

/// The wall clock may be set, so it is looked at this often at least.
const LOOK: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct SessionTimers {
    queue: Mutex<DeadlineQueue<(SessionId, TimerKind)>>,
    earlier: Notify,
}

impl SessionTimers {
    /// Sets when something is due, in wall-clock time.
    pub fn set(&self, session: SessionId, kind: TimerKind, at: Micros) {
        let mut queue = self.queue.lock();
        let is_first = queue.next().is_none_or(|next| at < next);
        queue.set((session, kind), at);
        drop(queue);
        if is_first {
            self.earlier.notify_one();
        }
    }

    pub fn cancel(&self, session: SessionId) {
        let mut queue = self.queue.lock();
        queue.cancel((session, TimerKind::Will));
        queue.cancel((session, TimerKind::Expiry));
    }

    fn take_due(&self, now: Micros) -> Option<(SessionId, TimerKind)> {
        self.queue.lock().take_due(now)
    }

    fn next(&self) -> Option<Micros> {
        self.queue.lock().next()
    }
}

impl Broker {
    /// Does what is due, for ever.
    pub(crate) async fn run_timers(self: Arc<Broker>) {
        loop {
            let now = (self.wall)();
            while let Some((id, kind)) = self.timers.take_due(now) {
                let Some(session) = self.routing.read(|inner| inner.session(id).cloned()) else {
                    continue;
                };
                self.journal.push(match kind {
                    TimerKind::Will => Action::SendWill(session),
                    TimerKind::Expiry => Action::Expire(session),
                });
            }
            let wait = match self.timers.next() {
                Some(next) => Duration::from_micros((next - now).max(1) as u64).min(LOOK),
                None => LOOK,
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.timers.earlier.notified() => {}
            }
        }
    }
}
