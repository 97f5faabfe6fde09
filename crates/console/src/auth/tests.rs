use super::*;
use axum::http::HeaderValue;
use thalweg_config::Pos;

fn token(name: &str, secret: TokenSecret, roles: &[Role]) -> Token {
    Token {
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
        users_file: None,
    };
    let credentials = Credentials::load(&config, None).unwrap().unwrap();
    let reader = Identity {
        name: "reader".to_owned(),
        roles: vec![Role::Read],
    };
    assert_eq!(
        credentials.identify(&authorization("Bearer abc")).await,
        Ok(reader.clone())
    );
    assert_eq!(
        credentials.identify(&authorization("bearer  abc")).await,
        Ok(reader.clone())
    );
    assert_eq!(credentials.identify(&basic("reader:abc")).await, Ok(reader));
    assert_eq!(
        credentials
            .identify(&authorization("Bearer from-file"))
            .await
            .unwrap()
            .name,
        "ops"
    );
    assert_eq!(credentials.identify(&HeaderMap::new()).await, Err(Stranger::Silent));
    for wrong in [
        "Bearer abcd",
        "Bearer",
        "Bearer ",
        "Digest abc",
        "Basic !!!",
        "Basic YWJj",
    ] {
        assert_eq!(
            credentials.identify(&authorization(wrong)).await,
            Err(Stranger::Wrong),
            "{wrong}"
        );
    }
    assert_eq!(credentials.identify(&basic("ops:abc")).await, Err(Stranger::Wrong));
}

#[tokio::test]
async fn a_user_of_the_legacy_section_has_all_roles() {
    let user = BasicAuth {
        username: "ada".to_owned(),
        password_hash: BASE64_STANDARD.encode(Sha256::digest(b"pump")),
        algorithm: "sha256".to_owned(),
    };
    let credentials = Credentials::load(&AuthConfig::default(), Some(&user)).unwrap().unwrap();
    assert_eq!(credentials.identify(&basic("ada:pump")).await.unwrap().roles.len(), 3);
    assert_eq!(credentials.identify(&basic("ada:pumps")).await, Err(Stranger::Wrong));
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
        users_file: None,
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
