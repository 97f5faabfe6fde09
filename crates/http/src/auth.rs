//! Authentication: checks the credentials of a request against the configuration's `auth` section.
//!
//! Tokens are sent as bearer tokens, or as HTTP basic with the token's name and the token as password, so that browsers
//! and tools that support only basic can use them. Users of `users_file` are sent as HTTP basic. Secrets are compared
//! in constant time, and only their hashes are stored.
//!
//! One task checks the files four times a second, and changes apply at once. A login that was removed, whose file is
//! gone or empty, or whose line cannot be read, is refused from then on, and its open requests end.

mod authorizer;
mod basic;
pub mod login_file;
mod login_registry;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};
use thalweg_config::{AuthConfig, BasicAuth, Role};
use thalweg_kit::random::{self, NoRandomness};
use thalweg_kit::{blocking, clock};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::file_watch::FileWatch;
use crate::protection_error::ProtectionError;
use login_registry::LoginRegistry;

pub use authorizer::{AuthorizationError, Authorizer, LoginFailure};

/// Concurrent password checks. Each takes tens of milliseconds and megabytes by design, so strangers must not be able
/// to trigger many.
const PASSWORD_CHECKS_MAX: usize = 2;

/// Checks that may wait; further clients are told to retry.
const PASSWORD_CHECKS_WAITING_MAX: usize = 64;

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often it is logged that a login is refused because of an unreadable file.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The logins of a process, for all its listeners; without any, no authentication is required.
#[derive(Clone)]
pub struct Logins(Option<Arc<Credentials>>);

/// All credentials of the process.
pub struct Credentials {
    config: Mutex<AuthConfig>,
    basic: Option<basic::BasicLogin>,
    known: RwLock<Arc<LoginRegistry>>,
    salt: [u8; 32],
    password_checks: Semaphore,
    password_places: Semaphore,
    /// Ends the task that checks the files.
    _looking: DropGuard,
}

/// An authenticated client.
#[derive(Clone, Debug)]
pub struct Identity {
    pub name: String,
    pub roles: Vec<Role>,
    /// Cancelled when the login is revoked.
    pub ended: CancellationToken,
}

impl Identity {
    pub fn may(&self, needed: Role) -> bool {
        self.roles.iter().any(|role| role.includes(needed))
    }
}

/// Why authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthFailure {
    /// The request has no credentials.
    Silent,
    /// The credentials are wrong.
    Wrong,
    /// Too many passwords are being checked; the client has to retry.
    Busy,
}

impl Logins {
    /// Reads all files; each must be valid. If this is called on a runtime, the files are watched from then on.
    pub fn load(config: &AuthConfig, basic: Option<&BasicAuth>) -> Result<Logins, ProtectionError> {
        Credentials::load(config, basic).map(Logins)
    }

    /// No authentication is required.
    pub fn none() -> Logins {
        Logins(None)
    }

    /// All logins, for the listener of the section `http`.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.0.clone()
    }

    /// Authorizes requests to the other listeners, with the logins of the section `auth`.
    pub fn authorizer(&self) -> Authorizer {
        Authorizer::new(self.of_all_listeners())
    }

    /// The logins of the section `auth`, which apply to every listener.
    fn of_all_listeners(&self) -> Option<Arc<Credentials>> {
        self.0
            .clone()
            .filter(|credentials| credentials.config.lock().is_given())
    }

    /// Applies another section `auth` without a restart. On an error in a file, the former section stays in force.
    pub fn replace(&self, config: &AuthConfig) -> Result<AuthReloadOutcome, ProtectionError> {
        let was_given = self.of_all_listeners().is_some();
        let Some(credentials) = self.0.as_ref().filter(|_| was_given == config.is_given()) else {
            return Ok(match was_given == config.is_given() {
                true => AuthReloadOutcome::Nothing,
                // Which addresses may be bound depends on it.
                false => AuthReloadOutcome::NeedsRestart,
            });
        };
        if *credentials.config.lock() == *config {
            return Ok(AuthReloadOutcome::Nothing);
        }
        let (known, flaws) = LoginRegistry::read(config);
        if let Some(error) = flaws.into_iter().next() {
            return Err(error);
        }
        *credentials.config.lock() = config.clone();
        credentials.put(known);
        Ok(AuthReloadOutcome::Done)
    }
}

/// The errors in the files of a section `auth`.
pub fn file_errors(config: &AuthConfig) -> Vec<ProtectionError> {
    LoginRegistry::read(config).1
}

/// The outcome of applying another section `auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthReloadOutcome {
    /// It is unchanged.
    Nothing,
    Done,
    /// Logins would be required for the first time, or no more.
    NeedsRestart,
}

impl Credentials {
    /// `None` if the configuration has no logins, which is different from an empty users file.
    fn load(config: &AuthConfig, basic: Option<&BasicAuth>) -> Result<Option<Arc<Credentials>>, ProtectionError> {
        if !config.is_given() && basic.is_none() {
            return Ok(None);
        }
        let watch = FileWatch::new(login_registry::files(config));
        let (known, flaws) = LoginRegistry::read(config);
        if let Some(error) = flaws.into_iter().next() {
            return Err(error);
        }
        warn_of_readers(config);
        let looking = CancellationToken::new();
        let credentials = Arc::new(Credentials {
            config: Mutex::new(config.clone()),
            basic: basic.map(basic::BasicLogin::new).transpose()?,
            known: RwLock::new(Arc::new(known)),
            salt: secret().map_err(|error| ProtectionError::Auth {
                problem: format!("auth: {error}"),
            })?,
            password_checks: Semaphore::new(PASSWORD_CHECKS_MAX),
            password_places: Semaphore::new(PASSWORD_CHECKS_MAX + PASSWORD_CHECKS_WAITING_MAX),
            _looking: looking.clone().drop_guard(),
        });
        // There is no runtime when a configuration is only checked.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let weak = Arc::downgrade(&credentials);
            runtime.spawn(async move {
                tokio::select! {
                    () = look(weak, watch) => {}
                    () = looking.cancelled() => {}
                }
            });
        }
        Ok(Some(credentials))
    }

    /// The sender of a request, who must have the role. `silent` is the text for one who sends no credentials.
    pub async fn admit(&self, headers: &HeaderMap, role: Role, silent: &str) -> Result<Identity, AuthorizationError> {
        let identity = self.identify(headers).await.map_err(|failure| match failure {
            AuthFailure::Silent => AuthorizationError::Stranger(silent.to_owned()),
            AuthFailure::Wrong => {
                AuthorizationError::Stranger("the token, the user name or the password is wrong".to_owned())
            }
            AuthFailure::Busy => AuthorizationError::Busy,
        })?;
        if identity.may(role) {
            return Ok(identity);
        }
        let (name, role) = (identity.name, role.as_str());
        Err(AuthorizationError::Lacks(format!(
            "\"{name}\" lacks the role {role} that this request needs; add it in auth"
        )))
    }

    /// Checks the credentials of a request.
    async fn identify(&self, headers: &HeaderMap) -> Result<Identity, AuthFailure> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Err(AuthFailure::Silent);
        };
        let (scheme, rest) = value
            .to_str()
            .ok()
            .and_then(|value| value.split_once(' '))
            .ok_or(AuthFailure::Wrong)?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.known().token(rest, None).ok_or(AuthFailure::Wrong);
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(AuthFailure::Wrong);
        }
        let decoded = BASE64_STANDARD.decode(rest).map_err(|_| AuthFailure::Wrong)?;
        let decoded = String::from_utf8(decoded).map_err(|_| AuthFailure::Wrong)?;
        let (name, password) = decoded.split_once(':').ok_or(AuthFailure::Wrong)?;
        let known = self.known();
        if let Some(identity) = known.token(password, Some(name)) {
            return Ok(identity);
        }
        if let Some(identity) = self.basic.as_ref().and_then(|login| login.check(name, password)) {
            return Ok(identity);
        }
        self.user(known, name, password).await
    }

    /// Checks a name with a password or a token. Without a name it is a token.
    async fn log_in(&self, name: &str, password: &str) -> Result<Identity, AuthFailure> {
        let known = self.known();
        let named = Some(name).filter(|name| !name.is_empty());
        match known.token(password, named) {
            Some(identity) => Ok(identity),
            None if name.is_empty() => Err(AuthFailure::Wrong),
            None => self.user(known, name, password).await,
        }
    }

    async fn user(&self, known: Arc<LoginRegistry>, name: &str, password: &str) -> Result<Identity, AuthFailure> {
        let fingerprint = self.fingerprint(name, password);
        if known.remembers(&fingerprint) {
            return known.user(name).ok_or(AuthFailure::Wrong);
        }
        let _place = self.password_places.try_acquire().map_err(|_| AuthFailure::Busy)?;
        let _permit = self.password_checks.acquire().await.map_err(|_| AuthFailure::Busy)?;
        let (checked, login, secret) = (known.clone(), name.to_owned(), password.to_owned());
        let right = blocking::spawn(move || checked.check_password(&login, &secret)).await;
        if !right.unwrap_or(false) {
            return Err(AuthFailure::Wrong);
        }
        known.remember(fingerprint);
        known.user(name).ok_or(AuthFailure::Wrong)
    }

    fn fingerprint(&self, name: &str, password: &str) -> [u8; 32] {
        let length = (name.len() as u64).to_le_bytes();
        let parts = [&self.salt[..], &length, name.as_bytes(), password.as_bytes()];
        parts
            .iter()
            .fold(Sha256::new(), |hash, part| hash.chain_update(part))
            .finalize()
            .into()
    }

    fn known(&self) -> Arc<LoginRegistry> {
        self.known.read().clone()
    }

    fn put(&self, mut known: LoginRegistry) {
        let mut current = self.known.write();
        known.succeed(&current);
        *current = Arc::new(known);
    }
}

/// Reads the files when they change, as long as the credentials are in use.
async fn look(credentials: std::sync::Weak<Credentials>, mut watch: FileWatch) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut told: Option<Instant> = None;
    loop {
        ticks.tick().await;
        let Some(credentials) = credentials.upgrade() else {
            return;
        };
        let looked = blocking::spawn(move || {
            let config = credentials.config.lock().clone();
            let changed = watch.look_at(login_registry::files(&config));
            // Errors in a file are logged repeatedly, because logins are refused.
            let again = told.is_some_and(|told| told.elapsed() >= TELL_EVERY);
            if changed || again {
                let (known, flaws) = LoginRegistry::read(&config);
                for error in &flaws {
                    tracing::error!("a login file or entry cannot be read, so none of its logins is accepted: {error}");
                }
                told = (!flaws.is_empty()).then(clock::now);
                credentials.put(known);
                if changed {
                    tracing::info!("the changed tokens and users are in force");
                }
            }
            (watch, told)
        });
        match looked.await {
            Ok(looked) => (watch, told) = looked,
            // The process is stopping.
            Err(_) => return,
        }
    }
}

/// Hashes are no secrets, but a token's own file is one. Group access is accepted, because operators use it to let the
/// process read files of root.
fn warn_of_readers(config: &AuthConfig) {
    use std::os::unix::fs::MetadataExt as _;
    for path in login_registry::files(config) {
        if std::fs::metadata(&path).is_ok_and(|about| about.mode() & 0o007 != 0) {
            let path = path.display();
            tracing::warn!("every user of this machine can read {path}, which contains logins; chmod o= {path}");
        }
    }
}

/// Bytes that nobody can guess.
fn secret() -> Result<[u8; 32], NoRandomness> {
    let mut bytes = [0; 32];
    random::fill(&mut bytes)?;
    Ok(bytes)
}

/// What is stored of a token, or of the password of [`basic`].
fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests;
