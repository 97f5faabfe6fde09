//! The snapshot for `/sim/stats`. It settles the accounting under each session's lock first, so that values drained by
//! the library count as published.

use thalweg_kit::clock;

use super::{Ticker, Totals};
use crate::space::Group;
use crate::{GroupStats, SimulatorStats, StatsByGroup, ValueCounts};

impl Ticker {
    pub(super) fn report(&mut self) -> SimulatorStats {
        self.settle();
        let groups = StatsByGroup {
            slow: self.group(Group::Slow),
            fast: self.group(Group::Fast),
            types: self.group(Group::Types),
            fixed: self.group(Group::Fixed),
        };
        let mut total = ValueCounts::default();
        for (_, group) in groups.all() {
            total.add(group.counts);
        }
        let (subscriptions, monitored_items) = self.homes.count();
        SimulatorStats {
            uptime_seconds: self.space.start().instant().elapsed().as_secs_f64(),
            seed: self.seed,
            sessions: self.homes.sessions_alive() as u64,
            subscriptions: subscriptions as u64,
            monitored_items: monitored_items as u64,
            groups,
            total,
            front: None,
        }
    }

    fn settle(&mut self) {
        let (homes, totals) = (&self.homes, &mut self.totals);
        self.subscriptions.retain(|id, watched| {
            let home = homes.find(*id, &mut watched.session);
            match home {
                Some(home) => home.with(|queues| watched.ledger.settle(queues, totals)),
                None => std::mem::take(&mut watched.ledger).close(totals),
            }
            !watched.ledger.is_empty()
        });
    }

    fn group(&self, group: Group) -> GroupStats {
        let nodes = u64::from(self.space.nodes(group));
        let clock = self.space.clock(group);
        let counter = clock.map_or(0, |clock| clock.changes());
        let ledgers = || self.subscriptions.values().map(|watched| &watched.ledger);
        let Totals {
            queued,
            published,
            lost_overflow,
            discarded,
        } = self.totals[group as usize];
        GroupStats {
            nodes,
            period_seconds: clock.map_or(0.0, |clock| clock.period_seconds()),
            counter,
            behind_seconds: clock.filter(|_| !self.space.is_held()).map_or(0.0, |clock| {
                let next = clock.instant(self.space.start(), counter + 1);
                clock::now().saturating_duration_since(next).as_secs_f64()
            }),
            late_changes: self.late_changes.get(group as usize).copied().unwrap_or(0),
            monitored_items: ledgers().map(|ledger| ledger.len(group) as u64).sum(),
            uncounted_items: ledgers().map(|ledger| ledger.uncounted(group) as u64).sum(),
            counts: ValueCounts {
                generated: nodes * counter,
                queued,
                published,
                pending: ledgers().map(|ledger| ledger.pending(group)).sum(),
                lost_overflow,
                discarded,
            },
        }
    }
}
