//! Ends of a process, damage to files, and the next start.

use std::sync::Arc;

use super::world::{DISK_BYTES, World, options, queue_settings};
use crate::support::{HOUR, Machine, SECOND, files_of};
use thalweg_log::Micros;
use thalweg_log::disk::Disk;
use thalweg_log::disk::sim::SimDisk;
use thalweg_queue::settings::{GroupMode, GroupSettings};
use thalweg_queue::{Clock, Pause, QueueError};

impl World {
    pub async fn end_process(&mut self, clean: bool) {
        self.happened(("process ends", clean));
        let machine = self.machine.take().unwrap();
        let before = Stopped::of(&machine);
        if clean {
            machine.place.stop().await;
        } else {
            self.disk.kill();
            machine.place.kill();
        }
        self.start_again(before).await;
    }

    /// The power fails soon, while some calls are in progress.
    pub async fn power_goes(&mut self) {
        self.happened("power goes");
        self.disk.cut_power_in(self.random.below(30));
        for _ in 0..self.random.below(6) {
            match self.random.below(6) {
                0 | 1 => self.produce().await,
                2 => self.claim().await,
                3 => self.settle().await,
                4 => self.settle_read().await,
                _ => self.purge().await,
            }
        }
        self.disk.power_cut();
        let machine = self.machine.take().unwrap();
        let before = Stopped::of(&machine);
        machine.place.kill();
        self.disk.power_cut();
        self.start_again(before).await;
    }

    /// The wall clock continued, or is found in 1970.
    pub async fn start_again(&mut self, before: Stopped) {
        let wall = match self.random.below(6) {
            0 if self.events.ends => {
                self.counts.booted_in_1970 += 1;
                20 * SECOND
            }
            1 => before.wall + HOUR,
            2 | 3 => before.wall + 3 * SECOND,
            _ => before.wall,
        };
        self.happened(("boots after", wall - before.wall));
        let machine = Machine::boot_on(Arc::new(self.disk.clone()), options(), wall)
            .await
            .unwrap();
        self.held.clear();
        self.counts.ended += 1;
        self.goes_on(machine, before);
    }

    /// Log time advances by the length of the stop as the wall clock shows it. If it shows less, only time during which
    /// nothing was stored is lost.
    fn goes_on(&mut self, machine: Machine, before: Stopped) {
        self.happened(("the clock was set", machine.place.clock.jumps()));
        let (now, took) = (machine.now(), machine.wall() - before.shown);
        match took >= 0 {
            true => assert_eq!(now, before.now + took, "a stop takes what the wall clock says"),
            false => assert!(
                (self.stored_at..=before.now).contains(&now),
                "a stop takes nothing: {now} is not from {} to {}",
                self.stored_at,
                before.now
            ),
        }
        self.expected_now = now;
        self.machine = Some(machine);
        self.see_the_time();
    }

    /// Damages one file: truncated, filled with zeros or removed.
    pub async fn damage(&mut self) {
        self.happened("damage");
        self.disk.kill();
        let machine = self.machine.take().unwrap();
        let before = Stopped::of(&machine);
        machine.place.kill();
        let mut files = files_of(&self.disk);
        let names: Vec<String> = files.keys().filter(|name| name.ends_with(".log")).cloned().collect();
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        match self.random.below(3) {
            0 => drop(files.remove(&name)),
            1 => files.entry(name).or_default().fill(0),
            _ => files.entry(name).or_default().clear(),
        }
        self.disk = SimDisk::new(self.random.below(u64::MAX), DISK_BYTES);
        for (name, bytes) in &files {
            let file = self.disk.create(name).unwrap();
            file.write_at(bytes, 0).unwrap();
            file.sync().unwrap();
        }
        self.disk.sync_names().unwrap();
        let machine = Machine::boot_skipping(Arc::new(self.disk.clone()), options(), before.wall).await;
        self.model.damaged();
        self.ids.damaged();
        self.counts.damaged += 1;
        self.held.clear();
        self.read.clear();
        self.happened(("of the clock is left", machine.now(), machine.place.clock.jumps()));
        self.expected_now = machine.now();
        self.stored_at = self.expected_now;
        self.repair_queues(&machine).await;
        self.machine = Some(machine);
        self.see_the_time();
    }

    /// Whatever is left, an operator continues with queues of these names.
    async fn repair_queues(&self, machine: &Machine) {
        let queues = &machine.place.queues;
        for queue in queues.all() {
            if !["q", "dlq.q"].contains(&queue.name().as_str()) {
                queues.remove(queue.name(), true).await.unwrap();
            }
        }
        match queues.create("q", queue_settings(self.rules)).await {
            Ok(_) | Err(QueueError::QueueExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        queues.configure("q", queue_settings(self.rules)).await.unwrap();
        let queue = machine.place.queue();
        for (group, mode) in [("g", GroupMode::Work), ("s", GroupMode::Stream)] {
            queues
                .join_group(&queue, GroupSettings::new(group, mode))
                .await
                .unwrap();
        }
        queues.pause(&queue, Pause::Both, false).await.unwrap();
    }
}

/// The clocks at the end of a process.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    now: Micros,
    wall: Micros,
    /// The wall clock as the log knows it: it may be off by less than a second.
    shown: Micros,
}

impl Stopped {
    pub fn of(machine: &Machine) -> Stopped {
        let now = machine.now();
        Stopped {
            now,
            wall: machine.wall(),
            shown: machine.place.clock.wall_at(now),
        }
    }
}
