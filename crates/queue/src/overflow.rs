//! Overflow `drop-oldest`: makes room by dropping unleased messages, the oldest first.
//!
//! A limit of count is relieved by the groups whose largest backlog is the depth: the work groups, or else the declared
//! stream groups. Each group over the limit drops its own oldest messages. A stream group skips them and is told of the
//! gap when it gets there. Whatever else retains them, such as an age in mode `policy`, still does. Only if no backlog
//! defines the depth, but the retained messages do, the oldest retained message is dropped.
//!
//! A limit of bytes is relieved only by trimming, which removes the oldest messages of a partition once no group needs
//! them. Where such a message is leased, or a stream group beside work groups has yet to read it, a drop would free
//! nothing, so nothing is dropped. In a queue without work groups the oldest retained message is dropped, even before a
//! stream group has read it.
//!
//! Reading the age and content of old messages may need a disk, and very many small messages may have to go for one
//! large one. So the search runs on a blocking thread, and returns only to wait for messages to leave for the dead
//! letters. A queue in memory reads nothing; its search pauses now and then.

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

/// The outcome of an attempt to drop a message.
enum DropOutcome {
    Done,
    /// It must leave for the dead letters.
    Leaving,
    /// It must be read first, because it may not be for the group.
    Load(Offset),
    Nothing,
}

/// Partitions by the time of the oldest message that they could drop.
type PartitionsByAge = BinaryHeap<Reverse<(Micros, u32)>>;

/// A queue in memory drops this many before it yields the thread.
const PIECE: u64 = 256;

/// How much to drop.
#[derive(Clone, Copy)]
enum Goal {
    Messages(u64),
    /// Until this request fits.
    RoomFor(AdmissionRequest),
}

/// A search through retained messages, for all groups.
struct Search {
    goal: Goal,
    oldest: PartitionsByAge,
    groups: Vec<Arc<Group>>,
    dropped: u64,
}

/// Why a search stopped.
enum Stop {
    Reached,
    /// No more messages may be dropped.
    Nothing,
    Pause,
    /// The first message of a partition must leave a group for the dead letters before it can be trimmed.
    Leaving {
        group: Arc<Group>,
        partition: u32,
        offset: Offset,
        time: Micros,
    },
}

/// The outcome for the first message of a partition.
enum HeadOutcome {
    Gone,
    Stays,
    Leaving(Arc<Group>, Offset),
}

/// The drops of one group.
struct GroupDrops {
    group: Arc<Group>,
    wanted: u64,
    /// What the group had settled before: another task may move messages out to the dead letters at once.
    settled_before: i64,
    oldest: PartitionsByAge,
    gone: u64,
    /// Partitions whose messages must leave for the dead letters, one entry per message.
    leaving: Vec<u32>,
}

impl GroupDrops {
    fn count(&self) -> u64 {
        self.gone + self.leaving.len() as u64
    }
}

impl Queue {
    /// Makes room for the request by dropping the oldest unleased messages. Returns false if that is not enough and a
    /// retry is pointless.
    pub(crate) async fn make_room(self: &Arc<Queue>, wanted: AdmissionRequest) -> bool {
        // One at a time: messages leaving for the dead letters count until they arrive, and must not be compensated
        // twice.
        let _making = self.admission.make_room_alone().await;
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
        let groups = self.groups.counted();
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
        self.maintenance.trim_soon();
        enough
    }

    async fn make_room_in_bytes(self: &Arc<Queue>, wanted: AdmissionRequest) -> bool {
        self.trim_beside().await;
        self.drop_kept(Goal::RoomFor(wanted), self.groups.work()).await
    }

    fn overflow_to_dlq(&self) -> bool {
        let dlq = &self.settings_now().dlq;
        dlq.enabled && dlq.on_overflow
    }
}

/// Drops for one group.
impl Queue {
    /// Drops up to `count` of the oldest messages that no consumer of the group has. Returns how many are gone.
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
        // Only for a queue in memory; other queues have searched to the end.
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

    /// Continues the drops of a group on a thread that may block. For a queue in memory, one piece.
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

    /// Moves the pending messages out. Returns how many are gone, up to the number wanted.
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
        // A message without a known time goes first.
        Some(Reverse((store.time_of(offset).unwrap_or_default(), partition)))
    }

    /// Drops a message that no consumer of the group has: the one at `wanted`, or the oldest of the partition.
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
                // The group may have committed it meanwhile.
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
                        true => machine.pass_unclaimable(&passing, now),
                        false => machine.discard(&passing, to_dlq, now) == PassOutcome::Taken,
                    }
                }
                Ok(NextMessage::Load) if to_dlq => return DropOutcome::Load(at),
                Ok(NextMessage::Gap { to, lost }) if wanted.is_none() => machine.pass_gap(to, lost, now) > at,
                Ok(NextMessage::End) | Err(_) if wanted.is_none() => machine.drop_oldest(to_dlq, now).is_some(),
                // Not read, or compaction has removed it.
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

    /// Reads messages that must leave for the dead letters. Returns whether that succeeded. Blocks.
    fn load_to_drop(&self, group: &Group, partition: u32, from: Offset) -> bool {
        let loaded = self.load_here(group, partition, from);
        if let Err(error) = &loaded {
            tracing::warn!(
                queue = %self.name(), partition, from, %error,
                "a message that must be dropped cannot be read"
            );
        }
        loaded.is_ok()
    }

    fn count_dropped(&self, group: &Group, count: u64) {
        group.counters.dropped.fetch_add(count, Ordering::Relaxed);
        self.counters().dropped.add(RemovalReason::Overflow, count);
    }
}

/// Drops of retained messages, for all groups.
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

    /// Drops the oldest messages of all partitions for all groups, and trims them. Returns whether that was enough.
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
                    if group.has_settled(partition, offset) {
                        search.oldest.push(Reverse((time, partition)));
                    }
                }
            }
            stopped = self.beside_the_disk(move |queue| queue.drop_until(search)).await;
        }
        false
    }

    /// Continues a search on a thread that may block.
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
            true => !group.could_drop(partition, first),
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
            self.counters().dropped.add(RemovalReason::Overflow, 1);
        }
        self.trim_store(partition, first + 1);
        HeadOutcome::Gone
    }

    /// Drops the first message of a partition for a group that has not settled it.
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
    fn has_settled(&self, partition: u32, offset: Offset) -> bool {
        let state = self.part(partition).map(|part| part.inner.lock());
        matches!(state.as_deref(), Some(GroupPartitionInner { state: GroupState::Work(machine), .. }) if machine.is_settled(offset))
    }

    /// Whether a message is settled, or could be dropped because no consumer of the group has it.
    fn could_drop(&self, partition: u32, offset: Offset) -> bool {
        match self.part(partition).map(|part| part.inner.lock()).as_deref() {
            Some(GroupPartitionInner {
                state: GroupState::Work(machine),
                ..
            }) => machine.can_drop(offset),
            _ => false,
        }
    }

    /// Messages that are neither leased nor leaving.
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
