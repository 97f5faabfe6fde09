use super::*;
use crate::source::Pos;

fn run(text: &str) -> (Config, String) {
    let diags = Diagnostics::new("f.yaml");
    let root = Node::parse(text).unwrap();
    let config = Config::read(&root, &diags);
    (config, diags.to_string())
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let (config, messages) = run("");
    assert_eq!(messages, "");
    assert_eq!(config.data_dir, PathBuf::from("./thalweg-data"));
    assert!(config.memory.limit > 0 && config.flows.is_empty() && config.dead_letter.is_none());
    assert_eq!(config.shutdown_timeout, Duration::from_secs(20));
    let http = &config.http;
    assert_eq!(
        (http.enabled, http.address.as_str(), http.root_path.as_str()),
        (true, "127.0.0.1:4195", "/benthos")
    );
    assert!(!http.debug_endpoints && !http.insecure && !http.cors.enabled && http.cert_file.is_none());
    let scripting = &config.scripting;
    assert_eq!(scripting.engine, ScriptEngine::Auto);
    assert_eq!(
        (scripting.timeout, scripting.stream_timeout),
        (Duration::from_secs(1), Duration::from_secs(5))
    );
    assert_eq!((scripting.memory, scripting.stack), (64 << 20, 1 << 20));
    assert_eq!((scripting.results, scripting.cache_entries), (10_000, 1_000_000));
    assert_eq!(scripting.lost_threads, 8);
    let logger = &config.logger;
    assert_eq!(
        (logger.level, logger.format, logger.add_timestamp),
        (LogLevel::Info, LogFormat::Logfmt, true)
    );
    assert_eq!(
        (&*logger.level_name, &*logger.timestamp_name, &*logger.message_name),
        ("level", "time", "msg")
    );
    assert_eq!(logger.static_fields, [("@service".to_owned(), "thalweg".to_owned())]);
    assert!(!config.metrics.use_histogram_timing && config.metrics.mapping.is_empty());
    assert!(config.auth.tokens.is_empty() && config.auth.users_file.is_none());
}

/// What files for the reference system may have, and what is said of it.
#[test]
fn sections_of_other_programs_are_accepted_and_what_has_no_effect_is_told() {
    for (text, expected) in [
        ("tests: [{name: a, environment: {}}]\n", ""),
        ("tracer: {none: {}}\n", ""),
        (
            "tracer: {jaeger: {agent_address: 'localhost:6831'}}\n",
            "f.yaml:1:9: warning: tracer: it has no effect: this version sends no traces\n",
        ),
        (
            "metrics: {none: {}}\n",
            "f.yaml:1:11: warning: metrics.none has no effect: /metrics is always there, and costs little until it is read\n",
        ),
        (
            "tracer: none\n",
            "f.yaml:1:9: tracer: expected a mapping such as {none: {}}\n",
        ),
        (
            "logger: {level_name: 'a b'}\n",
            "f.yaml:1:22: logger.level_name: expected a name without spaces, quotes and \"=\", got \"a b\"\n",
        ),
    ] {
        assert_eq!(run(text).1, expected, "{text}");
    }
    let (config, _) = run("shutdown_delay: 3s\n");
    assert_eq!(config.shutdown_delay, Duration::from_secs(3));
    assert_eq!(run("{}").0.shutdown_delay, Duration::ZERO);
}

#[test]
fn every_section_is_read() {
    let text = "
data_dir: /var/lib/thalweg
memory: {limit: 2GiB}
http:
  address: 0.0.0.0:80
  cert_file: c.pem
  key_file: k.pem
  cors: {enabled: true, allowed_origins: ['*']}
  basic_auth: {enabled: true, username: u, password_hash: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}
auth:
  tokens:
    - {name: ops, file: ops.token, roles: [admin, read, read]}
    - {name: dev, sha256: 9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08, roles: [read]}
  users_file: users
scripting: {engine: verify, timeout: 2s}
logger: {level: debug, format: json, static_fields: {site: 7}, timestamp_name: '@timestamp', message_name: message}
metrics: {prometheus: {use_histogram_timing: true}, mapping: root = this}
dead_letter: {file: {path: x}}
cache_resources: [{label: c, memory: {}}]
queues: {list: []}
log: {}
shutdown_timeout: 1m
";
    let (config, messages) = run(text);
    let warning = "f.yaml:9:3: warning: http.basic_auth is read as a further user of auth with all roles; move the user to auth.users_file\n";
    assert_eq!(messages, warning);
    assert_eq!(config.memory.limit, 2 << 30);
    assert_eq!(config.http.basic_auth.unwrap().username, "u");
    assert_eq!(config.auth.tokens[0].roles, [Role::Read, Role::Admin]);
    assert_eq!(
        config.auth.tokens[0].secret,
        TokenSecret::File(PathBuf::from("ops.token"))
    );
    assert!(matches!(config.auth.tokens[1].secret, TokenSecret::Sha256(hash) if hash[..2] == [0x9F, 0x86]));
    assert_eq!(config.scripting.stream_timeout, Duration::from_secs(2));
    assert_eq!(config.logger.level, LogLevel::Debug);
    assert_eq!(config.logger.static_fields, [("site".to_owned(), "7".to_owned())]);
    assert_eq!(
        (&*config.logger.timestamp_name, &*config.logger.message_name),
        ("@timestamp", "message")
    );
    assert_eq!(config.dead_letter.unwrap().path, "root.dead_letter");
    let cache = config.resources.find(ComponentKind::Cache, "c").unwrap();
    assert_eq!(
        (cache.name.as_str(), cache.path.as_str()),
        ("memory", "root.cache_resources.0")
    );
    assert!(config.resources.find(ComponentKind::Input, "c").is_none());
    assert!(config.queues.is_some() && config.log.is_some() && config.lake.is_none());
}

#[test]
fn one_flow_at_top_level_is_named_default() {
    let text = "input: {stdin: {}}\npipeline:\n  threads: 3\n  processors:\n    - log: {}\n      label: a\noutput: {drop: {}}\n";
    let (config, messages) = run(text);
    assert_eq!(messages, "");
    let flow = &config.flows[0];
    assert_eq!((flow.name.as_str(), flow.pos), ("default", Pos { line: 1, column: 1 }));
    assert_eq!(
        (flow.input.path.as_str(), flow.output.path.as_str()),
        ("root.input", "root.output")
    );
    assert_eq!(
        (flow.pipeline.threads, flow.pipeline.processors[0].path.as_str()),
        (3, "root.pipeline.processors.0")
    );
    assert!(matches!(flow.buffer, BufferConfig::None));
}

#[test]
fn several_flows_with_their_buffers() {
    let text = "
flows:
  - name: a
    input: {stdin: {}}
    output: {drop: {}}
    buffer: {none: {}}
  - name: b
    input: {stdin: {}}
    output: {drop: {}}
    buffer: {memory: {}}
    pipeline: {threads: -1}
  - name: c
    input: {stdin: {}}
    output: {drop: {}}
    buffer: {queue: {partitions: 4}}
";
    let (config, messages) = run(text);
    assert_eq!(messages, "");
    let names: Vec<&str> = config.flows.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(matches!(
        config.flows[1].buffer,
        BufferConfig::Memory {
            limit: 524_288_000,
            given: None,
            batch_policy: None
        }
    ));
    assert!(config.flows[1].pipeline.threads >= 1);
    let BufferConfig::Queue(queue) = &config.flows[2].buffer else {
        panic!("not a queue")
    };
    assert_eq!(queue.path(), "flows[2].buffer.queue");
}

#[test]
fn mistakes_in_flows() {
    let io = "input: {stdin: {}}, output: {drop: {}}";
    let cases = [
        (
            "output: {drop: {}}\n".to_owned(),
            "f.yaml:1:1: missing input; add for example \"input: {stdin: {}}\"\n",
        ),
        (
            "# c\ninput: {stdin: {}}\npipeline: {}\n".to_owned(),
            "f.yaml:2:1: missing output; add for example \"output: {stdout: {}}\"\n",
        ),
        (
            "flows: [{name: a, input: {stdin: {}}}]\n".to_owned(),
            "f.yaml:1:9: missing output in flows[0]; add for example \"output: {stdout: {}}\"\n",
        ),
        (
            format!("flows: [{{{io}}}]\n"),
            "f.yaml:1:9: missing required field \"name\" in flows[0]\n",
        ),
        (
            format!("flows:\n- {{name: a, {io}}}\n- {{name: a, {io}}}\n"),
            "f.yaml:3:10: flows[1].name: duplicate flow \"a\", first defined on line 2\n",
        ),
        (
            format!("flows:\n- {{name: 'a b', {io}}}\n"),
            "f.yaml:2:10: flows[0].name: a flow's name has 1 to 120 letters, digits, \"_\", \".\" or \"-\"\n",
        ),
        (
            format!(
                "flows:\n- {{name: {}, {io}}}\n- {{name: {}, {io}}}\n",
                "a".repeat(120),
                "b".repeat(121)
            ),
            "f.yaml:3:10: flows[1].name: a flow's name has 1 to 120 letters, digits, \"_\", \".\" or \"-\"\n",
        ),
        (
            format!("flows:\n- {{name: a, {io}}}\npipeline: {{}}\n"),
            "f.yaml:3:1: \"pipeline\" at top level excludes \"flows\"; move it into an entry of flows\n",
        ),
        (
            format!("flows: {{name: a, {io}}}\n"),
            "f.yaml:1:8: flows: expected a list, got a mapping; start each entry with \"- \"\n",
        ),
        (
            "input: {stdin: {}}\noutput: {drop: {}}\nbuffer: {memry: {}}\n".to_owned(),
            "f.yaml:3:10: unknown buffer \"memry\", did you mean \"memory\"?\n",
        ),
        (
            "input: {stdin: {}}\noutput: {drop: {}}\nbuffer: {memory: {limt: 1}}\n".to_owned(),
            "f.yaml:3:19: unknown field \"limt\" in buffer.memory, did you mean \"limit\"?\n",
        ),
        (
            "input: {stdin: {}, label: x}\noutput: {drop: {}, label: x}\n".to_owned(),
            "f.yaml:2:27: output.label: duplicate label \"x\", first used on line 1\n",
        ),
        (
            "inptu: {}\n".to_owned(),
            "f.yaml:1:1: unknown field \"inptu\", did you mean \"input\"?\n",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(run(&text).1, expected, "for {text}");
    }
}

#[test]
fn mistakes_in_sections() {
    let cases = [
        (
            "http: {address: here}\n",
            "f.yaml:1:17: http.address: expected host:port such as 127.0.0.1:4195, got the text \"here\"\n",
        ),
        (
            "http: {max_conections: 50}\n",
            "f.yaml:1:8: unknown field \"max_conections\" in http, did you mean \"max_connections\"?\n",
        ),
        (
            "http: {root_path: x}\n",
            "f.yaml:1:19: http.root_path: a path begins with \"/\", for example /benthos\n",
        ),
        (
            "http: {cert_file: c}\n",
            "f.yaml:1:19: http.cert_file: TLS needs cert_file and key_file; add key_file\n",
        ),
        (
            "auth: {tokens: [{name: a, roles: [read]}]}\n",
            "f.yaml:1:17: auth.tokens[0]: a token needs either sha256 or file\n",
        ),
        (
            "auth: {tokens: [{name: a, file: f, roles: [reed]}]}\n",
            "f.yaml:1:44: auth.tokens[0].roles[0]: the text \"reed\" is not a role, did you mean \"read\"?\n",
        ),
        (
            "auth: {tokens: [{name: a, file: f}]}\n",
            "f.yaml:1:17: auth.tokens[0]: a token needs roles, for example roles: [read]\n",
        ),
        (
            "auth: {tokens: [{name: a, sha256: 12, roles: [read]}]}\n",
            "f.yaml:1:35: auth.tokens[0].sha256: expected the 64 hexadecimal digits of the token's SHA-256\n",
        ),
        (
            "auth: {tokens: [{name: a, file: f, roles: [read]}, {name: a, file: g, roles: [read]}]}\n",
            "f.yaml:1:52: auth.tokens[1]: duplicate token \"a\", first defined on line 1\n",
        ),
        (
            "logger: {level: INFOO}\n",
            "f.yaml:1:17: logger.level: expected one of OFF, ERROR, WARN, INFO, DEBUG, TRACE, got \"INFOO\", did you mean \"INFO\"?\n",
        ),
        (
            "memory: {limit: 0}\n",
            "f.yaml:1:17: memory.limit: the process needs at least 64MiB; give a size such as 2GiB\n",
        ),
        (
            "http: {basic_auth: {enabled: true, username: u, password_hash: x, algorithm: bcrypt}}\n",
            "f.yaml:1:8: warning: http.basic_auth is read as a further user of auth with all roles; move the user to auth.users_file\n\
             f.yaml:1:78: http.basic_auth.algorithm: this version checks sha256 only, not bcrypt; give the password's \
             SHA-256 in base64, or move the user to auth.users_file, which takes argon2id\n",
        ),
        (
            "http: {basic_auth: {enabled: true, username: u, password_hash: aGFzaA==}}\n",
            "f.yaml:1:8: warning: http.basic_auth is read as a further user of auth with all roles; move the user to auth.users_file\n\
             f.yaml:1:64: http.basic_auth.password_hash: expected the base64 of the password's SHA-256: 44 characters, \
             the last one =\n",
        ),
        (
            "scripting: {timeout: 0}\n",
            "f.yaml:1:22: scripting.timeout: the time must be more than 0; give a duration such as 1s\n",
        ),
        (
            "cache_resources: [{memory: {}}]\n",
            "f.yaml:1:19: a cache resource needs a label, by which \"resource: <label>\" finds it\n",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(run(text).1, expected, "for {text}");
    }
}

#[test]
fn the_document_describes_itself() {
    let names: Vec<String> = Config::describe().into_iter().map(|doc| doc.name).collect();
    for name in [
        "data_dir",
        "memory.limit",
        "flows[].name",
        "flows[].pipeline.threads",
        "input",
        "http.cors.enabled",
        "http.max_connections",
        "auth.tokens[].sha256",
        "scripting.stack",
        "shutdown_timeout",
    ] {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
}
