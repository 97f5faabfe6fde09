//! `thalweg sql` beside a process with TLS: it returns all rows or an error, and never a part of them silently.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::Value;
use thalweg_tests::servers::free_port;
use thalweg_tests::thalweg::{Finished, run};
use thalweg_tests::{Api, Thalweg, eventually};

use crate::otlp::{end, is_stored, logs};

/// A typical first certificate: openssl marks it as an authority's.
const SELF_SIGNED: [&str; 14] = [
    "req",
    "-x509",
    "-newkey",
    "rsa:2048",
    "-nodes",
    "-days",
    "2",
    "-subj",
    "/CN=localhost",
    "-addext",
    "subjectAltName=DNS:localhost,IP:127.0.0.1",
    "-keyout",
    "own.key",
    "-out",
];
const CERTIFICATE: &str = "own.crt";

fn count(thalweg: &Thalweg, more: &[&str]) -> Finished {
    let query = "select count(*) as n from logs";
    let arguments = ["sql", "--data-dir", "data", "--format", "json", query];
    run(thalweg.folder.path(), &[&arguments[..], more].concat()).unwrap()
}

fn counted(finished: &Finished) -> Result<u64> {
    ensure!(finished.status.success(), "{}", finished.stderr);
    let rows: Value = serde_json::from_str(&finished.stdout)?;
    Ok(rows[0]["n"].as_u64().unwrap_or(u64::MAX))
}

#[test]
fn beside_a_process_with_tls_all_rows_are_counted_or_none() {
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let receive = format!(
        "ingest: {{otlp: {{http: {{address: \"127.0.0.1:{http}\"}}, grpc: {{address: \"127.0.0.1:{grpc}\"}}}}}}\n"
    );
    let mut thalweg = Thalweg::start(&format!("{receive}lake: {{flush: {{interval: 20ms}}}}\n")).unwrap();
    thalweg.wait_ready().unwrap();
    let otlp = Api::at_root(&format!("127.0.0.1:{http}"));
    is_stored(&otlp.post("/v1/logs", &logs(0..100)));
    eventually(|| {
        let committed = counted(&count(&thalweg, &["--committed"]))?;
        ensure!(committed == 100, "{committed} rows");
        Ok(())
    })
    .unwrap();
    end(&mut thalweg);

    let folder = thalweg.folder.path().to_owned();
    let made = Command::new("openssl")
        .args(SELF_SIGNED)
        .arg(CERTIFICATE)
        .current_dir(&folder)
        .output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let tls = format!("http: {{cert_file: {CERTIFICATE}, key_file: own.key}}\n");
    let yaml = format!("{receive}{tls}lake: {{flush: {{interval: 1h}}}}\nqueues: {{list: [{{name: q}}]}}\n");
    std::fs::write(folder.join("flow.yaml"), yaml).unwrap();
    thalweg.respawn().unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        std::net::TcpStream::connect(("127.0.0.1", http))?;
        thalweg.address().map(drop)
    })
    .unwrap();
    is_stored(&otlp.post("/v1/logs", &logs(100..250)));

    let refused = count(&thalweg, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stdout);
    for words in ["https://127.0.0.1:", "--ca-file", "--committed"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    eventually(|| {
        let all = counted(&count(&thalweg, &["--ca-file", CERTIFICATE]))?;
        ensure!(all == 250, "{all} rows");
        Ok(())
    })
    .unwrap();
    assert_eq!(counted(&count(&thalweg, &["--committed"])).unwrap(), 100);

    // The same file works for curl and for the other commands.
    let url = format!("https://{}", thalweg.address().unwrap());
    let curl = Command::new("curl")
        .args(["--silent", "--fail", "--cacert", CERTIFICATE, &format!("{url}/ping")])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(curl.status.success(), "{curl:?}");
    for arguments in [
        vec!["lake", "status", "--data-dir", "data", "--ca-file", CERTIFICATE],
        vec!["lake", "status", "--url", &url, "--ca-file", CERTIFICATE],
        vec!["queue", "--url", &url, "--ca-file", CERTIFICATE, "list"],
        vec!["sql", "--url", &url, "--ca-file", CERTIFICATE, "select 1"],
    ] {
        let asked = run(&folder, &arguments).unwrap();
        assert!(asked.status.success(), "{arguments:?}: {}", asked.stderr);
    }
    // A lake given by its path has the same holder, which is queried in the same way; the default folder is not touched.
    std::os::unix::fs::symlink(folder.join("data"), folder.join("thalweg-data")).unwrap();
    let spills = || std::fs::read_dir(folder.join("data/lake/_thalweg/spill")).map_or(0, Iterator::count);
    let before = spills();
    let named = |more: &[&str]| {
        let query = "select count(*) as n from logs";
        let arguments = ["sql", "--lake", "data/lake", "--format", "json", query];
        run(&folder, &[&arguments[..], more].concat()).unwrap()
    };
    let refused = named(&[]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stdout);
    for words in ["https://127.0.0.1:", "--ca-file", "--committed"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    assert_eq!(counted(&named(&["--ca-file", CERTIFICATE])).unwrap(), 250);
    assert_eq!(counted(&named(&["--committed"])).unwrap(), 100);
    assert_eq!(spills(), before);
    // The rows in memory are lost with it; the log has them.
    thalweg.process.kill().unwrap();
}
