//! Reports the progress of a browse: a log line every 10 s, and metrics.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use thalweg_flow::Component;
use thalweg_kit::clock;

use super::BrowseContext;

const PERIOD: Duration = Duration::from_secs(10);

/// Metrics are updated more often than the log.
const METRICS_PERIOD: Duration = Duration::from_millis(500);

pub(super) struct Progress<'a> {
    context: &'a BrowseContext,
    component: &'a Component,
    start: Instant,
}

impl<'a> Progress<'a> {
    pub fn new(context: &'a BrowseContext, component: &'a Component, start: Instant) -> Progress<'a> {
        Progress {
            context,
            component,
            start,
        }
    }

    pub async fn run(&self) -> Infallible {
        let mut tick = tokio::time::interval(METRICS_PERIOD);
        let mut logged = clock::now();
        loop {
            tick.tick().await;
            self.show();
            if logged.elapsed() >= PERIOD {
                logged = clock::now();
                self.log("browsing");
            }
        }
    }

    pub fn done(&self) {
        self.show();
        self.log("browse complete");
    }

    fn show(&self) {
        if !self.context.is_served {
            return;
        }
        let metrics = &self.context.metrics;
        let variables = self.context.table.read().variables();
        metrics
            .browse_variables
            .set(i64::try_from(variables).unwrap_or(i64::MAX));
        metrics
            .browse_seconds
            .set(i64::try_from(self.start.elapsed().as_secs()).unwrap_or(i64::MAX));
        metrics.show_items(&self.context.table);
    }

    fn log(&self, what: &str) {
        let metrics = &self.context.metrics;
        let (nodes, variables) = {
            let table = self.context.table.read();
            (table.len(), table.variables())
        };
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = nodes as f64 / seconds.max(0.001);
        tracing::info!(
            component = self.component.title(),
            variables,
            nodes,
            frontier = metrics.browse_frontier.get(),
            in_flight = metrics.browse_in_flight.get(),
            errors = self.context.failures.len(),
            nodes_per_second = rate.round(),
            "{what}"
        );
    }
}
