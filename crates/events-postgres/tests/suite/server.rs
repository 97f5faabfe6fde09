//! A PostgreSQL server per test: its own folder, port and process, which ends with the test. Requires Debian's
//! `postgresql` and fails without it.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub struct Server {
    folder: TempDir,
    port: u16,
    postgres: Option<Child>,
    _empty: Arc<TempDir>,
}

/// A cluster without data that each server begins with a copy of, because making it takes longer than all of a server's
/// start. It is removed with the last server.
static EMPTY: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());

const PATIENCE: Duration = Duration::from_secs(60);
const DATA: &str = "data";
/// The offset of the wall clock, and the library that applies it; see `tests/clocks/wall_clock.c`.
const CLOCK: &str = "wall-clock";
const CLOCK_LIBRARY: &str = "wall_clock.so";

impl Server {
    pub fn start() -> Server {
        let empty = empty();
        let folder = folder();
        run(Command::new("cp")
            .arg("-a")
            .arg(empty.path().join(DATA))
            .arg(folder.path()));
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut server = Server {
            folder,
            port,
            postgres: None,
            _empty: empty,
        };
        server.run_postgres();
        server
    }

    /// With an adjustable wall clock, see [`Server::set_clock`].
    pub fn start_with_clock() -> Server {
        let library = std::env::var_os("THALWEG_TEST_WALL_CLOCK");
        let library = library.expect("THALWEG_TEST_WALL_CLOCK is not set: run the tests with `cargo xtask test`");
        let mut server = Server::start();
        // A place that the database's user can read.
        std::fs::copy(library, server.folder.path().join(CLOCK_LIBRARY)).unwrap();
        server.set_clock(0);
        server.kill();
        server.run_postgres();
        server
    }

    /// Sets its wall clock to this many seconds from the real time.
    pub fn set_clock(&self, seconds: i64) {
        let path = self.folder.path().join(CLOCK);
        // Written in place: the processes have the file mapped.
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// With a self-signed certificate, which is also its authority.
    pub fn start_with_tls() -> Server {
        let mut server = Server::start();
        let (key, certificate) = (server.data().join("server.key"), server.certificate());
        let mut openssl = Command::new("openssl");
        openssl
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ])
            .args([
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
            ])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .stderr(Stdio::null());
        run(&mut openssl);
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&key).arg(&certificate));
        }
        server.sql("ALTER SYSTEM SET ssl = on");
        server.kill();
        server.run_postgres();
        server
    }

    pub fn certificate(&self) -> PathBuf {
        self.data().join("server.crt")
    }

    pub fn url(&self) -> String {
        format!(
            "postgres://thalweg:hidden-word@127.0.0.1:{}/postgres?sslmode=prefer",
            self.port
        )
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join(DATA)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = command_in(&self.folder, program);
        let clock = self.folder.path().join(CLOCK);
        if clock.exists() {
            let library = self.folder.path().join(CLOCK_LIBRARY);
            command.env("LD_PRELOAD", library).env("WALL_CLOCK", clock);
        }
        command
    }

    /// Returns when the server answers.
    pub fn run_postgres(&mut self) {
        let (data, port) = (self.data(), self.port.to_string());
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(data)
            .args(["-p", &port, "-k", "", "-c", "listen_addresses=127.0.0.1"]);
        command.args(["-c", "max_connections=400", "-c", "shared_buffers=32MB"]);
        let mut postgres = command.spawn().unwrap();
        let until = Instant::now() + PATIENCE;
        while !self
            .command("pg_isready")
            .args(["-h", "127.0.0.1", "-p", &port])
            .status()
            .unwrap()
            .success()
        {
            assert!(Instant::now() < until, "PostgreSQL did not start");
            std::thread::sleep(Duration::from_millis(50));
            // The server does not start beside the processes of a killed one, which end soon.
            if postgres.try_wait().unwrap().is_some() {
                postgres = command.spawn().unwrap();
            }
        }
        self.postgres = Some(postgres);
    }

    /// Like `kill -9`: nothing more is written. The child processes end when they notice.
    pub fn kill(&mut self) {
        if let Some(mut postgres) = self.postgres.take() {
            postgres.kill().unwrap();
            postgres.wait().unwrap();
        }
    }

    /// Like a machine that hangs: the kernel accepts connections and nobody answers. `false` resumes.
    pub fn freeze(&self, is_frozen: bool) {
        let name = if is_frozen { "STOP" } else { "CONT" };
        let postgres = self.postmaster();
        // The postmaster first, so that no new process is missed.
        signal(name, &postgres);
        for process in std::fs::read_dir("/proc").unwrap() {
            let process = process.unwrap().file_name().into_string().unwrap();
            // After the name, which may contain any characters, come the state and the parent.
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
            if parent == Some(postgres.as_str()) {
                signal(name, &process);
            }
        }
    }

    /// Nobody new is let in, and this backend ends. The others go on.
    pub fn close_and_end(&self, backend: &str) {
        signal("STOP", &self.postmaster());
        signal("TERM", backend);
    }

    fn postmaster(&self) -> String {
        self.postgres.as_ref().unwrap().id().to_string()
    }

    /// Runs SQL as an operator would, and returns the output.
    pub fn sql(&self, sql: &str) -> String {
        let output = Command::new(bin().join("psql"))
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-U",
                "thalweg",
                "-d",
                "postgres",
                "-Atc",
                sql,
            ])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{sql}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A frozen process does not end by itself.
        if self.postgres.is_some() {
            self.freeze(false);
        }
        self.kill();
    }
}

fn empty() -> Arc<TempDir> {
    let mut shared = EMPTY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(empty) = shared.upgrade() {
        return empty;
    }
    let empty = folder();
    run(command_in(&empty, "initdb")
        .args(["--username=thalweg", "--auth=trust", "--encoding=UTF8", "--locale=C"])
        // With few bytes to copy.
        .args(["--no-sync", "--wal-segsize=1", "-D", DATA]));
    let empty = Arc::new(empty);
    *shared = Arc::downgrade(&empty);
    empty
}

/// A folder of the database's user.
fn folder() -> TempDir {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    if is_root() {
        run(Command::new("chown").arg("postgres").arg(folder.path()));
    }
    folder
}

/// PostgreSQL refuses to run as root.
fn command_in(folder: &TempDir, program: &str) -> Command {
    let path = bin().join(program);
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
                .arg(path);
            command
        }
        false => Command::new(path),
    };
    command
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn signal(name: &str, process: &str) {
    let _gone_by_now = Command::new("sh")
        .args(["-c", &format!("kill -{name} {process}")])
        .status();
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// The folder of the newest version's programs.
fn bin() -> PathBuf {
    if let Some(named) = std::env::var_os("THALWEG_TEST_POSTGRES") {
        return PathBuf::from(named);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions
        .map(|version| version.path().join("bin"))
        .filter(|path| path.join("postgres").exists());
    let number = |path: &PathBuf| path.parent().and_then(Path::file_name)?.to_str()?.parse::<u32>().ok();
    found
        .max_by_key(number)
        .expect("the test needs PostgreSQL; install it with: cargo xtask tools")
}
