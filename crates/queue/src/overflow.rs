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
//!
//! How old messages are, and what they are, may have to be read from a disk, and there may be very many small ones in the place
//! of a large one. So the search runs on a thread for that; it comes back only for what has to be waited for: that messages
//! leave for the dead letters. A queue in memory reads nothing, and its search pauses now and then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_log::{Micros, Offset};

use crate::admission::{AdmissionRequest, MAX_DEPTH};
use crate::group::Group;
use crate::group_partition::{GroupPartitionInner, GroupState};
use crate::machine::{MessageMeta, PassOutcome, RemovalReason};
use crate::queue::Queue;
use crate::settings::RetentionMode;
use crate::store::NextMessage;

/// What became of a message that was to be dropped.
enum DropOutcome {
    Done,
    /// It has to leave for the dead letters.
    Leaving,
    /// It has to be read first: it may not be for the group.
    Load(Offset),
    Nothing,
}

/// Partitions by the time of the oldest message that they could drop.
type PartitionsByAge = BinaryHeap<Reverse<(Micros, u32)>>;

/// A queue in memory drops so many at a time before others get their turn on the thread.
const PIECE: u64 = 256;

/// How much is to go.
#[derive(Clone, Copy)]
enum Goal {
    Messages(u64),
    /// Until this fits in.
    RoomFor(AdmissionRequest),
}

/// A search through what is kept, for all groups.
struct Search {
    goal: Goal,
    oldest: PartitionsByAge,
    groups: Vec<Arc<Group>>,
    dropped: u64,
}

/// Where a search stopped.
enum Stop {
    Reached,
    /// Nothing is left that may go.
    Nothing,
    Pause,
    /// The first message of a partition has to leave a group for the dead letters before it can go.
    Leaving {
        group: Arc<Group>,
        partition: u32,
        offset: Offset,
        time: Micros,
    },
}

/// What became of the first message of a partition.
enum HeadOutcome {
    Gone,
    Stays,
    Leaving(Arc<Group>, Offset),
}

/// The drops of one group.
struct GroupDrops {
    group: Arc<Group>,
    wanted: u64,
    /// What the group had settled before: what leaves for the dead letters may be moved out by somebody else, at once.
    settled_before: i64,
    oldest: PartitionsByAge,
    gone: u64,
    /// Partitions whose messages are to leave for the dead letters, once for each.
    leaving: Vec<u32>,
}

impl GroupDrops {
    fn count(&self) -> u64 {
        self.gone + self.leaving.len() as u64
    }
}

impl Queue {
    /// Makes room for so much more by dropping the oldest messages that nobody has. False, and nothing more to hope for, if
    /// that is not enough.
    pub(crate) async fn make_room(self: &Arc<Queue>, wanted: AdmissionRequest) -> bool {
        // One at a time: what leaves for the dead letters counts until it is there, and must not be made up for twice.
        let _making = self.making_room.lock().await;
        let over = self.admission.lock().limit(wanted);
        let AdmissionRequest { count, bytes } = wanted;
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
            return self.drop_kept(Goal::Messages(over), groups).await;
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

    async fn make_room_in_bytes(self: &Arc<Queue>, wanted: AdmissionRequest) -> bool {
        self.trim_beside().await;
        self.drop_kept(Goal::RoomFor(wanted), self.work_groups()).await
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
        let wanted = GroupDrops {
            group: group.clone(),
            wanted: count,
            settled_before: group.backlog_settled(),
            oldest: PartitionsByAge::new(),
            gone: 0,
            leaving: Vec::new(),
        };
        let begin = move |queue: &Arc<Queue>| {
            let mut drops = wanted;
            let parts = drops.group.parts();
            let oldest = parts.filter_map(|(partition, _)| queue.oldest_unleased(&drops.group, partition));
            drops.oldest = oldest.collect();
            queue.drop_piece(drops)
        };
        let mut drops = self.beside_the_disk(begin).await;
        // Of a queue in memory; others have searched to the end.
        while let Some(more) = drops.take_if(|drops| drops.count() < count && !drops.oldest.is_empty()) {
            tokio::task::yield_now().await;
            drops = self.beside_the_disk(move |queue| queue.drop_piece(more)).await;
        }
        match drops {
            Some(drops) if drops.leaving.is_empty() => drops.gone,
            Some(drops) => self.moved_out(drops).await,
            None => 0,
        }
    }

    /// Goes on with the drops of a group, on a thread that may block; of a queue in memory, for a piece.
    fn drop_piece(&self, mut drops: GroupDrops) -> GroupDrops {
        let to_dlq = self.overflow_to_dlq();
        let until = match self.is_in_memory() {
            true => drops.wanted.min(drops.count() + PIECE),
            false => drops.wanted,
        };
        while drops.count() < until
            && let Some(Reverse((_, partition))) = drops.oldest.pop()
        {
            let group = &drops.group;
            match self.drop_one(group, partition, None, to_dlq) {
                DropOutcome::Done => drops.gone += 1,
                DropOutcome::Leaving => drops.leaving.push(partition),
                DropOutcome::Nothing => continue,
                DropOutcome::Load(from) if self.load_to_drop(group, partition, from) => {}
                DropOutcome::Load(_) => continue,
            }
            drops.oldest.extend(self.oldest_unleased(group, partition));
        }
        drops
    }

    /// Moves what has to leave out. Returns how much is gone then, as far as it was to.
    async fn moved_out(self: &Arc<Queue>, drops: GroupDrops) -> u64 {
        let most = drops.count();
        let mut partitions = drops.leaving;
        partitions.sort_unstable();
        partitions.dedup();
        for partition in partitions {
            self.move_out(&drops.group, partition).await;
        }
        let settled = drops.group.backlog_settled() - drops.settled_before;
        u64::try_from(settled).map_or(0, |gone| gone.min(most))
    }

    fn oldest_unleased(&self, group: &Group, partition: u32) -> Option<Reverse<(Micros, u32)>> {
        let (part, store) = (group.part(partition)?, self.store(partition)?);
        let offset = match &mut part.inner.lock().state {
            GroupState::Work(machine) => {
                let at_cursor = Some(machine.cursor()).filter(|cursor| store.next().is_ok_and(|next| *cursor < next));
                machine.oldest_unleased().into_iter().chain(at_cursor).min()?
            }
            GroupState::Stream(machine) => {
                Some(machine.needed()).filter(|at| store.next().is_ok_and(|next| *at < next))?
            }
        };
        // What has no time any more goes first.
        Some(Reverse((store.time_of(offset).unwrap_or_default(), partition)))
    }

    /// Drops a message that no consumer of the group has: the one at an offset, or the oldest of a partition.
    fn drop_one(&self, group: &Group, partition: u32, wanted: Option<Offset>, to_dlq: bool) -> DropOutcome {
        let now = self.clock.now();
        let (Some(part), Some(store)) = (group.part(partition), self.store(partition)) else {
            return DropOutcome::Nothing;
        };
        let mut inner = part.inner.lock();
        let GroupPartitionInner { state, cursor, .. } = &mut *inner;
        let machine = match state {
            GroupState::Work(machine) => machine,
            GroupState::Stream(machine) => {
                // It may have committed that meanwhile.
                if !store.next().is_ok_and(|next| machine.needed() < next) {
                    return DropOutcome::Nothing;
                }
                machine.begins_at(machine.needed() + 1);
                let _ = self.after(group, partition, part, &mut inner, now);
                self.count_dropped(group, 1);
                return DropOutcome::Done;
            }
        };
        if wanted.is_some_and(|offset| machine.is_settled(offset)) {
            return DropOutcome::Done;
        }
        let passed = wanted.or_else(|| machine.oldest_unleased());
        let at = wanted.unwrap_or(machine.cursor());
        let dropped = match passed.filter(|offset| *offset < machine.cursor()) {
            Some(offset) => machine.drop_at(offset, to_dlq, now),
            None => match store.at(cursor, at) {
                Ok(NextMessage::Message(message, hint)) if wanted.is_none_or(|offset| offset == message.offset) => {
                    let passing = message.passing(group.name(), group.settings.filter.as_deref(), hint);
                    match passing.skip {
                        true => machine.walk(&passing, now),
                        false => machine.discard(&passing, to_dlq, now) == PassOutcome::Taken,
                    }
                }
                Ok(NextMessage::Load) if to_dlq => return DropOutcome::Load(at),
                Ok(NextMessage::Gap { to, lost }) if wanted.is_none() => machine.pass_gap(to, lost, now) > at,
                Ok(NextMessage::End) | Err(_) if wanted.is_none() => machine.drop_oldest(to_dlq, now).is_some(),
                // Not read, or compaction has left nothing there.
                _ => machine.discard(&MessageMeta::unread(at), false, now) == PassOutcome::Taken,
            },
        };
        let leaving = to_dlq && machine.has_ending();
        let _ = self.after(group, partition, part, &mut inner, now);
        match (dropped, leaving) {
            (false, _) => DropOutcome::Nothing,
            (true, true) => DropOutcome::Leaving,
            (true, false) => {
                self.count_dropped(group, 1);
                DropOutcome::Done
            }
        }
    }

    /// Reads what is to leave for the dead letters. Whether that went well. Blocks.
    fn load_to_drop(&self, group: &Group, partition: u32, from: Offset) -> bool {
        let loaded = self.load_here(group, partition, from);
        if let Err(error) = &loaded {
            tracing::warn!(queue = %self.name(), partition, from, %error, "what is to be dropped cannot be read");
        }
        loaded.is_ok()
    }

    fn count_dropped(&self, group: &Group, count: u64) {
        group.counters.dropped.fetch_add(count, Ordering::Relaxed);
        self.counters.dropped.add(RemovalReason::Overflow, count);
    }
}

/// Of what is kept, for all groups.
impl Queue {
    /// Partitions by their oldest messages.
    fn oldest_kept(&self) -> PartitionsByAge {
        let partitions = 0..self.partition_count();
        partitions.filter_map(|partition| self.oldest_of(partition)).collect()
    }

    fn oldest_of(&self, partition: u32) -> Option<Reverse<(Micros, u32)>> {
        let store = self.store(partition)?;
        let span = store.span_at(store.first().ok()?).ok()??;
        Some(Reverse((span.time, partition)))
    }

    /// Drops the oldest messages of all partitions, for all groups, and lets them go. Whether that was enough.
    async fn drop_kept(self: &Arc<Queue>, goal: Goal, groups: Vec<Arc<Group>>) -> bool {
        let mut search = Search {
            goal,
            oldest: PartitionsByAge::new(),
            groups,
            dropped: 0,
        };
        let begin = move |queue: &Arc<Queue>| {
            search.oldest = queue.oldest_kept();
            queue.drop_until(search)
        };
        let mut stopped = self.beside_the_disk(begin).await;
        while let Some((mut search, stop)) = stopped {
            match stop {
                Stop::Reached => return true,
                Stop::Nothing => return false,
                Stop::Pause => tokio::task::yield_now().await,
                Stop::Leaving {
                    group,
                    partition,
                    offset,
                    time,
                } => {
                    self.move_out(&group, partition).await;
                    if self.is_settled(&group, partition, offset) {
                        search.oldest.push(Reverse((time, partition)));
                    }
                }
            }
            stopped = self.beside_the_disk(move |queue| queue.drop_until(search)).await;
        }
        false
    }

    /// Goes on with a search, on a thread that may block.
    fn drop_until(&self, mut search: Search) -> (Search, Stop) {
        let before = search.dropped;
        loop {
            let is_reached = match search.goal {
                Goal::Messages(count) => search.dropped >= count,
                Goal::RoomFor(wanted) => self.admission.lock().limit(wanted).is_none(),
            };
            if is_reached {
                return (search, Stop::Reached);
            }
            if self.is_in_memory() && search.dropped - before >= PIECE {
                return (search, Stop::Pause);
            }
            let Some(Reverse((time, partition))) = search.oldest.pop() else {
                return (search, Stop::Nothing);
            };
            match self.drop_first(partition, &search.groups) {
                HeadOutcome::Gone => {
                    search.dropped += 1;
                    search.oldest.extend(self.oldest_of(partition));
                }
                HeadOutcome::Stays => {}
                HeadOutcome::Leaving(group, offset) => {
                    let stop = Stop::Leaving {
                        group,
                        partition,
                        offset,
                        time,
                    };
                    return (search, stop);
                }
            }
        }
    }

    fn drop_first(&self, partition: u32, groups: &[Arc<Group>]) -> HeadOutcome {
        let Some(store) = self.store(partition) else {
            return HeadOutcome::Stays;
        };
        let (Ok(first), Ok(next)) = (store.first(), store.next()) else {
            return HeadOutcome::Stays;
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
            return HeadOutcome::Stays;
        }
        for group in groups {
            match self.drop_at(group, partition, first) {
                DropOutcome::Done => {}
                DropOutcome::Leaving => return HeadOutcome::Leaving(group.clone(), first),
                DropOutcome::Load(_) | DropOutcome::Nothing => return HeadOutcome::Stays,
            }
        }
        if groups.is_empty() {
            self.counters.dropped.add(RemovalReason::Overflow, 1);
        }
        self.trim_store(partition, first + 1);
        HeadOutcome::Gone
    }

    fn is_settled(&self, group: &Group, partition: u32, offset: Offset) -> bool {
        let state = group.part(partition).map(|part| part.inner.lock());
        matches!(state.as_deref(), Some(GroupPartitionInner { state: GroupState::Work(machine), .. }) if machine.is_settled(offset))
    }

    /// Whether a message is settled, or could be dropped because no consumer of the group has it.
    fn could_drop(&self, group: &Group, partition: u32, offset: Offset) -> bool {
        match group.part(partition).map(|part| part.inner.lock()).as_deref() {
            Some(GroupPartitionInner {
                state: GroupState::Work(machine),
                ..
            }) => machine.can_drop(offset),
            _ => false,
        }
    }

    /// Drops the first message of a partition for a group, if it has not settled it.
    fn drop_at(&self, group: &Group, partition: u32, offset: Offset) -> DropOutcome {
        let to_dlq = self.overflow_to_dlq();
        loop {
            match self.drop_one(group, partition, Some(offset), to_dlq) {
                DropOutcome::Load(from) if self.load_to_drop(group, partition, from) => {}
                dropped => return dropped,
            }
        }
    }
}

impl Group {
    /// Messages that no consumer has and that are not on their way out.
    fn unleased(&self) -> u64 {
        let taken = self.parts().map(|(_, part)| match &part.inner.lock().state {
            GroupState::Work(machine) => {
                let counts = machine.counts();
                counts.leased + counts.ending
            }
            GroupState::Stream(_) => 0,
        });
        self.backlog().saturating_sub(taken.sum())
    }
}
