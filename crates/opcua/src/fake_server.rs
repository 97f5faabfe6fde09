//! An OPC UA server without security whose responses are defined by a test, for cases that no real server produces on
//! demand.

use std::io::Cursor;
use std::sync::Arc;

use opcua::core::comms::security_header::AsymmetricSecurityHeader;
use opcua::core::{Message as _, RequestMessage, ResponseMessage};
use opcua::types::{
    ActivateSessionResponse, ApplicationDescription, BinaryDecodable as _, BinaryEncodable as _, ChannelSecurityToken,
    Context, ContextOwned, CreateSessionResponse, DateTime, DecodingOptions, EndpointDescription, GetEndpointsResponse,
    MessageSecurityMode, NamespaceMap, NodeId, OpenSecureChannelResponse, ResponseHeader, ServiceFault,
    SimpleBinaryDecodable, SimpleBinaryEncodable, StatusCode, UserTokenPolicy, UserTokenType,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::channel::{Channel, ChannelSecurity};
use crate::config::{Identity, SecurityChoice};
use crate::security::EndpointOffer;
use crate::session::{Credentials, Session};

/// Responds to a request; `None` leaves it unanswered. Session requests are handled by default.
type Answer = dyn FnMut(&RequestMessage) -> Option<ResponseMessage> + Send;

pub(crate) struct FakeServer {
    pub url: String,
    /// The kinds of requests so far, over all connections.
    pub requests: Arc<Mutex<Vec<&'static str>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeServer {
    pub async fn start(answer: impl FnMut(&RequestMessage) -> Option<ResponseMessage> + Send + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("opc.tcp://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (requests.clone(), Arc::new(Mutex::new(answer)));
        let task = tokio::spawn(async move {
            // Connections end with the server.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, seen.clone(), answer.clone()));
            }
        });
        FakeServer { url, requests, task }
    }

    pub fn count(&self, kind: &str) -> usize {
        self.requests.lock().iter().filter(|seen| **seen == kind).count()
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<&'static str>>>, answer: Arc<Mutex<Answer>>) -> Option<()> {
    let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
    let mut sequence = 0u32;
    loop {
        let message = read_message(&mut stream).await?;
        let kind = message.get(..3)?.to_vec();
        if kind == b"HEL" {
            let mut body = Vec::new();
            body.extend([0u32, 65_535, 65_535, 0, 0].into_iter().flat_map(u32::to_le_bytes));
            stream.write_all(&framed(b"ACKF", &body)).await.ok()?;
            continue;
        }
        let is_open = kind == b"OPN";
        let (request_id, request) = decoded(&message, is_open, &context.context())?;
        seen.lock().push(request.type_name());
        let made_up = answer.lock()(&request);
        let Some(response) = made_up.or_else(|| usual(&request)) else {
            continue;
        };
        sequence += 1;
        let mut body = 1u32.to_le_bytes().to_vec();
        match is_open {
            true => body.extend(SimpleBinaryEncodable::encode_to_vec(&AsymmetricSecurityHeader::none())),
            false => body.extend(1u32.to_le_bytes()),
        }
        body.extend(sequence.to_le_bytes());
        body.extend(request_id.to_le_bytes());
        body.extend(response.type_id().encode_to_vec(&context.context()));
        body.extend(response.encode_to_vec(&context.context()));
        let frame = framed(if is_open { b"OPNF" } else { b"MSGF" }, &body);
        stream.write_all(&frame).await.ok()?;
    }
}

fn decoded(message: &[u8], is_open: bool, context: &Context<'_>) -> Option<(u32, RequestMessage)> {
    let mut cursor = Cursor::new(message);
    cursor.set_position(12);
    if is_open {
        <AsymmetricSecurityHeader as SimpleBinaryDecodable>::decode(&mut cursor, &DecodingOptions::default()).ok()?;
    } else {
        cursor.set_position(16);
    }
    // After the sequence number.
    let at = usize::try_from(cursor.position()).ok()? + 4;
    let request_id = u32::from_le_bytes(message.get(at..at + 4)?.try_into().ok()?);
    cursor.set_position(at as u64 + 4);
    let id = NodeId::decode(&mut cursor, context).ok()?.as_object_id().ok()?;
    let request = RequestMessage::decode_by_object_id(&mut cursor, id, context).ok()?;
    Some((request_id, request))
}

async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = vec![0; 8];
    stream.read_exact(&mut message).await.ok()?;
    let size = u32::from_le_bytes(message.get(4..8)?.try_into().ok()?) as usize;
    message.resize(size, 0);
    stream.read_exact(message.get_mut(8..)?).await.ok()?;
    Some(message)
}

fn framed(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut frame = kind.to_vec();
    frame.extend((body.len() as u32 + 8).to_le_bytes());
    frame.extend(body);
    frame
}

/// The default responses that make a session work.
fn usual(request: &RequestMessage) -> Option<ResponseMessage> {
    Some(match request {
        RequestMessage::OpenSecureChannel(_) => OpenSecureChannelResponse {
            response_header: good(),
            server_protocol_version: 0,
            security_token: ChannelSecurityToken {
                channel_id: 1,
                token_id: 1,
                created_at: DateTime::now(),
                revised_lifetime: 3_600_000,
            },
            server_nonce: Default::default(),
        }
        .into(),
        RequestMessage::CreateSession(_) => CreateSessionResponse {
            response_header: good(),
            session_id: NodeId::new(1, 1u32),
            authentication_token: NodeId::new(1, 2u32),
            revised_session_timeout: 10_000.0,
            ..CreateSessionResponse::default()
        }
        .into(),
        RequestMessage::ActivateSession(_) => ActivateSessionResponse {
            response_header: good(),
            ..ActivateSessionResponse::default()
        }
        .into(),
        _ => return None,
    })
}

pub(crate) fn good() -> ResponseHeader {
    ResponseHeader {
        timestamp: DateTime::now(),
        ..ResponseHeader::null()
    }
}

pub(crate) fn fault(status: StatusCode) -> ResponseMessage {
    ServiceFault {
        response_header: ResponseHeader {
            service_result: status,
            ..good()
        },
    }
    .into()
}

/// An endpoint without security for anonymous logins.
pub(crate) fn open_endpoint(url: &str, discovery_url: &str) -> EndpointDescription {
    EndpointDescription {
        endpoint_url: url.into(),
        security_mode: MessageSecurityMode::None,
        security_policy_uri: opcua::crypto::SecurityPolicy::None.to_uri().into(),
        server: ApplicationDescription {
            discovery_urls: Some(vec![discovery_url.into()]),
            ..ApplicationDescription::default()
        },
        user_identity_tokens: Some(vec![UserTokenPolicy {
            policy_id: "anonymous".into(),
            token_type: UserTokenType::Anonymous,
            ..UserTokenPolicy::default()
        }]),
        ..EndpointDescription::default()
    }
}

pub(crate) fn endpoints(endpoints: Vec<EndpointDescription>) -> Option<ResponseMessage> {
    let response = GetEndpointsResponse {
        response_header: good(),
        endpoints: Some(endpoints),
    };
    Some(response.into())
}

/// A channel without security.
pub(crate) async fn channel(url: &str) -> Channel {
    Channel::open(url, &ChannelSecurity::none()).await.unwrap()
}

/// An anonymous session.
pub(crate) async fn session(url: &str) -> Session {
    let offer = EndpointOffer::assumed(
        url.to_owned(),
        MessageSecurityMode::None,
        opcua::crypto::SecurityPolicy::None,
    );
    let credentials = Credentials {
        offer,
        security: ChannelSecurity::none(),
        server_certificate: None,
        choice: SecurityChoice {
            mode: None,
            policy: None,
        },
        identity: Identity::Anonymous,
        application_uri: "urn:thalweg:test".to_owned(),
        session_name: "test".to_owned(),
        session_timeout: std::time::Duration::from_secs(10),
    };
    Session::create(channel(url).await, Arc::new(credentials))
        .await
        .unwrap()
}

/// A component for metrics and logs.
pub(crate) fn component() -> thalweg_flow::Component {
    let id = thalweg_telemetry::ComponentId {
        flow: None,
        path: "root.input".to_owned(),
        label: String::new(),
    };
    thalweg_flow::Component::new("opcua", id, Arc::default())
}
