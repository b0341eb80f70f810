//! `postrider init`: what it writes is taken by `setup` and `run` as it is, and its records are what they should be.

use crate::await_that::SOON;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, brokers, unique};
use crate::topic::{ReadRecord, Topic, create_topic};
use std::fs;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

mod debezium;

/// Runs `postrider init ARGS…` in a directory with one file, and gives the directory.
fn init(file: (&str, &str), args: &[&str]) -> (TempDir, Output) {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join(file.0), file.1).expect("a file");
    let output = run_in(&dir, args);
    (dir, output)
}

fn run_in(dir: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.arg("init").args(args).current_dir(dir.path()).stdin(Stdio::null());
    command.output().expect("postrider")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The file that was written, or what was told instead.
fn written(dir: &TempDir, output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    fs::read_to_string(dir.path().join("postrider.toml")).expect("the file that was written")
}

/// Sets up and runs a written configuration, executes the statements, and reads the topics.
async fn records_of(
    config: &str,
    sql: &Client,
    statements: &str,
    topics: &[(&Topic, usize)],
) -> Vec<Vec<ReadRecord>> {
    postrider_ok(config, &["setup"]);
    let relay = Relay::spawn(config);
    sql.batch(statements).await;
    let mut all = Vec::new();
    for (topic, count) in topics {
        all.push(topic.await_records(*count, SOON).await);
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    all
}

async fn topic(name: &str, partitions: i32) -> Topic {
    create_topic(&brokers(), name, partitions, &[]).await;
    Topic { brokers: brokers(), name: name.to_owned() }
}

#[test]
fn init_writes_a_file_of_every_layout_that_is_taken() {
    for layout in ["postrider", "debezium", "commerce", "gcx", "sqlgarden", "adr30", "pgtrickle"] {
        let url = "postgresql://relay:hush@db/shop?password=hush2";
        let (dir, output) = init(
            ("x", ""),
            &[
                "--layout",
                layout,
                "--name",
                "orders",
                "--url",
                url,
                "--brokers",
                "k1:9092",
                "--table",
                "app.events",
            ],
        );
        let config = written(&dir, &output);
        assert!(!config.contains("hush"), "{config}");
        assert!(config.contains("url = \"postgresql://relay@db/shop\""), "{config}");
        let shown = postrider_ok(&config, &["config", "show"]);
        for line in
            [&format!("layout = \"{layout}\""), "table = \"app.events\"", "brokers = \"k1:9092\""]
        {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(
            text(&output.stderr)
                .contains("then, as an administrator: postrider setup --url postgresql://ADMIN@"),
            "{}",
            text(&output.stderr)
        );
    }
}

/// The kinds that have a server: each file is taken, and says what is to be filled in.
#[test]
fn init_writes_a_file_of_every_kind_of_sink_that_is_taken() {
    for (kind, line) in [
        ("nats", "stream = \"EVENTS\""),
        ("rabbitmq", "url = \"amqp://postrider@localhost:5672/%2f\""),
        ("redis", "servers = \"localhost:6379\""),
        ("http", "url = \"http://localhost:8080/events\""),
        ("postgres", "kind = \"postgres\""),
        ("stdout", "kind = \"stdout\""),
    ] {
        let (dir, output) = init(("x", ""), &["--sink", kind]);
        let config = written(&dir, &output);
        assert!(config.contains(line) && !config.contains("brokers"), "{config}");
        let shown = postrider_ok(&config, &["config", "show"]);
        assert!(shown.contains(line), "{line}: {shown}");
        let said = text(&output.stderr);
        let fills_in = format!("to do: fill in sink.{kind} (docs/sinks/{kind}.md)");
        let is_named = ["nats", "rabbitmq", "redis", "http"].contains(&kind);
        assert_eq!(said.contains(&fills_in), is_named, "{said}");
    }
}

#[test]
fn init_overwrites_nothing_unless_told_to() {
    let (dir, output) = init(("postrider.toml", "# mine\n"), &[]);
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(told.contains("could not write") && told.contains("--force"), "{told}");
    assert_eq!(
        fs::read_to_string(dir.path().join("postrider.toml")).expect("the file"),
        "# mine\n"
    );
    assert_eq!(run_in(&dir, &["--force"]).status.code(), Some(0));
    let other = run_in(&dir, &["-o", "other.toml"]);
    assert!(text(&other.stderr).contains("postrider -c other.toml setup --url"));
    let stream = run_in(&dir, &["-o", "-"]);
    let all = [dir.path().join("postrider.toml"), dir.path().join("other.toml")];
    for file in all {
        assert_eq!(fs::read_to_string(file).expect("the file"), text(&stream.stdout));
    }
    for args in [
        ["--name", "Orders!"],
        ["--layout", "nonsense"],
        ["--url", "mysql://h"],
        ["--table", "a.b.c"],
    ] {
        let refused = run_in(&dir, &[&args[..], &["-o", "third.toml"]].concat());
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {told}");
        assert!(!args.contains(&"Orders!") || told.contains("a-z, 0-9 and _"), "{told}");
        assert!(!dir.path().join("third.toml").exists(), "{args:?}");
    }
}

/// A table that nobody wrote for us: its columns are found, and its rows are published.
#[tokio::test]
async fn a_proposed_configuration_runs_as_it_is() {
    let database = Database::create(Version::Pg17, "propose").await;
    let sql = database.connect().await;
    sql.batch(
        "create schema shop; \
         create table shop.\"Events\" (event_id bigint generated always as identity primary key, \
           entity_type text not null, event_key text not null, kind text not null, body jsonb, \
           tenant_id bigint, created_at timestamptz not null default now()); \
         create table shop.orders (id bigint primary key, type text, status text, data jsonb); \
         create view shop.outbox as select * from shop.\"Events\"; \
         create unlogged table shop.unlogged (id bigint, aggregate_type text, aggregate_id text, event_type text, payload json)",
    )
    .await;
    let url = database.url();
    let name = unique("proposed");
    let args = ["--from-database", &url, "--url", &url, "--brokers", &brokers(), "--name", &name];
    let (dir, output) = init(("x", ""), &args);
    let config = written(&dir, &output);
    let told = text(&output.stderr);
    for line in [
        "table shop.\"Events\", layout postrider",
        "payload: column body",
        "not published: tenant_id",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(config.contains("#   tenant_id = { header = \"tenant_id\" }"), "{config}");
    let topic = topic(&name, 1).await;
    let insert = format!(
        "insert into shop.\"Events\" (entity_type, event_key, kind, body) values ('{name}', '42', 'Made', '{{\"n\": 1}}')"
    );
    let records = records_of(&config, &sql, &insert, &[(&topic, 1)]).await.remove(0);
    assert_eq!(records[0].key_text(), Some("42"));
    assert_eq!(records[0].value_text(), Some("{\"n\": 1}"));
    assert_eq!(records[0].header("type"), Some("Made"));
}

/// A domain is what it is made of, however deep, and an extension's text is a text wherever the extension is.
#[tokio::test]
async fn columns_whose_types_are_domains_are_recognised_by_the_type_beneath() {
    for version in [Version::Pg15, Version::Pg16, Version::Pg18] {
        let database = Database::create(version, "domains").await;
        let sql = database.connect().await;
        sql.batch(
            "create schema kinds; create extension citext schema kinds; \
             create domain kinds.document as jsonb; create domain kinds.event_body as kinds.document; \
             create domain kinds.moment as timestamptz; create domain kinds.event_time as kinds.moment; \
             create domain kinds.label as kinds.citext; create domain kinds.ident as uuid; \
             create table events (id kinds.ident, aggregate_type kinds.label, aggregate_id kinds.ident, \
               event_type kinds.citext, body kinds.event_body, metadata kinds.document, \
               created_at kinds.event_time); \
             create table wrong (id kinds.document, aggregate_type text, aggregate_id text, event_type text, \
               payload kinds.moment)",
        )
        .await;
        let url = database.url();
        let (dir, output) = init(("x", ""), &["--from-database", &url, "--table", "events"]);
        let config = written(&dir, &output);
        assert!(!config.contains("   required; "), "{config}");
        let told = text(&output.stderr);
        assert!(told.contains("payload: column body"), "{told}");
        assert!(!told.contains("not published"), "each column has its place: {told}");
        assert!(config.contains("headers = \"metadata\"") || config.contains("adr30"), "{config}");
        let (_dir, output) =
            init(("x", ""), &["--from-database", &url, "--table", "wrong", "-o", "-"]);
        let told = text(&output.stderr);
        for role in ["id", "payload"] {
            let to_do = format!("to do: fill in outbox.columns.{role}: no column was recognised");
            assert!(told.contains(&to_do), "{role} can't be of such a type: {told}");
        }
    }
}

#[tokio::test]
async fn tables_that_leave_a_choice_or_none_are_told() {
    let database = Database::create(Version::Pg15, "choice").await;
    let sql = database.connect().await;
    let url = database.url();
    let ask = |more: &[&str]| {
        let args = [&["--from-database", &url, "-o", "-"], more].concat();
        let (_dir, output) = init(("x", ""), &args);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, told) = ask(&[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(&format!("database \"{}\" has no tables", database.name)), "{told}");
    sql.batch("create table orders (id bigint primary key, total numeric)").await;
    let (code, _, told) = ask(&[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("the only table of") && told.contains("--table"), "{told}");
    let (code, _, told) = ask(&["--table", "orders"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("has no column for") && told.contains("payload"), "{told}");
    let (code, _, told) = ask(&["--table", "outbox"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("has no table outbox; it has public.orders"), "{told}");
    sql.batch(
        "create table outbox (id bigint, aggregate_type text, aggregate_id text, event_type text, payload json); \
         create table outboxevent (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb)",
    )
    .await;
    let (code, _, told) = ask(&[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("public.outbox (layout postrider), public.outboxevent (layout debezium)"),
        "{told}"
    );
    let (code, config, told) = ask(&["--table", "outboxevent"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(config.contains("layout = \"debezium\""), "{config}");
    let gone = url.replace(&database.name, "not_there");
    let (_dir, output) = init(("x", ""), &["--from-database", &gone]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not_there"), "{}", text(&output.stderr));
}

/// Two columns that nobody would guess: the rest is written, and the two are marked.
#[tokio::test]
async fn a_table_of_which_most_is_recognised_is_written_with_the_rest_to_be_filled_in() {
    let database = Database::create(Version::Pg17, "partial").await;
    let sql = database.connect().await;
    sql.batch(
        "create table events (id bigint, aggregate_type text, aggregate_id text, was text, stuff json, \
         headers json, created_at timestamptz)",
    )
    .await;
    let url = database.url();
    for more in [&[][..], &["--table", "events"][..]] {
        let args = [&["--from-database", &url, "-p", "bills"], more].concat();
        let (dir, output) = init(("x", ""), &args);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let config = fs::read_to_string(dir.path().join("postrider.toml")).expect("a file");
        for role in ["event_type", "payload"] {
            assert!(told.contains(&format!("to do: fill in outbox.columns.{role}")), "{told}");
            assert!(config.contains(&format!("# {role} = ")), "{config}");
        }
        assert!(config.contains("was, stuff"), "{config}");
        assert!(config.contains("[pipelines.bills.outbox]"), "-p names it: {config}");
        assert!(config.contains("table = \"public.events\""), "{config}");
    }
}

/// A time without a time zone: where it decides when an event is published, `setup` refuses the file until the zone is
/// named, and `init` says so before; and what else is to be done is listed.
#[tokio::test]
async fn a_column_without_a_time_zone_is_something_to_do() {
    let database = Database::create(Version::Pg18, "zoneless").await;
    let sql = database.connect().await;
    sql.batch(&include_str!("../../sql/layouts/gcx.sql").replace("timestamptz", "timestamp")).await;
    sql.batch("alter table outbox add column visible_after timestamptz").await;
    let url = database.url();
    let (dir, output) = init(("x", ""), &["--from-database", &url, "--brokers", "k1:9092"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for line in [
        "to do: expires_at has no time zone: set source.time_zone",
        "to check: visible_after contains a time",
        "to do: source.url names role postrider, not the administrator. Create the role",
        "to do: write the role's password to a file",
        "to do: create the topics that route.topic (\"{topic}\") names",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let config = fs::read_to_string(dir.path().join("postrider.toml")).expect("a file");
    let line = "# time_zone = \"Area/City\"   required: expires_at has no time zone";
    assert!(config.contains(line), "{config}");
    // With the zone filled in as the comment has it, and the role made, `setup` takes the file.
    let filled: String = config
        .lines()
        .filter(|line| !line.starts_with("# time_zone"))
        .map(|line| match line {
            "[pipelines.outbox.source]" => format!("{line}\ntime_zone = \"Europe/Paris\"\n"),
            line => format!("{line}\n"),
        })
        .collect();
    let proposed = url.replacen("postgres@", "postrider@", 1);
    postrider_ok(&filled.replace(&proposed, &url), &["setup"]);
}

/// The login that looks is the administrator's; the relay's is another.
#[tokio::test]
async fn the_administrator_is_not_proposed_as_the_relays_role() {
    let database = Database::create(Version::Pg18, "whose").await;
    let sql = database.connect().await;
    sql.batch(include_str!("../../sql/layouts/postrider.sql")).await;
    let url = database.url();
    let (dir, output) = init(("x", ""), &["--from-database", &url]);
    let config = written(&dir, &output);
    let proposed = url.replacen("postgres@", "postrider@", 1);
    assert_ne!(proposed, url);
    assert!(config.contains(&format!("url = \"{proposed}\"")), "{config}");
    assert!(text(&output.stderr).contains("setup --url ADMIN_URL"), "{}", text(&output.stderr));
    let role = unique("plain");
    sql.batch(&format!("create role {role} login")).await;
    let plain = url.replacen("postgres@", &format!("{role}@"), 1);
    let (dir, output) = init(("x", ""), &["--from-database", &plain]);
    let config = written(&dir, &output);
    assert!(config.contains(&format!("url = \"{plain}\"")), "{config}");
    sql.batch(&format!("drop role {role}")).await;
}
