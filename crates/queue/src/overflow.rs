//! Overflow `drop-oldest`: room is made by what nobody has, the oldest first.
//!
//! A limit of number is lifted by the groups whose backlogs are the depth, the work groups or else the declared streams:
//! each that is over it drops its own oldest messages. A stream passes over them: it is told of the gap when it comes there,
//! and what else keeps them, such as an age in mode `policy`, goes on keeping them. Only where no backlog is the depth, but
//! what is kept, the oldest that is kept goes.
//!
//! A limit of bytes is lifted by what can be let go, and that is only the oldest of a partition, once no group needs it:
//! where a consumer has it, or a stream beside work groups has yet to read it, dropping would free nothing, so nothing is
//! dropped. In a queue without work groups the oldest that is kept goes, also before a stream has read it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_log::{Micros, Offset};

use crate::admission::{MAX_DEPTH, Wanted};
use crate::group::Group;
use crate::machine::{Passed, Passing, Reason};
use crate::part::{Inner, State};
use crate::queue::Queue;
use crate::settings::RetentionMode;
use crate::store::Next;

/// What became of a message that was to be dropped.
enum Drop {
    Done,
    /// It has to leave for the dead letters.
    Leaving,
    /// It has to be read first: it may not be for the group.
    Load(Offset),
    Nothing,
}

/// Partitions by the time of the oldest message that they could drop.
type Oldest = BinaryHeap<Reverse<(Micros, u32)>>;

impl Queue {
    /// Makes room for so much more by dropping the oldest messages that nobody has. False, and nothing more to hope for, if
    /// that is not enough.
    pub(crate) async fn make_room(self: &Arc<Queue>, wanted: Wanted) -> bool {
        // One at a time: what leaves for the dead letters counts until it is there, and must not be made up for twice.
        let _making = self.making_room.lock().await;
        let over = self.admission.lock().limit(wanted);
        let Wanted { count, bytes } = wanted;
        let settings = self.settings();
        match over {
            None => true,
            Some((MAX_DEPTH, most)) if count > most => false,
            Some((MAX_DEPTH, most)) => self.make_room_in_depth(count, most).await,
            Some(_) if settings.max_bytes > 0 && bytes > settings.max_bytes => false,
            Some(_) => self.make_room_in_bytes(wanted).await,
        }
    }

    async fn make_room_in_depth(self: &Arc<Queue>, count: u64, most: u64) -> bool {
        let groups = self.counted_groups();
        if groups.is_empty() {
            let over = (self.depth() + count).saturating_sub(most);
            let mut oldest = self.oldest_kept();
            let mut dropped = 0;
            while dropped < over && self.drop_kept(&mut oldest, &groups).await {
                dropped += 1;
            }
            return dropped == over;
        }
        let over = |group: &Arc<Group>| (group.backlog() + count).saturating_sub(most);
        if groups.iter().any(|group| group.unleased() < over(group)) {
            return false;
        }
        let mut enough = true;
        for group in &groups {
            let over = over(group);
            enough &= over == 0 || self.drop_oldest(group, over).await == over;
        }
        self.trim_soon();
        enough
    }

    async fn make_room_in_bytes(self: &Arc<Queue>, wanted: Wanted) -> bool {
        self.trim();
        let groups = self.work_groups();
        let mut oldest = self.oldest_kept();
        while self.admission.lock().limit(wanted).is_some() {
            if !self.drop_kept(&mut oldest, &groups).await {
                return false;
            }
        }
        true
    }

    /// The groups of whose backlogs the largest is the depth, if one is; see [`crate::admission::Admission::depth`].
    fn counted_groups(&self) -> Vec<Arc<Group>> {
        let work = self.work_groups();
        if !work.is_empty() {
            return work;
        }
        let mut streams = self.groups();
        streams.retain(|group| group.is_declared());
        streams
    }

    fn work_groups(&self) -> Vec<Arc<Group>> {
        let mut groups = self.groups();
        groups.retain(|group| group.is_work());
        groups
    }

    fn overflow_to_dlq(&self) -> bool {
        let dlq = &self.settings_now().dlq;
        dlq.enabled && dlq.on_overflow
    }
}

/// Of one group.
impl Queue {
    /// Drops so many of the oldest messages that no consumer of the group has. Returns how many are gone.
    async fn drop_oldest(self: &Arc<Queue>, group: &Arc<Group>, count: u64) -> u64 {
        let to_dlq = self.overflow_to_dlq();
        let mut oldest: Oldest = group
            .parts()
            .filter_map(|(partition, _)| self.oldest_unleased(group, partition))
            .collect();
        let (mut gone, mut leaving) = (0, Vec::new());
        while gone + (leaving.len() as u64) < count
            && let Some(Reverse((_, partition))) = oldest.pop()
        {
            match self.drop_one(group, partition, None, to_dlq) {
                Drop::Done => gone += 1,
                Drop::Leaving => leaving.push(partition),
                Drop::Nothing => continue,
                Drop::Load(from) if self.load_to_drop(group, partition, from).await => {}
                Drop::Load(_) => continue,
            }
            oldest.extend(self.oldest_unleased(group, partition));
        }
        gone + self.moved_out(group, leaving).await
    }

    /// Moves what has to leave out. Returns how much is gone then, as far as it was to.
    async fn moved_out(self: &Arc<Queue>, group: &Arc<Group>, leaving: Vec<u32>) -> u64 {
        if leaving.is_empty() {
            return 0;
        }
        let (before, wanted) = (group.backlog_settled(), leaving.len() as u64);
        let mut partitions = leaving;
        partitions.sort_unstable();
        partitions.dedup();
        for partition in partitions {
            self.move_out(group, partition).await;
        }
        u64::try_from(group.backlog_settled() - before).map_or(0, |gone| gone.min(wanted))
    }

    fn oldest_unleased(&self, group: &Group, partition: u32) -> Option<Reverse<(Micros, u32)>> {
        let (part, store) = (group.part(partition)?, self.store(partition)?);
        let offset = match &mut part.inner.lock().state {
            State::Work(machine) => {
                let at_cursor = Some(machine.cursor()).filter(|cursor| store.next().is_ok_and(|next| *cursor < next));
                machine.oldest_unleased().into_iter().chain(at_cursor).min()?
            }
            State::Stream(machine) => Some(machine.needed()).filter(|at| store.next().is_ok_and(|next| *at < next))?,
        };
        // What has no time any more goes first.
        Some(Reverse((store.time_of(offset).unwrap_or_default(), partition)))
    }

    /// Drops a message that no consumer of the group has: the one at an offset, or the oldest of a partition.
    fn drop_one(&self, group: &Group, partition: u32, wanted: Option<Offset>, to_dlq: bool) -> Drop {
        let now = self.clock.now();
        let (Some(part), Some(store)) = (group.part(partition), self.store(partition)) else {
            return Drop::Nothing;
        };
        let mut inner = part.inner.lock();
        let Inner { state, cursor, .. } = &mut *inner;
        let machine = match state {
            State::Work(machine) => machine,
            State::Stream(machine) => {
                // It may have committed that meanwhile.
                if !store.next().is_ok_and(|next| machine.needed() < next) {
                    return Drop::Nothing;
                }
                machine.begins_at(machine.needed() + 1);
                let _ = self.after(group, partition, part, &mut inner, now);
                self.count_dropped(group, 1);
                return Drop::Done;
            }
        };
        if wanted.is_some_and(|offset| machine.is_settled(offset)) {
            return Drop::Done;
        }
        let passed = wanted.or_else(|| machine.oldest_unleased());
        let at = wanted.unwrap_or(machine.cursor());
        let dropped = match passed.filter(|offset| *offset < machine.cursor()) {
            Some(offset) => machine.drop_at(offset, to_dlq, now),
            None => match store.at(cursor, at) {
                Ok(Next::Message(message, hint)) if wanted.is_none_or(|offset| offset == message.offset) => {
                    let passing = message.passing(group.name(), group.settings.filter.as_deref(), hint);
                    match passing.skip {
                        true => machine.walk(&passing, now),
                        false => machine.discard(&passing, to_dlq, now) == Passed::Taken,
                    }
                }
                Ok(Next::Load) if to_dlq => return Drop::Load(at),
                Ok(Next::Gap { to, lost }) if wanted.is_none() => machine.pass_gap(to, lost, now) > at,
                Ok(Next::End) | Err(_) if wanted.is_none() => machine.drop_oldest(to_dlq, now).is_some(),
                // Not read, or compaction has left nothing there.
                _ => machine.discard(&Passing::unread(at), false, now) == Passed::Taken,
            },
        };
        let leaving = to_dlq && machine.has_ending();
        let _ = self.after(group, partition, part, &mut inner, now);
        match (dropped, leaving) {
            (false, _) => Drop::Nothing,
            (true, true) => Drop::Leaving,
            (true, false) => {
                self.count_dropped(group, 1);
                Drop::Done
            }
        }
    }

    /// Reads what is to leave for the dead letters. Whether that went well.
    async fn load_to_drop(self: &Arc<Queue>, group: &Arc<Group>, partition: u32, from: Offset) -> bool {
        let loaded = self.load(group, partition, from).await;
        if let Err(error) = &loaded {
            tracing::warn!(queue = %self.name(), partition, from, %error, "what is to be dropped cannot be read");
        }
        loaded.is_ok()
    }

    fn count_dropped(&self, group: &Group, count: u64) {
        group.counters.dropped.fetch_add(count, Ordering::Relaxed);
        self.counters.dropped.add(Reason::Overflow, count);
    }
}

/// Of what is kept, for all groups.
impl Queue {
    /// Partitions by their oldest messages.
    fn oldest_kept(&self) -> Oldest {
        let partitions = 0..self.partition_count();
        partitions.filter_map(|partition| self.oldest_of(partition)).collect()
    }

    fn oldest_of(&self, partition: u32) -> Option<Reverse<(Micros, u32)>> {
        let store = self.store(partition)?;
        let span = store.span_at(store.first().ok()?).ok()??;
        Some(Reverse((span.time, partition)))
    }

    /// Drops the oldest message of the partition that has the oldest, for all groups, and lets it go. False if there is no
    /// such message.
    async fn drop_kept(self: &Arc<Queue>, oldest: &mut Oldest, groups: &[Arc<Group>]) -> bool {
        while let Some(Reverse((_, partition))) = oldest.pop() {
            if self.drop_first(partition, groups).await {
                oldest.extend(self.oldest_of(partition));
                return true;
            }
        }
        false
    }

    async fn drop_first(self: &Arc<Queue>, partition: u32, groups: &[Arc<Group>]) -> bool {
        let Some(store) = self.store(partition) else {
            return false;
        };
        let (Ok(first), Ok(next)) = (store.first(), store.next()) else {
            return false;
        };
        let needed = |group: &Arc<Group>| match group.is_work() {
            true => !self.could_drop(group, partition, first),
            false => group.part(partition).is_some_and(|part| part.wants() <= first),
        };
        let streams_count = {
            let retention = &self.settings_now().retention;
            !groups.is_empty() && (retention.mode == RetentionMode::Settled || retention.protect_streams)
        };
        let all = self.groups();
        let mut asked = all.iter().filter(|group| group.is_work() || streams_count);
        if first >= next || asked.any(needed) {
            return false;
        }
        for group in groups {
            if !self.drop_at(group, partition, first).await {
                return false;
            }
        }
        if groups.is_empty() {
            self.counters.dropped.add(Reason::Overflow, 1);
        }
        self.trim_store(partition, first + 1);
        true
    }

    fn is_settled(&self, group: &Group, partition: u32, offset: Offset) -> bool {
        let state = group.part(partition).map(|part| part.inner.lock());
        matches!(state.as_deref(), Some(Inner { state: State::Work(machine), .. }) if machine.is_settled(offset))
    }

    /// Whether a message is settled, or could be dropped because no consumer of the group has it.
    fn could_drop(&self, group: &Group, partition: u32, offset: Offset) -> bool {
        match group.part(partition).map(|part| part.inner.lock()).as_deref() {
            Some(Inner {
                state: State::Work(machine),
                ..
            }) => machine.can_drop(offset),
            _ => false,
        }
    }

    /// Drops the first message of a partition for a group, if it has not settled it. Whether it is settled then.
    async fn drop_at(self: &Arc<Queue>, group: &Arc<Group>, partition: u32, offset: Offset) -> bool {
        let to_dlq = self.overflow_to_dlq();
        loop {
            match self.drop_one(group, partition, Some(offset), to_dlq) {
                Drop::Done => return true,
                Drop::Leaving => {
                    self.move_out(group, partition).await;
                    return self.is_settled(group, partition, offset);
                }
                Drop::Load(from) if self.load_to_drop(group, partition, from).await => {}
                Drop::Load(_) | Drop::Nothing => return false,
            }
        }
    }
}

impl Group {
    /// Messages that no consumer has and that are not on their way out.
    fn unleased(&self) -> u64 {
        let taken = self.parts().map(|(_, part)| match &part.inner.lock().state {
            State::Work(machine) => {
                let counts = machine.counts();
                counts.leased + counts.ending
            }
            State::Stream(_) => 0,
        });
        self.backlog().saturating_sub(taken.sum())
    }
}
