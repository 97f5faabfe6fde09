//! Installs what the tests need beyond Rust: real OPC UA servers, OpenTelemetry SDKs and the collector, readers of our tables,
//! a browser, a database, two Kafka brokers, a debugger. Everything goes to a cache folder outside the work tree, or is a
//! Debian package; a second run finds it there.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{exists, root, run};

/// Exact versions, so that test runs are reproducible.
const PYTHON_PACKAGES: &[&str] = &[
    "asyncua==2.1.0",
    "ddsketch[serialization]==3.0.1",
    "deltalake==1.6.6",
    "duckdb==1.5.5",
    "duckdb-extension-delta==1.5.5",
    "moto[server]==5.2.5",
    "opentelemetry-exporter-otlp-proto-grpc==1.45.2",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-sdk==1.45.2",
    "pandas==3.1.1",
    "polars==2.1.0",
    "pyarrow==26.0.1",
    "schemathesis==4.32.5",
];
const NODE_PACKAGES: &[&str] = &[
    "@opentelemetry/api@1.9.1",
    "@opentelemetry/exporter-logs-otlp-grpc@0.223.1",
    "@opentelemetry/exporter-logs-otlp-http@0.223.1",
    "@opentelemetry/exporter-logs-otlp-proto@0.223.1",
    "@opentelemetry/exporter-metrics-otlp-grpc@0.223.0",
    "@opentelemetry/exporter-metrics-otlp-http@0.223.0",
    "@opentelemetry/exporter-trace-otlp-grpc@0.223.1",
    "@opentelemetry/exporter-trace-otlp-http@0.223.1",
    "@opentelemetry/resources@2.12.1",
    "@opentelemetry/sdk-logs@0.223.1",
    "@opentelemetry/sdk-metrics@2.12.1",
    "@opentelemetry/sdk-trace-base@2.12.1",
    "node-opcua@2.186.4",
    "playwright-core@1.65.1",
    "typescript@5.9.3",
];

/// Locations of the tools, for the environment of the tests.
pub struct Tools {
    pub python: PathBuf,
    pub node_modules: PathBuf,
    pub chromium: PathBuf,
    /// The folder of the PostgreSQL programs.
    pub postgres: PathBuf,
    /// The OpenTelemetry Collector.
    pub collector: PathBuf,
    /// A small Kafka broker, and a second client for any broker.
    pub kafka: PathBuf,
    /// The folder of Apache Kafka's jars.
    pub apache_kafka: PathBuf,
    /// The library that sets the wall clock of a process.
    pub wall_clock: PathBuf,
}

impl Tools {
    /// The environment of the end-to-end tests.
    pub fn apply(&self, command: &mut Command) {
        command
            .env("THALWEG_TEST_PYTHON", &self.python)
            .env("THALWEG_TEST_NODE_MODULES", &self.node_modules)
            .env("THALWEG_TEST_CHROMIUM", &self.chromium)
            .env("THALWEG_TEST_POSTGRES", &self.postgres)
            .env("THALWEG_TEST_COLLECTOR", &self.collector)
            .env("THALWEG_TEST_KAFKA", &self.kafka)
            .env("THALWEG_TEST_APACHE_KAFKA", &self.apache_kafka)
            .env("THALWEG_TEST_WALL_CLOCK", &self.wall_clock);
    }
}

fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(dir).join("thalweg"));
    }
    let home = std::env::var_os("HOME").context("HOME is not set; the tools need a folder to be installed in")?;
    Ok(PathBuf::from(home).join(".cache/thalweg"))
}

/// Installs what is missing; if that is not possible, the error has the cure.
pub fn install() -> Result<Tools> {
    let cache = cache_dir()?;
    if !exists("go") {
        bail!(
            "go is not installed; its pprof reads the profiles, and it builds the collector and the Kafka broker; on Debian: apt-get install golang-go"
        );
    }
    debian("/usr/bin/openssl", "openssl")?;
    debian("/usr/bin/curl", "curl")?;
    debian("/usr/bin/gdb", "gdb")?;
    debian("/usr/bin/mosquitto_pub", "mosquitto-clients")?;
    mosquitto()?;
    debian("/usr/bin/readelf", "binutils")?;
    // The packages' completions, manual pages and unit are read by the programs that users have for them.
    debian("/usr/bin/zsh", "zsh")?;
    debian("/usr/bin/fish", "fish")?;
    debian("/usr/bin/groff", "groff")?;
    debian("/usr/bin/systemd-analyze", "systemd")?;
    debian("/usr/sbin/adduser", "adduser")?;
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    Ok(Tools {
        python: python(&cache)?,
        node_modules: node(&cache)?,
        chromium: debian("/usr/bin/chromium", "chromium")?,
        postgres: postgres()?,
        collector: go_program(&cache, "collector", "tests/senders/collector")?,
        kafka: go_program(&cache, "kafka", "tests/brokers/kafka")?,
        apache_kafka: apache_kafka(&cache)?,
        wall_clock: wall_clock(&cache)?,
    })
}

/// The library that sets the wall clock of a single process.
fn wall_clock(cache: &std::path::Path) -> Result<PathBuf> {
    let library = cache.join("wall_clock.so");
    run(Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(root().join("tests/clocks/wall_clock.c")))
    .context("on Debian: apt-get install gcc libc6-dev")?;
    Ok(library)
}

/// Apache Kafka, in the version of `tests/brokers/pom.xml`, with the jars that it needs.
fn apache_kafka(cache: &std::path::Path) -> Result<PathBuf> {
    debian("/usr/bin/java", "default-jre-headless")?;
    let folder = cache.join("apache-kafka");
    let (jars, marker) = (folder.join("jars"), folder.join("installed.txt"));
    let pom = root().join("tests/brokers/pom.xml");
    let wanted = std::fs::read_to_string(&pom).with_context(|| format!("cannot read {}", pom.display()))?;
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(jars);
    }
    debian("/usr/bin/mvn", "maven")?;
    // Jars of another version beside these would be loaded, too.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    run(Command::new("mvn")
        .args([
            "--quiet",
            "--batch-mode",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
        ])
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .arg("--file")
        .arg(&pom))?;
    std::fs::write(marker, wanted)?;
    Ok(jars)
}

/// A Go program, in the versions of the files beside it.
fn go_program(cache: &std::path::Path, name: &str, source: &str) -> Result<PathBuf> {
    let (source, folder) = (root().join(source), cache.join(name));
    let (program, marker) = (folder.join(name), folder.join("built.txt"));
    let parts = ["main.go", "go.mod", "go.sum"].map(|name| std::fs::read_to_string(source.join(name)));
    let wanted = parts.into_iter().collect::<std::io::Result<String>>()?;
    if program.exists() && std::fs::read_to_string(&marker).is_ok_and(|built| built == wanted) {
        return Ok(program);
    }
    std::fs::create_dir_all(&folder)?;
    run(Command::new("go")
        .args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source))?;
    std::fs::write(marker, wanted)?;
    Ok(program)
}

fn python(cache: &std::path::Path) -> Result<PathBuf> {
    let venv = cache.join("venv");
    let python = venv.join("bin/python");
    let wanted = PYTHON_PACKAGES.join(" ");
    let marker = venv.join("installed.txt");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if !exists("python3") {
        bail!("python3 is not installed; on Debian: apt-get install python3 python3-venv");
    }
    // A half-created environment would fail later with another error.
    let _ = std::fs::remove_dir_all(&venv);
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).context("on Debian: apt-get install python3-venv")?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet"])
        .args(PYTHON_PACKAGES))?;
    std::fs::write(marker, wanted)?;
    Ok(python)
}

fn node(cache: &std::path::Path) -> Result<PathBuf> {
    let folder = cache.join("node");
    let wanted = NODE_PACKAGES.join(" ");
    let marker = folder.join("installed.txt");
    let modules = folder.join("node_modules");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(modules);
    }
    if !exists("npm") {
        bail!("node and npm are not installed; on Debian: apt-get install nodejs npm");
    }
    std::fs::create_dir_all(&folder)?;
    run(Command::new("npm")
        .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
        .arg(&folder)
        .args(NODE_PACKAGES))?;
    std::fs::write(marker, wanted)?;
    Ok(modules)
}

/// The newest installed version. Tests start their own clusters; the package's cluster is not touched.
fn postgres() -> Result<PathBuf> {
    if newest_postgres().is_none() {
        install_package("postgresql")?;
    }
    newest_postgres().context("postgresql is installed, but not in /usr/lib/postgresql; put it there")
}

fn newest_postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let found = versions.filter(|version| version.path().join("bin/postgres").exists());
    let number = |version: &std::fs::DirEntry| version.file_name().to_str()?.parse::<u32>().ok();
    found.max_by_key(number).map(|version| version.path().join("bin"))
}

/// The broker of Debian, which tests start themselves with their own configuration. The package's service is stopped and
/// disabled right after an installation; where there is no systemd, the package starts none.
fn mosquitto() -> Result<()> {
    let program = "/usr/sbin/mosquitto";
    if std::path::Path::new(program).exists() {
        return Ok(());
    }
    debian(program, "mosquitto")?;
    if std::path::Path::new("/run/systemd/system").exists() {
        let sudo = if exists("sudo") { vec!["sudo"] } else { vec![] };
        let words = sudo.into_iter().chain(["systemctl", "disable", "--now", "mosquitto"]);
        let words: Vec<&str> = words.collect();
        if let Some((first, arguments)) = words.split_first() {
            run(Command::new(first).args(arguments)).context("the service mosquitto could not be disabled")?;
        }
    }
    Ok(())
}

/// Installs a Debian package.
fn debian(path: &str, package: &str) -> Result<PathBuf> {
    let path = PathBuf::from(path);
    if !path.exists() {
        install_package(package)?;
    }
    Ok(path)
}

fn install_package(package: &str) -> Result<()> {
    let sudo = if exists("sudo") { vec!["sudo"] } else { vec![] };
    for words in [
        vec!["apt-get", "update", "-qq"],
        vec!["apt-get", "install", "-y", "-qq", package],
    ] {
        let words: Vec<&str> = sudo.iter().copied().chain(words).collect();
        let Some((program, arguments)) = words.split_first() else {
            continue;
        };
        run(Command::new(program)
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive"))
        .with_context(|| format!("{package} could not be installed; install it yourself: apt-get install {package}"))?;
    }
    Ok(())
}
