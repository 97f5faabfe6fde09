//! Connects flows to durable queues: the input and the output `queue`, the buffer `queue` between input and processors,
//! the webhook for dead letters, and the metrics of queues.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

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

pub use metrics::{METRICS, register_metrics};
use names::QueueReference;
pub use webhook::{DeadLetterText, Webhooks};

/// The queues of the process, which are opened after the configuration was read.
#[derive(Default)]
pub struct SharedQueues {
    wanted: AtomicBool,
    /// Queue and flow of each buffer.
    buffers: Mutex<Vec<(String, String)>>,
    /// Queues that inputs and outputs name.
    used: Mutex<Vec<QueueReference>>,
    opened: OnceLock<Queues>,
}

impl SharedQueues {
    /// Declares that a component needs queues or the log below them.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Makes the queues available to components. Later calls have no effect.
    pub fn open(&self, queues: Queues) {
        let _ = self.opened.set(queues);
    }

    pub fn queues(&self) -> Option<Queues> {
        self.opened.get().cloned()
    }

    /// Checks that the queues used by flows are declared in the file; mistakes go to the diagnostics.
    pub fn check_names(&self, declared: &QueuesSettings, diagnostics: &Diagnostics) {
        names::check(&self.used.lock(), declared, diagnostics);
    }

    /// Reserves a queue for one flow. Returns the flow that already has it, if there is one.
    pub(crate) fn claim_buffer(&self, queue: &str, flow: &str) -> Option<String> {
        let mut buffers = self.buffers.lock();
        if let Some((_, other)) = buffers.iter().find(|(name, _)| name == queue) {
            return Some(other.clone());
        }
        buffers.push((queue.to_owned(), flow.to_owned()));
        None
    }

    /// Records a reference once. A resource is parsed each time it is named.
    pub(crate) fn uses(&self, used: QueueReference) {
        let mut all = self.used.lock();
        if !all.contains(&used) {
            all.push(used);
        }
    }
}

/// Registers the components.
pub fn register(registry: &mut ComponentRegistry, store: &Arc<SharedQueues>) {
    buffer::register(registry, store.clone());
    input::register(registry, store.clone());
    output::register(registry, store.clone());
}
