//! Keeps a session alive while its owner makes no calls.

use std::time::Duration;

use opcua::types::{AttributeId, TimestampsToReturn, VariableId};
use tokio_util::sync::CancellationToken;

use super::{REQUEST_TIMEOUT, Session, read_id};
use crate::channel::CallError;
use crate::value::{StructureRegistry, status};

/// Minimum interval between two reads.
const PERIOD_MIN: Duration = Duration::from_secs(1);

/// Reads the server's state often enough to keep the session alive, in a task of its own because the owner of the
/// session may be blocked elsewhere. Closes the channel if the server does not respond. Stops when it is dropped.
pub(crate) struct KeepAlive {
    stop: CancellationToken,
}

impl KeepAlive {
    pub fn start(session: &Session) -> KeepAlive {
        let stop = CancellationToken::new();
        let (session, stopped) = (session.clone(), stop.clone());
        let period = (session.timeout() / 3).clamp(PERIOD_MIN, REQUEST_TIMEOUT);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(period);
            loop {
                tokio::select! {
                    () = stopped.cancelled() => return,
                    _ = tick.tick() => {}
                }
                if let Err(error) = ask(&session).await {
                    session.channel().close(&error.to_string());
                    return;
                }
            }
        });
        KeepAlive { stop }
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn ask(session: &Session) -> Result<(), CallError> {
    let state = read_id(VariableId::Server_ServerStatus_State.into(), AttributeId::Value);
    match session
        .read(
            vec![state],
            TimestampsToReturn::Neither,
            0.0,
            &StructureRegistry::default(),
        )
        .await
    {
        Ok(_) => Ok(()),
        Err(CallError::Refused(status)) if !status::says_session_gone(status) => Ok(()),
        Err(CallError::Unreadable(_) | CallError::WrongCount { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
