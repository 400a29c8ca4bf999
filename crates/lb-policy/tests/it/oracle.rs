//! grpc-go's own converter as the oracle: random policies give the same service config, or are rejected by
//! both.
//!
//! `CHANCERY_TEST_SEED=<seed>` repeats a run. `CHANCERY_TEST_LONG=1` compares 50 times as many policies.

mod random;

use std::{
    env,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use chancery_lb_policy::{Client, Registry};
use chancery_testing::{Lack, skip};
use prost::Message;
use serde_json::Value;

const CASES: usize = 4000;

/// Returns the directory of the installed Go programs.
fn installed() -> PathBuf {
    let clients = env::var_os("CHANCERY_CLIENTS").map(PathBuf::from).unwrap_or_else(|| {
        let home = || PathBuf::from(env::var_os("HOME").unwrap()).join(".cache");
        env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("chancery/clients")
    });
    clients.join("go")
}

/// Returns the oracle's lines for lines of hexadecimal policies.
fn ask(program: PathBuf, lines: Vec<String>) -> Vec<String> {
    let mut oracle = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the oracle; `cargo xtask setup` builds it");
    let mut input = oracle.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.join("\n").as_bytes()));
    let output = oracle.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Removes from a service config what grpc-go is known to leave out: fields of
/// `weighted_round_robin` with explicit zeros (LB-18), and its metric names. Floats become numbers of single
/// precision.
fn comparable(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(comparable),
        Value::Object(fields) => {
            if let Some(Value::Object(config)) = fields.get_mut("weighted_round_robin") {
                config.remove("metricNamesForComputingUtilization");
                config.retain(|_, value| {
                    *value != false && *value != "0s" && value.as_f64() != Some(0.0)
                });
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the field has single precision"
                )]
                if let Some(penalty) = config.get_mut("errorUtilizationPenalty") {
                    *penalty = f64::from(penalty.as_f64().unwrap() as f32).into();
                }
            }
            fields.values_mut().for_each(comparable);
        }
        Value::Number(number) => *value = number.as_f64().unwrap().into(),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// LB-02, LB-03, LB-04, LB-05, LB-10, LB-13: the results are those of a gRPC client.
#[test]
fn random_policies_convert_as_in_grpc_go() {
    let dir = installed();
    if let Ok(why) = std::fs::read_to_string(dir.join("absent")) {
        return skip(Lack::Go, &why);
    }
    let seed = env::var("CHANCERY_TEST_SEED").map_or(12, |seed| seed.parse().unwrap());
    let cases = if env::var_os("CHANCERY_TEST_LONG").is_some() { CASES * 50 } else { CASES };
    let mut random = random::Random::new(seed, true);
    let policies: Vec<_> = (0..cases).map(|_| random.policy()).collect();
    let lines = policies.iter().map(|policy| hex(&policy.encode_to_vec())).collect();
    let answers = ask(dir.join("lb-oracle"), lines);
    assert_eq!(answers.len(), cases, "the oracle ended early");

    let registry = Registry::of_client(Client::Go).with_policy("myorg.custom");
    let mut accepted = 0;
    for (policy, answer) in policies.iter().zip(&answers) {
        assert!(!answer.starts_with("input"), "{answer}");
        let expected = answer.strip_prefix("ok ").map(|json| {
            let mut config = serde_json::from_str(json).unwrap();
            comparable(&mut config);
            config
        });
        let converted = registry.convert(policy);
        let found = converted.as_ref().ok().map(|config| {
            let mut config = config.to_json();
            comparable(&mut config);
            config
        });
        accepted += usize::from(expected.is_some());
        assert_eq!(found, expected, "seed {seed}: {policy:?}\n{answer}\n{converted:?}");
    }
    let rejected = cases - accepted;
    assert!(accepted > cases / 5 && rejected > cases / 5, "{accepted} of {cases} are accepted");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
