//! TLS to the database, as `sslmode` asks.

use thalweg_events_postgres::{PostgresOptions, PostgresStore};

use crate::server::Server;

async fn open(server: &Server, query: &str) -> Result<PostgresStore, String> {
    let url = server.url().replace("sslmode=prefer", query);
    let opened = PostgresStore::open(&url, PostgresOptions::default()).await;
    opened.map_err(|error| error.to_string())
}

fn is_encrypted(server: &Server) -> bool {
    let sql =
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'thalweg'";
    server.sql(sql) == "t"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_is_encrypted_and_verified_as_the_url_asks() {
    let server = Server::start_with_tls();
    let roots = server.certificate();
    for (query, encrypted) in [
        ("sslmode=disable".to_owned(), false),
        ("sslmode=prefer".to_owned(), true),
        ("sslmode=require".to_owned(), true),
        (format!("sslmode=verify-full&sslrootcert={}", roots.display()), true),
    ] {
        let store = open(&server, &query).await;
        assert!(store.is_ok(), "{query}: {:?}", store.err());
        assert_eq!(is_encrypted(&server), encrypted, "{query}");
        drop(store);
        while server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'thalweg'") != "0" {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let stranger = open(&server, "sslmode=verify-full").await.err().unwrap();
    assert!(
        stranger.contains("cannot reach the database") || stranger.contains("authorities"),
        "{stranger}"
    );
    let missing = open(&server, "sslmode=verify-full&sslrootcert=/no/such/file")
        .await
        .err()
        .unwrap();
    assert!(missing.contains("cannot read sslrootcert /no/such/file"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = Server::start();
    let error = open(&server, "sslmode=require").await.err().unwrap();
    assert!(error.starts_with("cannot reach the database at "), "{error}");
    assert!(open(&server, "sslmode=prefer").await.is_ok());
}
