//! Renders responses on blocking threads if they take too long for a runtime thread: their size grows with what the
//! process manages, and other connections, including probes, must be served meanwhile.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use thalweg_kit::blocking;

/// Renders a response completely on a blocking thread.
pub async fn aside<T: IntoResponse>(make: impl FnOnce() -> T + Send + 'static) -> Response {
    match blocking::spawn(move || make().into_response()).await {
        Ok(response) => response,
        // It panicked, or the process shuts down.
        Err(_ended) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use thalweg_kit::threads;

    use super::*;
    use crate::{MetricDoc, Metrics};

    /// Longer than any step takes; reaching it fails the test.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn while_an_answer_is_made_the_thread_of_the_runtime_goes_on() {
        let (go_on, told) = mpsc::channel();
        let answer = aside(move || {
            told.recv_timeout(PATIENCE)
                .map(|()| "made")
                .map_err(|_| StatusCode::GATEWAY_TIMEOUT)
        });
        let other = async move {
            tokio::task::yield_now().await;
            go_on.send(()).unwrap();
        };
        let (answer, ()) = tokio::join!(answer, other);
        assert_eq!(answer.status(), StatusCode::OK);
        let failed = aside(|| -> &str { panic!("it is said in the log of the test") }).await;
        assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[tokio::test]
    async fn metrics_are_made_once_at_a_time_however_many_ask() {
        let metrics = Metrics::default();
        let (now, most) = (
            std::sync::atomic::AtomicUsize::new(0),
            std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)),
        );
        let seen = most.clone();
        let doc = MetricDoc::gauge("told", "Told.");
        metrics.tell(&doc, move |families| {
            use std::sync::atomic::Ordering::SeqCst;
            seen.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            threads::sleep(Duration::from_millis(20));
            now.fetch_sub(1, SeqCst);
            families.gauge(&doc, &[], 1.0);
        });
        let asked: Vec<_> = (0..8)
            .map(|_| {
                let metrics = metrics.clone();
                tokio::spawn(async move { metrics.text_aside().await })
            })
            .collect();
        for (n, asked) in asked.into_iter().enumerate() {
            // A cancelled caller gets nothing, and its work does not run in parallel with another's.
            match n % 2 {
                0 => asked.abort(),
                _ => assert!(asked.await.unwrap().unwrap().contains("told 1")),
            }
        }
        assert_eq!(most.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}
