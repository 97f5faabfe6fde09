//! Endpoints, logins and certificates.

use std::path::Path;
use std::sync::OnceLock;

use opcua::client::{ClientBuilder, IdentityToken};
use opcua::types::{MessageSecurityMode, StatusCode};
use thalweg_simulator::{Simulator, SimulatorOptions};

use crate::client::{Client, Login, node, simulate_at};

/// Creating a key takes a second, so all tests of this file share the server's and the client's certificates.
struct Keys {
    server: tempfile::TempDir,
    client: tempfile::TempDir,
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| Keys {
        server: tempfile::tempdir().unwrap(),
        client: tempfile::tempdir().unwrap(),
    })
}

/// Only one test may create the keys.
static MAKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn simulate(options: SimulatorOptions) -> Simulator {
    let _making = MAKING.lock().await;
    simulate_at(keys().server.path(), options).await
}

fn user() -> Option<(String, String)> {
    Some(("operator".to_owned(), "secret".to_owned()))
}

fn named(password: &str) -> IdentityToken {
    IdentityToken::UserName("operator".into(), password.into())
}

async fn log_in(
    simulator: &Simulator,
    policy: &str,
    mode: MessageSecurityMode,
    identity: IdentityToken,
    pki: &Path,
) -> Result<Client, StatusCode> {
    let _making = MAKING.lock().await;
    Client::log_in(
        simulator,
        Login {
            policy,
            mode,
            identity,
            pki,
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policy_and_mode_is_offered_and_works_with_a_login() {
    let simulator = simulate(SimulatorOptions {
        user: user(),
        auto_accept: true,
        ..SimulatorOptions::default()
    })
    .await;
    let pki = keys().client.path();
    let policies = [
        "Basic128Rsa15",
        "Basic256",
        "Basic256Sha256",
        "Aes128-Sha256-RsaOaep",
        "Aes256-Sha256-RsaPss",
    ];
    let discovery = ClientBuilder::new()
        .application_name("x")
        .application_uri("urn:x")
        .pki_dir(pki)
        .client()
        .unwrap();
    let offered = discovery
        .get_server_endpoints_from_url(simulator.endpoint())
        .await
        .unwrap();
    assert_eq!(offered.len(), 1 + 2 * policies.len());
    for policy in policies {
        for mode in [MessageSecurityMode::Sign, MessageSecurityMode::SignAndEncrypt] {
            let client = log_in(&simulator, policy, mode, named("secret"), pki).await;
            let client = client.unwrap_or_else(|status| panic!("{policy} {mode:?}: {status}"));
            assert_eq!(client.value("FastUInt1").await.status(), StatusCode::Good);
            client.session.disconnect().await.unwrap();
        }
    }
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_a_missing_login_are_refused() {
    let simulator = simulate(SimulatorOptions {
        user: user(),
        auto_accept: true,
        ..SimulatorOptions::default()
    })
    .await;
    let pki = keys().client.path();
    let mode = MessageSecurityMode::SignAndEncrypt;
    assert!(
        log_in(&simulator, "Basic256Sha256", mode, named("wrong"), pki)
            .await
            .is_err()
    );
    assert!(
        log_in(&simulator, "Basic256Sha256", mode, IdentityToken::Anonymous, pki)
            .await
            .is_err()
    );
    let anonymous = log_in(
        &simulator,
        "None",
        MessageSecurityMode::None,
        IdentityToken::Anonymous,
        pki,
    )
    .await;
    assert!(anonymous.is_ok(), "the endpoint without security stays open");
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_client_certificate_is_rejected_until_it_is_trusted() {
    let server = tempfile::tempdir().unwrap();
    let own = keys();
    // The server's certificate is the shared one; the trust folders are new.
    let _first = simulate(SimulatorOptions::default()).await;
    for part in ["own", "private"] {
        let from = own.server.path().join(part);
        std::fs::create_dir_all(server.path().join(part)).unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), server.path().join(part).join(file.file_name())).unwrap();
        }
    }
    let simulator = simulate_at(server.path(), SimulatorOptions::default()).await;
    let mode = MessageSecurityMode::SignAndEncrypt;
    let pki = own.client.path();
    assert!(
        log_in(&simulator, "Basic256Sha256", mode, IdentityToken::Anonymous, pki)
            .await
            .is_err()
    );
    let rejected: Vec<_> = std::fs::read_dir(server.path().join("rejected"))
        .unwrap()
        .map(|file| file.unwrap())
        .collect();
    assert_eq!(rejected.len(), 1);
    std::fs::rename(
        rejected[0].path(),
        server.path().join("trusted").join(rejected[0].file_name()),
    )
    .unwrap();
    let client = log_in(&simulator, "Basic256Sha256", mode, IdentityToken::Anonymous, pki)
        .await
        .unwrap();
    assert_eq!(
        client
            .read(&node("FastUInt1"), opcua::types::AttributeId::Value)
            .await
            .status(),
        StatusCode::Good
    );
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_chosen_endpoints_exist() {
    let simulator = simulate(SimulatorOptions {
        insecure: false,
        ..SimulatorOptions::default()
    })
    .await;
    let pki = keys().client.path();
    let discovery = ClientBuilder::new()
        .application_name("x")
        .application_uri("urn:x")
        .pki_dir(pki)
        .client()
        .unwrap();
    let offered = discovery
        .get_server_endpoints_from_url(simulator.endpoint())
        .await
        .unwrap();
    assert_eq!(offered.len(), 10);
    assert!(
        offered
            .iter()
            .all(|endpoint| endpoint.security_mode != MessageSecurityMode::None)
    );
    assert!(
        offered
            .iter()
            .all(|endpoint| endpoint.endpoint_url.as_ref() == simulator.endpoint())
    );
    simulator.shutdown().await;
}
