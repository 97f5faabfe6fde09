use clap::{CommandFactory as _, FromArgMatches as _, Parser as _};

use super::*;
use crate::cli::{Cli, Command, SimulateCommand};
use crate::events::flags;

/// Parses like `main`, but without the environment.
fn read(args: &[&str]) -> Result<EventsCommand, clap::Error> {
    let all = ["thalweg", "events"].into_iter().chain(args.iter().copied());
    let args = flags::long(all.map(Into::into));
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(&args);
    let cli = matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let cli = cli.map_err(|error| flags::with_usage(error, &args, &mut command))?;
    match cli.command {
        Command::Events(options) => Ok(options.command.unwrap_or(EventsCommand::Help { command: None })),
        _ => unreachable!("events was asked for"),
    }
}

fn serve(args: &[&str]) -> Box<ServeOptions> {
    match read(args) {
        Ok(EventsCommand::Serve(options)) => options,
        Ok(_) => panic!("{args:?} is not serve"),
        Err(error) => panic!("{args:?}: {error}"),
    }
}

#[test]
fn flags_of_both_forms_say_the_same() {
    for args in [
        ["--port=1234", "--test-mode", "--durability=memory"].as_slice(),
        &["-port", "1234", "-test-mode=1", "-durability", "memory"],
        &["serve", "-port=1234", "--test-mode=true", "--durability", "memory"],
    ] {
        let options = serve(args);
        assert_eq!((options.port, options.test_mode), (1234, true), "{args:?}");
        assert!(options.durability == DurabilityMode::Memory, "{args:?}");
    }
    assert!(!serve(&["--test-mode=0"]).test_mode);
    assert!(!serve(&["--test-mode=false", "--metrics-per-namespace"]).test_mode);
    assert!(serve(&["-metrics-per-namespace"]).metrics_per_namespace);
    for (name, kind) in [
        ("postgres", DbType::Postgres),
        ("timescale", DbType::Timescale),
        ("sqlite", DbType::Sqlite),
        ("pebble", DbType::Pebble),
        ("log", DbType::Log),
    ] {
        assert!(serve(&["--db-type", name]).db_type == Some(kind));
    }
}

#[test]
fn every_command_listens_on_this_machine_alone_unless_it_is_told_otherwise() {
    let command = |args: &[&str]| Cli::try_parse_from([&["thalweg"], args].concat()).unwrap().command;
    match command(&["demo"]) {
        Command::Demo(demo) => assert_eq!(demo.http.to_string(), "127.0.0.1:4195"),
        _ => panic!("demo was asked for"),
    }
    match command(&["simulate", "opcua"]) {
        Command::Simulate(SimulateCommand::Opcua(opcua)) => {
            assert_eq!((opcua.host.as_str(), opcua.port), ("127.0.0.1", 50_000))
        }
        _ => panic!("simulate was asked for"),
    }
    let events = serve(&["serve"]);
    assert_eq!((events.address, events.port), (None, 8080));
    assert_eq!(serve(&["--max-connections", "16"]).max_connections, Some(16));
    assert_eq!(
        serve(&["--max-connections", "1000000"]).max_connections,
        Some(1_000_000)
    );
}

#[test]
fn wrong_usage_is_told_with_the_usage() {
    for args in [
        ["--prot", "1"].as_slice(),
        &["--port", "65536"],
        &["--port", "-1"],
        &["--max-message-bytes", "25165825"],
        &["--max-message-bytes", "0"],
        &["--max-connections", "15"],
        &["--max-connections", "1000001"],
        &["--test-mode=maybe"],
        &["--durability", "none"],
        &["--tls-cert", "a.pem"],
        &["--tls-key", "a.pem"],
        &["--tls-client-ca", "a.pem"],
        &["unknown"],
        &["append", "s"],
        &["append", "s", "--type", "t"],
        &["append", "s", "--type", "t", "--data", "{}", "--input", "-"],
        &["tail"],
        &["tail", "--stream", "a", "--all"],
        &["tail", "--all", "--from", "later"],
        &["export", "--since", "yesterday"],
        &["export", "--categories", "a-b"],
        &["backup"],
    ] {
        let error = read(args).err().unwrap_or_else(|| panic!("{args:?} is right"));
        assert_eq!(error.exit_code(), 2, "{args:?}");
        assert!(error.to_string().contains("Usage: thalweg events"), "{args:?}: {error}");
    }
}

#[test]
fn help_is_help_and_no_mistake() {
    assert!(matches!(read(&[]), Ok(EventsCommand::Help { command: None })));
    assert!(matches!(read(&["help"]), Ok(EventsCommand::Help { command: None })));
    let asked = read(&["--help"]).err().unwrap();
    assert_eq!(asked.exit_code(), 0);
}

#[test]
fn commands_take_what_they_are_for() {
    let Ok(EventsCommand::Append(append)) = read(&[
        "append",
        "order-1",
        "-type",
        "Created",
        "-data",
        "{}",
        "-expected-version",
        "-1",
    ]) else {
        panic!("append is not read");
    };
    assert_eq!(append.expected_version.as_deref(), Some("-1"));
    assert_eq!(
        (append.kind.as_deref(), append.stream.as_str()),
        (Some("Created"), "order-1")
    );
    let Ok(EventsCommand::Append(append)) = read(&["append", "order-1", "--input", "-"]) else {
        panic!("append is not read");
    };
    assert_eq!(append.input, Some("-".into()));
    let Ok(EventsCommand::Tail(tail)) = read(&["tail", "--category", "order", "--from", "7", "--types", "A,B"]) else {
        panic!("tail is not read");
    };
    assert_eq!(
        (tail.from, tail.types),
        (TailStart::At(7), vec!["A".to_owned(), "B".to_owned()])
    );
    let Ok(EventsCommand::Export(export)) = read(&["export", "--since=2026-01-15", "--categories=a,b"]) else {
        panic!("export is not read");
    };
    assert_eq!(export.since, Some(1_768_435_200_000_000));
    assert_eq!(export.categories, ["a", "b"]);
}
