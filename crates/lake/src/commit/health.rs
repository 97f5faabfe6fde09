//! What prevents a table from accepting rows, and whether retries are still useful.
//!
//! Each component of a table has its own trouble, which begins with a fault and ends with the first success after it.
//! Its age is therefore the length of the outage: two short faults with a success between them never count as one long
//! fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_kit::clock;

/// A component that can be in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthComponent {
    /// The log from which rows are read.
    Log,
    /// The store of files and commits.
    Store,
    /// The writer has ended, which is permanent.
    Writer,
}

const PARTS: usize = 3;

#[derive(Default)]
pub(crate) struct TableHealth {
    /// By component: a sentence about the trouble, and its beginning.
    troubles: Mutex<[Option<(String, Instant)>; PARTS]>,
    abandoned: AtomicBool,
    /// How long faults are retried; `None`: until the writer is abandoned.
    patience: Option<Duration>,
}

impl TableHealth {
    pub fn with_patience(patience: Duration) -> TableHealth {
        TableHealth {
            patience: Some(patience),
            ..TableHealth::default()
        }
    }

    /// Whether the store's trouble has exceeded the patience.
    pub fn has_lost_patience(&self) -> bool {
        let since = self.with(HealthComponent::Store, |trouble| {
            trouble.as_ref().map(|(_, since)| *since)
        });
        since
            .zip(self.patience)
            .is_some_and(|(since, patience)| since.elapsed() > patience)
    }

    /// Returns whether the trouble is new.
    pub fn set_trouble(&self, of: HealthComponent, text: &str) -> bool {
        self.with(of, |trouble| {
            if trouble.as_ref().is_some_and(|(known, _)| known == text) {
                return false;
            }
            let since = trouble.as_ref().map_or_else(clock::now, |(_, since)| *since);
            *trouble = Some((text.to_owned(), since));
            true
        })
    }

    /// Records a success. Returns whether there was trouble.
    pub fn clear_trouble(&self, of: HealthComponent) -> bool {
        self.with(of, |trouble| trouble.take().is_some())
    }

    /// The permanent trouble, else the longest one, with its age.
    pub fn trouble(&self) -> Option<(String, Duration)> {
        let [log, store, writer] = &*self.troubles.lock();
        let passing = [log, store].into_iter().flatten().min_by_key(|(_, since)| *since);
        let worst = writer.as_ref().or(passing);
        worst.map(|(text, since)| (text.clone(), since.elapsed()))
    }

    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    fn with<T>(&self, of: HealthComponent, look: impl FnOnce(&mut Option<(String, Instant)>) -> T) -> T {
        let mut troubles = self.troubles.lock();
        let [log, store, writer] = &mut *troubles;
        look(match of {
            HealthComponent::Log => log,
            HealthComponent::Store => store,
            HealthComponent::Writer => writer,
        })
    }
}

#[cfg(test)]
mod tests {
    use thalweg_kit::threads;

    use super::*;

    #[test]
    fn a_trouble_is_as_old_as_its_part_is_away() {
        let health = TableHealth::with_patience(Duration::ZERO);
        assert!(health.set_trouble(HealthComponent::Store, "the disk is full"));
        assert!(
            !health.set_trouble(HealthComponent::Store, "the disk is full"),
            "it was said"
        );
        let since = || {
            health.with(HealthComponent::Store, |trouble| {
                trouble.as_ref().map(|(_, since)| *since)
            })
        };
        let first = since();
        assert!(health.set_trouble(HealthComponent::Store, "it cannot be written"));
        assert_eq!(since(), first, "another fault of the same outage");
        threads::sleep(Duration::from_millis(2));
        assert!(health.has_lost_patience());
        assert!(health.clear_trouble(HealthComponent::Store) && !health.clear_trouble(HealthComponent::Store));
        assert!(!health.has_lost_patience());
        health.set_trouble(HealthComponent::Store, "the disk is full");
        assert_ne!(since(), first, "work lies between the two");
    }

    #[test]
    fn parts_do_not_hide_each_other() {
        let health = TableHealth::default();
        health.set_trouble(HealthComponent::Log, "the log cannot be read");
        threads::sleep(Duration::from_millis(2));
        health.set_trouble(HealthComponent::Store, "the disk is full");
        assert_eq!(health.trouble().unwrap().0, "the log cannot be read", "it is older");
        health.clear_trouble(HealthComponent::Log);
        assert_eq!(health.trouble().unwrap().0, "the disk is full");
        health.set_trouble(HealthComponent::Writer, "it has ended");
        assert_eq!(health.trouble().unwrap().0, "it has ended", "it is for good");
        health.clear_trouble(HealthComponent::Store);
        assert_eq!(health.trouble().unwrap().0, "it has ended");
        assert!(!health.has_lost_patience(), "without a limit it waits for ever");
    }
}
