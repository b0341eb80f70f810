//! `postrider demo`: what people see first, run as the binary and not on a terminal.

use crate::await_that::await_that;
use crate::private::{Signal, executable, exit_of, signal};
use crate::server::{Database, Version, brokers};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long a demo of a few seconds may take on a busy machine.
const DEMO_DEADLINE: Duration = Duration::from_mins(2);

/// One demo with a directory for temporary files of its own, to see that nothing stays there.
struct Demo {
    child: Child,
    tmp: TempDir,
}

impl Demo {
    fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let tmp = TempDir::new().expect("a directory");
        // The server's user must be able to pass through it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(tmp.path(), open).expect("permissions");
        let child = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .arg("demo")
            .args(args)
            .env("TMPDIR", tmp.path())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("postrider");
        Self { child, tmp }
    }

    /// Waits for the end: exit code, standard output and error.
    async fn end(mut self) -> (Option<i32>, String, String) {
        let status = exit_of(&mut self.child, DEMO_DEADLINE).await;
        let Output { stdout, stderr, .. } = self.child.wait_with_output().expect("the output");
        let left: Vec<_> = fs::read_dir(self.tmp.path()).expect("the directory").collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (status.code(), text(&stdout), text(&stderr))
    }
}

/// The count in a line of the ledger.
fn count(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(name));
    let count = line.and_then(|line| line.split_whitespace().next());
    count.and_then(|count| count.replace(',', "").parse().ok()).unwrap_or_else(|| {
        panic!("no count of {name:?} in\n{page}");
    })
}

#[tokio::test]
async fn a_demo_under_kill_9_balances_and_leaves_nothing_behind() {
    let demo = Demo::start(&["--seconds", "5", "--kill", "2", "--rate", "300"], &[]);
    let (code, page, errors) = demo.end().await;
    assert_eq!(code, Some(0), "{page}\n{errors}");
    assert!(count(&page, "committed") > 500, "{page}");
    assert_eq!(count(&page, "committed"), count(&page, "delivered"), "{page}");
    for name in ["lost", "out of order", "invented"] {
        assert_eq!(count(&page, name), 0, "{page}");
    }
    assert!(page.contains("after 2 kills"), "{page}");
    assert!(page.contains("\nBalanced: "), "{page}");
    assert!(!page.contains('\x1b'), "colours without a terminal:\n{page}");
}

#[tokio::test]
async fn chaos_breaks_three_things_in_turn_and_the_ledger_balances() {
    let demo = Demo::start(&["--chaos", "--seconds", "12", "--rate", "200"], &[]);
    let (code, page, errors) = demo.end().await;
    assert_eq!(code, Some(0), "{page}\n{errors}");
    let acts = ["kill -9 of the relay", "broker frozen for 4 s", "restart of the database"];
    let at = acts.map(|act| {
        page.find(&format!("chaos: {act}\n")).unwrap_or_else(|| panic!("{act}: {page}"))
    });
    assert!(at.is_sorted(), "{page}");
    assert_eq!(page.matches("chaos: events flow again").count(), 3, "{page}");
    let (_, closing) = page.split_once("\nChaos\n").expect("the closing report");
    for act in acts {
        let line = closing.lines().find(|line| line.contains(act)).expect("a line of the report");
        assert!(line.contains("events flowed again after "), "{page}");
    }
    for name in ["lost", "out of order", "invented"] {
        assert_eq!(count(&page, name), 0, "{page}");
    }
    assert_eq!(count(&page, "committed"), count(&page, "delivered"), "{page}");
}

/// A demo that publishes to this kind of broker, with the program that `scripts/servers brokers` fetched.
async fn demo_to(sink: &str, args: &[&str]) -> String {
    let variable = format!("POSTRIDER_{}_SERVER", sink.to_uppercase());
    let program = if sink == "http" { PathBuf::new() } else { executable(sink) };
    let env = [(variable.as_str(), program.to_str().expect("a path"))];
    let args = [&["--sink", sink], args].concat();
    let (code, page, errors) = Demo::start(&args, &env).end().await;
    assert_eq!(code, Some(0), "{page}\n{errors}");
    assert_eq!(count(&page, "committed"), count(&page, "delivered"), "{page}");
    for name in ["lost", "out of order", "invented"] {
        assert_eq!(count(&page, name), 0, "{page}");
    }
    page
}

async fn assert_delivers_once(sink: &str, described: &str) {
    let page = demo_to(sink, &["--seconds", "3", "--rate", "200"]).await;
    assert!(count(&page, "committed") > 300, "{page}");
    assert_eq!(count(&page, "duplicated"), 0, "{page}");
    assert!(page.contains(&format!("  broker    {described}")), "{page}");
}

/// The acts of `--chaos` for a broker that is not Kafka.
async fn assert_survives_chaos(sink: &str) {
    let page = demo_to(sink, &["--chaos", "--seconds", "16", "--rate", "200"]).await;
    let acts = [
        "kill -9 of the relay",
        "broker frozen for 4 s",
        "kill -9 of the broker",
        "restart of the database",
    ];
    for act in acts {
        assert!(page.contains(&format!("chaos: {act}\n")), "{act}: {page}");
    }
    assert_eq!(page.matches("chaos: events flow again").count(), acts.len(), "{page}");
}

#[tokio::test]
async fn demo_to_nats_delivers_once() {
    assert_delivers_once("nats", "NATS, temporary").await;
}

#[tokio::test]
async fn demo_to_rabbitmq_delivers_once() {
    assert_delivers_once("rabbitmq", "RabbitMQ, temporary").await;
}

#[tokio::test]
async fn demo_to_redis_delivers_once() {
    assert_delivers_once("redis", "Redis, temporary").await;
}

#[tokio::test]
async fn demo_to_valkey_delivers_once() {
    assert_delivers_once("valkey", "Valkey, temporary").await;
}

#[tokio::test]
async fn demo_to_http_delivers_once() {
    assert_delivers_once("http", "HTTP receiver in this process").await;
}

#[tokio::test]
async fn chaos_with_nats_loses_and_swaps_nothing() {
    assert_survives_chaos("nats").await;
}

#[tokio::test]
async fn chaos_with_http_loses_and_swaps_nothing() {
    assert_survives_chaos("http").await;
}

#[tokio::test]
async fn without_a_broker_program_the_demo_names_its_package() {
    for sink in ["nats", "rabbitmq", "redis", "valkey"] {
        let variable = format!("POSTRIDER_{}_SERVER", sink.to_uppercase());
        let nowhere = [(variable.as_str(), "/nonexistent")];
        let (code, _, errors) = Demo::start(&["--sink", sink], &nowhere).end().await;
        assert_eq!(code, Some(1), "{errors}");
        let named = format!("{variable} names /nonexistent, which is not a program");
        assert!(errors.contains(&named), "{errors}");
        assert!(errors.contains(&format!("apt-get install -y {sink}-server")), "{errors}");
    }
}

#[tokio::test]
async fn brokers_of_kafka_and_another_sink_are_refused_together() {
    let args = ["--sink", "nats", "--brokers", "localhost:9092"];
    let (code, _, errors) = Demo::start(&args, &[]).end().await;
    assert_eq!(code, Some(2));
    assert!(errors.contains("cannot be used with"), "{errors}");
}

#[tokio::test]
async fn a_demo_without_kills_delivers_nothing_twice() {
    let (code, page, errors) = Demo::start(&["--seconds", "2", "--rate", "200"], &[]).end().await;
    assert_eq!(code, Some(0), "{page}\n{errors}");
    assert_eq!(count(&page, "duplicated"), 0, "{page}");
}

#[tokio::test]
async fn a_demo_on_servers_of_ones_own_drops_what_it_made() {
    let database = Database::create(Version::Pg18, "demo").await;
    let (url, brokers) = (database.url(), brokers());
    let args = ["--seconds", "2", "--rate", "200", "--kill", "1", "--brokers", &brokers];
    let (code, page, errors) = Demo::start(&args, &[("POSTRIDER_DEMO_URL", &url)]).end().await;
    assert_eq!(code, Some(0), "{page}\n{errors}");
    let made = page.split("everything created there is named ").nth(1);
    let made = made.and_then(|rest| rest.split(' ').next()).expect("the name of what is made");
    assert!(page.contains(&format!("deleted topic {made}.order")), "{page}");
    let left = format!(
        "select (select count(*) from pg_replication_slots where slot_name = '{made}')
              + (select count(*) from pg_publication)
              + (select count(*) from pg_namespace where nspname like 'postrider%')"
    );
    assert_eq!(database.connect().await.text(&left).await.as_deref(), Some("0"));
}

#[tokio::test]
async fn a_signal_stops_the_writer_and_the_ledger_still_balances() {
    let demo = Demo::start(&["--seconds", "60", "--rate", "200"], &[]);
    let pid = demo.child.id();
    let log = demo.tmp.path().to_owned();
    await_that("the relay's log", DEMO_DEADLINE, || async { relay_log(&log) }).await;
    signal(pid, Signal::Int);
    let (code, page, errors) = demo.end().await;
    // Where it was only about to begin, there is no ledger to balance.
    let balanced = code == Some(0) && page.contains("\nBalanced: ");
    let too_early = code == Some(1) && errors.contains("interrupted");
    assert!(balanced || too_early, "{code:?}\n{page}\n{errors}");
}

/// Whether the relay of a demo has begun to log.
fn relay_log(tmp: &Path) -> Result<(), String> {
    let dirs = fs::read_dir(tmp).map_err(|error| error.to_string())?;
    let sizes: Vec<u64> = dirs
        .filter_map(|dir| fs::metadata(dir.ok()?.path().join("postrider.log")).ok())
        .map(|log| log.len())
        .collect();
    if sizes.iter().any(|size| *size > 0) { Ok(()) } else { Err(format!("{sizes:?}")) }
}

#[tokio::test]
async fn without_server_programs_the_demo_says_what_to_install() {
    let nowhere = [("POSTRIDER_PG_BIN", "/nonexistent")];
    let (code, _, errors) = Demo::start(&["--seconds", "1"], &nowhere).end().await;
    assert_eq!(code, Some(1));
    assert!(errors.contains("POSTRIDER_PG_BIN names /nonexistent"), "{errors}");
    assert!(errors.contains("hint: "), "{errors}");
}
