//! Stops a flow: in order while there is time (the input, the queues, the messages that processors hold back, the
//! output), and immediately when the time is over. Uninterruptible parts then get one short grace period.

use std::time::Duration;

use thalweg_kit::clock;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use super::handle::StopReport;
use super::start::Flow;
use crate::output_driver::GRACE;

/// How long to wait for aborted tasks.
const LET_GO: Duration = Duration::from_millis(200);

impl Flow {
    /// Stops in order: the input, the queues, the processors with the messages they hold back, the output. With a
    /// buffer, the messages in front of it are stored, and stored messages wait for the next start. Messages that are
    /// not acknowledged within `time` are given up: they stay in flight if their source delivers them again, and else are
    /// dropped with reason `shutdown`. Then this returns within two seconds, even if a processor or the output cannot be
    /// interrupted.
    pub async fn stop(mut self, time: Duration) -> StopReport {
        let deadline = clock::tokio_now() + time;
        self.stop.cancel();
        let orderly = async {
            ended([&mut self.input]).await;
            if let Some(buffer) = &mut self.buffer {
                buffer.entrance.close();
                ended([&mut buffer.storing]).await;
                // Messages stored now are for the next start.
                buffer.stop.cancel();
                ended([&mut buffer.reading]).await;
            }
            self.shards.close();
            ended(&mut self.workers).await;
            ended([&mut self.delivery]).await;
        };
        if timeout_at(deadline, orderly).await.is_err() {
            self.handle.balance.stops();
            self.give_up.cancel();
            if let Some(buffer) = &self.buffer {
                buffer.entrance.close();
                buffer.stop.cancel();
            }
            self.shards.close();
            let at_once = async {
                ended([&mut self.input, &mut self.delivery]).await;
                if let Some(buffer) = &mut self.buffer {
                    ended([&mut buffer.storing, &mut buffer.reading]).await;
                    let _ = timeout(LET_GO, buffer.open_batches.none(|| {})).await;
                }
                ended(&mut self.workers).await;
                // Aborted tasks drop their batches a moment later. Failed messages wait for the dead letter, which
                // stops after this.
                let _ = timeout(LET_GO, self.open_batches.none(|| {})).await;
            };
            let _still_running = timeout_at(deadline + 2 * GRACE, at_once).await;
        }
        self.handle.log_held_back(true);
        self.handle.stop_report()
    }
}

/// Waits for tasks, some of which may have been awaited before.
async fn ended(tasks: impl IntoIterator<Item = &mut JoinHandle<()>>) {
    for task in tasks {
        if !task.is_finished() {
            let _ = task.await;
        }
    }
}
