//! Maintains the output's session, whether or not anything is written: creates it, keeps it alive, and recreates it.
//!
//! | state | does | goes on to |
//! |---|---|---|
//! | connecting | the previous session on a new channel, otherwise discovery, trust, channel and session | learning; waiting after a failure |
//! | waiting | nothing, for the backoff's delay; none after a connection that lasted | connecting |
//! | learning | reads the server's limits and namespaces | connected; waiting if the connection breaks |
//! | connected | keeps the session alive; writes are sent | waiting when the connection breaks; ended at the stop |
//! | ended | the session is closed | - |

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_flow::{Component, Connection};
use thalweg_kit::clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::write_session::WriteSession;
use crate::backoff::{backoff_from, delay_after_loss};
use crate::config::{ConnectionConfig, policy_name};
use crate::connect::{ConnectError, Connector};
use crate::metrics::{ConnectionMetrics, Reconnect};
use crate::profile::Profile;
use crate::server_facts::ServerFacts;
use crate::session::{KeepAlive, REQUEST_TIMEOUT, Session};

/// The connection details in the console.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionStatus {
    pub state: String,
    pub server: String,
    pub security: String,
}

pub(super) struct SessionSupervisor {
    pub config: ConnectionConfig,
    pub connector: Connector,
    pub component: Component,
    pub connection: Connection,
    pub metrics: ConnectionMetrics,
    pub status: Arc<Mutex<SessionStatus>>,
    /// Set while the state is connected.
    pub server: watch::Sender<Option<Arc<WriteSession>>>,
    pub stop: CancellationToken,
}

impl SessionSupervisor {
    /// Runs until the stop.
    pub async fn run(self) {
        let stop = self.stop.clone();
        let mut backoff = backoff_from(self.config.reconnect_interval);
        let mut previous = None;
        let mut connected_before = false;
        loop {
            let attempt = tokio::select! {
                biased;
                () = stop.cancelled() => return self.end(previous).await,
                attempt = self.connect(&mut previous) => attempt,
            };
            let wait = match attempt {
                Err(error) => {
                    self.failed(&error);
                    error.pause(backoff.next_pause(), self.config.session_timeout)
                }
                Ok((session, is_previous)) => {
                    let since = clock::now();
                    if std::mem::replace(&mut connected_before, true) {
                        self.metrics.reconnected(match is_previous {
                            true => Reconnect::Reactivated,
                            false => Reconnect::Recreated,
                        });
                    }
                    let lost = tokio::select! {
                        biased;
                        () = stop.cancelled() => return self.end(Some(session)).await,
                        lost = self.serve(&session) => lost,
                    };
                    self.lost(&lost);
                    previous = Some(session);
                    delay_after_loss(&mut backoff, since.elapsed())
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.end(previous).await,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn connect(&self, previous: &mut Option<Session>) -> Result<(Session, bool), ConnectError> {
        self.set_state("connecting");
        let name = format!("thalweg {}", self.component.title());
        self.connector.resume(previous, &name).await
    }

    /// Enables writes until the connection is lost; returns the reason.
    async fn serve(&self, session: &Session) -> String {
        let facts = match ServerFacts::read(session).await {
            Ok(facts) => facts,
            Err(error) => return error.to_string(),
        };
        let _alive = KeepAlive::start(session);
        let profile = facts.profile(self.config.profile);
        self.connected(session, &facts, &profile);
        let server = WriteSession::new(session.clone(), facts, &profile, REQUEST_TIMEOUT);
        self.server.send_replace(Some(Arc::new(server)));
        session.channel().closed().await;
        session.channel().closed_error().to_string()
    }

    fn connected(&self, session: &Session, facts: &ServerFacts, profile: &Profile) {
        let server = facts.product.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(
            component = self.component.title(),
            endpoint = %self.config.endpoint,
            server,
            profile = profile.name.as_str(),
            "connected"
        );
        let offer = &session.credentials().offer;
        *self.status.lock() = SessionStatus {
            state: "connected".to_owned(),
            server,
            security: format!("{:?}/{}", offer.mode, policy_name(offer.policy)),
        };
        self.metrics.connected.set(1);
        self.connection.up();
    }

    fn failed(&self, error: &ConnectError) {
        self.connection.failed(&error.text);
        self.set_state(&error.text);
    }

    fn lost(&self, why: &str) {
        self.server.send_replace(None);
        self.metrics.connected.set(0);
        self.connection.lost(why);
        self.set_state(&format!("connection lost: {why}"));
    }

    async fn end(&self, session: Option<Session>) {
        self.server.send_replace(None);
        self.metrics.connected.set(0);
        if let Some(session) = session.filter(|session| !session.channel().is_closed()) {
            session.close().await;
        }
        self.set_state("stopped");
    }

    fn set_state(&self, state: &str) {
        self.status.lock().state = state.to_owned();
    }
}
