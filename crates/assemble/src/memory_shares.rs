//! Divides `memory.limit` between the lake, queries, and messages in flows.
//!
//! The input is the sizes that the file gives and the sizes that each user of memory wants; the output is sizes whose
//! sum does not exceed the limit. Sizes in the file are kept, and all others shrink to the rest. If that is not enough,
//! the file asks for more than the limit, which is an error that names the fields.

use thalweg_config::{BufferConfig, Config, Diagnostics, Pos};

/// The share of all flows together, in percent of the limit.
const FLOWS_PERCENT: u64 = 25;
/// Memory for waiting messages in a flow without a buffer.
const FLOW_BYTES: u64 = 128 << 20;
const FLOW_BYTES_MIN: u64 = 1 << 20;
/// Memory of the queue before the dead letter output.
const DEAD_LETTER_BYTES: u64 = 16 << 20;

/// The size of a share that the file does not give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DefaultShare {
    percent: u64,
    bytes_max: u64,
}

impl DefaultShare {
    /// A part of the limit.
    pub const fn percent(percent: u64) -> DefaultShare {
        DefaultShare {
            percent,
            bytes_max: u64::MAX,
        }
    }

    pub const fn at_most(self, bytes_max: u64) -> DefaultShare {
        DefaultShare { bytes_max, ..self }
    }
}

/// One user of memory.
#[derive(Clone, Debug)]
pub(crate) struct MemoryShare {
    /// The field that sets it, or its purpose.
    pub name: String,
    pub wanted: u64,
    /// The least that it works with.
    pub floor: u64,
    /// The position of the field, if the file gives `wanted`.
    pub given: Option<Pos>,
}

impl MemoryShare {
    /// A share of the default size, unless the file gives another one.
    pub fn part(
        name: &str,
        config: &Config,
        default: DefaultShare,
        floor: u64,
        given: Option<(u64, Pos)>,
    ) -> MemoryShare {
        let default = (config.memory.limit / 100 * default.percent).min(default.bytes_max);
        MemoryShare {
            name: name.to_owned(),
            wanted: given.map_or(default, |(bytes, _)| bytes),
            floor,
            given: given.map(|(_, pos)| pos),
        }
    }
}

/// A value for each user of memory: its share before the limit is divided, and its bytes afterwards. `None` means that
/// the process has no such user.
#[derive(Clone, Debug)]
pub(crate) struct MemoryShares<T> {
    pub lake: T,
    pub query: T,
    pub query_cache: T,
    /// Queues with durability `memory`.
    pub queues: T,
    pub queue_dedup: Option<T>,
    pub queue_state: Option<T>,
    pub log: Option<T>,
    pub events: Option<T>,
    pub ingest: Option<T>,
    pub mqtt: Option<T>,
    pub compaction: Option<T>,
    /// In file order.
    pub flows: Vec<FlowShare<T>>,
    pub dead_letter: Option<T>,
}

/// The value for one flow.
#[derive(Clone, Debug)]
pub(crate) struct FlowShare<T> {
    /// The name of the flow.
    pub name: String,
    pub share: T,
}

impl<T> MemoryShares<T> {
    /// All values, in the order in which mistakes are reported.
    fn iter(&self) -> impl Iterator<Item = &T> {
        // Without `..`, so that no new field is forgotten.
        let MemoryShares {
            lake,
            query,
            query_cache,
            queues,
            queue_dedup,
            queue_state,
            log,
            events,
            ingest,
            mqtt,
            compaction,
            flows,
            dead_letter,
        } = self;
        let always = [lake, query, query_cache, queues];
        let optional = [queue_dedup, queue_state, log, events, ingest, mqtt, compaction];
        always
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(flows.iter().map(|flow| &flow.share))
            .chain(dead_letter)
    }

    /// The same users with other values.
    fn map<U>(&self, to: impl Fn(&T) -> U) -> MemoryShares<U> {
        let optional = |share: &Option<T>| share.as_ref().map(&to);
        let flow = |flow: &FlowShare<T>| FlowShare {
            name: flow.name.clone(),
            share: to(&flow.share),
        };
        MemoryShares {
            lake: to(&self.lake),
            query: to(&self.query),
            query_cache: to(&self.query_cache),
            queues: to(&self.queues),
            queue_dedup: optional(&self.queue_dedup),
            queue_state: optional(&self.queue_state),
            log: optional(&self.log),
            events: optional(&self.events),
            ingest: optional(&self.ingest),
            mqtt: optional(&self.mqtt),
            compaction: optional(&self.compaction),
            flows: self.flows.iter().map(flow).collect(),
            dead_letter: optional(&self.dead_letter),
        }
    }
}

/// The share of each flow, in file order.
pub(crate) fn of_flows(config: &Config) -> Vec<FlowShare<MemoryShare>> {
    let count = u64::try_from(config.flows.len()).unwrap_or(u64::MAX).max(1);
    let part = (config.memory.limit / 100 * FLOWS_PERCENT / count).max(FLOW_BYTES_MIN);
    let flows = config.flows.iter().map(|flow| {
        let (wanted, given) = match &flow.buffer {
            BufferConfig::Memory { limit, given, .. } if given.is_some() => (*limit, *given),
            BufferConfig::Memory { limit, .. } => (part.min(*limit), None),
            BufferConfig::None | BufferConfig::Queue(_) => (part.min(FLOW_BYTES), None),
        };
        let share = MemoryShare {
            name: match config.root.get("flows") {
                Some(_) => format!("buffer.memory.limit of flow {}", flow.name),
                None => "buffer.memory.limit".to_owned(),
            },
            wanted,
            floor: if given.is_some() { 1 } else { FLOW_BYTES_MIN },
            given,
        };
        FlowShare {
            name: flow.name.clone(),
            share,
        }
    });
    flows.collect()
}

/// The share of the dead letter output, if there is one.
pub(crate) fn of_dead_letter(config: &Config) -> Option<MemoryShare> {
    config.dead_letter.as_ref().map(|_| MemoryShare {
        name: "dead_letter".to_owned(),
        wanted: DEAD_LETTER_BYTES,
        floor: DEAD_LETTER_BYTES,
        given: None,
    })
}

/// The bytes of each share. Mistakes go to the diagnostics, and the sizes are usable anyway.
pub(crate) fn divide(
    config: &Config,
    shares: &MemoryShares<MemoryShare>,
    diagnostics: &Diagnostics,
) -> MemoryShares<usize> {
    let limit = config.memory.limit;
    if limits_of_one(limit, shares, diagnostics) {
        limit_of_all(config, shares, diagnostics);
    }
    let sum = |of: &dyn Fn(&MemoryShare) -> u64| shares.iter().map(of).fold(0, u64::saturating_add);
    let given = sum(&|share| if share.given.is_some() { share.wanted } else { 0 });
    let floors = sum(&|share| if share.given.is_some() { 0 } else { share.floor });
    let above = sum(&|share| match share.given {
        Some(_) => 0,
        None => share.wanted.saturating_sub(share.floor),
    });
    let left = limit.saturating_sub(given).saturating_sub(floors);
    let size = |share: &MemoryShare| -> u64 {
        let more = share.wanted.saturating_sub(share.floor);
        match share.given {
            Some(_) => share.wanted,
            None if above <= left => share.floor + more,
            // 128 bits, because both factors may be as large as the memory.
            None => {
                let more = u128::from(more) * u128::from(left) / u128::from(above.max(1));
                share.floor + u64::try_from(more).unwrap_or(0)
            }
        }
    };
    shares.map(|share| usize::try_from(size(share)).unwrap_or(usize::MAX))
}

/// Checks each size that the file gives by itself.
fn limits_of_one(limit: u64, shares: &MemoryShares<MemoryShare>, diagnostics: &Diagnostics) -> bool {
    let mut possible = true;
    for share in shares.iter() {
        let Some(pos) = share.given else { continue };
        let name = &share.name;
        let problem = if share.wanted < share.floor {
            format!("{name}: expected at least {}", size_text(share.floor))
        } else if share.wanted > limit {
            format!(
                "{name}: {} are more than memory.limit ({}), of which it is a part; lower it or raise memory.limit",
                size_text(share.wanted),
                size_text(limit)
            )
        } else {
            continue;
        };
        diagnostics.error_at(pos, problem);
        possible = false;
    }
    possible
}

fn limit_of_all(config: &Config, shares: &MemoryShares<MemoryShare>, diagnostics: &Diagnostics) {
    let limit = config.memory.limit;
    let least = |share: &MemoryShare| {
        if share.given.is_some() {
            share.wanted
        } else {
            share.floor
        }
    };
    let sum = shares.iter().map(least).fold(0, u64::saturating_add);
    if sum <= limit {
        return;
    }
    let given: Vec<&MemoryShare> = shares.iter().filter(|share| share.given.is_some()).collect();
    let largest = given
        .iter()
        .max_by_key(|share| share.wanted)
        .and_then(|share| share.given);
    let pos = largest.or(config.memory.given).unwrap_or(Pos::WHOLE_FILE);
    let of: Vec<String> = given
        .iter()
        .map(|share| format!("{} {}", share.name, size_text(share.wanted)))
        .collect();
    let of = if of.is_empty() {
        String::new()
    } else {
        format!(" ({})", of.join(", "))
    };
    diagnostics.error_at(
        pos,
        format!(
            "the parts of memory.limit add up to at least {}{of}, and memory.limit is {}; lower one of them or raise memory.limit",
            size_text(sum),
            size_text(limit)
        ),
    );
}

/// `1536 MiB`, `2 GiB`: the largest exact unit, so that it can be compared with the file.
fn size_text(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units
        .iter()
        .find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit))
    {
        Some((name, unit)) => format!("{} {name}", bytes / unit),
        None if bytes >= 10 << 20 => format!("{} MiB", bytes >> 20),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests;
