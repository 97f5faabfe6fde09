//! The durable queues as an end of flows: the input and the output `queue`, the buffer `queue` between a flow's input and its
//! processors, the webhook to which dead letters are posted, and what is counted of queues.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buffer;
mod input;
mod metrics;
mod names;
mod output;
mod webhook;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use thalweg_config::Diagnostics;
use thalweg_flow::ComponentRegistry;
use thalweg_queue::Queues;
use thalweg_queue::settings::QueuesSettings;

pub use metrics::register_metrics;
use names::QueueReference;
pub use webhook::{DeadLetterText, Webhooks};

/// The queues of the process, which are opened after its configuration was read.
#[derive(Default)]
pub struct SharedQueues {
    wanted: AtomicBool,
    /// Buffers of flows: queue and flow.
    buffers: Mutex<Vec<(String, String)>>,
    /// Queues that inputs and outputs name.
    used: Mutex<Vec<QueueReference>>,
    opened: OnceLock<Queues>,
}

impl SharedQueues {
    /// Something has use for queues, or for the log that they stand on.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// From now on the components use them. Of several the first stay.
    pub fn open(&self, queues: Queues) {
        let _ = self.opened.set(queues);
    }

    pub fn queues(&self) -> Option<Queues> {
        self.opened.get().cloned()
    }

    /// Whether the queues that the flows use are those that the file declares; mistakes go to the diagnostics.
    pub fn check_names(&self, declared: &QueuesSettings, diagnostics: &Diagnostics) {
        names::check(&self.used.lock(), declared, diagnostics);
    }

    /// A flow has this queue for itself; the flow that has it already, if one does.
    pub(crate) fn claim_buffer(&self, queue: &str, flow: &str) -> Option<String> {
        let mut buffers = self.buffers.lock();
        if let Some((_, other)) = buffers.iter().find(|(name, _)| name == queue) {
            return Some(other.clone());
        }
        buffers.push((queue.to_owned(), flow.to_owned()));
        None
    }

    /// A resource is read as often as it is named, and counts once.
    pub(crate) fn uses(&self, used: QueueReference) {
        let mut all = self.used.lock();
        if !all.contains(&used) {
            all.push(used);
        }
    }
}

/// Names the components.
pub fn register(registry: &mut ComponentRegistry, store: &Arc<SharedQueues>) {
    buffer::register(registry, store.clone());
    input::register(registry, store.clone());
    output::register(registry, store.clone());
}
