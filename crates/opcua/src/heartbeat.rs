//! The server's clock (i=2258) as a heartbeat, monitored or polled besides the tags.

use std::time::Duration;

use opcua::types::{NodeId, VariableId};

/// Without a heartbeat and without data for this long the connection counts as dead, unless heartbeats come less often.
const SILENCE_MIN: Duration = Duration::from_secs(10);

/// Latency allowance for a value that comes once per period.
const MARGIN: Duration = Duration::from_secs(2);

/// Server_ServerStatus_CurrentTime
pub(crate) fn node() -> NodeId {
    VariableId::Server_ServerStatus_CurrentTime.into()
}

/// The meaning of the time since the last heartbeat and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive,
    /// Data arrives, but the clock stands still.
    DataOnly,
    Dead,
}

/// Returns how long the clock may be silent if it is queried once per `period`.
pub(crate) fn silence_max(period: Duration) -> Duration {
    SILENCE_MIN.max(period * 2 + MARGIN)
}

/// Judges by the times since the last heartbeat and since the last data of any kind.
pub(crate) fn judge(heartbeat: Duration, data: Duration, silence_max: Duration) -> Liveness {
    match (heartbeat > silence_max, data > silence_max) {
        (false, _) => Liveness::Alive,
        (true, false) => Liveness::DataOnly,
        (true, true) => Liveness::Dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_asked_seldom_may_be_silent_for_two_periods() {
        let seconds = Duration::from_secs;
        assert_eq!(silence_max(Duration::from_millis(100)), seconds(10));
        assert_eq!(silence_max(seconds(15)), seconds(32));
        let silence = silence_max(seconds(15));
        assert_eq!(judge(seconds(30), seconds(30), silence), Liveness::Alive);
        assert_eq!(judge(seconds(33), seconds(1), silence), Liveness::DataOnly);
        assert_eq!(judge(seconds(33), seconds(33), silence), Liveness::Dead);
        assert_eq!(judge(seconds(11), seconds(11), silence_max(seconds(1))), Liveness::Dead);
    }
}
