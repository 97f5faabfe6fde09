//! A running process. It starts the data folder, the MQTT broker, tables, flows and HTTP in this order, and stops them in reverse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::join_all;
use thalweg_config::{CONNECTIONS_USUAL, Node};
use thalweg_console::{ConfigText, Console, ConsoleOptions, RunningListener};
use thalweg_flow::{DeadLetterOutput, Flow, FlowEnvironment, StopReport};
use thalweg_http::auth::{AuthReloadOutcome, Logins};
use thalweg_kit::clock;
use thalweg_lake_api::LakeAdmin;
use thalweg_lake_flow::{LakeContext, LakeTables, ends_of};
use thalweg_telemetry::{HttpRoutes, Metrics, StatusBoard, StatusSource, TableStatus, register_process_metrics};

use crate::checked_config::CheckedConfig;
use crate::data_dir::DataDir;
use crate::events::{CONNECTIONS_MAX, EventsService, RecoveryOptions};
use crate::ingest::Ingest;
use crate::mqtt::MqttService;
use crate::open_files;
use crate::queues::{QueueService, declare};
use crate::reload;

pub struct Process {
    flows: Vec<Flow>,
    dead_letter: Option<DeadLetterOutput>,
    console: Option<RunningListener>,
    board: StatusBoard,
    lake: Arc<LakeTables>,
    ingest: Arc<Ingest>,
    store: Arc<QueueService>,
    /// The configuration in force, and its list of queues, which may change.
    config: Node,
    events: Arc<EventsService>,
    mqtt: Arc<MqttService>,
    logins: Logins,
    list: tokio::sync::Mutex<Option<Node>>,
    shutdown_delay: Duration,
    shutdown_timeout: Duration,
    /// The token of the event store's namespace `default`, if it was created now.
    pub new_events_token: Option<crate::GeneratedToken>,
    /// The lock of a lake folder outside the data folder.
    _lake_dir: Option<DataDir>,
    /// Released last, so that the next process finds the folder at rest.
    _data_dir: DataDir,
}

/// Nodes of OPC UA servers get a quarter of `memory.limit`, and at least this.
const NODE_MEMORY_MIN: usize = 32 << 20;

/// Requests that still run after `shutdown_timeout` get this long to end.
const LISTENER_GRACE: Duration = Duration::from_millis(500);

/// The log gets this long to close, whatever time is left: unstored data makes the next start slower.
const LOG_GRACE: Duration = Duration::from_secs(2);

/// Keeps the process unready until every flow is on the status board. The listener answers earlier, and a board without
/// flows reports no problem.
#[derive(Default)]
struct StartupGate {
    done: AtomicBool,
}

impl StartupGate {
    fn done(&self) {
        self.done.store(true, Ordering::Release);
    }
}

impl StatusSource for StartupGate {
    fn not_ready(&self) -> Vec<String> {
        let done = self.done.load(Ordering::Acquire);
        if done {
            Vec::new()
        } else {
            vec!["the flows are being started".to_owned()]
        }
    }
}

/// The outcome of a reload.
pub struct ReloadReport {
    /// What is in force now, in words.
    pub applied: Vec<String>,
    /// Changed keys that need a restart.
    pub needs_restart: Vec<String>,
}

/// The outcome of a stop.
pub struct ShutdownReport {
    pub flows: Vec<StopReport>,
    pub tables: Vec<TableStatus>,
}

impl Process {
    /// Starts everything. `built` is the build time that `/version` shows. Must be called on a tokio runtime. After an
    /// error nothing is left running.
    pub async fn start(checked: CheckedConfig, built: &str) -> Result<Process> {
        let CheckedConfig {
            config,
            components,
            settings,
            flows: specs,
            dead_letter,
            ..
        } = checked;
        let logins = Logins::load(&config.auth, config.http.basic_auth.as_ref())?;
        let data_dir = DataDir::take(&config.data_dir)?;
        let metrics = Arc::new(Metrics::new(config.metrics.use_histogram_timing));
        register_process_metrics(&metrics);
        let board = StatusBoard::default();
        let starting = Arc::new(StartupGate::default());
        board.add(starting.clone());
        let lake = components.lake.clone();
        let lake_metrics = lake.register(&settings.lake.options, &metrics);
        board.add(lake.clone());

        let bodies = settings.store.log_memory.bodies;
        let store = components.store.clone();
        store.start(&config, &settings.store, &metrics).await?;
        board.add(store.clone());
        crate::metrics::register(&metrics, &store);
        let events = components.events.clone();
        let has_events = settings.lake.events.is_some();
        let log = store.log(&settings.store);
        let keeps = RecoveryOptions {
            deleted: has_events,
            accept_loss: settings.store.accepts_loss(),
        };
        let new_events_token = events
            .start(&settings.events, log, &config.data_dir, keeps, &metrics)
            .await?;
        let mqtt = components.mqtt.clone();
        let section = settings.mqtt.as_ref();
        mqtt.open(section, store.log(&settings.store), &logins, &metrics)
            .await?;
        // Read before anything that appends is served.
        let log_ends = store.log(&settings.store).map(|(log, _)| ends_of(log.as_ref()));

        let (entries, records) = (settings.entries(), settings.records());
        // The address is bound before data moves, so that a port in use is found first.
        let ingest = components.ingest.clone();
        if settings.ingest.is_some() {
            lake.set_opening(true);
        }
        let lake_dir = settings.lake.site.lock()?;
        let site = settings.lake.site.clone();
        let rate = settings.lake.options.maintenance.bytes_per_second;
        // Queries have their own connections, so that they do not delay commits.
        let open_site = || site.open(&config.data_dir, rate);
        let tables_site = open_site()?;
        let engine = (open_site()?, config.data_dir.as_path(), settings.query);
        let sql = crate::sql::routes(engine, &metrics, &lake_metrics, lake.clone())?;
        let maintenance = settings.lake.options.maintenance.clone();
        let admin = LakeAdmin::new(lake.clone(), tables_site.clone(), maintenance, lake_metrics.clone());
        let quarter = usize::try_from(config.memory.limit / 4).unwrap_or(usize::MAX);
        components.opcua.set_node_memory(quarter.max(NODE_MEMORY_MIN));
        let mut routes: Vec<Arc<dyn HttpRoutes>> = vec![
            components.opcua.clone(),
            components.topics.clone(),
            sql,
            Arc::new(admin.routes()),
        ];
        if let Some(queues) = store.queues() {
            routes.push(Arc::new(thalweg_queue_api::routes_within(queues, bodies)));
        }
        routes.extend(events.routes());
        let console = if config.http.enabled {
            let mut options = ConsoleOptions::new(config.http.clone(), config.auth.clone());
            options.built = built.to_owned();
            options.logins = Some(logins.clone());
            let usual = match events.is_open() {
                true => CONNECTIONS_MAX,
                false => CONNECTIONS_USUAL,
            };
            let wanted = config.http.max_connections;
            let share = open_files::for_connections(wanted.unwrap_or(usual), wanted.map(|_| "http.max_connections"));
            options.limits.connections_max = share.connections_max;
            options.limits.descriptors_max = Some(share.descriptors_max);
            if events.is_open() {
                crate::events::patience(&mut options.limits);
                options.manners = crate::events::manners();
            }
            options.config = ConfigText {
                json: config.to_json(),
                yaml: config.to_yaml(),
            };
            let console = Console::start(options, metrics.clone(), board.clone(), routes).await?;
            events.count_connections(console.connections());
            Some(console)
        } else {
            None
        };
        let http = console
            .as_ref()
            .map(|console| (console.address().to_string(), config.http.cert_file.is_some()));
        for held in [Some(&data_dir), lake_dir.as_ref()].into_iter().flatten() {
            held.announce(http.clone())?;
        }

        if (settings.ingest.is_some() || lake.is_wanted() || has_events)
            && let (Some(queues), Some((log, durability))) = (store.queues(), store.log(&settings.store))
        {
            let context = LakeContext {
                queues,
                durability,
                accept_loss: settings.store.accepts_loss(),
                log_ends: log_ends.unwrap_or_default(),
                site: tables_site.with_clock(log.clock()),
                log,
                metrics: lake_metrics.clone(),
                entries,
                records,
                options: settings.lake.options,
            };
            lake.start(context).await?;
        }
        if let Some(store) = events.embedded().filter(|_| has_events) {
            lake.open_events(store).await?;
        }
        if let Some(section) = &settings.ingest {
            ingest.start(section, &lake, &logins, &metrics, &lake_metrics).await?;
            lake.set_opening(false);
        }
        mqtt.serve(config.shutdown_timeout);
        let mut environment = FlowEnvironment {
            metrics,
            data_dir: config.data_dir.clone(),
            runtime: tokio::runtime::Handle::current(),
            dead_letters: None,
        };
        let dead_letter = match &dead_letter {
            Some(dead) => Some(DeadLetterOutput::start(
                (&dead.name, &dead.path, &dead.label),
                &dead.spec,
                &environment,
            )?),
            None => None,
        };
        environment.dead_letters = dead_letter.as_ref().map(DeadLetterOutput::letters);
        if let Some(dead_letter) = &dead_letter {
            board.add(dead_letter.status());
        }
        let mut process = Process {
            flows: Vec::new(),
            dead_letter,
            console,
            board,
            lake,
            ingest,
            store,
            events,
            mqtt,
            logins,
            list: tokio::sync::Mutex::new(reload::list_of(&config.root).cloned()),
            config: config.root.clone(),
            shutdown_delay: config.shutdown_delay,
            shutdown_timeout: config.shutdown_timeout,
            new_events_token,
            _lake_dir: lake_dir,
            _data_dir: data_dir,
        };
        for spec in specs {
            match Flow::start(spec, &environment) {
                Ok(flow) => {
                    process.board.add(flow.handle());
                    process.flows.push(flow);
                }
                Err(error) => {
                    drop(environment);
                    process.stop().await;
                    return Err(error.into());
                }
            }
        }
        starting.done();
        Ok(process)
    }

    /// The URL of the status page.
    pub fn url(&self) -> Option<String> {
        self.console.as_ref().map(RunningListener::url)
    }

    /// Applies changes that are possible while the process runs: the logins of `auth`, and the queues of `queues.list`.
    /// A queue that was removed from the list stays. Stops at the first queue that cannot be changed; those before it
    /// are changed.
    pub async fn reload(&self, checked: &CheckedConfig) -> Result<ReloadReport> {
        let new = &checked.config.root;
        let mut list = self.list.lock().await;
        let mut reloaded = ReloadReport {
            applied: Vec::new(),
            needs_restart: reload::changed_keys(&self.config, new),
        };
        let auth = self.logins.replace(&checked.config.auth)?;
        if auth != AuthReloadOutcome::NeedsRestart {
            reloaded.needs_restart.retain(|key| !key.starts_with("auth."));
        }
        match self.store.queues() {
            Some(queues) => reloaded.applied = declare(&queues, &checked.settings.store.queues).await?,
            None if list.as_ref() != reload::list_of(new) => reloaded.needs_restart.push(reload::LIST.to_owned()),
            None => {}
        }
        if auth == AuthReloadOutcome::Done {
            reloaded.applied.push("auth".to_owned());
        }
        *list = reload::list_of(new).cloned();
        Ok(reloaded)
    }

    pub fn status(&self) -> StatusBoard {
        self.board.clone()
    }

    /// Waits until every flow has ended by itself. Without flows it never returns: queues are served until a stop.
    pub async fn ended(&self) {
        if self.flows.is_empty() {
            std::future::pending::<()>().await;
        }
        join_all(self.flows.iter().map(Flow::ended)).await;
    }

    /// Stops inputs, delivers messages in flight, closes tables and the listener. All steps share `shutdown_timeout`, without
    /// the time of `shutdown_delay`, in which the counts can be read.
    /// Afterwards unfinished work is abandoned, except for steps with a grace of their own.
    pub async fn stop(self) -> ShutdownReport {
        let mut deadline = clock::now() + self.shutdown_timeout;
        let left = |deadline: Instant| deadline.saturating_duration_since(clock::now());
        self.mqtt.stop_listeners(left(deadline)).await;
        let handles: Vec<_> = self.flows.iter().map(Flow::handle).collect();
        join_all(self.flows.into_iter().map(|flow| flow.stop(left(deadline)))).await;
        if let Some(dead_letter) = self.dead_letter {
            dead_letter.stop(left(deadline)).await;
        }
        // The dead letter output settles failed messages, so the counts are final only now.
        let flows = handles.iter().map(|handle| handle.stop_report()).collect();
        self.ingest.stop(left(deadline)).await;
        self.lake.stop(left(deadline)).await;
        let tables = self.board.tables();
        tokio::time::sleep(self.shutdown_delay).await;
        deadline += self.shutdown_delay;
        // Subscriptions must not delay the listener.
        self.events.stop(left(deadline).max(LISTENER_GRACE)).await;
        if let Some(console) = self.console {
            let _cut_off = tokio::time::timeout(left(deadline).max(LISTENER_GRACE), console.stop()).await;
        }
        self.mqtt.stop(left(deadline).max(LOG_GRACE)).await;
        // Requests append and settle until the listener is closed.
        self.store.stop(left(deadline).max(LOG_GRACE)).await;
        ShutdownReport { flows, tables }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use thalweg_config::{Fields, LoadOptions, SourceText, load};
    use thalweg_flow::{BoxFuture, BuildContext, BuildError, Input, InputContext, InputError, InputSpec};

    use super::*;
    use crate::{Components, DataDir};

    /// An input that reads `/ready` of the process while it is being built.
    #[derive(Clone, Default)]
    struct Asking {
        answer: Arc<Mutex<Option<(u16, String)>>>,
    }

    impl InputSpec for Asking {
        fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
            *self.answer.lock().unwrap() = Some(ready(&context.data_dir));
            Ok(Box::new(self.clone()))
        }
    }

    impl Input for Asking {
        fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
            Box::pin(async move {
                context.connection.up();
                context.stop.cancelled().await;
                Ok(())
            })
        }
    }

    fn ready(data_dir: &std::path::Path) -> (u16, String) {
        get(data_dir, "/ready").unwrap()
    }

    /// `None` if nobody listens.
    fn get(data_dir: &std::path::Path, path: &str) -> Option<(u16, String)> {
        let (address, _) = DataDir::holder(data_dir)?.http?;
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
        let agent: ureq::Agent = config.build().into();
        let mut response = agent.get(format!("http://{address}{path}")).call().ok()?;
        Some((response.status().as_u16(), response.body_mut().read_to_string().ok()?))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_ready_before_every_flow_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "data_dir: {}\nhttp: {{address: 127.0.0.1:0}}\ninput: {{asking: {{}}}}\noutput: {{drop: {{}}}}\n",
            folder.path().display()
        );
        let asking = Asking::default();
        let mut components = Components::new();
        let spec = asking.clone();
        components.registry.input("asking", "", move |node, context| {
            Fields::new(&node.body, context.diagnostics).finish();
            Some(Arc::new(spec.clone()))
        });
        let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
        let checked = CheckedConfig::check_with(loaded, components);
        assert_eq!(checked.diagnostics.to_string(), "");
        let process = Process::start(checked, "").await.unwrap();
        let (status, why) = asking.answer.lock().unwrap().take().unwrap();
        assert_eq!((status, why.as_str()), (503, "the flows are being started\n"));
        let mut looks = 0;
        while !process.status().not_ready().is_empty() {
            looks += 1;
            assert!(looks < 1000, "{:?}", process.status().not_ready());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        process.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_last_counts_can_be_read_for_as_long_as_the_file_says() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "data_dir: {}\nhttp: {{address: 127.0.0.1:0}}\nshutdown_delay: 2s\nshutdown_timeout: 1s\n\
             input: {{generate: {{mapping: root = 1, count: 3, interval: ''}}}}\noutput: {{drop: {{}}}}\n",
            folder.path().display()
        );
        let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
        let checked = CheckedConfig::check_with(loaded, Components::new());
        assert_eq!(checked.diagnostics.to_string(), "");
        let process = Process::start(checked, "").await.unwrap();
        process.ended().await;
        let begin = clock::now();
        let stopping = tokio::spawn(process.stop());
        let mut answers = 0;
        while !stopping.is_finished() {
            let data_dir = folder.path().to_owned();
            let answer = tokio::task::spawn_blocking(move || get(&data_dir, "/metrics"))
                .await
                .unwrap();
            if let Some((200, text)) = answer {
                let counts = text
                    .lines()
                    .any(|line| line.starts_with("thalweg_flow_out_total") && line.ends_with(" 3"));
                assert!(counts, "{text}");
                answers += 1;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(
            stopping
                .await
                .unwrap()
                .flows
                .iter()
                .all(|flow| flow.unacknowledged == 0)
        );
        assert!(
            answers > 0 && begin.elapsed() >= Duration::from_secs(2),
            "{answers} answers"
        );
    }
}
