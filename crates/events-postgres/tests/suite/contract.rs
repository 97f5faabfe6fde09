//! The PostgreSQL store fulfils the contract of every store.

use std::sync::Arc;

use thalweg_events::Store;
use thalweg_events::contract_suite::Suite;
use thalweg_events_postgres::{PostgresOptions, PostgresStore};

use crate::server::Server;

fn suite(server: &Server) -> Suite {
    let url = server.url();
    Suite::new(move || {
        let url = url.clone();
        Box::pin(async move {
            Arc::new(PostgresStore::open(&url, PostgresOptions::default()).await.unwrap()) as Arc<dyn Store>
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_keep_the_contract() {
    let server = Server::start();
    suite(&server).appends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_keep_the_contract() {
    let server = Server::start();
    suite(&server).reads().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imports_keep_the_contract() {
    let server = Server::start();
    suite(&server).imports().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_keep_the_contract() {
    let server = Server::start();
    suite(&server).limits().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_and_tokens_keep_the_contract() {
    let server = Server::start();
    suite(&server).namespaces().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_and_documents_keep_the_contract() {
    let server = Server::start();
    suite(&server).retention().await;
    suite(&server).documents().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_of_several_writers_is_as_a_model_has_it() {
    let server = Server::start();
    suite(&server).random().await;
}
