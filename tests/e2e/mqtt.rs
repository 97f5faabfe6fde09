//! The MQTT broker of the real binary: alone and in a configuration, over kill -9, and with clients of others.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use thalweg_mqtt_wire::{Packet, PacketKind, ProtocolVersion, QoS, ReasonCode};
use thalweg_tests::mqtt::listener;
use thalweg_tests::process::Process;
use thalweg_tests::thalweg::run;
use thalweg_tests::{MqttClient, MqttConnect, MqttServe, Thalweg, eventually};

use crate::examples::{example, with};

const ROUNDS: u32 = 3;
/// Acknowledged publishes of a round before the broker is killed.
const PUBLISHES: u16 = 400;
/// Publishes that are not acknowledged at a time.
const WINDOW: u16 = 50;

/// Publishes numbers without waiting for each acknowledgement, and kills the broker once enough are acknowledged. Returns those that
/// are.
fn publish_until_killed(broker: &mut MqttServe, round: u32, qos: QoS) -> Result<BTreeSet<String>> {
    let (mut client, _) = MqttClient::connect(&broker.address, &MqttConnect::stored(&format!("publisher-{round}")))?;
    let payload = |id: u16| format!("{round}-{id:05}");
    let (mut sent, mut acked) = (0, BTreeSet::new());
    while acked.len() < usize::from(PUBLISHES) {
        while usize::from(sent) < acked.len() + usize::from(WINDOW) {
            sent += 1;
            client.publish_as(sent, "plant/line", payload(sent).as_bytes(), qos, false)?;
        }
        let id = match client.packet()? {
            Packet::PubAck(ack) if !ack.reason.is_failure() => ack.packet_id,
            // Once this is there, the message is the broker's.
            Packet::PubRec(ack) if !ack.reason.is_failure() => {
                client.ack(PacketKind::PubRel, ack.packet_id)?;
                ack.packet_id
            }
            Packet::PubComp(_) => continue,
            other => anyhow::bail!("{other:?}"),
        };
        acked.insert(payload(id));
    }
    broker.process.kill()?;
    Ok(acked)
}

#[test]
fn what_was_acknowledged_arrives_after_the_broker_was_killed_in_the_middle_of_publishes() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = MqttServe::start(folder.path(), "broker").unwrap();
    let subscriber = MqttConnect::stored("subscriber");
    let (mut client, connack) = MqttClient::connect(&broker.address, &subscriber).unwrap();
    assert!(!connack.session_present);
    assert_eq!(
        client.subscribe("plant/#", QoS::ExactlyOnce).unwrap(),
        ReasonCode::GrantedQoS2
    );
    client.disconnect().unwrap();
    for round in 0..ROUNDS {
        let qos = if round % 2 == 0 {
            QoS::AtLeastOnce
        } else {
            QoS::ExactlyOnce
        };
        let acked = publish_until_killed(&mut broker, round, qos).unwrap();
        broker = MqttServe::start(folder.path(), &format!("broker-{round}")).unwrap();
        let (mut client, connack) = MqttClient::connect(&broker.address, &subscriber).unwrap();
        assert!(connack.session_present, "round {round}");
        let mut missing = acked.clone();
        let mut last = String::new();
        while !missing.is_empty() {
            let message = client
                .message()
                .unwrap_or_else(|error| panic!("{} are missing: {error:#}", missing.len()));
            let payload = String::from_utf8(message.payload().to_vec()).unwrap();
            missing.remove(&payload);
            // The publisher sends nothing twice, so the order is strict.
            assert!(payload > last, "{payload} comes after {last}");
            last = payload;
        }
        // What was on its way may have been stored, too. A publisher that hears nothing sends it again.
        while let Some(packet) = client.packet_within(Duration::from_millis(300)).unwrap() {
            if let Packet::Publish(message) = packet {
                let kind = match message.qos {
                    QoS::ExactlyOnce => PacketKind::PubRec,
                    _ => PacketKind::PubAck,
                };
                client.ack(kind, message.packet_id).unwrap();
            } else if let Packet::PubRel(ack) = packet {
                client.ack(PacketKind::PubComp, ack.packet_id).unwrap();
            }
        }
        client.disconnect().unwrap();
    }
    broker.process.signal("TERM").unwrap();
    assert!(broker.process.wait().unwrap().success(), "{}", broker.process.stderr());
    let report = run(folder.path(), &["log", "check", "--data-dir", "data"]).unwrap();
    assert!(report.status.success(), "{}{}", report.stdout, report.stderr);
    for name in ["mqtt.messages", "mqtt.sessions", "mqtt.retained"] {
        assert!(
            report.stdout.lines().any(|line| line.starts_with(name)),
            "{name}: {}",
            report.stdout
        );
    }
    let dump = [
        "log",
        "dump",
        "--data-dir",
        "data",
        "--partition",
        "mqtt.sessions",
        "--records",
    ];
    let dump = run(folder.path(), &dump).unwrap();
    assert!(
        dump.stdout.contains("frame mqtt.sessions") && dump.stdout.contains("key subscriber"),
        "{}",
        dump.stdout
    );
}

#[test]
fn a_stop_ends_connections_and_keeps_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = MqttServe::start(folder.path(), "broker").unwrap();
    let (mut subscriber, _) = MqttClient::connect(&broker.address, &MqttConnect::stored("subscriber")).unwrap();
    subscriber.subscribe("a", QoS::AtLeastOnce).unwrap();
    let (mut publisher, _) = MqttClient::connect(&broker.address, &MqttConnect::fleeting("publisher")).unwrap();
    assert_eq!(
        publisher.publish("a", b"1", QoS::AtLeastOnce, true).unwrap(),
        ReasonCode::Success
    );
    broker.process.signal("TERM").unwrap();
    let last = publisher.until_closed().unwrap().pop();
    let is_told = matches!(&last, Some(Packet::Disconnect(end)) if end.reason == ReasonCode::ServerShuttingDown);
    assert!(is_told, "{last:?}");
    assert!(broker.process.wait().unwrap().success(), "{}", broker.process.stderr());
    // The subscriber has read nothing yet, and so acknowledged nothing.
    let broker = MqttServe::start(folder.path(), "again").unwrap();
    let (mut subscriber, connack) = MqttClient::connect(&broker.address, &MqttConnect::stored("subscriber")).unwrap();
    assert!(connack.session_present);
    assert_eq!(subscriber.message().unwrap().payload(), b"1");
    let (mut late, _) = MqttClient::connect(&broker.address, &MqttConnect::fleeting("late")).unwrap();
    late.subscribe("a", QoS::AtLeastOnce).unwrap();
    let retained = late.message().unwrap();
    assert!(retained.retain && retained.payload() == b"1");
}

#[test]
fn a_port_that_is_taken_is_told_by_the_option_that_changes_it() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let broker = MqttServe::start(one.path(), "broker").unwrap();
    let port = broker.address.rsplit(':').next().unwrap();
    let refused = run(other.path(), &["mqtt", "serve", "--port", port]).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    let expected = format!("thalweg: --port: 127.0.0.1:{port} is in use");
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    let refused = run(one.path(), &["mqtt", "serve", "--port", "0", "--data-dir", "data"]).unwrap();
    assert!(refused.stderr.contains("--data-dir"), "{}", refused.stderr);
}

/// One key on each line, each with another value than the default.
const EVERYTHING: &str = "\
mqtt:
  listeners:
    - {kind: tcp, address: '127.0.0.1:0'}
    - {kind: tcp, address: '127.0.0.1:0', proxy_protocol: true}
    - {kind: tcp, address: '127.0.0.1:0', max_connections: 7}
    - {kind: tcp, address: '127.0.0.1:0', versions: [3.1.1, 5.0]}
    - {kind: tls, address: '127.0.0.1:0', cert_file: s.pem, key_file: s.key}
    - {kind: tls, address: '127.0.0.1:0', cert_file: s.pem, key_file: s.key, client_auth: optional, client_ca_file: s.pem, identity: uri}
    - {kind: ws, address: '127.0.0.1:0', path: /x, origins: ['https://plant.example']}
    - {kind: wss, address: '127.0.0.1:0', cert_file: s.pem, key_file: s.key}
  anonymous: true
  insecure: true
  acl: [{anonymous: true, allow: all, topics: ['#']}]
  client_id_binding: false
  connect_timeout: 3s
  max_keep_alive: 5m
  max_packet_size: 24MiB
  receive_maximum: 65535
  topic_alias_max: 0
  topic_alias_max_out: 65535
  max_topic_levels: 1024
  max_qos: 1
  retain_available: false
  strict_utf8: true
  check_payload_format: true
  v3_denied_publish: close
  max_session_expiry: never
  v3_session_expiry: 24h
  session:
    max_queued: 10000
    overflow: drop-newest
    max_inflight: 20
    memory_queue: 256KiB
  send_buffer: 64KiB
  durability: os
  store:
    max_bytes: 1GiB
    ack_flush: 10s
  retained:
    max_messages: 5
    max_bytes: 1KiB
  shared_strategy: hash-topic
  limits:
    connections: 500
    connecting: 60
    subscriptions: 7
    connect_rate: {per_second: 1000, burst: 3000}
    publish_rate: {per_second: 1000}
    subscribe_rate: {per_second: 1000}
  server_reference: other:1883
  response_information: answers/%c
  sys_interval: 0s
  memory: 64MiB
";

fn check(folder: &Path, yaml: &str) -> Vec<String> {
    std::fs::write(folder.join("flow.yaml"), yaml).unwrap();
    let checked = run(folder, &["check", "flow.yaml"]).unwrap();
    assert_eq!(
        checked.status.success(),
        checked.stderr.is_empty(),
        "{}",
        checked.stderr
    );
    checked.stderr.lines().map(str::to_owned).collect()
}

#[test]
fn a_configuration_with_every_key_runs_and_what_cannot_be_applied_at_once_is_named() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path()).unwrap();
    let refused = check(folder.path(), EVERYTHING);
    // A key that the broker does not honour yet is refused, never ignored; the others must work together.
    let mut lines = BTreeSet::new();
    for message in &refused {
        assert!(message.ends_with(" is not available yet; remove it"), "{message}");
        lines.insert(message.split(':').nth(1).unwrap().parse::<usize>().unwrap());
    }
    let kept = EVERYTHING
        .lines()
        .enumerate()
        .filter(|(at, _)| !lines.contains(&(at + 1)));
    let yaml: String = kept.map(|(_, line)| format!("{line}\n")).collect();
    assert_eq!(check(folder.path(), &yaml), Vec::<String>::new());
    let files = ["s.pem", "s.key"].map(|name| (name, std::fs::read_to_string(folder.path().join(name)).unwrap()));
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let mut thalweg = Thalweg::spawn_with(&yaml, &files).unwrap();
    thalweg.wait_ready().unwrap();
    let address = listener(&thalweg.process.stdout(), "tcp").unwrap();
    let (mut client, _) = MqttClient::connect(&address, &MqttConnect::fleeting("a")).unwrap();
    assert_eq!(
        client.subscribe("#", QoS::ExactlyOnce).unwrap(),
        ReasonCode::GrantedQoS1
    );
    assert!(thalweg.metric("mqtt_recovery_seconds", "").is_ok());
    // The rest of the configuration is in force only after a restart, which the log says.
    std::fs::write(
        thalweg.folder.path().join("flow.yaml"),
        yaml.replace("max_qos: 1", "max_qos: 0"),
    )
    .unwrap();
    thalweg.process.signal("HUP").unwrap();
    eventually(|| {
        let log = thalweg.process.stdout();
        ensure!(
            log.contains("changes of these keys need a restart: mqtt.max_qos"),
            "{log}"
        );
        Ok(())
    })
    .unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

fn certificate(folder: &Path) -> Result<()> {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-nodes",
            "-newkey",
            "ec",
        ])
        .args([
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-keyout",
            "s.key",
            "-out",
            "s.pem",
        ])
        .current_dir(folder)
        .output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

#[test]
fn a_check_names_the_place_of_a_mistake_and_refuses_a_listener_that_everybody_reaches() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "mqtt:\n  listeners: [{kind: tcp, address: '0.0.0.0:1883'}]\n  max_qos: 3\n  retaind: {}\n";
    assert_eq!(
        check(folder.path(), yaml),
        [
            "flow.yaml:2:36: mqtt.listeners[0].address 0.0.0.0:1883 can be reached by other hosts without TLS and a login; \
             set it to 127.0.0.1:1883, or add kind: tls with cert_file and key_file, and auth.tokens or auth.users_file, or \
             client_auth: required, or allow it with mqtt.insecure: true",
            "flow.yaml:3:12: mqtt.max_qos: expected a whole number from 0 to 2, got the number 3",
            "flow.yaml:4:3: unknown field \"retaind\" in mqtt, did you mean \"retained\"?",
        ]
    );
    // The same at the start, where a host name becomes an address.
    let name = "mqtt: {listeners: [{kind: tcp, address: ':0'}]}\n";
    let told = check(folder.path(), name);
    assert!(
        told.len() == 1 && told[0].contains("mqtt.listeners[0].address [::]:0 can be reached"),
        "{told:?}"
    );
    assert_eq!(check(folder.path(), "mqtt: {}\n"), Vec::<String>::new());
    let insecure = "mqtt: {insecure: true, listeners: [{kind: tcp, address: '0.0.0.0:1883'}]}\n";
    assert_eq!(check(folder.path(), insecure), Vec::<String>::new());
}

/// A program of the mosquitto clients, with the broker's address.
fn mosquitto(program: &str, address: &str, version: &str, arguments: &[&str]) -> Command {
    let (host, port) = address.rsplit_once(':').unwrap();
    // Without it, lines of a program whose output is a file wait for its end.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program]);
    command.args(["-h", host, "-p", port, "-V", version]).args(arguments);
    command
}

fn mosquitto_pub(address: &str, version: &str, arguments: &[&str]) {
    let done = mosquitto("mosquitto_pub", address, version, arguments).output();
    let done = done.expect("mosquitto-clients is installed");
    assert!(
        done.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A subscriber that ends after `count` messages. Returns when it has subscribed.
fn mosquitto_sub(folder: &Path, address: &str, version: &str, count: &str, arguments: &[&str]) -> Process {
    let mut process = mosquitto_resume(folder, address, version, count, arguments);
    process.wait_for_line("Subscribed ").unwrap();
    process
}

/// The same without waiting: a session that is resumed may have its messages before it has subscribed again.
fn mosquitto_resume(folder: &Path, address: &str, version: &str, count: &str, arguments: &[&str]) -> Process {
    let format = ["-d", "-F", "got %t %q %r %p", "-C", count];
    let command = &mut mosquitto("mosquitto_sub", address, version, &format);
    let name = format!("sub-{version}-{}", arguments.join("-").replace(['/', '#'], ""));
    Process::start(&name, folder, command.args(arguments)).unwrap()
}

/// What a subscriber has got until its end.
fn messages(process: &mut Process) -> Vec<String> {
    let status = process.wait().unwrap();
    assert!(status.success(), "{}", process.stderr());
    let out = process.stdout();
    out.lines()
        .filter_map(|line| line.strip_prefix("got "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_clients_of_mosquitto_publish_and_subscribe_with_every_qos_retained_and_with_wills() {
    let folder = tempfile::tempdir().unwrap();
    let broker = MqttServe::start(folder.path(), "broker").unwrap();
    let address = &broker.address;
    for version in ["mqttv311", "mqttv5"] {
        let topic = format!("{version}/t");
        let mut subscriber = mosquitto_sub(folder.path(), address, version, "3", &["-q", "2", "-t", &topic]);
        for qos in ["0", "1", "2"] {
            mosquitto_pub(
                address,
                version,
                &["-t", &topic, "-q", qos, "-m", &format!("with {qos}")],
            );
        }
        let mut expected = ["0", "1", "2"].map(|qos| format!("{topic} {qos} 0 with {qos}"));
        let mut got = messages(&mut subscriber);
        // Order is of one QoS.
        got.sort();
        expected.sort();
        assert_eq!(got, expected);

        let kept = format!("{version}/kept");
        mosquitto_pub(address, version, &["-t", &kept, "-q", "1", "-r", "-m", "old"]);
        mosquitto_pub(address, version, &["-t", &kept, "-q", "1", "-r", "-m", "new"]);
        let mut subscriber = mosquitto_sub(folder.path(), address, version, "1", &["-q", "1", "-t", &kept]);
        assert_eq!(messages(&mut subscriber), [format!("{kept} 1 1 new")]);

        let will = format!("{version}/gone");
        let mut watcher = mosquitto_sub(folder.path(), address, version, "1", &["-q", "1", "-t", &will]);
        let with_will = [
            "-t",
            "nothing",
            "--will-topic",
            &will,
            "--will-payload",
            "bye",
            "--will-qos",
            "1",
        ];
        let mut dying = mosquitto_sub(folder.path(), address, version, "1", &with_will);
        dying.kill().unwrap();
        assert_eq!(messages(&mut watcher), [format!("{will} 1 0 bye")]);

        // A session that was away gets what came meanwhile.
        let away = format!("{version}/away");
        let stored = ["-c", "-i", &format!("{version}-stored"), "-q", "1", "-t", &away];
        let stored: Vec<&str> = match version {
            "mqttv5" => stored.into_iter().chain(["-x", "3600"]).collect(),
            _ => stored.to_vec(),
        };
        let mut first = mosquitto_sub(folder.path(), address, version, "1", &stored);
        mosquitto_pub(address, version, &["-t", &away, "-q", "1", "-m", "there"]);
        assert_eq!(messages(&mut first), [format!("{away} 1 0 there")]);
        mosquitto_pub(address, version, &["-t", &away, "-q", "1", "-m", "away"]);
        let mut again = mosquitto_resume(folder.path(), address, version, "1", &stored);
        assert_eq!(messages(&mut again), [format!("{away} 1 0 away")]);
    }
}

#[test]
fn a_dashboard_of_the_example_gets_what_it_missed() {
    let yaml = with(example("mqtt"), &[("MQTT_ADDRESS", "127.0.0.1:0")]);
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    let address = listener(&thalweg.process.stdout(), "tcp").unwrap();
    let dashboard = ["-i", "dashboard", "-c", "-q", "1", "-t", "plant/#"];
    let mut first = mosquitto_sub(thalweg.folder.path(), &address, "mqttv311", "1", &dashboard);
    mosquitto_pub(
        &address,
        "mqttv311",
        &["-q", "1", "-t", "plant/pump-1/pressure", "-m", "12.5"],
    );
    assert_eq!(messages(&mut first), ["plant/pump-1/pressure 1 0 12.5"]);
    mosquitto_pub(
        &address,
        "mqttv311",
        &["-q", "1", "-t", "plant/pump-1/pressure", "-m", "12.7"],
    );
    thalweg.process.kill().unwrap();
    thalweg.restart().unwrap();
    let address = listener(&thalweg.process.stdout(), "tcp").unwrap();
    let mut again = mosquitto_resume(thalweg.folder.path(), &address, "mqttv311", "1", &dashboard);
    assert_eq!(messages(&mut again), ["plant/pump-1/pressure 1 0 12.7"]);
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn the_broker_runs_beside_flows_and_survives_a_restart_of_the_process() {
    let yaml = "\
log: {min_free: 16MiB, commit: {spare: 1}}
mqtt: {listeners: [{kind: tcp, address: '127.0.0.1:0'}]}
input: {generate: {count: 0, interval: 1s, mapping: 'root = 1'}}
output: {drop: {}}
";
    let mut thalweg = Thalweg::start(yaml).unwrap();
    thalweg.wait_ready().unwrap();
    let address = listener(&thalweg.process.stdout(), "tcp").unwrap();
    let v3 = MqttConnect {
        version: ProtocolVersion::V3_1_1,
        ..MqttConnect::stored("three")
    };
    let (mut client, _) = MqttClient::connect(&address, &v3).unwrap();
    client.subscribe("a/+", QoS::AtLeastOnce).unwrap();
    client.disconnect().unwrap();
    let (mut publisher, _) = MqttClient::connect(&address, &MqttConnect::fleeting("p")).unwrap();
    publisher.publish("a/b", b"x", QoS::AtLeastOnce, false).unwrap();
    thalweg.process.kill().unwrap();
    thalweg.restart().unwrap();
    thalweg.wait_ready().unwrap();
    let address = listener(&thalweg.process.stdout(), "tcp").unwrap();
    let (mut client, connack) = MqttClient::connect(&address, &v3).unwrap();
    assert!(connack.session_present);
    assert_eq!(client.message().unwrap().payload(), b"x");
    client.disconnect().unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}
