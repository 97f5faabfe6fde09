use super::*;
use axum::http::HeaderValue;
use thalweg_config::{Pos, TokenConfig, TokenSecret};

fn token(name: &str, secret: TokenSecret, roles: &[Role]) -> TokenConfig {
    TokenConfig {
        name: name.to_owned(),
        secret,
        roles: roles.to_vec(),
        pos: Pos::WHOLE_FILE,
    }
}

fn sha256(text: &str) -> TokenSecret {
    TokenSecret::Sha256(Sha256::digest(text.as_bytes()).into())
}

fn authorization(value: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
}

fn basic(login: &str) -> HeaderMap {
    authorization(&format!("Basic {}", BASE64_STANDARD.encode(login)))
}

#[tokio::test]
async fn tokens_are_known_as_bearer_and_by_name_as_basic() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ops.token");
    std::fs::write(&file, "from-file\n").unwrap();
    let config = AuthConfig {
        tokens: vec![
            token("reader", sha256("abc"), &[Role::Read]),
            token("ops", TokenSecret::File(file), &[Role::Read, Role::Admin]),
        ],
        ..AuthConfig::default()
    };
    let credentials = Credentials::load(&config, None).unwrap().unwrap();
    for presented in [
        authorization("Bearer abc"),
        authorization("bearer  abc"),
        basic("reader:abc"),
    ] {
        let identity = credentials.identify(&presented).await.unwrap();
        assert_eq!(
            (identity.name.as_str(), &identity.roles[..]),
            ("reader", &[Role::Read][..])
        );
    }
    assert_eq!(
        credentials
            .identify(&authorization("Bearer from-file"))
            .await
            .unwrap()
            .name,
        "ops"
    );
    assert_eq!(
        credentials.identify(&HeaderMap::new()).await.unwrap_err(),
        AuthFailure::Silent
    );
    for wrong in [
        "Bearer abcd",
        "Bearer",
        "Bearer ",
        "Digest abc",
        "Basic !!!",
        "Basic YWJj",
    ] {
        assert_eq!(
            credentials.identify(&authorization(wrong)).await.unwrap_err(),
            AuthFailure::Wrong,
            "{wrong}"
        );
    }
    assert_eq!(
        credentials.identify(&basic("ops:abc")).await.unwrap_err(),
        AuthFailure::Wrong
    );
}

#[tokio::test]
async fn a_user_of_the_legacy_section_has_all_roles() {
    let user = BasicAuth {
        username: "ada".to_owned(),
        password_hash: BASE64_STANDARD.encode(Sha256::digest(b"pump")),
        algorithm: "sha256".to_owned(),
    };
    let credentials = Credentials::load(&AuthConfig::default(), Some(&user)).unwrap().unwrap();
    let ada = credentials.identify(&basic("ada:pump")).await.unwrap();
    assert!(Role::NAMES.iter().all(|name| ada.may(Role::parse(name).unwrap())));
    assert_eq!(
        credentials.identify(&basic("ada:pumps")).await.unwrap_err(),
        AuthFailure::Wrong
    );
    let old = BasicAuth {
        algorithm: "bcrypt".to_owned(),
        ..user
    };
    let error = Credentials::load(&AuthConfig::default(), Some(&old)).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("use sha256, or move the user to auth.users_file"),
        "{error}"
    );
}

#[test]
fn nobody_named_means_no_login_at_all() {
    assert!(Credentials::load(&AuthConfig::default(), None).unwrap().is_none());
}

#[test]
fn a_missing_and_an_empty_token_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ops.token");
    let config = AuthConfig {
        tokens: vec![token("ops", TokenSecret::File(file.clone()), &[Role::Read])],
        ..AuthConfig::default()
    };
    let error = Credentials::load(&config, None).err().unwrap().to_string();
    assert!(
        error.starts_with("auth.tokens: cannot read ") && error.contains("ops.token"),
        "{error}"
    );
    std::fs::write(&file, "\n").unwrap();
    let error = Credentials::load(&config, None).err().unwrap().to_string();
    assert!(
        error.ends_with("of token \"ops\" is empty; write the token into it"),
        "{error}"
    );
}

/// The password is `pump`.
fn password_line(name: &str, roles: &str) -> String {
    use argon2::password_hash::{PasswordHasher, SaltString};
    let cheap = argon2::Params::new(64, 1, 1, None).unwrap();
    let salt = SaltString::from_b64("c2FsdHNhbHQ").unwrap();
    let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cheap);
    let hash = argon.hash_password(b"pump", &salt).unwrap();
    format!("{name}:{hash}:{roles}\n")
}

fn token_line(name: &str, token: &str, roles: &str) -> String {
    let digits: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}:{digits}:{roles}\n")
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_is_taken_from_a_file_is_out_and_what_it_holds_open_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, users, own) = (
        folder.path().join("tokens"),
        folder.path().join("users"),
        folder.path().join("own"),
    );
    std::fs::write(
        &tokens,
        [token_line("edge", "e", "write"), token_line("ops", "o", "admin")].concat(),
    )
    .unwrap();
    std::fs::write(
        &users,
        [password_line("ada", "read"), password_line("bob", "read")].concat(),
    )
    .unwrap();
    std::fs::write(&own, "from-file\n").unwrap();
    let config = AuthConfig {
        tokens: vec![token("own", TokenSecret::File(own.clone()), &[Role::Read])],
        tokens_file: Some(tokens.clone()),
        users_file: Some(users.clone()),
    };
    let credentials = Credentials::load(&config, None).unwrap().unwrap();
    let all = [
        authorization("Bearer e"),
        authorization("Bearer o"),
        basic("ada:pump"),
        basic("bob:pump"),
        authorization("Bearer from-file"),
    ];
    let [edge, ops, ada, bob, file] = &all;
    let mut held = Vec::new();
    for one in &all {
        held.push(credentials.identify(one).await.unwrap());
    }
    let is_in = async |who: &HeaderMap| credentials.identify(who).await.is_ok();

    // One line is removed; another becomes invalid, which does not affect the rest.
    std::fs::write(&tokens, token_line("ops", "o", "admin")).unwrap();
    std::fs::write(&users, format!("ada:nonsense:read\n{}", password_line("bob", "read"))).unwrap();
    eventually("edge and ada are out", async || !is_in(edge).await && !is_in(ada).await).await;
    assert!(is_in(ops).await && is_in(bob).await && is_in(file).await);
    let ended: Vec<bool> = held.iter().map(|identity| identity.ended.is_cancelled()).collect();
    assert_eq!(ended, [true, false, true, false, false]);

    // Another role is another login.
    std::fs::write(&tokens, token_line("ops", "o", "read")).unwrap();
    eventually("ops may only read", async || {
        !credentials.identify(ops).await.unwrap().may(Role::Admin)
    })
    .await;
    assert!(held[1].ended.is_cancelled());

    // Emptied, deleted, and no file at all.
    std::fs::write(&tokens, "").unwrap();
    std::fs::remove_file(&users).unwrap();
    std::fs::remove_file(&own).unwrap();
    std::fs::create_dir(&own).unwrap();
    eventually("nobody is in", async || {
        for one in &all {
            if is_in(one).await {
                return false;
            }
        }
        true
    })
    .await;
    assert!(held.iter().all(|identity| identity.ended.is_cancelled()));

    // And all of it again.
    std::fs::write(&tokens, token_line("edge", "e", "write")).unwrap();
    std::fs::write(&users, password_line("ada", "read")).unwrap();
    eventually("they are back", async || is_in(edge).await && is_in(ada).await).await;
    assert!(!credentials.identify(ada).await.unwrap().ended.is_cancelled());
}

#[tokio::test]
async fn another_section_is_in_force_at_once_or_says_that_it_needs_a_restart() {
    let section = |tokens: &[&str]| AuthConfig {
        tokens: tokens
            .iter()
            .map(|name| token(name, sha256(name), &[Role::Read]))
            .collect(),
        ..AuthConfig::default()
    };
    let logins = Logins::load(&section(&["a", "b"]), None).unwrap();
    let credentials = logins.credentials().unwrap();
    let held = credentials.identify(&authorization("Bearer a")).await.unwrap();
    assert_eq!(
        logins.replace(&section(&["a", "b"])).unwrap(),
        AuthReloadOutcome::Nothing
    );
    assert_eq!(logins.replace(&section(&["b", "c"])).unwrap(), AuthReloadOutcome::Done);
    assert!(held.ended.is_cancelled());
    assert!(credentials.identify(&authorization("Bearer a")).await.is_err());
    assert!(credentials.identify(&authorization("Bearer c")).await.is_ok());
    assert_eq!(logins.replace(&section(&[])).unwrap(), AuthReloadOutcome::NeedsRestart);
    let missing = AuthConfig {
        users_file: Some("/nowhere/users".into()),
        ..section(&["d"])
    };
    assert!(logins.replace(&missing).is_err());
    assert!(
        credentials.identify(&authorization("Bearer c")).await.is_ok(),
        "the former is in force"
    );
    assert_eq!(
        Logins::none().replace(&section(&["a"])).unwrap(),
        AuthReloadOutcome::NeedsRestart
    );
    assert_eq!(
        Logins::none().replace(&section(&[])).unwrap(),
        AuthReloadOutcome::Nothing
    );
}

#[tokio::test]
async fn so_many_wrong_passwords_keep_no_token_out_and_hold_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, password_line("ada", "read")).unwrap();
    let config = AuthConfig {
        tokens: vec![token("t", sha256("t"), &[Role::Read])],
        users_file: Some(users),
        ..AuthConfig::default()
    };
    let credentials = Credentials::load(&config, None).unwrap().unwrap();
    let all = credentials.password_checks.acquire_many(2).await.unwrap();
    let waiting: Vec<_> = (0..PASSWORD_CHECKS_WAITING_MAX + PASSWORD_CHECKS_MAX)
        .map(|n| {
            let credentials = credentials.clone();
            // Whether such a user exists makes no difference.
            let name = ["ada", "nobody"][n % 2];
            tokio::spawn(async move { credentials.identify(&basic(&format!("{name}:{n}"))).await.unwrap_err() })
        })
        .collect();
    eventually("all places are taken", async || {
        credentials.password_places.available_permits() == 0
    })
    .await;
    assert_eq!(
        credentials.identify(&basic("ada:pump")).await.unwrap_err(),
        AuthFailure::Busy
    );
    assert!(credentials.identify(&authorization("Bearer t")).await.is_ok());
    drop(all);
    for one in waiting {
        assert_eq!(one.await.unwrap(), AuthFailure::Wrong);
    }
    assert!(credentials.identify(&basic("ada:pump")).await.is_ok());
}
