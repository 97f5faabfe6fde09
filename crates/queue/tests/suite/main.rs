//! Queues on a real log, through the public API: what a user sees, before and after a restart. One test binary, because
//! each one costs a link.

#![allow(clippy::unwrap_used)]

mod beside;
mod catalog_damage;
mod changes;
mod clock;
mod clock_jumps;
mod compaction;
mod damage;
mod dedup;
mod disk_reads;
mod disks;
mod expiry;
mod freed;
mod full_disk;
mod histories;
mod leaving;
mod leftovers;
mod letters;
mod line;
mod meanwhile;
mod memory;
mod moved;
mod overflow;
mod own_times;
mod queue;
mod receipts;
mod resend;
mod retention;
mod room;
mod sleep;
mod state_memory;
mod stored;
mod streams;
mod support;
mod waiting;
