//! `postrider config` and `postrider completions`, and how mistakes of a file are told. The real binary, no servers.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A configuration in a directory of its own.
struct File {
    dir: TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        fs::write(dir.path().join("postrider.toml"), text).expect("a configuration");
        Self { dir }
    }

    fn with(self, name: &str, text: &str) -> Self {
        fs::write(self.dir.path().join(name), text).expect("a file");
        self
    }

    /// Runs `postrider ARGS…` in the directory.
    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.args(args).envs(env.iter().copied()).current_dir(self.dir.path());
        command.stdin(Stdio::null()).output().expect("postrider")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

const ORDERS: &str = r#"[pipelines.orders.source]
url = "postgresql://postrider:hush-url@${DB_HOST}/shop?sslmode=require"
password_file = "pg"

[pipelines.orders.outbox]
table = "public.outbox"
layout = "gcx"

[pipelines.orders.sink]
brokers = "k1:9092"

[pipelines.orders.sink.properties]
"sasl.password" = "${KAFKA_PASSWORD}"
"linger.ms" = 5

[pipelines.orders.flow]
in_flight_bytes = "64MiB"
"#;

const ENV: [(&str, &str); 3] =
    [("DB_HOST", "db1"), ("KAFKA_PASSWORD", "hush-kafka"), ("PGPASSWORD", "hush-env")];

#[test]
fn config_show_says_where_each_value_comes_from_and_masks_secrets() {
    let file = File::new(ORDERS).with("pg", "hush-file\n");
    let output = file.run(&["config", "show"], &ENV);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for (start, end) in [
        ("url = \"postgresql://postrider:***@db1/shop?sslmode=require\"", "# line 2, $DB_HOST"),
        ("password_file = \"pg\"", "# line 3"),
        ("slot = \"postrider_orders\"", "# default"),
        ("topic = \"{topic}\"", "# layout gcx"),
        ("\"sasl.password\" = \"***\"", "# line 13, $KAFKA_PASSWORD"),
        ("\"linger.ms\" = \"5\"", "# line 14"),
        ("in_flight_bytes = \"64MiB\"", "# line 17"),
        ("in_flight_events = 50000", "# default"),
        ("# What source.url leaves out is taken from", "$PGPASSWORD."),
    ] {
        let line = shown.lines().find(|line| line.starts_with(start));
        assert!(line.is_some_and(|line| line.ends_with(end)), "{start} … {end}: {shown}");
    }
    let json = file.run(&["config", "show", "--json"], &ENV);
    let all: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let keys = all["keys"].as_array().expect("keys");
    let find = |key: &str| keys.iter().find(|row| row["key"] == key).expect("the key");
    let password = find("pipelines.orders.sink.properties.\"sasl.password\"");
    assert_eq!(password["masked"], true);
    assert_eq!(password["line"], 13);
    assert_eq!(find("shutdown_grace")["from"], "default");
    for output in [output, json] {
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(!all.contains("hush"), "a secret is shown: {all}");
    }
}

/// What is shown is TOML: with the secrets put back it is the same configuration.
#[test]
fn config_show_reads_as_the_configuration_it_shows() {
    let file = File::new(ORDERS).with("pg", "hush-file\n");
    let shown = text(&file.run(&["config", "show"], &ENV).stdout);
    let again = File::new(&shown).with("pg", "hush-file\n");
    let values = |file: &File| -> Vec<Value> {
        let json = file.run(&["config", "show", "--json"], &ENV).stdout;
        let all: Value = serde_json::from_slice(&json).expect("JSON");
        let keys = all["keys"].as_array().expect("keys");
        keys.iter().map(|row| serde_json::json!([row["key"], row["value"]])).collect()
    };
    assert_eq!(values(&file), values(&again));
}

#[test]
fn config_schema_needs_no_configuration() {
    let empty = TempDir::new().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    let output =
        command.args(["config", "schema"]).current_dir(empty.path()).output().expect("postrider");
    assert_eq!(output.status.code(), Some(0));
    let schema: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let table: toml::Table = toml::from_str(ORDERS).expect("TOML");
    assert!(validator.is_valid(&serde_json::to_value(table).expect("JSON")));
}

#[test]
fn all_mistakes_are_told_at_once_with_their_lines_and_no_secret() {
    let file = File::new(
        "[pipelines.orders.source]\n\
         url = \"postgresql://u:hush-url@h/d?sslmod=require\"\n\
         pasword = \"hush-typo\"\n\
         [pipelines.orders.outbox]\n\
         table = \"outbox\"\n\
         layuot = \"gcx\"\n\
         [pipelines.orders.sink]\n\
         brokers = \"k1:9092\"\n\
         properties = { \"sasl.pasword\" = \"hush-kafka\" }\n\
         [pipelines.orders.flow]\n\
         in_flight_bytes = \"1B\"\n",
    );
    let output = file.run(&["config", "show"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(!told.contains("hush"), "{told}");
    for line in [
        "postrider.toml:2:1: pipelines.orders.source.url: unknown connection parameter \"sslmod\", did you mean \"sslmode\"?",
        "postrider.toml:3:1: pipelines.orders.source.pasword: unknown key; did you mean \"password_file\"?",
        "postrider.toml:6:1: pipelines.orders.outbox.layuot: unknown key; did you mean \"layout\"?",
        "  6 | layuot = …",
        "postrider.toml:9:16: pipelines.orders.sink.properties.\"sasl.pasword\": librdkafka has no property \
         `sasl.pasword`; did you mean `sasl.password`?",
        "postrider.toml:11:1: pipelines.orders.flow.in_flight_bytes: expected a size from 64KiB to 4GiB",
        "  11 | in_flight_bytes = \"1B\"",
        "     | ^",
        "postrider: 5 mistakes in ./postrider.toml",
    ] {
        assert!(told.contains(line), "{line}:\n{told}");
    }
}

#[test]
fn completions_are_of_every_command() {
    let file = File::new("");
    for shell in ["bash", "zsh", "fish"] {
        let output = file.run(&["completions", shell], &[]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        for word in ["setup", "run", "status", "config", "init", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(file.run(&["completions", "sh"], &[]).status.code(), Some(2));
    // The shell itself says whether it can read the script.
    let script = text(&file.run(&["completions", "bash"], &[]).stdout);
    let bash = file.with("completions.bash", &script);
    let mut command = Command::new("bash");
    let read = command.args(["-n", "completions.bash"]).current_dir(bash.dir.path()).output();
    assert!(read.expect("bash").status.success());
}
