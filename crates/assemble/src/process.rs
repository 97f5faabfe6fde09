//! A running process: started in the order data folder, tables, flows, HTTP; stopped in the opposite one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::join_all;
use thalweg_console::{ConfigText, Console, ConsoleOptions, Running};
use thalweg_flow::{DeadLetterOutput, Flow, FlowEnvironment, StopReport};
use thalweg_telemetry::{HttpRoutes, Metrics, StatusBoard, TableStatus, register_process_metrics};

use crate::checked::Checked;
use crate::data_dir::DataDir;
use crate::lake::Lake;

pub struct Process {
    flows: Vec<Flow>,
    dead_letter: Option<DeadLetterOutput>,
    console: Option<Running>,
    board: StatusBoard,
    lake: Arc<Lake>,
    shutdown_timeout: Duration,
    /// Let go last: whoever takes the folder next finds it at rest.
    _data_dir: DataDir,
}

/// Requests that still run when `shutdown_timeout` is over get this long to end.
const LISTENER_GRACE: Duration = Duration::from_millis(500);

/// How it ended.
pub struct Stopped {
    pub flows: Vec<StopReport>,
    pub tables: Vec<TableStatus>,
}

impl Process {
    /// Starts everything. Must be called on a tokio runtime; nothing is left running after an error.
    pub async fn start(checked: Checked) -> Result<Process> {
        let Checked {
            config,
            components,
            flows: specs,
            dead_letter,
            ..
        } = checked;
        let data_dir = DataDir::take(&config.data_dir)?;
        let metrics = Arc::new(Metrics::new(config.metrics.use_histogram_timing));
        register_process_metrics(&metrics);
        let board = StatusBoard::default();
        let lake = components.lake.clone();
        lake.start(&config, &metrics)?;
        board.add(lake.clone());

        // The address is taken before data moves, so that a taken port is found first.
        let routes: Vec<Arc<dyn HttpRoutes>> = vec![components.opcua.clone(), crate::sql::routes(&config, &metrics)?];
        let console = if config.http.enabled {
            let mut options = ConsoleOptions::new(config.http.clone(), config.auth.clone());
            options.built = crate::BUILT.to_owned();
            options.config = ConfigText {
                json: config.to_json(),
                yaml: config.to_yaml(),
            };
            Some(Console::start(options, metrics.clone(), board.clone(), routes).await?)
        } else {
            None
        };
        let http = console
            .as_ref()
            .map(|console| (console.address().to_string(), config.http.cert_file.is_some()));
        data_dir.announce(http)?;

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
            shutdown_timeout: config.shutdown_timeout,
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
        Ok(process)
    }

    /// Where the status page is.
    pub fn url(&self) -> Option<String> {
        self.console.as_ref().map(Running::url)
    }

    pub fn status(&self) -> StatusBoard {
        self.board.clone()
    }

    /// Waits until every flow has come to its own end.
    pub async fn ended(&self) {
        join_all(self.flows.iter().map(Flow::ended)).await;
    }

    /// Stops inputs, delivers what is in flight, closes tables and the listener. All of it shares `shutdown_timeout`; what
    /// is not done then is given up at once, and what cannot be interrupted gets a second more.
    pub async fn stop(self) -> Stopped {
        let deadline = Instant::now() + self.shutdown_timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let handles: Vec<_> = self.flows.iter().map(Flow::handle).collect();
        join_all(self.flows.into_iter().map(|flow| flow.stop(left()))).await;
        if let Some(dead_letter) = self.dead_letter {
            dead_letter.stop(left()).await;
        }
        // Failed messages are settled by the dead letter: only now is it known what became of all.
        let flows = handles.iter().map(|handle| handle.stop_report()).collect();
        self.lake.stop(left()).await;
        let tables = self.board.tables();
        if let Some(console) = self.console {
            let _cut_off = tokio::time::timeout(left().max(LISTENER_GRACE), console.stop()).await;
        }
        Stopped { flows, tables }
    }
}
