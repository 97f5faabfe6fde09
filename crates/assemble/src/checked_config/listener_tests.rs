//! Compares the checks of listeners with a real start.

use std::path::{Path, PathBuf};

use super::*;
use crate::process::Process;

fn certificate(name: &str) -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join("../console/tests/console/data").join(name)
}

/// Files as an operator may have them, valid and invalid.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
    write("tls.crt", &std::fs::read(certificate("localhost.crt")).unwrap());
    write("tls.key", &std::fs::read(certificate("localhost.key")).unwrap());
    write("empty", b"");
    write("nonsense", b"this is nonsense\n");
    write("token", b"secret\n");
    write("nobody", b"# nobody yet\n");
    folder
}

fn checked(text: &str, folder: &Path) -> CheckedConfig {
    let text = text.replace("DIR", &folder.display().to_string());
    let checked = CheckedConfig::text(
        &SourceText::new("f.yaml", text.as_str()),
        &|_| None,
        &LoadOptions::default(),
    );
    assert_eq!(checked.diagnostics.to_string(), "", "for {text}");
    checked.verify_start();
    checked
}

const FLOW: &str = "input: {generate: {mapping: 'root = 1'}}\noutput: {drop: {}}\n";

#[test]
fn what_a_start_would_refuse_is_found_at_its_place() {
    let folder = files();
    let end = "can be reached by other hosts without TLS and a login; set it to 127.0.0.1:4317, or add ingest.otlp.grpc.cert_file and \
               ingest.otlp.grpc.key_file, and auth.tokens or auth.users_file, or allow it with ingest.otlp.grpc.insecure: true";
    for (text, place, part) in [
        (
            "ingest: {otlp: {grpc: {address: \"0.0.0.0:4317\"}}}",
            "f.yaml:1:33: ",
            end,
        ),
        (
            "http: {address: \"192.0.2.7:4195\"}",
            "f.yaml:1:17: ",
            "http.address 192.0.2.7:4195 can be reached by other hosts without TLS and a login",
        ),
        (
            "ingest: {otlp: {http: {address: \":4318\", insecure: true}, grpc: {address: \":1\", cert_file: DIR/tls.crt, key_file: DIR/tls.key}}}",
            "f.yaml:1:75: ",
            "without a login; set it",
        ),
        ("auth: {users_file: DIR/nonsense}", "f.yaml:1:20: ", "nonsense:1: "),
        (
            "auth: {users_file: DIR/missing}",
            "f.yaml:1:20: ",
            "auth.users_file: cannot read",
        ),
        ("auth: {tokens_file: DIR/nonsense}", "f.yaml:1:21: ", "nonsense:1: "),
        (
            "logger: {file: {path: DIR}}",
            "f.yaml:1:23: ",
            "logger.file.path: it is a folder",
        ),
        (
            "logger: {file: {path: DIR/token/a/thalweg.log}}",
            "f.yaml:1:23: ",
            "token is a file, and no folder for another one",
        ),
        (
            "auth:\n  tokens:\n    - {name: a, file: DIR/token, roles: [read]}\n    - {name: b, file: DIR/empty, roles: [read]}",
            "f.yaml:4:7: ",
            "is empty; write the token into it",
        ),
        (
            "http: {cert_file: DIR/missing, key_file: DIR/tls.key}",
            "f.yaml:1:19: ",
            "http.cert_file: cannot read",
        ),
        (
            "http: {cert_file: DIR/tls.crt, key_file: DIR/nonsense}",
            "f.yaml:1:19: ",
            "holds no private key in PEM form",
        ),
        (
            "ingest: {otlp: {grpc: {cert_file: DIR/empty, key_file: DIR/tls.key}}}",
            "f.yaml:1:35: ",
            "ingest.otlp.grpc.cert_file: ",
        ),
        (
            "http: {cors: {enabled: true, allowed_origins: [\"a\\nb\"]}}",
            "f.yaml:1:47: ",
            "is not an origin; write it like https://example.org",
        ),
        (
            "ingest: {otlp: {http: {cors: {enabled: true, allowed_origins: [\"https://a.example/\"]}}}}",
            "f.yaml:1:63: ",
            "ingest.otlp.http.cors.allowed_origins: \"https://a.example/\" is not an origin",
        ),
        (
            "http: {root_path: \"/a b\"}",
            "f.yaml:1:19: ",
            "choose a plain path such as /benthos",
        ),
    ] {
        let found = checked(&format!("{text}\n{FLOW}"), folder.path())
            .diagnostics
            .to_string();
        let is_one = found.lines().count() == 1;
        assert!(
            is_one && found.starts_with(place) && found.contains(part),
            "{text}: {found}"
        );
    }
}

#[test]
fn every_mistake_is_told_and_none_of_a_listener_that_is_off() {
    let folder = files();
    let text = "http: {enabled: false, address: \"192.0.2.7:1\", root_path: \"/a b\"}\n\
                ingest: {otlp: {grpc: {enabled: false, address: \":1\"}, http: {address: \":2\"}}}\n\
                auth:\n  users_file: DIR/missing\n  tokens_file: DIR/missing\n";
    let found = checked(&format!("{text}{FLOW}"), folder.path()).diagnostics;
    let sorted: Vec<String> = found.sorted().iter().map(ToString::to_string).collect();
    let places: Vec<&str> = sorted.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(places, ["f.yaml:2:72:", "f.yaml:4:15:", "f.yaml:5:16:"], "{sorted:?}");
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        all[number as usize % all.len()]
    }
}

/// Fields of a listener, most of them valid. Port 0 takes any.
fn listener(random: &mut Random, addresses: &[&str]) -> String {
    const GOOD: &str = ", cert_file: DIR/tls.crt, key_file: DIR/tls.key";
    let tls = random.one_of(&[
        "",
        "",
        "",
        "",
        GOOD,
        GOOD,
        GOOD,
        GOOD,
        GOOD,
        ", cert_file: DIR/missing, key_file: DIR/tls.key",
        ", cert_file: DIR/tls.crt, key_file: DIR/empty",
        ", cert_file: DIR/nonsense, key_file: DIR/tls.key",
    ]);
    let insecure = random.one_of(&["", "", "", ", insecure: true"]);
    format!("address: \"{}\"{tls}{insecure}", random.one_of(addresses))
}

fn configuration(random: &mut Random) -> String {
    let all = [
        "127.0.0.1:0",
        "127.0.0.1:0",
        "[::1]:0",
        "0.0.0.0:0",
        ":0",
        "localhost:0",
    ];
    let cors = random.one_of(&[
        "",
        "",
        "",
        ", cors: {enabled: true, allowed_origins: [\"https://a.example\"]}",
        ", cors: {enabled: true, allowed_origins: [\"https://a.example\"]}",
        ", cors: {enabled: true, allowed_origins: [\"a\\nb\"]}",
    ]);
    let root = random.one_of(&[
        "",
        "",
        "",
        "",
        "",
        "",
        ", root_path: /x/y",
        ", root_path: \"/a b\"",
        ", root_path: /a//b",
    ]);
    let http = match random.one_of(&[true, true, true, false]) {
        true => format!("http: {{{}{cors}{root}}}\n", listener(random, &all)),
        false => format!("http: {{enabled: false, {}{cors}{root}}}\n", listener(random, &all)),
    };
    let token =
        "tokens: [{name: a, sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef, roles: [read]}]";
    let auth = random.one_of(&[
        "",
        "",
        token,
        token,
        token,
        "tokens: [{name: a, file: DIR/token, roles: [read]}]",
        "tokens: [{name: a, file: DIR/empty, roles: [read]}]",
        "users_file: DIR/nobody",
        "users_file: DIR/nonsense",
        "tokens_file: DIR/missing",
    ]);
    let enabled = random.one_of(&["", "", "enabled: false, "]);
    let ingest = match random.one_of(&[true, false]) {
        true => {
            let (grpc, second) = (listener(random, &all), listener(random, &all));
            let cors = random.one_of(&[
                "",
                "",
                "",
                ", cors: {enabled: true, allowed_origins: [\"*\"]}",
                ", cors: {enabled: false, allowed_origins: [\"a.example\"]}",
                ", cors: {enabled: true, allowed_origins: [\"a.example\"]}",
            ]);
            format!("ingest: {{otlp: {{grpc: {{{enabled}{grpc}}}, http: {{{second}{cors}}}}}}}\n")
        }
        false => String::new(),
    };
    format!("{http}auth: {{{auth}}}\n{ingest}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_refuses_what_a_start_refuses_and_nothing_else() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, seeds) = (
        number("THALWEG_SIM_SEED").unwrap_or(1),
        number("THALWEG_SIM_SEEDS").unwrap_or(40),
    );
    let folder = files();
    let mut refused = 0;
    // A failed start leaves its log to close by itself, which may happen after its folder is removed.
    for seed in first..first + seeds {
        let data = tempfile::tempdir().unwrap();
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let text = configuration(&mut random);
        let head = format!(
            "data_dir: {}\nshutdown_timeout: 1s\nmemory: {{limit: 512MiB}}\nlog: {{on_poison: stay, min_free: 64MiB}}\n",
            data.path().display()
        );
        let checked = checked(&format!("{head}{text}{FLOW}"), folder.path());
        let found = checked.diagnostics.to_string();
        let is_refused = checked.diagnostics.has_errors();
        let started = Process::start(checked, "").await;
        let told = || format!("THALWEG_SIM_SEED={seed} THALWEG_SIM_SEEDS=1 shows it again:\n{text}check: {found}");
        match started {
            Ok(process) => {
                process.stop().await;
                assert!(!is_refused, "it starts; {}", told());
            }
            Err(error) => assert!(is_refused, "a start says {error:#}; {}", told()),
        }
        refused += u64::from(is_refused);
    }
    if seeds >= 40 {
        assert!(
            refused * 5 > seeds && refused * 5 < seeds * 4,
            "{refused} of {seeds} are refused: no test of anything"
        );
    }
}
