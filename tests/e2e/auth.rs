//! Logins of a running process: changes by `thalweg auth` take effect within moments, and removed logins are refused.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use thalweg_tests::{Api, Thalweg, eventually, thalweg};

const YAML: &str = "\
auth: {tokens_file: tokens, users_file: users}
log: {min_free: 16MiB, commit: {spare: 1}}
queues: {list: [{name: q}]}
";

/// `thalweg auth` in the folder of the process.
fn auth(thalweg: &Thalweg, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(thalweg::binary());
    command.arg("auth").args(arguments).current_dir(thalweg.folder.path());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn status(api: &Api, method: &str, path: &str, authorization: &str) -> u16 {
    api.send(method, path, &[("authorization", authorization)], "").status
}

#[test]
fn a_token_is_made_used_and_taken_away_without_a_restart_and_its_stream_ends() {
    let thalweg = Thalweg::spawn_with(YAML, &[("tokens", ""), ("users", "# nobody yet\n")]).unwrap();
    let api = eventually(|| {
        thalweg.get("/ping")?;
        Ok(Api::at_root(&thalweg.address()?))
    })
    .unwrap();
    let mode = |file: &str| {
        let about = std::fs::metadata(thalweg.folder.path().join(file)).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777
    };
    let before = mode("tokens");
    let place = ["-c", "flow.yaml"];
    let add = |arguments: &[&str], input: &str| auth(&thalweg, &[&["add"], arguments, &place].concat(), input);
    let (code, token, told) = add(&["edge", "--roles", "write"], "");
    assert_eq!(code, Some(0), "{told}");
    assert!(
        token.starts_with("twg_") && told.contains("shown only once"),
        "{token} {told}"
    );
    let bearer = format!("Bearer {}", token.trim());
    let queue = "/api/v1/queues/q";
    let is = |authorization: &str, method: &str, path: &str, expected: u16| {
        eventually(|| {
            let status = status(&api, method, path, authorization);
            anyhow::ensure!(status == expected, "{method} {path}: {status}, not {expected}");
            Ok(())
        })
        .unwrap();
    };
    // A writer can read, too, and cannot administer.
    is(&bearer, "GET", queue, 200);
    assert_eq!(status(&api, "GET", "/metrics", &bearer), 200);
    assert_eq!(status(&api, "POST", &format!("{queue}:purge"), &bearer), 403);
    let (code, _, told) = add(&["edge", "--roles", "read"], "");
    assert_eq!(code, Some(1));
    assert!(told.contains("has \"edge\" already"), "{told}");
    let (code, _, told) = add(&["x", "--roles", "reed"], "");
    assert_eq!(code, Some(1));
    assert!(told.contains("did you mean \"read\""), "{told}");

    // An administrator has access to everything.
    assert_eq!(add(&["ada", "--user", "--roles", "admin"], "pump\n").0, Some(0));
    let ada = "Basic YWRhOnB1bXA="; // ada:pump
    is(ada, "GET", "/", 200);
    is(ada, "GET", "/metrics", 200);
    assert_eq!(status(&api, "POST", &format!("{queue}:purge"), ada), 200);
    let (code, listed, told) = auth(&thalweg, &["list", "-c", "flow.yaml"], "");
    assert_eq!(
        (code, listed.as_str()),
        (Some(0), "edge  token  write\nada  user   admin\n"),
        "{told}"
    );

    // Its open streams end when it is removed, and a long poll gets an error.
    let mut stream = TcpStream::connect(thalweg.address().unwrap()).unwrap();
    let listen = format!(
        "GET {queue}/groups/g/events HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(listen.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    let waiting = std::thread::spawn({
        let (address, bearer) = (thalweg.address().unwrap(), bearer.clone());
        let body = json!({"wait": "60s", "consumer": "c"}).to_string();
        move || {
            let path = "/api/v1/queues/q/groups/h/claim";
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            Api::at_root(&address).send("POST", path, &headers, &body).status
        }
    });
    let (code, _, told) = auth(&thalweg, &["remove", "edge", "-c", "flow.yaml"], "");
    assert_eq!(code, Some(0), "{told}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    assert_eq!(waiting.join().unwrap(), 401);
    is(&bearer, "GET", queue, 401);

    // A deleted file refuses all logins.
    std::fs::remove_file(thalweg.folder.path().join("users")).unwrap();
    is(ada, "GET", "/metrics", 401);
    let log = thalweg.process.stdout();
    assert!(
        log.contains("a login file or entry cannot be read, so none of its logins is accepted: auth.users_file"),
        "{log}"
    );
    // An operator's file keeps its mode, and a file created here is private to its user.
    assert_eq!(mode("tokens"), before);
    let is_told = log.contains("every user of this machine can read");
    assert_eq!(is_told, before & 0o007 != 0, "{log}");
    assert_eq!(add(&["bob", "--user", "--roles", "read"], "pump\n").0, Some(0));
    assert_eq!(mode("users"), 0o600);
}

#[test]
fn a_token_of_the_configuration_that_is_gone_at_a_signal_is_revoked() {
    let digits = |text: &str| {
        let output = Command::new("sh")
            .args(["-c", &format!("printf %s {text} | sha256sum")])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()[..64].to_owned()
    };
    let yaml = |names: &[&str]| {
        let token = |name: &&str| format!("{{name: {name}, sha256: {}, roles: [read]}}", digits(name));
        let tokens: Vec<String> = names.iter().map(token).collect();
        format!(
            "auth: {{tokens: [{}]}}\nqueues: {{list: [{{name: q}}]}}\nlog: {{min_free: 16MiB, commit: {{spare: 1}}}}\n",
            tokens.join(", ")
        )
    };
    let thalweg = Thalweg::start(&yaml(&["one", "two"])).unwrap();
    let api = Api::at_root(&thalweg.address().unwrap());
    assert_eq!(status(&api, "GET", "/metrics", "Bearer one"), 200);
    std::fs::write(thalweg.folder.path().join("flow.yaml"), yaml(&["two", "three"])).unwrap();
    thalweg.process.signal("HUP").unwrap();
    eventually(|| {
        let found = ["one", "two", "three"].map(|name| status(&api, "GET", "/metrics", &format!("Bearer {name}")));
        anyhow::ensure!(found == [401, 200, 200], "{found:?}");
        Ok(())
    })
    .unwrap();
    let log = thalweg.process.stdout();
    assert!(
        log.contains("in force: auth") && !log.contains("need a restart: auth"),
        "{log}"
    );
}

#[test]
fn a_hash_is_what_a_file_and_the_configuration_take() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |arguments: &[&str], input: &str| {
        let mut command = Command::new(thalweg::binary());
        command
            .args(["auth", "hash"])
            .args(arguments)
            .current_dir(folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(
        hash(&[], "secret\n"),
        "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n"
    );
    assert!(hash(&["--user"], "secret\n").starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
    assert_eq!(hash(&[], "\n"), "", "an empty one is none");
}
