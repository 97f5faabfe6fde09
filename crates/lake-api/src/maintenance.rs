//! Maintenance on request: each thing done is a line of the answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thalweg_kit::blocking;
use thalweg_lake::inspect::InspectError;
use thalweg_lake::maintenance::{MaintenanceReport, MaintenanceRequest, MaintenanceRequestError, by_hand_alone};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::LakeAdmin;

/// One line of the answer. An answer without the last line is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MaintenanceLine {
    Did(MaintenanceReport),
    Failed { failed: String },
    End { done: bool },
}

impl LakeAdmin {
    /// Starts the work and returns its report lines.
    pub(crate) fn begin(self: &Arc<LakeAdmin>, asked: MaintenanceRequest) -> UnboundedReceiver<MaintenanceLine> {
        let (sender, lines) = unbounded_channel();
        let (admin, runtime) = (self.clone(), Handle::current());
        tokio::spawn(async move {
            let kept = admin.tables.kept();
            let is_kept = |name: &str| kept.iter().any(|kept| kept == name);
            if asked.table.as_deref().is_none_or(is_kept)
                && let Some(mut done) = admin.tables.ask(asked.clone())
            {
                while let Some(did) = done.recv().await {
                    if sender.send(MaintenanceLine::Did(did)).is_err() {
                        return;
                    }
                }
            }
            if !asked.table.as_deref().is_some_and(is_kept) {
                let by_hand = move || admin.by_hand_alone(&asked, &kept, &runtime, &sender);
                // A panic is reported in the log; the answer then has no end line.
                let _ = blocking::spawn(by_hand).await;
            } else {
                let _ = sender.send(MaintenanceLine::End { done: true });
            }
        });
        lines
    }

    /// Works on the tables that this process does not write.
    fn by_hand_alone(
        &self,
        asked: &MaintenanceRequest,
        kept: &[String],
        runtime: &Handle,
        sender: &UnboundedSender<MaintenanceLine>,
    ) {
        let _one_at_a_time = self.alone.lock();
        let (options, metrics) = (self.options.clone(), self.metrics.clone());
        let told = &mut |did| sender.send(MaintenanceLine::Did(did)).is_ok();
        let done = by_hand_alone(&self.lake, asked, kept, options, metrics, runtime, told);
        let end = match done {
            // There is no lake before its first table.
            Ok(()) | Err(MaintenanceRequestError::Lake(InspectError::NoLake(_))) => MaintenanceLine::End { done: true },
            Err(error) => MaintenanceLine::Failed {
                failed: error.to_string(),
            },
        };
        // The client may be gone.
        let _ = sender.send(end);
    }
}
