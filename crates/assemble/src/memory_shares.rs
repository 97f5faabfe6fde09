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
    /// A share of `percent` of the limit and at most `max` bytes, unless the file gives another size.
    pub fn part(
        name: &str,
        config: &Config,
        percent: u64,
        max: u64,
        floor: u64,
        given: Option<(u64, Pos)>,
    ) -> MemoryShare {
        let default = (config.memory.limit / 100 * percent).min(max);
        MemoryShare {
            name: name.to_owned(),
            wanted: given.map_or(default, |(bytes, _)| bytes),
            floor,
            given: given.map(|(_, pos)| pos),
        }
    }
}

/// The shares of each flow, in file order, and of the dead letter output.
pub(crate) fn of_flows(config: &Config) -> (Vec<MemoryShare>, Option<MemoryShare>) {
    let count = u64::try_from(config.flows.len()).unwrap_or(u64::MAX).max(1);
    let part = (config.memory.limit / 100 * FLOWS_PERCENT / count).max(FLOW_BYTES_MIN);
    let flows = config.flows.iter().map(|flow| {
        let (wanted, given) = match &flow.buffer {
            BufferConfig::Memory { limit, given } if given.is_some() => (*limit, *given),
            BufferConfig::Memory { limit, .. } => (part.min(*limit), None),
            BufferConfig::None | BufferConfig::Queue(_) => (part.min(FLOW_BYTES), None),
        };
        MemoryShare {
            name: match config.root.get("flows") {
                Some(_) => format!("buffer.memory.limit of flow {}", flow.name),
                None => "buffer.memory.limit".to_owned(),
            },
            wanted,
            floor: if given.is_some() { 1 } else { FLOW_BYTES_MIN },
            given,
        }
    });
    let dead_letter = config.dead_letter.as_ref().map(|_| MemoryShare {
        name: "dead_letter".to_owned(),
        wanted: DEAD_LETTER_BYTES,
        floor: DEAD_LETTER_BYTES,
        given: None,
    });
    (flows.collect(), dead_letter)
}

/// The bytes of each share, in order. Mistakes go to the diagnostics, and the sizes are usable anyway.
pub(crate) fn divide(config: &Config, shares: &[MemoryShare], diagnostics: &Diagnostics) -> Vec<usize> {
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
    shares
        .iter()
        .map(|share| usize::try_from(size(share)).unwrap_or(usize::MAX))
        .collect()
}

/// Checks each size that the file gives by itself.
fn limits_of_one(limit: u64, shares: &[MemoryShare], diagnostics: &Diagnostics) -> bool {
    let mut possible = true;
    for share in shares {
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

fn limit_of_all(config: &Config, shares: &[MemoryShare], diagnostics: &Diagnostics) {
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
mod tests {
    use thalweg_config::{LoadOptions, SourceText, load};

    use super::*;

    fn config(text: &str) -> Config {
        let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
        assert_eq!(loaded.diagnostics.to_string(), "");
        loaded.config
    }

    fn share(name: &str, wanted: u64, floor: u64, given: bool) -> MemoryShare {
        MemoryShare {
            name: name.to_owned(),
            wanted: wanted << 20,
            floor: floor << 20,
            given: given.then_some(Pos { line: 3, column: 7 }),
        }
    }

    fn divided(limit: &str, shares: &[MemoryShare]) -> (Vec<usize>, String) {
        let diagnostics = Diagnostics::new("f.yaml");
        let sizes = divide(&config(&format!("memory: {{limit: {limit}}}")), shares, &diagnostics);
        (
            sizes.into_iter().map(|bytes| bytes >> 20).collect(),
            diagnostics.to_string(),
        )
    }

    #[test]
    fn what_the_file_gives_is_kept_and_the_rest_shrinks_to_what_is_left() {
        let fits = [share("a", 300, 16, false), share("b", 200, 16, true)];
        assert_eq!(divided("1GiB", &fits), (vec![300, 200], String::new()));
        let given = [
            share("a", 300, 16, false),
            share("b", 900, 16, true),
            share("c", 100, 16, false),
        ];
        let (sizes, messages) = divided("1GiB", &given);
        assert_eq!(messages, "");
        assert_eq!(sizes[1], 900);
        assert!(
            sizes[0] >= 16 && sizes[2] >= 16 && sizes.iter().sum::<usize>() <= 1024,
            "{sizes:?}"
        );
        assert!(sizes[0] > sizes[2], "{sizes:?}");
    }

    #[test]
    fn sizes_that_are_no_part_of_the_limit_are_errors_that_name_their_fields() {
        for (shares, expected) in [
            (
                vec![share("lake.memory", 8, 16, true)],
                "f.yaml:3:7: lake.memory: expected at least 16 MiB\n",
            ),
            (
                vec![share("lake.memory", 2048, 16, true)],
                "f.yaml:3:7: lake.memory: 2 GiB are more than memory.limit (1 GiB), of which it is a part; lower it or \
                 raise memory.limit\n",
            ),
            (
                vec![
                    share("lake.memory", 700, 16, true),
                    share("buffer.memory.limit", 400, 1, true),
                    share("query.memory", 100, 16, false),
                ],
                "f.yaml:3:7: the parts of memory.limit add up to at least 1116 MiB (lake.memory 700 MiB, \
                 buffer.memory.limit 400 MiB), and memory.limit is 1 GiB; lower one of them or raise memory.limit\n",
            ),
        ] {
            assert_eq!(divided("1GiB", &shares).1, expected);
        }
    }

    #[test]
    fn flows_share_a_part_of_the_limit_unless_the_file_gives_each_its_own() {
        let flow = |name: &str, buffer: &str| {
            format!("- {{name: {name}, input: {{stdin: {{}}}}, {buffer} output: {{drop: {{}}}}}}\n")
        };
        let text = format!(
            "memory: {{limit: 400MiB}}\nflows:\n{}{}{}",
            flow("a", ""),
            flow("b", "buffer: {memory: {}},"),
            flow("c", "buffer: {memory: {limit: 80MiB}},")
        );
        let (shares, dead_letter) = of_flows(&config(&text));
        let sizes: Vec<(u64, bool)> = shares.iter().map(|s| (s.wanted >> 20, s.given.is_some())).collect();
        assert_eq!(sizes, [(33, false), (33, false), (80, true)]);
        assert!(dead_letter.is_none());
        let (many, _) = of_flows(&config(
            "memory: {limit: 64GiB}\ninput: {stdin: {}}\noutput: {drop: {}}\n",
        ));
        assert_eq!(many[0].wanted, FLOW_BYTES);
    }
}
