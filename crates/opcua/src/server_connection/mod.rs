//! One connection to the server, for as long as the process runs: its session, its subscriptions, its tags' values.
//!
//! | state | does | goes on to |
//! |---|---|---|
//! | connecting | discovery, trust, channel, session | recovering; waiting after a failure |
//! | waiting | nothing, for the backoff's delay; none after a connection that lasted | connecting |
//! | recovering | new session: reads the server's facts, transfers subscriptions; any session: fetches lost messages, recreates what cannot be kept, compares items with the server's list | serving; waiting if the connection breaks |
//! | serving | creates items, publishes, polls, delivers values | waiting when the connection breaks; ended at the stop |
//! | ended | the session is closed | - |
//!
//! Items and client handles survive every state change; only the server's side of them is recreated.

mod age_histogram;
mod catch_up;
mod convert;
mod creation;
mod deliver;
mod eu_ranges;
mod first_browse_buffer;
mod heartbeat;
mod items;
mod marks;
mod poll_fallback;
mod reconcile;
mod recovery;
mod replacement;
mod retry;
mod sampling;
mod serve;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::{Mutex, RwLock};
use thalweg_flow::{Component, Sink, SinkClosed};
use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::assign::ConnectionCommand;
use crate::backoff::{LASTED_MIN, backoff_from, delay_after_loss};
use crate::browse::ConnectedServer;
use crate::call_size::CallSize;
use crate::channel::CallError;
use crate::config::{InputConfig, policy_name};
use crate::connect::Connector;
use crate::directory::NodeMemory;
use crate::failures::NodeFailures;
use crate::gaps::{Gap, GapReason, Gaps};
use crate::health::Health;
use crate::metrics::{InputMetrics, Reconnect};
use crate::node_table::{NO_NODE, NodeTable};
use crate::poll::Poller;
use crate::server_facts::ServerFacts;
use crate::session::Session;
use crate::subscribe::{FilterStrategy, PublishRequester, Subscription};
use crate::type_learner::TypeLearner;
use crate::value::StructureRegistry;
use crate::value::answers::ClientHandleValue;

use convert::Converter;
use items::ItemTable;

/// State shared by all connections of an input.
#[derive(Clone)]
pub(crate) struct ConnectionContext {
    pub config: Arc<InputConfig>,
    /// Whether a status without a value becomes a message.
    pub passes_bad_values: bool,
    pub component: Component,
    pub connector: Arc<Connector>,
    pub table: Arc<RwLock<NodeTable>>,
    pub failures: Arc<NodeFailures>,
    pub memory: Arc<NodeMemory>,
    pub metrics: Arc<InputMetrics>,
    pub health: Health,
    pub sink: Sink,
    pub stop: CancellationToken,
    /// Notified when the server may have another address space.
    pub changed: Arc<Notify>,
}

/// The connection details in the console.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionStatus {
    pub state: String,
    pub server: String,
    pub security: String,
    pub subscriptions: usize,
}

pub(crate) struct ServerConnection {
    context: ConnectionContext,
    number: usize,
    commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    /// Set for the primary connection, which the browse uses.
    browse: Option<watch::Sender<Option<ConnectedServer>>>,
    status: Arc<Mutex<ConnectionStatus>>,
    backoff: Backoff,
    facts: Option<Arc<ServerFacts>>,

    items: ItemTable,
    gaps: Gaps,
    converter: Converter,
    types: StructureRegistry,
    type_learner: TypeLearner,
    paths_final: bool,
    /// Values that arrived before paths were final.
    held: first_browse_buffer::FirstBrowseBuffer,
    /// Reused for all responses.
    values: Vec<ClientHandleValue>,

    subscriptions: Vec<Subscription>,
    publisher: PublishRequester,
    creation: creation::ItemCreation,
    creating: FuturesUnordered<BoxFuture<'static, creation::CreateCallResult>>,
    ranges: eu_ranges::EuRangeLookups,
    poller: Poller,
    polling: FuturesUnordered<BoxFuture<'static, deliver::PollAnswer>>,
    last_data: Instant,
    last_heartbeat: Instant,
    heartbeat_warned: Option<Instant>,
    /// How often the server samples its clock for us.
    heartbeat_sampling: Duration,
    /// For the dedicated heartbeat item.
    heartbeat_retry: retry::Retry,
    /// For items that are polled for lack of room.
    room_retry: retry::Retry,
    taken_over: SessionSetup,
    /// Deleted subscriptions of this session that are no longer ours.
    abandoned: hashbrown::HashSet<u32>,
    replacements: replacement::ReplacementSchedule,
    /// Whether Republish timed out on this connection.
    republish_unanswered: bool,
    /// Total of items created and values received: a connection that adds nothing was useless.
    useful: u64,
}

/// Steps done once per session, by the first of its connections that lasts long enough.
#[derive(Clone, Copy, Debug, Default)]
struct SessionSetup {
    facts: bool,
    /// Whether the previous session's subscriptions were handled.
    subscriptions: bool,
}

/// Why serving ended.
enum ServeOutcome {
    Stopped,
    Lost(String),
}

/// An error that ends serving.
enum ServeError {
    Flow(SinkClosed),
    Connection(CallError),
}

impl From<SinkClosed> for ServeError {
    fn from(closed: SinkClosed) -> ServeError {
        ServeError::Flow(closed)
    }
}

impl From<CallError> for ServeError {
    fn from(error: CallError) -> ServeError {
        ServeError::Connection(error)
    }
}

impl ServerConnection {
    pub fn new(
        context: ConnectionContext,
        number: usize,
        commands: mpsc::UnboundedReceiver<ConnectionCommand>,
        browse: Option<watch::Sender<Option<ConnectedServer>>>,
        status: Arc<Mutex<ConnectionStatus>>,
    ) -> ServerConnection {
        let config = context.config.clone();
        let mut link = ServerConnection {
            number,
            commands,
            browse,
            status,
            backoff: backoff_from(config.connection.reconnect_interval),
            facts: None,
            items: ItemTable::default(),
            gaps: Gaps::default(),
            converter: Converter::new(context.table.clone(), config.tag_group_mode, context.passes_bad_values),
            types: StructureRegistry::standard(),
            type_learner: TypeLearner::new(),
            paths_final: false,
            held: first_browse_buffer::FirstBrowseBuffer::default(),
            values: Vec::new(),
            subscriptions: Vec::new(),
            publisher: PublishRequester::new(config.publish_requests, context.metrics.publish_in_flight.clone()),
            creation: creation::ItemCreation::new(sampling::SamplingIntervals::new(&config)),
            creating: FuturesUnordered::new(),
            ranges: eu_ranges::EuRangeLookups::new(),
            poller: Poller::new(config.poll_rate, CallSize::new(0, 1, false)),
            polling: FuturesUnordered::new(),
            last_data: clock::now(),
            last_heartbeat: clock::now(),
            heartbeat_warned: None,
            heartbeat_sampling: Duration::ZERO,
            heartbeat_retry: retry::Retry::after(context.failures.first_retry()),
            room_retry: retry::Retry::after(context.failures.first_retry()),
            taken_over: SessionSetup::default(),
            abandoned: hashbrown::HashSet::new(),
            replacements: replacement::ReplacementSchedule::new(),
            republish_unanswered: false,
            useful: 0,
            context,
        };
        if config.heartbeat && link.is_primary() {
            link.add_heartbeat();
        }
        link
    }

    fn is_primary(&self) -> bool {
        self.number == 0
    }

    /// Runs until the stop.
    pub async fn run(mut self) {
        let mut previous = None;
        loop {
            let Some((session, how)) = self.establish(previous.take()).await else {
                return;
            };
            let (since, useful) = (clock::now(), self.usefulness());
            let stop = self.context.stop.clone();
            let recovered = tokio::select! {
                biased;
                () = stop.cancelled() => return session.close().await,
                recovered = self.recover(&session, how) => recovered,
            };
            let ended = match recovered {
                Ok(()) => {
                    self.announce(&session);
                    self.serve(&session).await
                }
                Err(error) => ServeOutcome::Lost(error.to_string()),
            };
            match ended {
                ServeOutcome::Stopped => {
                    session.close().await;
                    self.set_state("stopped");
                    return;
                }
                ServeOutcome::Lost(why) => self.lost(&why),
            }
            previous = Some(session);
            let wait = self.wait_after_loss(since.elapsed(), self.usefulness() > useful);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// What connections have achieved so far, including the nodes found over them.
    fn usefulness(&self) -> u64 {
        self.useful + self.context.metrics.browse_nodes.get()
    }

    /// Returns the wait before the next attempt. After a connection that lasted there is none; a server that accepts
    /// logins and then closes the connection gets the backoff, as if it refused them.
    fn wait_after_loss(&mut self, lasted: Duration, was_useful: bool) -> Duration {
        match was_useful && lasted < LASTED_MIN {
            true => PAUSE_MIN.min(self.context.config.connection.reconnect_interval),
            false => delay_after_loss(&mut self.backoff, lasted),
        }
    }

    /// Tries until there is a session; `None` at the stop. The first attempt after a loss is immediate.
    async fn establish(&mut self, mut previous: Option<Session>) -> Option<(Session, Option<Reconnect>)> {
        let stop = self.context.stop.clone();
        let was_connected = previous.is_some() || self.facts.is_some();
        loop {
            self.set_state("connecting");
            let name = format!("thalweg {} {}", self.context.component.title(), self.number);
            let attempt = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                attempt = self.context.connector.resume(&mut previous, &name) => attempt,
            };
            let error = match attempt {
                Ok((session, true)) => return Some((session, Some(Reconnect::Reactivated))),
                Ok((session, false)) => return Some((session, was_connected.then_some(Reconnect::Transferred))),
                Err(error) => error,
            };
            self.context.health.link_failed(self.number, &error.text);
            self.set_state(&error.text);
            let session_timeout = self.context.config.connection.session_timeout;
            let wait = error.pause(self.backoff.next_pause(), session_timeout);
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Publishes the ready session: facts for the browse, state for the console.
    fn announce(&mut self, session: &Session) {
        self.context.health.link_up(self.number);
        let Some(facts) = self.facts.clone() else { return };
        let profile = facts.profile(self.context.config.connection.profile);
        {
            let offer = &session.credentials().offer;
            let mut status = self.status.lock();
            status.server = facts.product.as_ref().map(ToString::to_string).unwrap_or_default();
            status.security = format!("{:?}/{}", offer.mode, policy_name(offer.policy));
        }
        self.set_state("connected");
        if let Some(browse) = &self.browse {
            let connected = ConnectedServer {
                session: session.clone(),
                facts,
                profile,
            };
            browse.send_replace(Some(connected));
        }
    }

    fn lost(&mut self, why: &str) {
        self.context.health.link_lost(self.number, why);
        self.set_state(&format!("connection lost: {why}"));
        self.publisher.connection_lost();
        self.poller.connection_lost();
        self.polling = FuturesUnordered::new();
        self.abandon_creating();
    }

    fn set_state(&self, state: &str) {
        let mut status = self.status.lock();
        status.state = state.to_owned();
        status.subscriptions = self.subscriptions.len();
    }

    /// Records a gap of many items, counted and logged once; each item marks it on its next value.
    fn gap(&mut self, reason: GapReason, gap: Gap, touched: impl Fn(&items::Item) -> bool) {
        let count = match self.paths_final {
            true => self.items.set_gap(&mut self.gaps, gap, touched),
            // After the buffered values, which are older.
            false => {
                let items = self.items.iter().map(|(_, item)| item);
                let nodes = items.filter(|item| item.node != NO_NODE && touched(item));
                let nodes: hashbrown::HashSet<_> = nodes.map(|item| item.node).collect();
                let count = nodes.len();
                self.held.add_gap(gap, nodes);
                count
            }
        };
        self.count_gap(reason, gap, count);
    }

    fn count_gap(&self, reason: GapReason, gap: Gap, count: usize) {
        if count == 0 {
            return;
        }
        self.context.metrics.gap(reason, gap.length());
        self.context.component.warn_limited(reason.as_str(), 1, || {
            format!(
                "values of {count} tags may be missing from {} to {} ({})",
                crate::value::ticks::micros_text(gap.from),
                crate::value::ticks::micros_text(gap.to),
                reason.as_str()
            )
        });
    }

    /// Reads a new session's facts and applies them: chunk sizes, whether filters are tried, whether the server
    /// changed.
    async fn learn_facts(&mut self, session: &Session) -> Result<(), CallError> {
        let facts = Arc::new(ServerFacts::read(session).await?);
        let profile = facts.profile(self.context.config.connection.profile);
        let limits = facts.limits;
        self.creation.chunk = CallSize::new(limits.items_per_call, profile.items_per_call, profile.adaptive);
        self.creation.begin_session();
        self.creation.filters = FilterStrategy::from(profile.filters);
        self.poller.set_chunk(CallSize::new(
            limits.nodes_per_read,
            profile.items_per_call,
            profile.adaptive,
        ));
        // Before any request uses NodeIDs with old indexes; the first connection updates them for all.
        self.context.table.write().set_namespaces(&facts.namespaces);
        let changed = self.facts.as_ref().is_some_and(|earlier| facts.differs_from(earlier));
        let first = self.facts.is_none();
        self.facts = Some(facts.clone());
        if first && self.is_primary() {
            let product = facts
                .product
                .as_ref()
                .map_or_else(|| "unknown".to_owned(), ToString::to_string);
            tracing::info!(
                component = self.context.component.title(),
                endpoint = %self.context.config.connection.endpoint,
                server = product,
                profile = profile.name.as_str(),
                "connected"
            );
        }
        if changed {
            self.types = StructureRegistry::standard();
            self.type_learner = TypeLearner::new();
            self.items.forget_metadata();
        }
        if changed && self.is_primary() {
            self.context.changed.notify_one();
        }
        Ok(())
    }
}

/// Maximum delay of periodic work in the serving loop.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Pause between useful connections that break early.
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// Items that wait to be created.
type ItemQueue = VecDeque<items::ItemIndex>;
