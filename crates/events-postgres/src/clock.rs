//! The time by which leases and retention are counted: that of the database, so that all servers count alike, whatever their own
//! clocks show. Asked every few seconds; in between, what has passed on a monotonic clock is added.

use std::sync::Weak;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use thalweg_events::Result;
use thalweg_log::Micros;
use thalweg_log::clock::{Clock, MachineTime, TimeSource as _};

use crate::columns::get;
use crate::connection_pool::PooledConnection;
use crate::store::StoreCore;

const EVERY: Duration = Duration::from_secs(10);
/// A database whose clock is off by more than the network explains was set.
const JUMP_LEAST: Micros = 5_000_000;

#[derive(Default)]
pub(crate) struct DatabaseClock {
    /// The time of the database less what has elapsed here.
    base: AtomicI64,
    machine: MachineTime,
}

impl Clock for DatabaseClock {
    fn now(&self) -> Micros {
        self.machine.elapsed() + self.base.load(Ordering::Relaxed)
    }
}

impl DatabaseClock {
    /// Asks the database. What is told from then on is never later than the database's own time.
    pub async fn ask(&self, link: &mut PooledConnection) -> Result<()> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = link.query(sql, &[]).await?;
        if let Some(row) = rows.first() {
            let base = get::<Micros>(row, 0)? - self.machine.elapsed();
            let before = self.base.swap(base, Ordering::Relaxed);
            if before != 0 && before.abs_diff(base) > JUMP_LEAST.unsigned_abs() {
                tracing::warn!(
                    seconds = (base - before) / 1_000_000,
                    "the clock of the database was set: leases and what is kept for a time go by its new time"
                );
            }
        }
        Ok(())
    }
}

/// Works until the store is dropped.
pub(crate) async fn follow(core: Weak<StoreCore>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(core) = core.upgrade() else { return };
        let asked = async { core.links.clock.ask(&mut core.links.lend().await?).await };
        if let Err(error) = asked.await {
            tracing::debug!(%error, "the database was not asked for its time");
        }
    }
}
