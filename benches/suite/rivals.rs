//! The servers' own clients and benches, with messages of the same size to the same destinations: what the server can
//! do on this machine, beside which a sink is judged.

use crate::brokers::{BrokerProcess, STREAM};
use crate::servers::Servers;
use async_nats::HeaderMap;
use futures_util::StreamExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of a payload, about as the rows of the backlog have it.
const PAYLOAD_BYTES: usize = 300;
/// How long the synchronous client publishes.
const SYNCHRONOUS: Duration = Duration::from_secs(5);
/// Messages in flight of the pipelined client; the sink has up to 4,000.
const NATS_WINDOW: usize = 4_000;

/// The rate of one client.
pub(crate) struct Rival {
    pub(crate) label: String,
    /// Messages per second.
    pub(crate) rate: f64,
    /// How much of that rate the sink is to reach; `None` for information.
    pub(crate) goal: Option<f64>,
}

fn payload() -> String {
    format!("{{\"n\": 1, \"note\": \"{}\"}}", "x".repeat(PAYLOAD_BYTES - 22))
}

/// NATS' client in Rust: publish and await the acknowledgement, one after the other; and with many in flight.
pub(crate) fn nats(broker: &BrokerProcess, topic: &str, rows: usize) -> Vec<Rival> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (synchronous, pipelined) = runtime.expect("a runtime").block_on(async {
        let login = &broker.login;
        let options = async_nats::ConnectOptions::new()
            .user_and_password(login.user.clone(), login.password.clone());
        let client = options.connect(login.address.to_string()).await.expect("a connection");
        (one_by_one(&client, topic).await, in_flight(&client, topic, rows).await)
    });
    vec![
        Rival {
            label: "async-nats, one publish after the other".to_owned(),
            rate: synchronous,
            goal: Some(5.0),
        },
        Rival {
            label: format!("async-nats, {NATS_WINDOW} in flight"),
            rate: pipelined,
            goal: None,
        },
    ]
}

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("id", "123456"),
        ("type", "OrderChanged"),
        ("position", "00000001-0000000001A2B3C8"),
        ("key", "123"),
    ] {
        headers.insert(name, value);
    }
    headers
}

fn assert_stored(answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    assert!(text.contains(&format!("\"stream\":\"{STREAM}_")) && !text.contains("error"), "{text}");
}

async fn one_by_one(client: &async_nats::Client, topic: &str) -> f64 {
    let (began, mut count) = (Instant::now(), 0_u32);
    while began.elapsed() < SYNCHRONOUS {
        let sent = client.request_with_headers(topic.to_owned(), headers(), payload().into()).await;
        assert_stored(&sent.expect("an acknowledgement").payload);
        count += 1;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

async fn in_flight(client: &async_nats::Client, topic: &str, rows: usize) -> f64 {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.expect("a subscription");
    let (began, mut sent, mut stored) = (Instant::now(), 0, 0);
    while stored < rows {
        while sent < rows && sent - stored < NATS_WINDOW {
            let headers = headers();
            let published = client.publish_with_reply_and_headers(
                topic.to_owned(),
                inbox.clone(),
                headers,
                payload().into(),
            );
            published.await.expect("a message on its way");
            sent += 1;
        }
        assert_stored(&answers.next().await.expect("an acknowledgement").payload);
        stored += 1;
    }
    rows as f64 / began.elapsed().as_secs_f64()
}

/// `redis-benchmark` of the server's own package: XADD with the fields that the sink writes.
pub(crate) fn redis(broker: &BrokerProcess, rows: usize) -> Vec<Rival> {
    // As deep as the calls of the sink: 256 events of a call, up to 8 calls at a time.
    let depths = [(1, 256), (8, 256)];
    let rates = depths.map(|(clients, depth)| {
        let mut command = beside(&broker.program, "redis-benchmark");
        let login = &broker.login;
        command
            .args(["-h", "127.0.0.1", "-p", &login.address.port().to_string()])
            .args(["--user", &login.user, "-a", &login.password, "-q"])
            .args(["-n", &rows.to_string(), "-c", &clients.to_string(), "-P", &depth.to_string()])
            .args([
                "XADD",
                "rival",
                "*",
                "key",
                "123",
                "timestamp",
                "1700000000000",
                "id",
                "123456",
            ])
            .args(["type", "OrderChanged", "position", "00000001-0000000001A2B3C8-00000005"])
            .args(["value", &payload()]);
        let text = output(command);
        let rate = text
            .rsplit(" requests per second")
            .nth(1)
            .and_then(|text| text.rsplit([' ', '\r', ':']).next()?.parse().ok());
        let rate: f64 = rate.unwrap_or_else(|| panic!("no rate in {text}"));
        (clients, depth, rate)
    });
    // The sink has one connection: one script after the other is what keeps the order.
    let rivals = rates.into_iter().map(|(clients, depth, rate)| Rival {
        label: format!("redis-benchmark, XADD, {clients} clients, pipeline {depth}"),
        rate,
        goal: (clients == 1).then_some(0.5),
    });
    rivals.collect()
}

/// Another program of the fetched package, run with the loader and the libraries of that package, as
/// `scripts/lib/brokers.sh` runs the server.
fn beside(server: &Path, program: &str) -> Command {
    let root = server.with_file_name("root");
    let loader = ["lib", "usr/lib"].iter().find_map(|lib| {
        let triples = std::fs::read_dir(root.join(lib)).ok()?;
        let mut files =
            triples.flatten().filter_map(|triple| std::fs::read_dir(triple.path()).ok());
        files.find_map(|files| {
            let mut paths = files.flatten().map(|file| file.path());
            paths.find(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.starts_with("ld-linux")
            })
        })
    });
    let loader: PathBuf = loader.expect("a loader beside the server");
    let triple = loader.parent().and_then(Path::file_name).expect("a directory").to_owned();
    let library = |lib: &str| root.join(lib).join(&triple).display().to_string();
    let path = format!("{0}:{0}/systemd:{1}", library("usr/lib"), library("lib"));
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(path).arg(root.join("usr/bin").join(program));
    command
}

/// PerfTest, RabbitMQ's bench in Java: persistent messages with confirms, in windows of 1,000 and 2,000.
pub(crate) fn rabbitmq(
    servers: &Servers,
    broker: &BrokerProcess,
    queue: &str,
    rows: usize,
) -> Vec<Rival> {
    assert!(
        servers.perf_test.join(".complete").exists(),
        "PerfTest is not there: run scripts/bench"
    );
    let rates = [1_000, 2_000].map(|window| {
        let login = &broker.login;
        let uri = format!("amqp://{}:{}@{}", login.user, login.password, login.address);
        let mut command = Command::new("java");
        command
            .arg("-cp")
            .arg(format!("{}/*", servers.perf_test.display()))
            .arg("com.rabbitmq.perf.PerfTest")
            .args(["--uri", &uri, "--predeclared", "--queue", queue, "--producers", "1"])
            .args([
                "--consumers",
                "0",
                "--flag",
                "persistent",
                "--size",
                &PAYLOAD_BYTES.to_string(),
            ])
            .args(["--confirm", &window.to_string(), "--pmessages", &rows.to_string()]);
        let text = output(command);
        let rate = text
            .split("sending rate avg: ")
            .nth(1)
            .and_then(|text| text.split_whitespace().next()?.replace(',', "").parse().ok());
        (window, rate.unwrap_or_else(|| panic!("no rate in {text}")))
    });
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let rivals = rates.into_iter().map(|(window, rate): (u32, f64)| Rival {
        label: format!("PerfTest, {window} unconfirmed"),
        rate,
        goal: (rate >= best).then_some(0.5),
    });
    rivals.collect()
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    text
}
