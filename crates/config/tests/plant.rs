//! Whole files, read as the program reads them: the document by this crate, component bodies by their owners through
//! `Fields`.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use thalweg_config::{
    ComponentKind, Config, Diagnostics, Fields, LoadOptions, LoadedConfig, Node, Pos, SourceText, load, load_path,
};

const PLANT: &str = include_str!("data/plant.yaml");
const MISTAKES: &str = include_str!("data/plant_mistakes.yaml");

fn environment(name: &str) -> Option<String> {
    match name {
        "OPC_USER" => Some("reader".to_owned()),
        "OPC_PASSWORD" => Some("0815".to_owned()),
        "PLC_HOST" => Some("a-rather-long-host-name.plant.example".to_owned()),
        "SITE" => Some("north".to_owned()),
        "SCRIPT" => Some("\"let x = 1;\n            let y = 2;\n            return msg\"".to_owned()),
        _ => None,
    }
}

/// What the owner of `opcua` does with its body.
fn read_opcua(body: &Node, diags: &Diagnostics) -> (String, i64, Vec<String>) {
    let mut f = Fields::new(body, diags);
    let endpoint = f.required_string("endpoint");
    f.string("username", "");
    f.string("password", "");
    let node_ids = f.string_list("nodeIDs");
    f.bool("subscribeEnabled", false);
    f.bool("useHeartbeat", false);
    let poll_rate = f.int("pollRate", 1000);
    f.int_in("queueSize", 10, 1..=10_000);
    let mut deadband = f.fields("deadband");
    deadband.one_of("type", &["none", "absolute", "percent"], "absolute");
    deadband.float("value", 0.0);
    deadband.finish();
    f.legacy("insecure", "has no effect");
    f.finish();
    (endpoint, poll_rate, node_ids)
}

#[test]
fn a_file_of_the_reference_system_is_read_whole() {
    let source = SourceText::new("plant.yaml", PLANT);
    let LoadedConfig { config, diagnostics } = load(&source, &environment, &LoadOptions::default());
    let flow = &config.flows[0];
    let (endpoint, poll_rate, node_ids) = read_opcua(&flow.input.body, &diagnostics);
    assert_eq!(
        diagnostics.to_string(),
        "plant.yaml:14:5: warning: input.opcua.insecure has no effect\n"
    );
    assert_eq!(endpoint, "opc.tcp://a-rather-long-host-name.plant.example:4840");
    assert_eq!((poll_rate, node_ids.len()), (1000, 2));
    assert_eq!(flow.input.label.as_deref(), Some("press_line"));
    let names: Vec<&str> = flow.pipeline.processors.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["tag_processor", "mapping", "switch"]);
    assert_eq!(flow.output.processors[0].path, "root.output.processors.0");

    // A position inside a script is a position in the file, also after replaced text.
    let script = flow.pipeline.processors[0].body.get("defaults").unwrap();
    assert!(
        script
            .as_str()
            .unwrap()
            .starts_with("msg.meta.location_path = \"north.press\";\n")
    );
    assert_eq!(script.text_pos(1, 1), Pos { line: 20, column: 11 });
    assert_eq!(script.text_pos(1, 34), Pos { line: 20, column: 46 });
    assert_eq!(script.text_pos(4, 8), Pos { line: 23, column: 18 });
    let advanced = flow.pipeline.processors[0].body.get("advancedProcessing").unwrap();
    assert!(advanced.as_str().unwrap().contains("`${unit}`"));

    let yaml = config.to_yaml();
    assert!(yaml.contains("password: \"!!!SECRET_SCRUBBED!!!\"") && !yaml.contains("0815"));
    assert!(yaml.contains("umh_topic: \"${! meta(\\\"umh_topic\\\") }\""));
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let source = SourceText::new("plant.yaml", MISTAKES);
    let LoadedConfig { config, diagnostics } = load(&source, &environment, &LoadOptions::default());
    // The output is missing, so there is no flow to build; its input can still be read.
    assert!(config.flows.is_empty());
    let input = config.root.get("input").unwrap();
    read_opcua(input.get("opcua").unwrap(), &diagnostics);
    let expected = "\
plant.yaml:2:1: missing output; add for example \"output: {stdout: {}}\"
plant.yaml:3:10: input.label: expected a label of letters, digits and _, got the text \"press-line\"
plant.yaml:6:5: unknown field \"subscribeEnable\" in input.opcua, did you mean \"subscribeEnabled\"?
plant.yaml:7:14: input.opcua.nodeIDs: expected a list, got the text \"ns=3;s=OpcPlc\"; for example nodeIDs: [\"ns=3;s=OpcPlc\"]
plant.yaml:9:5: duplicate field \"pollRate\" in input.opcua, first given on line 8
plant.yaml:10:16: input.opcua.queueSize: expected a whole number, got the text \"fast\"
plant.yaml:11:16: unknown field \"tpye\" in input.opcua.deadband, did you mean \"type\"?
plant.yaml:12:5: warning: input.opcua.insecure has no effect
plant.yaml:18:7: pipeline.processors[0]: two components, \"tag_processor\" and \"log\", where one processor belongs; keep one, each processor is an entry of its own, after \"- \"
plant.yaml:21:14: pipeline.processors[2].label: duplicate label \"press_1\", first used on line 19
plant.yaml:22:23: environment variable UNSET_NAME is not set: set it, give a default as in ${UNSET_NAME:value}, or write ${{UNSET_NAME}} for the literal text
plant.yaml:24:1: unknown field \"outputs\", did you mean \"output\"?
plant.yaml:27:19: shutdown_timeout: expected a duration such as 500ms, 10s or 1h30m, got the number 20; add a unit, for example 20s
plant.yaml:28:17: the template \"{{ .Values.level }}\" is not rendered: render the file first, or use ${NAME}
plant.yaml:28:46: logger.format: expected one of logfmt, json, got the text \"text\"
";
    assert_eq!(diagnostics.to_string(), expected);
}

#[test]
fn what_echo_prints_reads_back_as_the_same_configuration() {
    let source = SourceText::new("plant.yaml", PLANT);
    let first = load(&source, &environment, &LoadOptions::default()).config;
    let echoed = SourceText::new("echo.yaml", first.to_yaml());
    // The interpolations and literals of the first file are already in their final form.
    let second = Node::parse(&echoed.text).unwrap();
    assert_eq!(second.get("pipeline"), first.root.get("pipeline"));
    assert_eq!(second.get("output"), first.root.get("output"));
    assert_eq!(second.to_yaml(), first.to_yaml());
    let json: serde_json::Value = serde_json::from_str(&first.to_json()).unwrap();
    assert_eq!(json["input"]["opcua"]["pollRate"], 1000);
    assert_eq!(json["input"]["opcua"]["password"], "!!!SECRET_SCRUBBED!!!");
}

#[test]
fn overrides_come_after_the_file_and_before_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("pw");
    std::fs::write(&secret, "from file\n").unwrap();
    let options = LoadOptions {
        set: vec![
            ("input.opcua.pollRate".to_owned(), "250".to_owned()),
            (
                "input.opcua.password".to_owned(),
                format!("${{file:{}}}", secret.display()),
            ),
            ("output".to_owned(), "{drop: {}}".to_owned()),
            ("http.address".to_owned(), "nowhere".to_owned()),
        ],
        chilled: true,
        ..LoadOptions::default()
    };
    let text = format!("{PLANT}\nunknown: 1\n");
    let LoadedConfig { config, diagnostics } = load(&SourceText::new("plant.yaml", text), &environment, &options);
    let flow = &config.flows[0];
    let opcua = &flow.input.body;
    assert_eq!(opcua.get("pollRate").unwrap().as_i64(), Some(250));
    assert_eq!(opcua.get("password").unwrap().as_str(), Some("from file"));
    assert_eq!(
        (flow.output.kind, flow.output.name.as_str()),
        (ComponentKind::Output, "drop")
    );
    assert!(!config.to_yaml().contains("from file"));
    let messages = diagnostics.to_string();
    let lines: Vec<&str> = messages.lines().collect();
    assert_eq!(
        lines[0],
        "command line: http.address: expected host:port such as 127.0.0.1:4195, got the text \"nowhere\""
    );
    assert!(
        lines[1].starts_with("plant.yaml:62:1: warning: unknown field \"unknown\"; valid names: data_dir, "),
        "{messages}"
    );
    assert_eq!(lines.len(), 2);
}

#[test]
fn a_file_that_is_no_configuration_gives_one_error() {
    let cases = [
        (
            "- input\n",
            "f.yaml:1:1: the file must be a mapping, with fields such as input, pipeline and output; it is a list\n",
        ),
        (
            "input\n",
            "f.yaml:1:1: the file must be a mapping, with fields such as input, pipeline and output; it is the text \"input\"\n",
        ),
        (
            "a: [\n",
            "f.yaml:2:1: malformed YAML: while parsing a node, did not find expected node content\n",
        ),
    ];
    for (text, expected) in cases {
        let loaded = load(&SourceText::new("f.yaml", text), &environment, &LoadOptions::default());
        assert_eq!(loaded.diagnostics.to_string(), expected, "for {text}");
        assert!(loaded.config.flows.is_empty());
    }
    let loaded = load_path(Path::new("/nowhere/f.yaml"), &environment, &LoadOptions::default());
    assert_eq!(
        loaded.diagnostics.to_string(),
        "/nowhere/f.yaml: cannot be read: No such file or directory\n"
    );
    let loaded = load_path(Path::new("/"), &environment, &LoadOptions::default());
    assert_eq!(loaded.diagnostics.to_string(), "/: cannot be read: Is a directory\n");
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_no_mistake() {
    let text = format!("\u{FEFF}{}", PLANT.replace('\n', "\r\n"));
    let loaded = load(
        &SourceText::new("plant.yaml", text),
        &environment,
        &LoadOptions::default(),
    );
    assert_eq!(loaded.diagnostics.to_string(), "");
    assert_eq!(loaded.config.flows[0].input.name_pos, Pos { line: 4, column: 3 });
    let plain = load(
        &SourceText::new("plant.yaml", PLANT),
        &environment,
        &LoadOptions::default(),
    );
    assert_eq!(loaded.config.root, plain.config.root);
}

#[test]
fn the_default_configuration_is_that_of_an_empty_file() {
    let empty = load(&SourceText::new("f.yaml", ""), &environment, &LoadOptions::default());
    assert_eq!(empty.diagnostics.to_string(), "");
    assert_eq!(empty.config.http.address, Config::default().http.address);
}
