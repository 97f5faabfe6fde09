//! `thalweg auth`: manages the login files that `auth` names. A running process sees a change within a second.

use std::fs::File;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};
use thalweg_config::{Role, is_login_name};
use thalweg_http::auth::login_file::{LoginFile, LoginFileKind, LoginLine, LoginSecret, new_token};
use thalweg_kit::files;

use crate::{check, cli, out};

#[derive(Subcommand)]
pub enum AuthCommand {
    /// Create a token and print it once; with --user, set a password instead
    Add(AuthAdd),
    /// List names and their roles
    List(AuthFiles),
    /// Remove a token or a user; its open connections end
    Remove(AuthRemove),
    /// Print the hash of a token, or with --user of a password, read from the terminal or the standard input
    Hash(AuthHash),
}

/// The login files.
#[derive(Args)]
pub struct AuthFiles {
    /// The configuration that names the files in auth.tokens_file and auth.users_file
    #[arg(short = 'c', long = "config", value_name = "FILE", conflicts_with_all = ["tokens", "users"])]
    config: Option<PathBuf>,
    /// The token file itself
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// The user file itself
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
}

#[derive(Args)]
pub struct AuthAdd {
    name: String,
    /// read, write or admin; each includes those before it
    #[arg(long, value_name = "ROLE", value_delimiter = ',', required = true)]
    roles: Vec<String>,
    /// A user with a password, for browsers
    #[arg(long)]
    user: bool,
    #[command(flatten)]
    place: AuthFiles,
}

#[derive(Args)]
pub struct AuthRemove {
    name: String,
    #[command(flatten)]
    place: AuthFiles,
}

#[derive(Args)]
pub struct AuthHash {
    /// Hash a password with argon2id
    #[arg(long)]
    user: bool,
}

impl AuthFiles {
    /// The files given by flags, or by the configuration.
    fn files(&self) -> Result<Vec<(PathBuf, LoginFileKind)>> {
        let (tokens, users) = match &self.config {
            None => (self.tokens.clone(), self.users.clone()),
            Some(config) => {
                let options = cli::ConfigFileOptions::of(config.clone());
                let checked = check::load_without_listeners(&options)?.context("the configuration has errors")?;
                let auth = checked.config.auth;
                (auth.tokens_file, auth.users_file)
            }
        };
        let all = [(tokens, LoginFileKind::Tokens), (users, LoginFileKind::Users)];
        let all = all
            .into_iter()
            .filter_map(|(path, kind)| Some((path?, kind)))
            .collect::<Vec<_>>();
        ensure!(
            !all.is_empty(),
            "no file is given; give --tokens or --users, or with -c a configuration that has auth.tokens_file or auth.users_file"
        );
        Ok(all)
    }

    fn file(&self, wanted: LoginFileKind) -> Result<PathBuf> {
        let found = self.files()?.into_iter().find(|(_, kind)| *kind == wanted);
        let (flag, key) = match wanted {
            LoginFileKind::Tokens => ("--tokens", "auth.tokens_file"),
            LoginFileKind::Users => ("--users", "auth.users_file"),
        };
        let found =
            found.with_context(|| format!("no such file is given; give {flag}, or set {key} in the configuration"))?;
        Ok(found.0)
    }
}

pub fn main(command: &AuthCommand) -> Result<ExitCode> {
    match command {
        AuthCommand::Add(options) => add(options)?,
        AuthCommand::List(place) => list(place)?,
        AuthCommand::Remove(options) => remove(options)?,
        AuthCommand::Hash(options) => {
            let secret = match options.user {
                true => LoginSecret::of_password(&ask("password")?)?,
                false => LoginSecret::of_token(&ask("token")?),
            };
            out::line(secret)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(options: &AuthAdd) -> Result<()> {
    let name = &options.name;
    ensure!(
        is_login_name(name),
        "{name:?} is not a valid name: use 1 to 128 characters, without colons, spaces or control characters"
    );
    let role = |role: &String| {
        let hint = || thalweg_config::nearest(role, Role::NAMES);
        Role::parse(role).with_context(|| format!("\"{role}\" is not a role{}", hint()))
    };
    let roles: Vec<Role> = options.roles.iter().map(role).collect::<Result<_>>()?;
    let kind = if options.user {
        LoginFileKind::Users
    } else {
        LoginFileKind::Tokens
    };
    let path = options.place.file(kind)?;
    // Checked before the user types a password in vain.
    ensure!(!has(&path, kind, name)?, "{}", taken(name, &path));
    let (secret, token) = match kind {
        LoginFileKind::Users => (LoginSecret::of_password(&ask("password")?)?, None),
        LoginFileKind::Tokens => {
            let token = new_token()?;
            (LoginSecret::of_token(&token), Some(token))
        }
    };
    let line = LoginLine {
        name: name.clone(),
        secret,
        roles,
    };
    change(&path, |text| {
        ensure!(!names(text, kind).contains(name), "{}", taken(name, &path));
        let end = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        Ok(format!("{text}{end}{line}\n"))
    })?;
    if let Some(token) = token {
        out::complain(format_args!("the token of {name}, which is shown only once:"));
        out::line(token)?;
    }
    Ok(())
}

fn taken(name: &str, path: &Path) -> String {
    let path = path.display();
    format!("{path} has \"{name}\" already; remove it first (thalweg auth remove {name}), or choose another name")
}

fn remove(options: &AuthRemove) -> Result<()> {
    let (name, mut is_gone) = (&options.name, false);
    let all = options.place.files()?;
    for (path, kind) in &all {
        if !has(path, *kind, name)? {
            continue;
        }
        change(path, |text| {
            let is_other = |line: &&str| LoginLine::parse(line.trim(), *kind).map_or(true, |line| line.name != *name);
            let kept: Vec<&str> = text.lines().filter(is_other).collect();
            Ok(kept.iter().flat_map(|line| [line, "\n"]).collect())
        })?;
        is_gone = true;
        out::complain(format_args!("{name} was removed from {}", path.display()));
    }
    if !is_gone {
        let paths: Vec<String> = all.iter().map(|(path, _)| path.display().to_string()).collect();
        bail!(
            "there is no \"{name}\" in {}; thalweg auth list shows all names",
            paths.join(" and ")
        );
    }
    Ok(())
}

fn list(place: &AuthFiles) -> Result<()> {
    for (path, kind) in place.files()? {
        let found = read(&path)?
            .map(|text| LoginFile::parse(&text, kind))
            .unwrap_or_default();
        for (line, problem) in &found.wrong {
            out::complain(format_args!("{}:{line}: {problem}", path.display()));
        }
        let width = found
            .lines
            .iter()
            .map(|line| line.name.chars().count())
            .max()
            .unwrap_or(0);
        for line in found.lines {
            let roles: Vec<&str> = line.roles.iter().map(|role| role.as_str()).collect();
            let what = match kind {
                LoginFileKind::Tokens => "token",
                LoginFileKind::Users => "user ",
            };
            let roles = if roles.is_empty() {
                "no roles".to_owned()
            } else {
                roles.join(", ")
            };
            if !out::line(format_args!("{:width$}  {what}  {roles}", line.name))? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn names(text: &str, kind: LoginFileKind) -> Vec<String> {
    LoginFile::parse(text, kind)
        .lines
        .into_iter()
        .map(|line| line.name)
        .collect()
}

fn has(path: &Path, kind: LoginFileKind, name: &str) -> Result<bool> {
    Ok(read(path)?.is_some_and(|text| names(&text, kind).iter().any(|known| known == name)))
}

/// Returns `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Replaces the file as a whole, one process at a time.
fn change(path: &Path, edit: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let shown = path.display();
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let lock = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
    let _held = lock.with_context(|| format!("cannot lock the folder of {shown}"))?;
    let text = edit(&read(path)?.unwrap_or_default())?;
    files::replace_whole(path, text.as_bytes()).with_context(|| format!("cannot write {shown}"))
}

/// Reads a secret: typed twice without echo, or the first line of the standard input.
fn ask(what: &str) -> Result<String> {
    let secret = match std::io::stdin().is_terminal() {
        false => first_line()?,
        true => {
            let first = unseen(what)?;
            ensure!(unseen(&format!("{what} again"))? == first, "the two entries differ");
            first
        }
    };
    ensure!(!secret.is_empty(), "the {what} is empty");
    Ok(secret)
}

fn first_line() -> Result<String> {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .context("cannot read the standard input")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn unseen(what: &str) -> Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let terminal = std::io::stdin();
    let before = tcgetattr(&terminal).context("cannot read the terminal's settings")?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    silent.local_modes.insert(LocalModes::ECHONL);
    let _ = write!(std::io::stderr().lock(), "{what}: ");
    tcsetattr(&terminal, OptionalActions::Flush, &silent).context("cannot turn off the terminal's echo")?;
    let line = first_line();
    tcsetattr(&terminal, OptionalActions::Now, &before).context("cannot restore the terminal")?;
    line
}
