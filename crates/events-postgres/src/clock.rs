//! The clock for leases and retention is the database's, so that all servers agree whatever their own clocks show. It
//! is queried every few seconds; in between, a monotonic clock extrapolates it.

use std::sync::Weak;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use thalweg_events::Result;
use thalweg_kit::clock::{Clock, MachineTime, TimeSource as _};
use thalweg_kit::time::Micros;

use crate::columns::get;
use crate::connection_pool::PooledConnection;
use crate::store::StoreCore;

const EVERY: Duration = Duration::from_secs(10);
/// A larger deviation than the network explains means that the database's clock was set.
const JUMP_LEAST: Micros = 5_000_000;

#[derive(Default)]
pub(crate) struct DatabaseClock {
    /// The time of the database minus the elapsed time here.
    base: AtomicI64,
    machine: MachineTime,
}

impl Clock for DatabaseClock {
    fn now(&self) -> Micros {
        self.machine.elapsed() + self.base.load(Ordering::Relaxed)
    }
}

impl DatabaseClock {
    /// Queries the database. Later readings are never ahead of the database's own time.
    pub async fn ask(&self, link: &mut PooledConnection) -> Result<()> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = link.query(sql, &[]).await?;
        if let Some(row) = rows.first() {
            let base = get::<Micros>(row, 0)? - self.machine.elapsed();
            let before = self.base.swap(base, Ordering::Relaxed);
            if before != 0 && before.abs_diff(base) > JUMP_LEAST.unsigned_abs() {
                tracing::warn!(
                    seconds = (base - before) / 1_000_000,
                    "the clock of the database was set: leases and retention follow its new time"
                );
            }
        }
        Ok(())
    }
}

/// Runs until the store is dropped.
pub(crate) async fn follow(core: Weak<StoreCore>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(core) = core.upgrade() else { return };
        let asked = async { core.links.clock.ask(&mut core.links.lend().await?).await };
        if let Err(error) = asked.await {
            tracing::debug!(%error, "the clock of the database could not be read");
        }
    }
}
