use std::time::Duration;

use opcua::crypto::SecurityPolicy;
use opcua::types::{EndpointDescription, GetEndpointsRequest, UAString};
use proptest::prelude::*;
use thalweg_simulator::SimulatorOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::policy_name;
use crate::security::ClientCertificates;

fn get_endpoints() -> GetEndpointsRequest {
    GetEndpointsRequest {
        request_header: Default::default(),
        endpoint_url: UAString::from("opc.tcp://x"),
        locale_ids: None,
        profile_uris: None,
    }
}

async fn endpoints(channel: &Channel) -> Result<Vec<EndpointDescription>, CallError> {
    let response = channel
        .call(&NodeId::null(), get_endpoints(), Duration::from_secs(10))
        .await?;
    Ok(response.endpoints.unwrap_or_default())
}

/// Tokens with a lifetime of one second are renewed several times while calls continue, whatever the security.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_renewed_while_calls_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = SimulatorOptions {
        port: 0,
        auto_accept: true,
        pki_dir: folder.path().join("pki"),
        ..SimulatorOptions::default()
    };
    let plant = thalweg_simulator::start(options).await.unwrap();
    let open = Channel::open(plant.endpoint(), &ChannelSecurity::none()).await.unwrap();
    let offers = endpoints(&open).await.unwrap();
    let certificates = ClientCertificates::new(None, folder.path());
    for offer in offers.iter().map(crate::security::EndpointOffer::from) {
        let own = certificates.for_policy(offer.policy).await.unwrap();
        let security = match offer.policy {
            SecurityPolicy::None => ChannelSecurity::none(),
            policy => ChannelSecurity {
                mode: offer.mode,
                policy,
                own: Some((own.pair.certificate, own.pair.key)),
                server_certificate: Some(X509::from_der(&offer.certificate).unwrap()),
            },
        };
        let channel = Channel::open_with_lifetime(plant.endpoint(), &security, 1000)
            .await
            .unwrap();
        let mut tokens = std::collections::HashSet::new();
        while tokens.len() < 3 {
            assert_eq!(
                endpoints(&channel).await.unwrap().len(),
                offers.len(),
                "{:?} {}",
                offer.mode,
                policy_name(offer.policy)
            );
            tokens.insert(channel.token_id());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    plant.shutdown().await;
}

/// A server that exchanges hello correctly and then sends these bytes.
async fn liar(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("opc.tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_message(&mut stream).await;
        let mut ack = b"ACKF".to_vec();
        ack.extend(28u32.to_le_bytes());
        ack.extend([0u32, 65_535, 65_535, 0, 0].into_iter().flat_map(u32::to_le_bytes));
        stream.write_all(&ack).await.unwrap();
        read_message(&mut stream).await;
        let _ = stream.write_all(&bytes).await;
        // The client must end the connection, not the server.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    url
}

async fn read_message(stream: &mut TcpStream) {
    let mut header = [0; 8];
    stream.read_exact(&mut header).await.unwrap();
    let size = u32::from_le_bytes(header[4..].try_into().unwrap()) as usize;
    stream.read_exact(&mut vec![0; size - 8]).await.unwrap();
}

fn message(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_vec();
    bytes.extend((body.len() as u32 + 8).to_le_bytes());
    bytes.extend(body);
    bytes
}

async fn refusal(bytes: Vec<u8>) -> String {
    let url = liar(bytes).await;
    match Channel::open(&url, &ChannelSecurity::none()).await {
        Ok(_) => panic!("a channel was opened"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn whatever_a_server_sends_ends_in_one_sentence() {
    let mut error_body = 0x8055_0000u32.to_le_bytes().to_vec();
    error_body.extend(6i32.to_le_bytes());
    error_body.extend(b"no way");
    for (bytes, part) in [
        (message(b"ERRF", &error_body), "refused"),
        (
            b"OPNF\xff\xff\xff\xff".to_vec(),
            "announced a chunk of 4294967295 bytes",
        ),
        (b"OPNF\x04\0\0\0".to_vec(), "announced a chunk of 4 bytes"),
        (message(b"XYZF", b"abc"), "unknown type"),
        (message(b"MSGF", b"\0\0\0\0"), "impossible size"),
        (message(b"OPNF", &[0; 40]), "instead of"),
        (message(b"CLOF", &[0; 40]), "closed the secure channel"),
    ] {
        let text = refusal(bytes).await;
        assert!(
            text.contains(part) || text.contains("closed the connection"),
            "{part}: {text}"
        );
        assert!(!text.contains('\n') && text.len() < 400, "{text}");
    }
}

/// A channel under None must not be opened by a server that responds under another policy, and vice versa.
#[tokio::test]
async fn an_answer_under_another_policy_is_refused() {
    let mut body = 1u32.to_le_bytes().to_vec();
    let uri = SecurityPolicy::Basic256Sha256.to_uri().as_bytes();
    body.extend((uri.len() as i32).to_le_bytes());
    body.extend(uri);
    body.extend([0xff; 8]);
    body.extend([0; 16]);
    let text = refusal(message(b"OPNF", &body)).await;
    assert!(text.contains("Basic256Sha256") && text.contains("instead of"), "{text}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    // This checks only the error text; the peer cuts the wait short.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("opc.tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { drop(listener.accept().await) });
    let error = Channel::open(&url, &ChannelSecurity::none()).await.err().unwrap();
    assert!(matches!(error, ChannelOpenError::NotOpcUa { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_answer_to_opening_panics(body in prop::collection::vec(any::<u8>(), 0..200), kind in prop::sample::select(vec![b"OPNF", b"MSGF", b"OPNC", b"ERRF", b"CLOF"])) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bytes = message(kind, &body);
            // Garbage ends the stream.
            bytes.extend(b"QQQQ");
            bytes.extend([0; 8]);
            let url = liar(bytes).await;
            assert!(Channel::open(&url, &ChannelSecurity::none()).await.is_err());
        });
    }
}
