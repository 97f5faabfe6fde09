//! Files of a process are private to its user, whatever the umask is, and files that were open to others are closed at the next
//! start.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use thalweg_tests::{Api, Process, eventually, thalweg};

const YAML: &str = "\
data_dir: data
http: {address: '127.0.0.1:0'}
log: {min_free: 16MiB, commit: {spare: 1}}
lake: {flush: {interval: 1s}}
queues: {list: [{name: q, dedup_window: 1h}]}
events: {}
ingest: {otlp: {http: {address: '127.0.0.1:0'}, grpc: {address: '127.0.0.1:0'}}}
flows:
  - name: tags
    input: {generate: {interval: 10ms, count: 0, mapping: root = counter()}}
    buffer: {queue: {}}
    pipeline:
      processors:
        - tag_processor:
            defaults: |
              msg.meta.location_path = \"e\"; msg.meta.data_contract = \"_raw\"; msg.meta.tag_name = \"n\"; return msg;
    output: {lake: {table: tags}}
  - name: plant
    input: {opcua: {endpoint: 'opc.tcp://127.0.0.1:1', nodeIDs: ['i=2258'], securityMode: SignAndEncrypt, securityPolicy: Basic256Sha256}}
    output: {drop: {}}
";

fn start(folder: &Path, umask: &str) -> Process {
    let mut shell = Command::new("sh");
    let line = format!("umask {umask} && exec \"$0\" \"$@\"");
    shell
        .args(["-c", &line])
        .arg(thalweg::binary())
        .args(["run", "flow.yaml"])
        .current_dir(folder);
    Process::start("private", folder, &mut shell).unwrap()
}

fn address(folder: &Path) -> anyhow::Result<String> {
    let lock: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(folder.join("data/LOCK"))?)?;
    Ok(lock["http"].as_str().unwrap_or_default().to_owned())
}

/// A folder and everything below it.
fn all(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(all(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

fn open_to_others(folder: &Path) -> Vec<String> {
    let mode = |path: &PathBuf| {
        std::fs::symlink_metadata(path)
            .ok()
            .map(|about| (about.is_dir(), about.mode() & 0o777))
    };
    let wrong = |path: &PathBuf| mode(path).filter(|(is_folder, mode)| *mode != if *is_folder { 0o700 } else { 0o600 });
    let all = all(folder);
    let told = |path: &PathBuf| wrong(path).map(|(_, mode)| format!("{mode:o} {}", path.display()));
    all.iter().filter_map(told).collect()
}

/// Something of every kind exists.
fn wait_for_all_kinds(folder: &Path, process: &mut Process) {
    eventually(|| {
        process.check_running()?;
        let api = Api::new(&address(folder)?);
        let sent = api.try_send(
            "POST",
            "/queues/q/messages",
            &[("content-type", "application/json")],
            &json!({"n": 1}).to_string(),
        )?;
        anyhow::ensure!(sent.status < 300, "{sent:?}");
        let names: Vec<String> = all(&folder.join("data"))
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        for part in [
            "/LOCK",
            "/log/",
            "/events",
            "/lake/tags/_delta_log/0",
            ".parquet",
            "/keys/default.token",
        ] {
            anyhow::ensure!(names.iter().any(|name| name.contains(part)), "no {part} in {names:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn whatever_the_umask_is_files_are_600_and_folders_700() {
    for umask in ["000", "022", "777"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("flow.yaml"), YAML).unwrap();
        let mut process = start(folder.path(), umask);
        wait_for_all_kinds(folder.path(), &mut process);
        let open = open_to_others(&folder.path().join("data"));
        assert!(open.is_empty(), "umask {umask}: {open:#?}");
        process.signal("TERM").unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn what_others_could_read_is_closed_to_them_at_the_start_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flow.yaml"), YAML).unwrap();
    let mut process = start(folder.path(), "022");
    wait_for_all_kinds(folder.path(), &mut process);
    process.signal("TERM").unwrap();
    process.wait().unwrap();
    for path in all(&folder.path().join("data")) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let stranger = folder.path().join("data/notes.txt");
    std::fs::write(&stranger, "not Thalweg's").unwrap();
    std::fs::set_permissions(&stranger, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mended = "other users of this machine could read files in";
    // A folder with foreign files stays open; others can read only the names in it.
    for (start_number, lines) in [(1, 1), (2, 1), (3, 0)] {
        let mut process = start(folder.path(), "022");
        eventually(|| {
            process.check_running()?;
            Api::at_root(&address(folder.path())?)
                .try_send("GET", "/ping", &[], "")
                .map(drop)
        })
        .unwrap();
        let log = process.stdout();
        assert_eq!(log.matches(mended).count(), lines, "start {start_number}: {log}");
        let open = open_to_others(&folder.path().join("data"));
        match start_number {
            1 => {
                let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode(&stranger), 0o644);
                std::fs::remove_file(&stranger).unwrap();
                assert_eq!(open.len(), 2, "{open:#?}");
                assert_eq!(mode(&folder.path().join("data")), 0o755);
            }
            _ => assert!(open.is_empty(), "{open:#?}"),
        }
        process.signal("TERM").unwrap();
        process.wait().unwrap();
    }
}
