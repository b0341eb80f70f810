//! How fast a backlog drains: Postrider to `discard` and to Kafka beside `pg_recvlogical`, over the same WAL, in one
//! run.
//!
//! `scripts/servers up` first, then `cargo bench --bench drain [-- ROWS ROUNDS]`. Contenders take turns, each on a
//! copy of one slot; what is printed are medians and ratios. Wall time is from the start of the process to the last
//! event: for `pg_recvlogical` its exit at the last position, for Postrider the moment `/status` counts every row as
//! published (seen within 20 ms, though the count itself is brought up to date every 100 ms: it can only make
//! Postrider look slower).
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints, reads its environment, and stops at the first thing that is not as it should be"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROWS: usize = 1_000_000;
const ROUNDS: usize = 3;
const TRANSACTION_ROWS: usize = 1_000;
const DEADLINE: Duration = Duration::from_mins(3);

/// Clock ticks a second of `/proc/PID/stat` (`getconf CLK_TCK`), on every Linux we know.
const TICKS_PER_SECOND: f64 = 100.0;

struct Servers {
    socket: String,
    port: String,
    bin: String,
    brokers: String,
}

struct Run {
    seconds: f64,
    cpu_seconds: f64,
    peak_mib: f64,
}

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let rows = arguments.first().copied().unwrap_or(ROWS);
    let rounds = arguments.get(1).copied().unwrap_or(ROUNDS);
    let servers = servers();
    let end = prepare(&servers, rows);
    let contenders = ["pg_recvlogical", "discard", "kafka"];
    let mut runs: Vec<Vec<Run>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            let slot = format!("bench_{contender}_{round}");
            let copy =
                format!("select pg_copy_logical_replication_slot('postrider_bench', '{slot}')");
            psql(&servers, "bench", &copy);
            let run = match *contender {
                "pg_recvlogical" => recvlogical(&servers, &slot, &end),
                sink => postrider(&servers, &slot, sink, rows),
            };
            println!("round {round}: {contender:<15} {:.2} s", run.seconds);
            runs.push(run);
            await_inactive(&servers, &slot);
            psql(&servers, "bench", &format!("select pg_drop_replication_slot('{slot}')"));
        }
    }
    report(rows, &contenders, &runs);
}

fn report(rows: usize, contenders: &[&str], runs: &[Vec<Run>]) {
    let rows = f64::from(u32::try_from(rows).expect("a count"));
    let reference = median(runs[0].iter().map(|run| run.seconds));
    println!(
        "\n{rows} rows of about 300 B, {TRANSACTION_ROWS} a transaction, unix socket, medians of {}",
        runs[0].len()
    );
    println!("{:<16}{:>10}{:>10}{:>14}{:>12}", "", "rows/s", "ratio", "CPU µs/row", "peak MiB");
    for (contender, runs) in contenders.iter().zip(runs) {
        let seconds = median(runs.iter().map(|run| run.seconds));
        let cpu = median(runs.iter().map(|run| run.cpu_seconds)) / rows * 1e6;
        let peak = median(runs.iter().map(|run| run.peak_mib));
        let (rate, ratio) = (rows / seconds, reference / seconds);
        println!("{contender:<16}{rate:>10.0}{ratio:>10.2}{cpu:>14.2}{peak:>12.1}");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn servers() -> Servers {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/servers/env");
    let text = fs::read_to_string(file).expect("run scripts/servers up first");
    let get = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name} in {file}")).trim_matches('\'').to_owned()
    };
    Servers {
        socket: get("PG15_SOCKET"),
        port: get("PG15_PORT"),
        bin: get("PG15_BIN"),
        brokers: get("KAFKA_BROKERS"),
    }
}

/// The database, the slot, and the backlog; gives the end of its WAL.
fn prepare(servers: &Servers, rows: usize) -> String {
    let leftover = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = 'bench'";
    psql(servers, "postgres", leftover);
    psql(servers, "postgres", "drop database if exists bench");
    psql(servers, "postgres", "create database bench");
    let config = config(servers, "postrider_bench", "discard", 0);
    let setup = postrider_command(&config).args(["setup", "--create-table"]).status();
    assert!(setup.expect("postrider setup").success());
    let transactions = rows / TRANSACTION_ROWS;
    let fill = format!(
        "do $$ begin for t in 1..{transactions} loop \
         insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 1000)::text, 'OrderChanged', \
         json_build_object('order', t * 1000 + i, 'note', repeat(md5(i::text), 8)) \
         from generate_series(1, {TRANSACTION_ROWS}) i; commit; end loop; end $$"
    );
    psql(servers, "bench", &fill);
    psql(servers, "bench", "checkpoint");
    psql(servers, "bench", "select pg_current_wal_lsn()").trim().to_owned()
}

fn psql(servers: &Servers, database: &str, sql: &str) -> String {
    let output = Command::new(format!("{}/psql", servers.bin))
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database])
        .args(["-h", &servers.socket, "-p", &servers.port, "-c", sql])
        .output()
        .expect("psql");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn await_inactive(servers: &Servers, slot: &str) {
    let sql = format!("select active from pg_replication_slots where slot_name = '{slot}'");
    let deadline = Instant::now() + DEADLINE;
    while psql(servers, "bench", &sql).trim() == "t" {
        assert!(Instant::now() < deadline, "{slot} stays active");
    }
}

fn recvlogical(servers: &Servers, slot: &str, end: &str) -> Run {
    let mut command = Command::new(format!("{}/pg_recvlogical", servers.bin));
    command
        .args(["-U", "postgres", "-d", "bench", "-h", &servers.socket, "-p", &servers.port])
        .args(["--slot", slot, "--start", "--no-loop", "--endpos", end, "-f", "/dev/null"])
        .args(["-o", "proto_version=1", "-o", "publication_names=postrider_bench"]);
    let start = Instant::now();
    let mut child = command.spawn().expect("pg_recvlogical");
    let (mut cpu_seconds, mut peak_mib) = (0.0, 0.0);
    loop {
        if let Some((cpu, peak)) = used(child.id()) {
            (cpu_seconds, peak_mib) = (cpu, peak);
        }
        if let Some(status) = child.try_wait().expect("pg_recvlogical") {
            assert!(status.success());
            return Run { seconds: start.elapsed().as_secs_f64(), cpu_seconds, peak_mib };
        }
        assert!(start.elapsed() < DEADLINE, "pg_recvlogical did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn postrider(servers: &Servers, slot: &str, sink: &str, rows: usize) -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    drop(listener);
    if sink == "kafka" {
        topic(servers, slot);
    }
    let config = config(servers, slot, sink, port);
    let start = Instant::now();
    let mut child = postrider_command(&config).arg("run").spawn().expect("postrider run");
    let rows = u64::try_from(rows).expect("a count");
    while published(port) < rows {
        let ended = child.try_wait().expect("postrider run");
        assert!(ended.is_none(), "postrider run ended: {ended:?}");
        assert!(start.elapsed() < DEADLINE, "not drained");
        std::thread::sleep(Duration::from_millis(20));
    }
    let seconds = start.elapsed().as_secs_f64();
    let (cpu_seconds, peak_mib) = used(child.id()).expect("a process");
    terminate(&mut child);
    Run { seconds, cpu_seconds, peak_mib }
}

/// A topic with 8 partitions, named like the slot.
fn topic(servers: &Servers, name: &str) {
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", &servers.brokers);
    let admin: AdminClient<_> = config.create().expect("an admin client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
        drop(admin.delete_topics(&[name], &options).await);
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let topic = NewTopic::new(name, 8, TopicReplication::Fixed(1));
            let made = admin.create_topics([&topic], &options).await.expect("an answer");
            if made.first().is_some_and(Result::is_ok) {
                return;
            }
            assert!(Instant::now() < until, "no topic {name}: {made:?}");
        }
    });
}

fn terminate(child: &mut Child) {
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.expect("kill").success());
    child.wait().expect("postrider run");
}

fn config(servers: &Servers, slot: &str, sink: &str, port: u16) -> String {
    let listen = if port == 0 { String::new() } else { format!("127.0.0.1:{port}") };
    let brokers = format!("brokers = \"{}\"", servers.brokers);
    format!(
        "[admin]\nlisten = \"{listen}\"\n\
         [pipelines.{slot}.source]\n\
         url = \"host={} port={} user=postgres dbname=bench\"\nslot = \"{slot}\"\n\
         publication = \"postrider_bench\"\n\
         [pipelines.{slot}.outbox]\ntable = \"public.outbox\"\n\
         [pipelines.{slot}.route]\ntopic = \"{slot}\"\n\
         [pipelines.{slot}.sink]\nkind = \"{sink}\"\n{}\n",
        servers.socket,
        servers.port,
        if sink == "kafka" { brokers.as_str() } else { "" },
    )
}

fn postrider_command(config: &str) -> Command {
    let file = std::env::temp_dir().join(format!("postrider-bench-{}.toml", std::process::id()));
    fs::write(&file, config).expect("a configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.arg("-c").arg(file).args(["--log", "warn"]).stdin(Stdio::null());
    command
}

fn published(port: u16) -> u64 {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return 0 };
    let mut answer = String::new();
    let request = b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if stream.write_all(request).and_then(|()| stream.read_to_string(&mut answer)).is_err() {
        return 0;
    }
    let (_, after) = answer.split_once("\"published_total\":").unwrap_or(("", "0"));
    after
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap_or(0)
}

/// CPU seconds and peak resident MiB of a process.
fn used(pid: u32) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak_kib: f64 = peak.split_whitespace().next()?.parse().ok()?;
    Some(((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND, peak_kib / 1024.0))
}
