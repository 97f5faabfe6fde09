//! The limit of open files, and the connections' share of it.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors reserved for files of the log and of indexes: a fraction of all, within bounds.
const KEPT_PART: u64 = 4;
const KEPT_MIN: u64 = 64;
const KEPT_MAX: u64 = 16_384;

/// The connections' share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub connections_max: usize,
    /// Connections use descriptors below this number.
    pub descriptors_max: u64,
}

/// Raises the limit as far as the process may, and divides it. At most `most` connections; `key` names the operator's
/// setting, if there is one.
pub(crate) fn for_connections(most: usize, key: Option<&str>) -> ConnectionLimits {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        let mut raised = limit;
        // Without a process limit, the system limit still applies.
        raised.current = limit.maximum.or(Some(SYSTEM_MAX));
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::warn!(%error, limit = ?before, "the limit of open files was not raised"),
        }
    }
    let all = limit.current.unwrap_or(SYSTEM_MAX);
    let divided = divide(all, open_now(), most);
    if let Some(key) = key
        && divided.connections_max < most
    {
        let allowed = divided.connections_max;
        tracing::warn!(
            "{key} is {most}, but the limit of {all} open files leaves {allowed} for connections; raise it (ulimit -n, or LimitNOFILE of the service)"
        );
    }
    tracing::debug!(open_files_max = all, ?divided, "divided the limit of open files");
    divided
}

/// The default of Linux.
const SYSTEM_MAX: u64 = 1 << 20;

fn divide(all: u64, open: u64, most: usize) -> ConnectionLimits {
    let kept = (all / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX).min(all / 2);
    let descriptors_max = all - kept;
    let room = usize::try_from(descriptors_max.saturating_sub(open)).unwrap_or(usize::MAX);
    ConnectionLimits {
        connections_max: room.clamp(1, most),
        descriptors_max,
    }
}

/// The approximate number of open files.
fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_to_files_whatever_the_limit_is() {
        for (all, open, connections_max, descriptors_max) in [
            (64, 10, 22, 32),
            (256, 20, 172, 192),
            (1024, 24, 744, 768),
            (1 << 20, 100, 65_536, (1 << 20) - 16_384),
            (8, 20, 1, 4),
        ] {
            let expected = ConnectionLimits {
                connections_max,
                descriptors_max,
            };
            assert_eq!(divide(all, open, 65_536), expected, "{all}");
        }
    }
}
