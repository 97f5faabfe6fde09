//! Random operations on machine and model at once, from one seed; every answer, count and order is compared.

use thalweg_log::{Micros, Offset};

use super::model::{At, Model};
use crate::machine::*;

pub const CONSUMERS: u32 = 3;
const SECOND: Micros = 1_000_000;

/// Small and good enough; the tests must not depend on a library's generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

pub fn seeds() -> u64 {
    std::env::var("THALWEG_SIM_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(60)
}

/// Runs `scenario` with many seeds and names the one that fails.
pub fn for_seeds(scenario: impl Fn(u64)) {
    let only = std::env::var("THALWEG_SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..seeds(), |seed: u64| seed..seed + 1) {
        let told = Told(seed);
        scenario(seed);
        std::mem::forget(told);
    }
}

struct Told(u64);

impl Drop for Told {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        eprintln!("failed with THALWEG_SIM_SEED={}", self.0);
    }
}

pub fn random_policy(random: &mut Random) -> DeliveryPolicy {
    let initial = [0, 700, SECOND, 5 * SECOND][random.below(4) as usize];
    DeliveryPolicy {
        ordering: [
            LaneOrdering::None,
            LaneOrdering::Partition,
            LaneOrdering::Partition,
            LaneOrdering::Strict,
        ][random.below(4) as usize],
        lane_window: 1 + random.below(4) as u16,
        max_pending: [1, 3, 8, 20, 64][random.below(5) as usize],
        max_held: [0, 2, 10, 1000][random.below(4) as usize],
        max_retries: random.below(5) as u32,
        backoff: Backoff {
            initial,
            max: initial * 6,
            multiplier: 2.0,
            jitter: 0.0,
            seed: 7,
        },
        total_timeout: [0, 20 * SECOND, 100 * SECOND][random.below(3) as usize],
        sleep_after: [SECOND, 6 * SECOND, 60 * SECOND][random.below(3) as usize],
    }
}

/// Which rare operations a run has.
#[derive(Clone, Copy)]
pub struct Options {
    pub seek_and_purge: bool,
    pub unsent: bool,
    pub policy_changes: bool,
}

pub struct Driver {
    pub random: Random,
    pub machine: WorkMachine,
    pub model: Model,
    pub now: Micros,
    pub log: Vec<Option<MessageMeta>>,
    pub options: Options,
    receipts: Vec<(Offset, u32)>,
    taken: Vec<Offset>,
    put_off: bool,
}

/// The message at `offset` of the log; `None` where an offset is missing.
fn random_message(random: &mut Random, offset: Offset, now: Micros) -> Option<MessageMeta> {
    if random.chance(12) {
        return None;
    }
    let lane = (!random.chance(5)).then(|| random.below(4) * 0x1_0000_0001 + 1);
    let not_before = random
        .chance(8)
        .then(|| now + random.below(20 * SECOND as u64) as Micros);
    let from = not_before.unwrap_or(now);
    let expires_at = random
        .chance(3)
        .then(|| from + random.below(40 * SECOND as u64) as Micros);
    Some(MessageMeta {
        offset,
        lane,
        expires_at,
        not_before,
        skip: random.chance(12),
        hint: random.below(1000) as u32,
    })
}

impl Driver {
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let policy = random_policy(&mut random);
        let now = random.below(1 << 50) as Micros;
        Driver {
            machine: WorkMachine::new(policy, 0),
            model: Model::new(policy, 0),
            now,
            random,
            log: Vec::new(),
            options,
            receipts: Vec::new(),
            taken: Vec::new(),
            put_off: false,
        }
    }

    pub fn step(&mut self) {
        match self.random.below(100) {
            0..16 => self.time(),
            16..50 => self.claim(),
            50..64 => self.ack(),
            64..70 => self.nack(),
            70..73 => self.reject(),
            73..76 => self.extend(),
            76..82 => self.release(),
            82..92 => self.endings(),
            _ => self.rare(),
        }
        self.machine.shrink();
        self.compare();
    }

    pub fn at_cursor(&mut self) -> Option<MessageMeta> {
        let cursor = self.machine.cursor() as usize;
        while self.log.len() <= cursor + 4 {
            let offset = self.log.len() as Offset;
            let message = random_message(&mut self.random, offset, self.now);
            self.log.push(message);
        }
        self.log[cursor..].iter().find_map(|message| *message)
    }

    fn time(&mut self) {
        self.now += match self.random.below(20) {
            0 => -(self.random.below(3 * SECOND as u64) as Micros),
            1 => 100 * SECOND,
            2 => self.random.below(1 << 42) as Micros,
            3..8 => self.random.below(900) as Micros,
            _ => self.random.below(4 * SECOND as u64) as Micros,
        };
        self.machine.advance(self.now);
        self.model.advance(self.now);
        self.rouse();
    }

    /// Usually wakes every message that is due to be woken; sometimes the log has lost a message.
    pub fn rouse(&mut self) {
        while !self.random.chance(8) {
            let Some(span) = self.machine.to_rouse(self.now) else {
                return;
            };
            assert!(self.model.may_rouse());
            let read = self.log.iter().flatten().copied();
            let mut messages: Vec<MessageMeta> = read.filter(|message| span.contains(&message.offset)).collect();
            if self.random.chance(20) && !messages.is_empty() {
                messages.remove(self.random.below(messages.len() as u64) as usize);
            }
            if self.random.chance(10) {
                self.machine.rouse_at(&span, self.now + SECOND);
                self.put_off = true;
                return;
            }
            self.machine.rouse(span.clone(), &messages, span.end, self.now);
            self.model.rouse(span, &messages, self.now);
        }
    }

    fn claim(&mut self) {
        let consumer = self.random.below(u64::from(CONSUMERS)) as u32;
        let visibility = 1 + self.random.below(8 * SECOND as u64) as Micros;
        for _ in 0..self.random.below(5) {
            let lease = self.machine.next_ready(consumer, visibility, self.now);
            assert_eq!(
                lease,
                self.model.next_ready(consumer, visibility, self.now),
                "next_ready"
            );
            if let Some(lease) = lease {
                self.receipts.push((lease.offset, lease.delivery));
                continue;
            }
            let Some(message) = self.at_cursor() else { continue };
            let passed = self.machine.pass(&message, consumer, visibility, self.now);
            assert_eq!(
                passed,
                self.model.pass(&message, consumer, visibility, self.now),
                "pass {message:?}"
            );
            if let PassOutcome::Leased(lease) = passed {
                self.receipts.push((lease.offset, lease.delivery));
            }
        }
    }

    /// Usually a receipt that was handed out, sometimes an invented one.
    fn receipt(&mut self) -> (Offset, u32) {
        if self.receipts.is_empty() || self.random.chance(20) {
            return (
                self.random.below(self.log.len() as u64 + 3),
                self.random.below(4) as u32,
            );
        }
        let back = self.random.below(self.receipts.len().min(12) as u64) as usize;
        self.receipts[self.receipts.len() - 1 - back]
    }

    fn ack(&mut self) {
        for _ in 0..1 + self.random.below(4) {
            let (offset, delivery) = self.receipt();
            let answer = self.machine.ack(offset, delivery, self.now);
            assert_eq!(
                answer,
                self.model.ack(offset, delivery, self.now),
                "ack {offset}:{delivery}"
            );
        }
    }

    fn nack(&mut self) {
        let (offset, delivery) = self.receipt();
        let delay = self.random.chance(2).then(|| self.random.below(3) as Micros * 1500);
        let answer = self.machine.nack(offset, delivery, delay, self.now);
        assert_eq!(
            answer,
            self.model.nack(offset, delivery, delay, self.now),
            "nack {offset}:{delivery}"
        );
    }

    fn reject(&mut self) {
        let (offset, delivery) = self.receipt();
        let answer = self.machine.reject(offset, delivery);
        assert_eq!(
            answer,
            self.model.reject(offset, delivery),
            "reject {offset}:{delivery}"
        );
    }

    fn extend(&mut self) {
        let (offset, delivery) = self.receipt();
        let visibility = [SECOND, 13 * 3600 * SECOND][self.random.below(2) as usize];
        let answer = self.machine.extend(offset, delivery, visibility, self.now);
        assert_eq!(
            answer,
            self.model.extend(offset, delivery, visibility, self.now),
            "extend {offset}:{delivery}"
        );
    }

    fn release(&mut self) {
        let unsent = self.options.unsent && self.random.chance(2);
        for _ in 0..1 + self.random.below(3) {
            let (offset, delivery) = self.receipt();
            let answer = self.machine.release(offset, delivery, unsent);
            assert_eq!(
                answer,
                self.model.release(offset, delivery, unsent),
                "release {offset}:{delivery} {unsent}"
            );
        }
    }

    fn endings(&mut self) {
        let max = self.random.below(4) as usize;
        let endings = self.machine.take_ending(max);
        assert_eq!(endings, self.model.take_ending(max));
        self.taken.extend(endings.iter().map(|ending| ending.offset));
        while !self.taken.is_empty() && !self.random.chance(3) {
            let at = self.random.below(self.taken.len() as u64) as usize;
            let offset = self.taken.swap_remove(at);
            if self.random.chance(4) {
                let failed = self.machine.move_failed(offset, self.now);
                assert_eq!(failed, self.model.move_failed(offset, self.now), "move_failed {offset}");
            } else {
                let kind = [FinalState::Dead, FinalState::Expired, FinalState::Dropped][self.random.below(3) as usize];
                let ended = self.machine.ended(offset, kind, self.now);
                assert_eq!(ended, self.model.ended(offset, kind, self.now), "ended {offset}");
            }
        }
    }

    fn rare(&mut self) {
        let flag = self.random.chance(2);
        match self.random.below(20) {
            0..4 => assert_eq!(
                self.machine.drop_oldest(flag, self.now),
                self.model.drop_oldest(flag, self.now)
            ),
            4..7 => {
                let Some(message) = self.at_cursor() else { return };
                let passed = self.machine.discard(&message, flag, self.now);
                assert_eq!(passed, self.model.discard(&message, flag, self.now));
            }
            7..12 => {
                let Some(message) = self.at_cursor() else { return };
                assert_eq!(
                    self.machine.pass_unclaimable(&message, self.now),
                    self.model.pass_unclaimable(&message, self.now)
                );
            }
            12..14 => {
                let (offset, _) = self.receipt();
                assert_eq!(
                    self.machine.gone(offset, flag, self.now),
                    self.model.gone(offset, flag, self.now)
                );
            }
            14 => {
                let to = self.machine.cursor() + self.random.below(90);
                self.log.resize((to as usize).max(self.log.len()), None);
                assert_eq!(
                    self.machine.pass_gap(to, flag, self.now),
                    self.model.pass_gap(to, flag, self.now)
                );
            }
            15 if self.options.policy_changes => {
                let policy = DeliveryPolicy {
                    ordering: self.model.policy.ordering,
                    ..random_policy(&mut self.random)
                };
                self.machine.set_policy(policy);
                self.model.set_policy(policy);
            }
            16..18 if self.options.seek_and_purge && flag => {
                let to = self.machine.cursor().saturating_sub(self.random.below(30)) + self.random.below(3);
                assert_eq!(self.machine.seek(to), self.model.seek(to));
            }
            18 if self.options.seek_and_purge && self.random.chance(3) => {
                let known = self.model.messages.last_key_value().map_or(0, |(offset, _)| offset + 1);
                let next = self.machine.cursor().max(known) + self.random.below(5);
                self.log.resize((next as usize).max(self.log.len()), None);
                self.machine.purge(next);
                self.model.purge(next);
            }
            _ => {}
        }
    }

    fn compare(&mut self) {
        let (machine, model) = (&self.machine, &self.model);
        assert_eq!(machine.counts(), model.counts());
        assert_eq!((machine.floor(), machine.cursor()), (model.floor, model.cursor));
        let mut held: Vec<Offset> = machine.held().collect();
        held.sort_unstable();
        assert!(held.iter().eq(&model.held), "held {held:?}");
        for consumer in 0..CONSUMERS {
            assert_eq!(machine.has_ready(consumer), model.has_ready(consumer));
        }
        for offset in model.floor.saturating_sub(40)..model.cursor {
            assert_eq!(machine.is_settled(offset), !model.is_active(offset), "settled {offset}");
        }
        match (machine.next_due(), model.next_timer()) {
            // A span that could not be read is retried later.
            (Some(machine), Some(model)) => assert!(machine <= model || self.put_off, "woken too late"),
            (machine, model) => assert_eq!(machine.is_some(), model.is_some()),
        }
        let active = model
            .messages
            .values()
            .filter(|message| !matches!(message.at, At::Settled(_)))
            .count();
        let known = model.messages.last_key_value().map_or(0, |(offset, _)| offset + 1);
        let next = model.cursor.max(known) + 5;
        assert_eq!(
            machine.backlog(next),
            active as u64 + next - model.cursor - model.ahead()
        );
        assert_eq!(machine.has_ending(), !model.endings_are_empty());
        machine.check();
    }
}
