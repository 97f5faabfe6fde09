//! Settings as text and back.

use super::super::*;
use super::*;

fn durations(from_ms: u64, to_ms: u64) -> impl Strategy<Value = Duration> {
    (from_ms * 1_000_000..=to_ms * 1_000_000).prop_map(Duration::from_nanos)
}

const DAY_MS: u64 = 24 * 3600 * 1000;

fn names() -> impl Strategy<Value = SmolStr> {
    "[a-z0-9_-][A-Za-z0-9_.-]{0,9}".prop_map(SmolStr::from)
}

fn filters() -> impl Strategy<Value = SmolStr> {
    "[a-zü ]{1,4}(/[a-z+]){0,2}(/#)?".prop_filter_map("a filter", |text| {
        check_filter(&text).is_ok().then(|| SmolStr::from(text))
    })
}

fn starts() -> impl Strategy<Value = GroupStart> {
    prop_oneof![
        Just(GroupStart::Earliest),
        Just(GroupStart::Latest),
        any::<u64>().prop_map(GroupStart::Offset),
        (0..=253_000_000_000_000_000_i64).prop_map(GroupStart::Time),
    ]
}

fn groups() -> impl Strategy<Value = Vec<GroupSettings>> {
    let mode = prop_oneof![Just(GroupMode::Work), Just(GroupMode::Stream)];
    let group = (names(), mode, starts(), proptest::option::of(filters()));
    let group = group.prop_map(|(name, mode, start, filter)| GroupSettings {
        name,
        mode,
        start,
        filter,
    });
    proptest::collection::vec(group, 0..4).prop_map(|mut groups| {
        groups.sort_by_key(|group| (group.name.clone(), group.filter.clone()));
        groups.dedup_by(|a, b| a.is_same_group(b));
        groups
    })
}

prop_compose! {
    fn retries()(
        max_retries in 0..1_000_000_u32,
        initial_backoff in durations(0, DAY_MS),
        more in durations(0, DAY_MS),
        multiplier in 1.0..1e12_f64,
        jitter in 0.0..=1.0_f64,
        total_timeout in durations(0, 365 * DAY_MS),
    ) -> RetrySettings {
        RetrySettings { max_retries, initial_backoff, max_backoff: initial_backoff + more, multiplier, jitter, total_timeout }
    }
}

prop_compose! {
    fn retentions()(
        policy in any::<bool>(),
        max_age in durations(0, 365 * DAY_MS),
        max_bytes in any::<u64>(),
        max_messages in 0..=i64::MAX as u64,
        protect_streams in any::<bool>(),
    ) -> RetentionSettings {
        if policy {
            RetentionSettings { mode: RetentionMode::Policy, max_age, max_bytes, max_messages, protect_streams }
        } else {
            QueueSettings::default().retention
        }
    }
}

prop_compose! {
    fn counts()(
        partitions in 1..=1000_u32,
        ordering in 0..3_usize,
        lane_window in 1..=1000_u32,
        claim_batch in 1..=10_000_u32,
        max_in_flight in 1..=1_000_000_u32,
        max_pending in 1..=1_u32 << 22,
        max_message_size in 1..=24_u64 << 20,
        max_depth in 0..=i64::MAX as u64,
        max_bytes in any::<u64>(),
    ) -> QueueSettings {
        let ordering = QueueOrdering::ALL[ordering];
        QueueSettings {
            partitions: if ordering == QueueOrdering::Strict { 1 } else { partitions },
            lane_window: if ordering == QueueOrdering::None { 1 } else { lane_window },
            ordering,
            claim_batch, max_in_flight, max_pending, max_message_size, max_depth, max_bytes,
            ..QueueSettings::default()
        }
    }
}

prop_compose! {
    fn times()(
        block_timeout in durations(1, 3_600_000),
        ttl in durations(0, 365 * DAY_MS),
        visibility_timeout in durations(1000, DAY_MS / 2),
        consumer_timeout in durations(1000, DAY_MS / 2),
        dedup_window in durations(0, DAY_MS),
        group_expiry in durations(0, 365 * DAY_MS),
        lag in durations(0, DAY_MS),
        interval in durations(1000, DAY_MS),
        tombstone_age in durations(0, DAY_MS),
    ) -> QueueSettings {
        QueueSettings {
            block_timeout, ttl, visibility_timeout, consumer_timeout, dedup_window, group_expiry,
            compaction: CompactionSettings { enabled: false, lag, interval, tombstone_age },
            ..QueueSettings::default()
        }
    }
}

prop_compose! {
    fn settings()(
        counts in counts(),
        times in times(),
        topics in proptest::collection::hash_set(filters(), 0..4),
        default_group in names(),
        durability in proptest::option::of(0..4_usize),
        overflow in 0..3_usize,
        retry in retries(),
        dlq in any::<(bool, bool, bool, bool)>(),
        retention in retentions(),
        compaction in any::<bool>(),
        groups in groups(),
    ) -> QueueSettings {
        let overflow = Overflow::ALL[overflow];
        let (enabled, on_expire, on_overflow, webhook) = dlq;
        QueueSettings {
            topics: topics.into_iter().collect(),
            default_group,
            durability: durability.map(|n| [Durability::Fsync, Durability::Interval, Durability::Os, Durability::Memory][n]),
            overflow,
            retry,
            dlq: DeadLetterSettings {
                enabled,
                on_expire: enabled && on_expire,
                on_overflow: enabled && on_overflow && overflow == Overflow::DropOldest,
                webhook: (enabled && webhook).then(|| "https://ops.example/dead?x=1".into()),
            },
            retention,
            compaction: CompactionSettings {
                enabled: compaction && retention.mode == RetentionMode::Policy,
                ..times.compaction
            },
            groups,
            partitions: counts.partitions,
            ordering: counts.ordering,
            lane_window: counts.lane_window,
            claim_batch: counts.claim_batch,
            max_in_flight: counts.max_in_flight,
            max_pending: counts.max_pending,
            max_message_size: counts.max_message_size,
            max_depth: counts.max_depth,
            max_bytes: counts.max_bytes,
            ..times
        }
    }
}

proptest! {
    #[test]
    fn settings_survive_json(settings in settings(), other in settings()) {
        let text = settings.to_json().to_string();
        prop_assert_eq!(&good(&text), &settings, "{}", text);
        // The result does not depend on the base, except for fields without a value, which are not in the text.
        let diags = Diagnostics::new("body");
        let mut patched = other.patch(&Node::parse(&text).unwrap(), &diags);
        patched.durability = settings.durability;
        patched.dlq.webhook = settings.dlq.webhook.clone();
        prop_assert_eq!(patched, settings);
    }

    #[test]
    fn settings_may_become_themselves(settings in settings(), depth in any::<u64>()) {
        prop_assert!(settings.may_become(&settings, depth, settings.durability.unwrap_or(Durability::Fsync)).is_ok());
    }

    #[test]
    fn no_text_breaks_the_reader(
        field in prop_oneof![Just("partitions"), Just("ttl"), Just("retry"), Just("groups"), Just("topics"), Just("max_bytes")],
        value in "\\PC{0,30}",
    ) {
        if let Ok(node) = Node::parse(&format!("{field}: {value}")) {
            let diags = Diagnostics::new("body");
            let settings = QueueSettings::read(&node, &diags);
            if !diags.has_errors() {
                prop_assert_eq!(good(&settings.to_json().to_string()), settings);
            }
        }
    }
}
