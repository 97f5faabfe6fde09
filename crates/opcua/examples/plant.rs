//! A simulated plant to collect from by hand: `plant PORT [name=value ...]`, where the names are those of the
//! simulator's options (`fast_nodes=10000 fast_rate=1 wide=0 types=1 secure=1 ...`).
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use thalweg_simulator::SimulatorOptions;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut options = SimulatorOptions {
        port: arguments.first().map_or(50_000, |port| port.parse().unwrap()),
        secure: false,
        auto_accept: true,
        pki_dir: std::env::temp_dir().join("thalweg-plant"),
        ..SimulatorOptions::default()
    };
    for (name, value) in arguments
        .iter()
        .skip(1)
        .map(|argument| argument.split_once('=').unwrap())
    {
        let number = || value.parse::<u32>().unwrap();
        match name {
            "fast_nodes" => options.fast_nodes = number(),
            "fast_rate" => options.fast_rate = value.parse().unwrap(),
            "slow_nodes" => options.slow_nodes = number(),
            "slow_rate" => options.slow_rate = value.parse().unwrap(),
            "wide" => options.wide = number(),
            "depth" => options.depth = number(),
            "types" => options.types = number() > 0,
            "secure" => options.secure = number() > 0,
            "insecure" => options.insecure = number() > 0,
            "user" => options.user = Some(SimulatorOptions::parse_user(value).unwrap()),
            "max_nodes_per_browse" => options.max_nodes_per_browse = number(),
            "max_nodes_per_read" => options.max_nodes_per_read = number(),
            "max_items_per_call" => options.max_items_per_call = number(),
            "max_references_per_node" => options.max_references_per_node = number(),
            "refuse_filters" => options.refuse_filters = number() > 0,
            "bad_nodes" => options.bad_nodes = number(),
            "drop_every" => options.drop_every = value.parse().unwrap(),
            "latency" => options.latency = value.parse().unwrap(),
            other => panic!("unknown option {other}"),
        }
    }
    let mut simulator = thalweg_simulator::start(options).await.unwrap();
    println!("{}", simulator.ready_line());
    simulator.wait().await.unwrap();
}
