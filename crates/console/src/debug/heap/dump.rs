//! The allocator's dump of its samples. In comes a text of stacks with the allocations that are still live; out come
//! stacks with the bytes that these stand for. A dump of another shape is an error and never half a profile.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use tikv_jemalloc_ctl::raw;

/// Memory that was allocated at one stack and is not freed yet.
#[derive(Debug)]
pub struct LiveStack {
    /// Return addresses, innermost first.
    pub addresses: Vec<u64>,
    /// Estimated from the samples.
    pub bytes: i64,
}

/// Whether the allocator was started with profiling.
pub fn is_sampling() -> bool {
    ["opt.prof\0", "opt.prof_active\0"].iter().all(|name| {
        // SAFETY: under these names the allocator writes a `bool`.
        unsafe { raw::read::<bool>(name.as_bytes()) }.unwrap_or(false)
    })
}

/// Makes the allocator write a dump, and returns the file at its beginning. The file is in memory: there may be no
/// folder that can be written to. Fails if the allocator was started without profiling.
pub fn take() -> io::Result<File> {
    let file = File::from(memfd_create("heap-profile", MemfdFlags::CLOEXEC)?);
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    // SAFETY: under this name the allocator reads a pointer to a path that ends with a zero byte. It keeps no pointer.
    unsafe { raw::write(b"prof.dump\0", path.as_ptr()) }.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(file)
}

/// Reads a dump:
///
/// ```text
/// heap_v2/524288                 bytes from one sample to the next, on average
///   t*: 95: 7340032 [0: 0]       sums
/// @ 0x55d012 0x55e1f0            a stack
///   t*: 28: 5242880 [0: 0]       its live samples of all threads: how many, and their bytes
///   t3: 28: 5242880 [0: 0]       those of one thread
///
/// MAPPED_LIBRARIES:              the end of what is of use
/// ```
///
/// Fails for any other line, also for counts that follow no stack, and for a dump that ends before its mappings.
pub fn parse(dump: impl BufRead) -> io::Result<Vec<LiveStack>> {
    let mut lines = dump.lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let interval = first.strip_prefix("heap_v2/");
    let interval = interval.and_then(|number| number.parse::<f64>().ok());
    let interval = interval.ok_or_else(|| malformed(&first))?;
    let mut stacks = Vec::new();
    let mut stack: Option<Vec<u64>> = None;
    // The sums of all stacks come first.
    let mut has_counts = false;
    for line in lines {
        let line = line?;
        let bad = || malformed(&line);
        if line == "MAPPED_LIBRARIES:" {
            return stack.map_or(Ok(stacks), |_| Err(bad()));
        } else if let Some(addresses) = line.strip_prefix('@') {
            let addresses = parse_addresses(addresses).ok_or_else(bad)?;
            if stack.replace(addresses).is_some() {
                return Err(bad());
            }
            has_counts = false;
        } else if let Some(counts) = line.strip_prefix("  t*: ") {
            let bytes = live_bytes(counts, interval).ok_or_else(bad)?;
            match stack.take() {
                Some(addresses) => stacks.push(LiveStack { addresses, bytes }),
                None if stacks.is_empty() && !has_counts => {}
                None => return Err(bad()),
            }
            has_counts = true;
        } else if !(line.is_empty() || line.starts_with("  t") && has_counts) {
            return Err(bad());
        }
    }
    Err(io::Error::other("the allocator's dump has no end"))
}

fn malformed(line: &str) -> io::Error {
    io::Error::other(format!("the allocator's dump has an unexpected line: {line:?}"))
}

fn parse_addresses(addresses: &str) -> Option<Vec<u64>> {
    let address = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    addresses.split_ascii_whitespace().map(address).collect()
}

/// The bytes that the samples of a stack stand for. An allocation of `size` bytes is sampled with the probability
/// `1 - exp(-size / interval)`. The dump has no single sizes, so all are taken for the mean of their stack.
fn live_bytes(counts: &str, interval: f64) -> Option<i64> {
    let (objects, rest) = counts.split_once(": ")?;
    let objects: f64 = objects.parse().ok()?;
    let bytes: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    let sampled = 1.0 - (-(bytes / objects) / interval).exp();
    // Without objects or bytes this is not a number, and becomes zero.
    Some((bytes / sampled) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "heap_v2/524288\n  t*: 3: 1200 [0: 0]\n  t0: 3: 1200 [0: 0] main\n";
    const END: &str = "\nMAPPED_LIBRARIES:\n00400000-00401000 r--p 0 0 0 /a\n@ is no stack here\n";

    fn parsed(stacks: &str) -> io::Result<Vec<LiveStack>> {
        parse(format!("{HEAD}{stacks}{END}").as_bytes())
    }

    #[test]
    fn stacks_have_the_bytes_that_their_samples_stand_for() {
        let found = parsed(
            "@ 0x10 0xab\n  t*: 2: 1048576 [0: 0]\n  t0: 2: 1048576 [0: 0]\n\
             @ 0x20\n  t*: 1: 8388608 [4: 9]\n\
             @\n  t*: 0: 0 [0: 0]\n",
        )
        .unwrap();
        let bytes: Vec<i64> = found.iter().map(|stack| stack.bytes).collect();
        // Of allocations as large as the interval, 1 - 1/e are sampled; of those 16 times as large, nearly all.
        assert_eq!(bytes, [1_658_822, 8_388_608, 0]);
        let addresses: Vec<&[u64]> = found.iter().map(|stack| &stack.addresses[..]).collect();
        assert_eq!(addresses, [&[0x10, 0xab][..], &[0x20], &[]]);
        assert!(parsed("").unwrap().is_empty());
    }

    #[test]
    fn a_dump_of_another_shape_is_an_error() {
        for stacks in [
            "@ 0x10\n",
            "@ 0x10\n@ 0x20\n  t*: 1: 1 [0: 0]\n",
            "@ ten\n  t*: 1: 1 [0: 0]\n",
            "@ 0x10\n  t*: 1\n",
            "@ 0x10\n  t*: many: 1 [0: 0]\n",
            "@ 0x10\n  t1: 1: 1 [0: 0]\n  t*: 1: 1 [0: 0]\n",
            "  t*: 1: 1 [0: 0]\n",
            "@ 0x10\n  t*: 1: 1 [0: 0]\n  t*: 1: 1 [0: 0]\n",
            "# 0x10\n  t*: 1: 1 [0: 0]\n",
            "@ 0x10\n  t*: 1: 1 [0: 0]\nmore\n",
        ] {
            assert!(parsed(stacks).is_err(), "{stacks}");
        }
        let cut = format!("{HEAD}@ 0x10\n  t*: 1: 1 [0: 0]\n");
        assert!(parse(cut.as_bytes()).is_err());
        for dump in ["", "heap_v3/524288\n", "heap_v2/\n"] {
            assert!(parse(dump.as_bytes()).is_err(), "{dump}");
        }
    }
}
