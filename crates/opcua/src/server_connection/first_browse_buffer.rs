//! Buffers values that arrive before the paths of tags are final. Like a server's queue it keeps the last few values of
//! each item and drops older ones. The total has a limit in bytes, because a first browse may take hours. Gaps that are
//! found meanwhile keep their place among the values.

use hashbrown::{HashMap, HashSet};
use thalweg_record::Ticks;

use crate::gaps::Gap;
use crate::node_table::NodeIndex;
use crate::value::ValueContent;
use crate::value::answers::ClientHandleValue;

/// With fewer values there is no compaction.
const COMPACT_AT_MIN: usize = 20_000;

/// Maximum gaps with their own place. Further ones are joined with the last.
const GAPS_MAX: usize = 16;

/// A gap of some tags.
#[derive(Debug)]
pub(super) struct BufferedGap {
    /// Number of buffered values before it.
    pub values_before: usize,
    pub gap: Gap,
    pub nodes: HashSet<NodeIndex>,
}

#[derive(Debug)]
pub(super) struct FirstBrowseBuffer {
    values: Vec<ClientHandleValue>,
    /// In the order of their places.
    gaps: Vec<BufferedGap>,
    bytes: usize,
    /// Unlimited until set.
    bytes_max: usize,
    /// Compaction takes a pass over all values, so it waits until there are twice as many as the last pass kept.
    compact_at: usize,
}

/// Values that were dropped.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BufferOverflow {
    pub values: usize,
    /// Their handles.
    pub items: HashSet<u32>,
    /// The time of the oldest one with a time.
    pub since: Option<Ticks>,
    /// Whether values within the per-item limit were dropped for lack of memory.
    pub for_memory: bool,
}

impl Default for FirstBrowseBuffer {
    fn default() -> FirstBrowseBuffer {
        FirstBrowseBuffer {
            values: Vec::new(),
            gaps: Vec::new(),
            bytes: 0,
            bytes_max: usize::MAX,
            compact_at: COMPACT_AT_MIN,
        }
    }
}

impl FirstBrowseBuffer {
    /// `bytes_max` limits all buffered values.
    pub fn bound(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Adds all values; at least the last `per_item` of each item are kept while memory lasts.
    pub fn add(&mut self, values: &mut Vec<ClientHandleValue>, per_item: usize) -> BufferOverflow {
        self.bytes += values.iter().map(bytes).sum::<usize>();
        self.values.append(values);
        match self.values.len() > self.compact_at || self.bytes > self.bytes_max {
            true => self.compact(per_item),
            false => BufferOverflow::default(),
        }
    }

    /// Records that values of these tags are missing after the buffered ones.
    pub fn add_gap(&mut self, gap: Gap, nodes: HashSet<NodeIndex>) {
        if nodes.is_empty() {
            return;
        }
        if let Some(last) = self
            .gaps
            .last_mut()
            .filter(|last| last.values_before == self.values.len())
        {
            // The same tags with no values in between: only the gap becomes longer.
            if last.nodes == nodes {
                last.gap = last.gap.joined(gap);
                return;
            }
        }
        if self.gaps.len() < GAPS_MAX {
            let values_before = self.values.len();
            self.gaps.push(BufferedGap {
                values_before,
                gap,
                nodes,
            });
        } else if let Some(last) = self.gaps.last_mut() {
            last.gap = last.gap.joined(gap);
            last.nodes.extend(nodes);
        }
    }

    fn compact(&mut self, per_item: usize) -> BufferOverflow {
        let mut lost = BufferOverflow::default();
        let mut seen: HashMap<u32, usize> = HashMap::new();
        let mut kept: Vec<ClientHandleValue> = Vec::new();
        let mut kept_bytes = 0;
        let room = self.room(per_item);
        let places: Vec<usize> = self
            .gaps
            .iter_mut()
            .map(|gap| std::mem::take(&mut gap.values_before))
            .collect();
        for (place, value) in self.values.drain(..).enumerate().rev() {
            let count = seen.entry(value.0).or_insert(0);
            let size = bytes(&value);
            // The latest value stays whatever its size.
            let is_wanted = *count < per_item;
            if is_wanted && (kept_bytes + size <= room || kept.is_empty()) {
                *count += 1;
                kept_bytes += size;
                kept.push(value);
                for (gap, values_before) in self.gaps.iter_mut().zip(&places) {
                    gap.values_before += usize::from(place < *values_before);
                }
                continue;
            }
            lost.for_memory |= is_wanted;
            // Nothing older of this item is kept either, so its values have no gap.
            *count = per_item;
            lost.values += 1;
            lost.items.insert(value.0);
            let time = value.1.stamps.source_time;
            if time != Ticks::MISSING {
                lost.since = Some(lost.since.map_or(time, |since| since.min(time)));
            }
        }
        kept.reverse();
        self.values = kept;
        self.bytes = kept_bytes;
        self.compact_at = (self.values.len() * 2).max(COMPACT_AT_MIN);
        lost
    }

    /// Returns the room for kept values: enough for all within the per-item limit, unless the next pass would then come
    /// too soon.
    fn room(&self, per_item: usize) -> usize {
        if self.bytes <= self.bytes_max {
            return self.bytes_max;
        }
        let mut seen: HashMap<u32, usize> = HashMap::new();
        let mut wanted = 0;
        for value in self.values.iter().rev() {
            let count = seen.entry(value.0).or_insert(0);
            *count += 1;
            wanted += if *count <= per_item { bytes(value) } else { 0 };
        }
        match wanted <= self.bytes_max / 4 * 3 {
            true => self.bytes_max,
            false => self.bytes_max / 2,
        }
    }

    /// Returns everything buffered, in the order of arrival.
    pub fn take(&mut self) -> (Vec<ClientHandleValue>, Vec<BufferedGap>) {
        let held = std::mem::take(self);
        (held.values, held.gaps)
    }
}

fn bytes((_, value): &ClientHandleValue) -> usize {
    let heap = match &value.content {
        ValueContent::Value(value) => value.heap_bytes(),
        ValueContent::Nothing | ValueContent::TooLarge => 0,
    };
    size_of::<ClientHandleValue>() + heap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::DataValue;
    use thalweg_record::{Value, ValueQuality};

    fn value(handle: u32, number: i64, content: Value) -> ClientHandleValue {
        let stamps = ValueQuality {
            source_time: Ticks(number),
            ..ValueQuality::NONE
        };
        let value = DataValue {
            content: ValueContent::Value(content),
            stamps,
            wrapped: false,
        };
        (handle, value)
    }

    fn number(handle: u32, number: i64) -> ClientHandleValue {
        value(handle, number, Value::I64(number))
    }

    fn numbers_of(held: &mut FirstBrowseBuffer, handle: u32) -> Vec<i64> {
        let values = held.take().0.into_iter().filter(|(of, _)| *of == handle);
        values.map(|(_, value)| value.stamps.source_time.0).collect()
    }

    #[test]
    fn the_last_values_of_each_item_wait_and_the_others_are_counted() {
        let mut held = FirstBrowseBuffer::default();
        let mut lost = BufferOverflow::default();
        let mut total = 0;
        for n in 1..=COMPACT_AT_MIN as i64 {
            let mut values = vec![number(1, n)];
            if n == 10 {
                values.push(number(2, n));
            }
            total += values.len();
            let now = held.add(&mut values, 3);
            if now.values > 0 {
                lost = now;
            }
        }
        assert_eq!((lost.values, lost.since), (total - 4, Some(Ticks(1))));
        assert!(!lost.for_memory, "there is room, and nobody wants them");
        assert_eq!(lost.items.into_iter().collect::<Vec<_>>(), [1]);
        let last = COMPACT_AT_MIN as i64;
        let (values, _) = held.take();
        assert_eq!(values.iter().filter(|(handle, _)| *handle == 2).count(), 1);
        assert_eq!(values.last(), Some(&number(1, last)));
    }

    #[test]
    fn memory_has_a_limit_and_what_is_kept_has_no_hole() {
        let mut held = FirstBrowseBuffer {
            bytes_max: 100_000,
            ..FirstBrowseBuffer::default()
        };
        let mut lost = 0;
        for n in 1..=1000 {
            let now = held.add(&mut vec![value(1, n, Value::Bytes(vec![0; 5000].into()))], 100);
            assert_eq!(now.for_memory, now.values > 0);
            lost += now.values;
            assert!(held.bytes <= 100_000, "{}", held.bytes);
        }
        let kept = numbers_of(&mut held, 1);
        assert_eq!(kept.len() + lost, 1000);
        assert!(
            kept.len() >= 9 && kept.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{kept:?}"
        );
        assert_eq!(kept.last(), Some(&1000));
        // A value larger than the limit is still better than none.
        let mut held = FirstBrowseBuffer {
            bytes_max: 1000,
            ..FirstBrowseBuffer::default()
        };
        held.add(&mut vec![value(1, 1, Value::Bytes(vec![0; 5000].into()))], 100);
        assert_eq!(numbers_of(&mut held, 1), [1]);
    }

    /// Independent of when passes happen, which depends on the batch sizes.
    #[test]
    fn nothing_is_lost_while_there_is_room_for_all_that_is_wanted() {
        let items: u32 = 50_000;
        let all = items as usize * size_of::<ClientHandleValue>();
        for bytes_max in [all, all + all / 3, all * 2] {
            for batch in [1000, 4099, 19_999, 20_001, 24_999, 40_001, 49_999] {
                let mut held = FirstBrowseBuffer {
                    bytes_max,
                    ..FirstBrowseBuffer::default()
                };
                let values: Vec<ClientHandleValue> = (0..items).map(|handle| number(handle, 1)).collect();
                for part in values.chunks(batch) {
                    let lost = held.add(&mut part.to_vec(), 1);
                    assert_eq!(lost, BufferOverflow::default(), "{bytes_max} bytes, batches of {batch}");
                }
                assert_eq!(held.take().0.len(), items as usize);
            }
        }
    }

    #[test]
    fn one_item_that_sends_without_end_takes_no_room_from_the_others() {
        let mut held = FirstBrowseBuffer {
            bytes_max: 1000 * size_of::<ClientHandleValue>(),
            ..FirstBrowseBuffer::default()
        };
        held.add(&mut (1..=700).map(|handle| number(handle, 1)).collect(), 3);
        for n in 1..=10_000 {
            let lost = held.add(&mut vec![number(1, n)], 3);
            assert!(
                !lost.for_memory && lost.items.iter().all(|item| *item == 1),
                "{n}: {lost:?}"
            );
        }
        let kept: HashSet<u32> = held.take().0.iter().map(|(handle, _)| *handle).collect();
        assert_eq!(kept.len(), 700);
    }

    fn gap(from: i64, to: i64) -> Gap {
        let [from, to] = [from, to].map(Ticks);
        Gap { from, to }
    }

    #[test]
    fn gaps_keep_their_places_also_when_older_values_are_dropped() {
        let mut held = FirstBrowseBuffer::default();
        let mut last = 0;
        let mut fill = |held: &mut FirstBrowseBuffer, count: i64| {
            for _ in 0..count {
                last += 1;
                held.add(&mut vec![number(1, last)], 100);
            }
        };
        let few = COMPACT_AT_MIN as i64 - 50;
        fill(&mut held, few);
        held.add_gap(gap(1, 2), HashSet::from([7]));
        fill(&mut held, 60);
        held.add_gap(gap(3, 4), HashSet::from([7]));
        held.add_gap(gap(4, 5), HashSet::from([7]));
        let (values, gaps) = held.take();
        let before = |gap: &BufferedGap| {
            values[..gap.values_before]
                .last()
                .map(|(_, value)| value.stamps.source_time.0)
        };
        assert!(values.len() < COMPACT_AT_MIN);
        let places: Vec<_> = gaps.iter().map(|gap| (before(gap), gap.gap)).collect();
        assert_eq!(places, [(Some(few), gap(1, 2)), (Some(few + 60), gap(3, 5))]);
    }

    #[test]
    fn very_many_gaps_are_joined() {
        let mut held = FirstBrowseBuffer::default();
        for n in 0..100 {
            held.add(&mut vec![number(1, n)], 100);
            held.add_gap(gap(n, n + 1), HashSet::from([n as u32]));
        }
        let (_, gaps) = held.take();
        let last = gaps.last().unwrap();
        assert_eq!(
            (gaps.len(), last.values_before, last.gap),
            (GAPS_MAX, GAPS_MAX, gap(15, 100))
        );
        assert_eq!(last.nodes.len(), 100 - GAPS_MAX + 1);
    }

    /// With many items almost nothing can be dropped; a pass at each addition would take forever.
    #[test]
    fn passes_become_rarer_as_more_is_kept() {
        let mut held = FirstBrowseBuffer {
            bytes_max: usize::MAX,
            ..FirstBrowseBuffer::default()
        };
        let mut passes = 0;
        let mut at = held.compact_at;
        for handle in 0..1_000_000 {
            held.add(&mut vec![number(handle, 1)], 10);
            passes += usize::from(held.compact_at != at);
            at = held.compact_at;
        }
        assert!((3..10).contains(&passes), "{passes}");
        assert_eq!(held.take().0.len(), 1_000_000);
    }
}
