//! The settings that every claim needs, as plain numbers: reading them costs less than reading the settings.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use thalweg_log::Micros;

use crate::message_times::micros;
use crate::settings::QueueSettings;

#[derive(Debug)]
pub(crate) struct ClaimDefaults {
    visibility: AtomicI64,
    max_in_flight: AtomicU32,
}

impl ClaimDefaults {
    pub fn of(settings: &QueueSettings) -> ClaimDefaults {
        let defaults = ClaimDefaults {
            visibility: AtomicI64::new(0),
            max_in_flight: AtomicU32::new(0),
        };
        defaults.set(settings);
        defaults
    }

    pub fn set(&self, settings: &QueueSettings) {
        self.visibility
            .store(micros(settings.visibility_timeout), Ordering::Relaxed);
        self.max_in_flight.store(settings.max_in_flight, Ordering::Relaxed);
    }

    /// The visibility timeout of a lease.
    pub fn visibility(&self) -> Micros {
        self.visibility.load(Ordering::Relaxed)
    }

    /// The most leases of one consumer.
    pub fn max_in_flight(&self) -> u32 {
        self.max_in_flight.load(Ordering::Relaxed)
    }
}
