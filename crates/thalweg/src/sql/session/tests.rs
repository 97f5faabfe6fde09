use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use thalweg_http::tls_client::test_server::TestIdentity;
use thalweg_query::QueryOptions;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::*;

fn question(source: SqlSource) -> SqlRequest {
    SqlRequest {
        source,
        query: "select 1 as x".to_owned(),
        format: SqlOutputFormat::Csv,
    }
}

fn of(data_dir: &Path) -> SqlSource {
    SqlSource {
        data_dir: data_dir.to_owned(),
        ..SqlSource::default()
    }
}

/// A reader that leaves after a few bytes.
struct Leaving;

impl Write for Leaving {
    fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("lake")).unwrap();
    let runtime = Runtime::new().unwrap();
    answer(&runtime, &question(of(folder.path())), &mut Leaving).unwrap();
    let other = anyhow::Error::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe)).context("cut off");
    assert!(
        !is_broken_pipe(&other),
        "a process that breaks off its answer is another matter"
    );
}

/// The token that the process requires.
const TOKEN: &str = "secret";

/// A data folder with a process that holds it.
struct World {
    folder: tempfile::TempDir,
    runtime: Runtime,
    held: DataDir,
    /// Queries that the process has answered.
    answered: Arc<AtomicUsize>,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lake")).unwrap();
        World {
            held: DataDir::take(folder.path()).unwrap(),
            folder,
            runtime: Runtime::new().unwrap(),
            answered: Arc::default(),
        }
    }

    /// Starts a listener and notes its address in the folder. Returns its port.
    fn listen(&self, tls: Option<Arc<ServerConfig>>, token: Option<&'static str>) -> u16 {
        let engine = Engine::open(
            self.folder.path(),
            QueryOptions::default(),
            QueryMetrics::unregistered(),
        )
        .unwrap();
        let answered = self.answered.clone();
        let counted = move |request: Request, next: Next| {
            let answered = answered.clone();
            async move { guarded(request, next, token, &answered).await }
        };
        let router = thalweg_query::http::router(engine).layer(from_fn(counted));
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = tls.map(TlsAcceptor::from);
        self.held
            .announce(Some((address.to_string(), acceptor.is_some())))
            .unwrap();
        self.runtime.spawn(async move {
            let http = hyper::server::conn::http1::Builder::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (http, service) = (http.clone(), TowerToHyperService::new(router.clone()));
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    match acceptor {
                        None => drop(http.serve_connection(TokioIo::new(stream), service).await),
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                drop(http.serve_connection(TokioIo::new(stream), service).await);
                            }
                        }
                    }
                });
            }
        });
        address.port()
    }

    fn source(&self) -> SqlSource {
        of(self.folder.path())
    }

    /// The answer and how many queries the process has answered for it, or the error.
    fn ask(&self, source: SqlSource) -> Result<(String, usize), String> {
        let before = self.answered.load(Ordering::SeqCst);
        let mut out = Vec::new();
        let answered = answer(&self.runtime, &question(source), &mut out);
        answered.map_err(|error| format!("{error:#}"))?;
        let by_process = self.answered.load(Ordering::SeqCst) - before;
        Ok((String::from_utf8(out).unwrap(), by_process))
    }
}

async fn guarded(request: Request, next: Next, token: Option<&str>, answered: &AtomicUsize) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    let is_right = token.is_none_or(|token| given.is_some_and(|given| given == &format!("Bearer {token}")));
    if !is_right {
        let problem = r#"{"error": {"code": "not_authenticated", "message": "who are you?"}}"#;
        return (StatusCode::UNAUTHORIZED, problem).into_response();
    }
    answered.fetch_add(1, Ordering::SeqCst);
    next.run(request).await
}

const BY_PROCESS: (&str, usize) = ("x\n1\n", 1);
const BY_FILES: (&str, usize) = ("x\n1\n", 0);

fn seen(answer: &Result<(String, usize), String>) -> (&str, usize) {
    let (text, by_process) = answer.as_ref().unwrap();
    (text, *by_process)
}

/// Silently answering from committed files would return only a part of the rows.
#[test]
fn a_process_that_speaks_tls_is_asked_or_refused_and_its_files_are_read_by_choice_alone() {
    let world = World::new();
    let names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
    let own = TestIdentity::new(world.folder.path(), "own", "localhost", &names);
    world.listen(Some(own.shown()), Some(TOKEN));
    let refused = world.ask(world.source()).unwrap_err();
    for words in [
        "cannot reach process ",
        " at https://127.0.0.1:",
        "--ca-file",
        "--committed",
        "certificate",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let trusting = SqlSource {
        ca_file: Some(own.certificate.clone()),
        ..world.source()
    };
    let nobody = world.ask(trusting.clone()).unwrap_err();
    assert!(
        nobody.contains("not_authenticated: who are you?; give a token with --token-file"),
        "{nobody}"
    );
    let known = SqlSource {
        token: Some(TOKEN.to_owned()),
        ..trusting
    };
    assert_eq!(seen(&world.ask(known)), BY_PROCESS);
    let committed = SqlSource {
        committed: true,
        ..world.source()
    };
    assert_eq!(seen(&world.ask(committed)), BY_FILES);
}

#[test]
fn a_certificate_for_another_name_of_the_machine_is_asked_for_under_that_name() {
    let world = World::new();
    let own = TestIdentity::new(
        world.folder.path(),
        "own",
        "localhost",
        &["-addext", "subjectAltName=DNS:localhost"],
    );
    let port = world.listen(Some(own.shown()), None);
    let trusting = SqlSource {
        ca_file: Some(own.certificate.clone()),
        ..world.source()
    };
    let refused = world.ask(trusting.clone()).unwrap_err();
    assert!(refused.contains("with --url the host that it is for"), "{refused}");
    let named = SqlSource {
        url: Some(format!("https://localhost:{port}/")),
        ..trusting
    };
    assert_eq!(seen(&world.ask(named)), BY_PROCESS);
}

#[test]
fn a_process_without_tls_is_asked_and_the_files_are_read_when_it_has_ended() {
    let world = World::new();
    world.listen(None, None);
    assert_eq!(seen(&world.ask(world.source())), BY_PROCESS);
    let wrong = SqlSource {
        ca_file: Some(PathBuf::from("ca.pem")),
        ..world.source()
    };
    let refused = world.ask(wrong).unwrap_err();
    assert!(refused.contains("--ca-file is for https:// only"), "{refused}");
    let World {
        folder,
        held,
        runtime,
        answered,
    } = world;
    drop(held);
    let mut out = Vec::new();
    answer(&runtime, &question(of(folder.path())), &mut out).unwrap();
    assert_eq!((out.as_slice(), answered.load(Ordering::SeqCst)), (&b"x\n1\n"[..], 1));
}

#[test]
fn a_process_that_cannot_be_asked_is_refused_with_the_cure() {
    let world = World::new();
    let silent = world.ask(world.source()).unwrap_err();
    for words in ["has no HTTP listener", "set http.enabled: true", "--committed"] {
        assert!(silent.contains(words), "{words}: {silent}");
    }
    // An event store has no lake, so no rows could be missing from an answer.
    let events = tempfile::tempdir().unwrap();
    let _held = DataDir::take(events.path()).unwrap();
    let none = world.ask(of(events.path())).unwrap_err();
    assert!(none.starts_with("there is no lake in "), "{none}");
    // Like a container that has the folder but not the network.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    world.held.announce(Some((free.to_string(), false))).unwrap();
    let away = world.ask(world.source()).unwrap_err();
    for words in ["cannot reach process ", "--url", "--committed"] {
        assert!(away.contains(words), "{words}: {away}");
    }
    let nowhere = SqlSource {
        url: Some("localhost:4195".to_owned()),
        ..world.source()
    };
    let refused = world.ask(nowhere).unwrap_err();
    assert!(
        refused.contains("expected http://host:port or https://host:port"),
        "{refused}"
    );
}

/// The default data folder belongs to a process that has nothing to do with the lake.
#[test]
fn a_lake_that_is_named_itself_leaves_the_data_folder_alone() {
    let world = World::new();
    let lake = tempfile::tempdir().unwrap();
    let of_lake = SqlSource {
        lake: Some(lake.path().display().to_string()),
        ..world.source()
    };
    assert_eq!(seen(&world.ask(of_lake)), BY_FILES);
    let in_lake: Vec<_> = std::fs::read_dir(world.folder.path().join("lake")).unwrap().collect();
    assert!(in_lake.is_empty(), "{in_lake:?}");
    assert_eq!(
        std::fs::read_dir(lake.path()).unwrap().count(),
        0,
        "nor is anything written there"
    );
}

/// The path of the lake must not be a way to get only a part of its rows silently.
#[test]
fn a_lake_that_is_named_itself_beside_its_process_is_asked_for_or_read_by_choice() {
    let named = |world: &World, lake: &Path| SqlSource {
        lake: Some(lake.display().to_string()),
        ..world.source()
    };
    let mut world = World::new();
    let inside = world.folder.path().join("lake");
    // The process is still starting.
    let refused = world.ask(named(&world, &inside)).unwrap_err();
    assert!(refused.contains("--committed"), "{refused}");
    world.listen(None, None);
    assert_eq!(seen(&world.ask(named(&world, &inside))), BY_PROCESS);
    let by_choice = SqlSource {
        committed: true,
        ..named(&world, &inside)
    };
    assert_eq!(seen(&world.ask(by_choice)), BY_FILES);

    // A lake elsewhere has a lock of its own, and the lake in the data folder is not in use.
    let elsewhere = tempfile::tempdir().unwrap();
    let held = std::mem::replace(&mut world.held, DataDir::take_lake(elsewhere.path()).unwrap());
    world.listen(None, None);
    std::fs::create_dir_all(inside.join("_thalweg")).unwrap();
    let note = elsewhere.path().display().to_string();
    std::fs::write(inside.join("_thalweg/url"), note).unwrap();
    assert_eq!(seen(&world.ask(named(&world, elsewhere.path()))), BY_PROCESS);
    assert_eq!(seen(&world.ask(named(&world, &inside))), BY_FILES);
    drop(held);
}
