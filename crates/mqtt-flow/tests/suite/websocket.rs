//! MQTT over WebSocket: Debian's broker has none, so a WebSocket server of another implementation stands before it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tungstenite::handshake::server::{Request, Response};
use tungstenite::{Error, Message, WebSocket};

use super::broker::Broker;
use super::world::{World, until};

/// A WebSocket server that passes bytes on to a port; its threads end with the process.
fn server(broker: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                #[allow(clippy::result_large_err, reason = "the library wants it so")]
                let agree = |request: &Request, mut response: Response| {
                    assert_eq!(request.uri(), "/mqtt");
                    let offered = request.headers().get("Sec-WebSocket-Protocol").cloned().unwrap();
                    response.headers_mut().insert("Sec-WebSocket-Protocol", offered);
                    Ok(response)
                };
                let websocket = tungstenite::accept_hdr(client, agree).unwrap();
                pass_on(websocket, TcpStream::connect(("127.0.0.1", broker)).unwrap());
            });
        }
    });
    port
}

/// Passes bytes on in both directions, in turn, until one of them ends.
fn pass_on(mut client: WebSocket<TcpStream>, mut broker: TcpStream) {
    let turn = Some(Duration::from_millis(2));
    client.get_ref().set_read_timeout(turn).unwrap();
    broker.set_read_timeout(turn).unwrap();
    let mut bytes = [0; 1000];
    loop {
        match client.read() {
            Ok(Message::Binary(payload)) => broker.write_all(&payload).unwrap(),
            Ok(Message::Close(_)) => return,
            Ok(_) => {}
            Err(Error::Io(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        match broker.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => {
                let payload = bytes[..len].to_vec();
                if client.send(Message::binary(payload)).is_err() || client.send(Message::Ping("p".into())).is_err() {
                    return;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

#[test]
fn both_ends_speak_over_websockets() {
    let (broker, world) = (Broker::start(), World::new());
    let url = format!("ws://127.0.0.1:{}/mqtt", server(broker.port));
    let text = format!("input: {{mqtt: {{urls: [\"{url}\"], topics: [a], qos: 2}}}}\noutput: {{kept: {{}}}}\n");
    let running = world.start(&text);
    until("the flow is subscribed", || running.trouble().is_empty());
    let sending = World::new();
    let mut messages: Vec<String> = (0..300).map(|number: usize| number.to_string()).collect();
    messages.push("x".repeat(300_000));
    let report = sending.send(
        &messages,
        &format!("output: {{mqtt: {{urls: [\"{url}\"], topic: a, qos: 2, write_timeout: 30s}}}}\n"),
    );
    assert_eq!(report.counts.out, 301);
    world.wait_for(301);
    world.stop(running);
    assert!(world.kept.texts() == messages);
}

#[test]
fn a_server_without_websockets_is_told() {
    let (broker, world) = (Broker::start(), World::new());
    let url = format!("ws://127.0.0.1:{}/mqtt", broker.port);
    let text = format!("input: {{mqtt: {{urls: [\"{url}\"], topics: [a]}}}}\noutput: {{kept: {{}}}}\n");
    let running = world.start(&text);
    let told = format!("{url}: the server closes the connection without an answer to the WebSocket request");
    until("it is told", || running.trouble().contains(&told));
    world.stop(running);
}
