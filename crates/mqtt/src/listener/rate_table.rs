//! How often each source address may connect. An address is a time until which its share is used up; the table has two
//! generations of a limited size, of which the older is forgotten as a whole, so it neither grows nor is searched.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::settings::RateLimit;

/// Addresses of a generation.
const GENERATION_MAX: usize = 32 << 10;

/// Generic cell rate algorithm, for many addresses.
#[derive(Debug)]
pub(super) struct RateTable {
    /// What one connection uses up.
    interval: Duration,
    /// What may be used up in advance.
    tolerance: Duration,
    recent: HashMap<IpAddr, Instant>,
    older: HashMap<IpAddr, Instant>,
}

/// The network part of an IPv6 address: a host usually has all addresses of one.
const NETWORK: u128 = !0 << 64;

/// The share that an address belongs to.
fn share_of(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK)),
        address => address,
    }
}

impl RateTable {
    pub fn new(limit: RateLimit) -> RateTable {
        // A rate of nearly nothing is one connection in an hour.
        let interval = Duration::try_from_secs_f64(1.0 / limit.per_second)
            .unwrap_or(HOUR)
            .min(HOUR);
        RateTable {
            interval,
            tolerance: interval * limit.burst.saturating_sub(1),
            recent: HashMap::new(),
            older: HashMap::new(),
        }
    }

    /// Whether the address may connect now; then it has used up a part of its share.
    pub fn take(&mut self, source: IpAddr, now: Instant) -> bool {
        let share = share_of(source);
        let known = self.recent.get(&share).or_else(|| self.older.get(&share));
        let used_until = known.copied().unwrap_or(now).max(now);
        if used_until.saturating_duration_since(now) > self.tolerance {
            return false;
        }
        if self.recent.len() >= GENERATION_MAX && !self.recent.contains_key(&share) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(share, used_until + self.interval);
        true
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use thalweg_kit::clock;

    use super::*;

    fn table(per_second: f64, burst: u32) -> RateTable {
        RateTable::new(RateLimit { per_second, burst })
    }

    #[test]
    fn an_address_has_a_burst_and_then_its_rate() {
        let mut table = table(2.0, 3);
        let (source, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let begin = clock::now();
        let taken = |table: &mut RateTable, millis: u64| {
            let now = begin + Duration::from_millis(millis);
            (0..5).filter(|_| table.take(source, now)).count()
        };
        assert_eq!(taken(&mut table, 0), 3);
        assert!(table.take(other, begin));
        assert_eq!(taken(&mut table, 400), 0);
        assert_eq!(taken(&mut table, 500), 1);
        assert_eq!(taken(&mut table, 60_000), 3);
    }

    #[test]
    fn a_host_has_one_share_for_all_its_addresses_of_ipv6_and_for_both_forms_of_ipv4() {
        let mut table = table(1.0, 1);
        let now = clock::now();
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(table.take(parse("2001:db8:0:1::1"), now));
        assert!(!table.take(parse("2001:db8:0:1:ffff::2"), now));
        assert!(table.take(parse("2001:db8:0:2::1"), now));
        assert!(table.take(parse("10.1.2.3"), now));
        assert!(!table.take(parse("::ffff:10.1.2.3"), now));
    }

    #[test]
    fn the_table_keeps_the_newest_addresses_and_never_grows_beyond_its_size() {
        let mut table = table(0.001, 1);
        let now = clock::now();
        let address = |number: usize| IpAddr::V4(Ipv4Addr::from_bits(number as u32));
        for number in 0..5 * GENERATION_MAX {
            assert!(table.take(address(number), now));
            assert!(table.recent.len() + table.older.len() <= 2 * GENERATION_MAX);
        }
        assert!(!table.take(address(5 * GENERATION_MAX - 1), now));
        assert!(!table.take(address(4 * GENERATION_MAX), now));
        assert!(table.take(address(0), now), "it is forgotten");
    }

    #[test]
    fn an_odd_limit_does_no_harm() {
        for (per_second, burst) in [
            (0.0, 0),
            (-1.0, 1),
            (f64::NAN, 1),
            (f64::INFINITY, u32::MAX),
            (1e-300, u32::MAX),
        ] {
            let mut table = table(per_second, burst);
            assert!(
                table.take(IpAddr::from([1, 1, 1, 1]), clock::now()),
                "{per_second} {burst}"
            );
        }
    }
}
