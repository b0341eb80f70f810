//! What only the Redis sink has: types of keys, memory, the progress key, replicas, clusters and sentinels.

use super::pipeline::{IN_FLIGHT_EVENTS, SinkPipeline};
use super::redis::{RedisServer, read};
use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::private::{Flavor, PrivateRedis, PrivateSentinel, free_port};
use crate::relay::{Relay, postrider};
use crate::topic::ReadRecord;

type Redis = RedisServer<false>;
type Valkey = RedisServer<true>;

async fn pipeline<const VALKEY: bool>(
    server: RedisServer<VALKEY>,
    test: &str,
    more: &str,
) -> SinkPipeline<RedisServer<VALKEY>> {
    let sink = server.sink_with(more);
    SinkPipeline::to(server, test, &sink).await
}

/// An administrator's command with this answer.
async fn admin(redis: &PrivateRedis, command: &str, answer: &str) {
    assert_eq!(redis.admin(command).await.as_deref(), Ok(answer), "{command}");
}

/// The only key with the progress of a pipeline.
async fn progress_key(redis: &PrivateRedis) -> String {
    let keys = redis.admin("KEYS postrider:*").await.expect("keys");
    keys.lines().nth(2).unwrap_or_else(|| panic!("{keys}")).to_owned()
}

#[tokio::test]
async fn first_event_creates_the_stream() {
    let pipeline = pipeline(Redis::start().await, "creates", "").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn key_of_another_type_parks_its_events_alone() {
    let mut pipeline = pipeline(Redis::start().await, "wrong", "").await;
    admin(&pipeline.server.redis, "SET taken text", "+OK\r\n").await;
    pipeline.retry_each_second();
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[1]).await;
    pipeline.await_values("orders", "b", &["1"]).await;
    pipeline.insert("taken", "a", &[2, 3]).await;
    pipeline.insert("orders", "b", &[4]).await;
    pipeline.await_values("orders", "b", &["1", "4"]).await;
    pipeline.await_parked("a waiting, a behind").await;
    relay.await_log("has type string", SOON).await;
    admin(&pipeline.server.redis, "DEL taken", ":1\r\n").await;
    pipeline.await_values("taken", "a", &["2", "3"]).await;
    pipeline.await_parked("").await;
    relay.terminate(SOON).await;
}

/// The stream was known, so its events are not parked: they wait, or are parked until it works, and others flow.
#[tokio::test]
async fn stream_that_becomes_another_type_is_waited_for() {
    let mut pipeline = pipeline(Redis::start().await, "becomes", "").await;
    pipeline.retry_each_second();
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    admin(&pipeline.server.redis, "RENAME orders old", "+OK\r\n").await;
    admin(&pipeline.server.redis, "SET orders text", "+OK\r\n").await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    relay.await_log("WRONGTYPE", SOON).await;
    admin(&pipeline.server.redis, "DEL orders", ":1\r\n").await;
    pipeline.await_values("orders", "a", &["2", "3"]).await;
    pipeline.await_parked("").await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn full_memory_is_waited_for() {
    waits_for_memory(pipeline(Redis::start().await, "memory", "").await).await;
}

#[tokio::test]
async fn full_memory_is_waited_for_with_a_transaction() {
    let server = RedisServer::<false, true>::start().await;
    waits_for_memory(pipeline_of(server, "memorytx").await).await;
    let server = RedisServer::<true, true>::start().await;
    waits_for_memory(pipeline_of(server, "memorytx").await).await;
}

async fn waits_for_memory<const VALKEY: bool, const EXACT: bool>(
    pipeline: SinkPipeline<RedisServer<VALKEY, EXACT>>,
) {
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    admin(&pipeline.server.redis, "CONFIG SET maxmemory 1", "+OK\r\n").await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("raise it (CONFIG SET maxmemory)", SOON).await;
    admin(&pipeline.server.redis, "CONFIG SET maxmemory 0", "+OK\r\n").await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.resolved().await;
    let records = pipeline.server.read("orders").await.expect("records");
    assert_eq!(records.len(), 3, "each event once");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn streams_are_trimmed_only_if_that_is_configured() {
    let pipeline = pipeline(Redis::start().await, "trim", "trim_length = 100\n").await;
    let relay = pipeline.run();
    let numbers: Vec<u32> = (1..=2_000).collect();
    pipeline.insert("orders", "a", &numbers).await;
    pipeline.resolved().await;
    let records = pipeline.server.read("orders").await.expect("records");
    // Whole nodes of 100 entries are removed.
    assert!((100..=300).contains(&records.len()), "{} records", records.len());
    assert_eq!(records.last().and_then(ReadRecord::value_text), Some("2000"));
    relay.terminate(SOON).await;
}

/// Another process has taken the progress over, or somebody has deleted it: what this process sends is refused, and
/// the pipeline starts again from its cursor.
#[tokio::test]
async fn progress_of_another_process_fences_this_one_off() {
    let pipeline = pipeline(Redis::start().await, "fence", "").await;
    let redis = &pipeline.server.redis;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let key = progress_key(redis).await;
    assert!(key.ends_with(&pipeline.name), "{key}");
    admin(redis, &format!("SET {key} \"ffff 7\""), "+OK\r\n").await;
    pipeline.insert("orders", "a", &[2]).await;
    relay.await_log("is not this process's any more", SOON).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    admin(redis, &format!("DEL {key}"), ":1\r\n").await;
    pipeline.insert("orders", "a", &[3]).await;
    relay.await_log("has lost the pipeline's progress", SOON).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn topic_that_is_a_progress_key_is_refused() {
    let pipeline = pipeline(Redis::start().await, "state", "").await;
    let relay = pipeline.run();
    pipeline.insert("postrider:x:y", "a", &[1]).await;
    pipeline.insert("orders", "b", &[2]).await;
    pipeline.await_values("orders", "b", &["2"]).await;
    pipeline.await_parked("a dead").await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn headers_never_hide_key_and_payload() {
    let pipeline = pipeline(Redis::start().await, "fields", "").await;
    let relay = pipeline.run();
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) values \
               ('orders', 'a', 'T', '1', '{\"key\": \"x\", \"value\": \"y\", \"header:key\": \"z\"}')";
    pipeline.sql.batch(sql).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let raw = pipeline.server.redis.admin("XRANGE orders - +").await.expect("an entry");
    let fields: Vec<&str> = raw.lines().filter(|line| !line.starts_with(['$', '*'])).collect();
    for pair in [["key", "a"], ["value", "1"], ["header:key", "x"], ["header:value", "y"]] {
        let found = fields.windows(2).filter(|window| *window == pair).count();
        assert_eq!(found, 1, "{pair:?} in {fields:?}");
    }
    assert!(fields.windows(2).any(|pair| pair == ["header:header:key", "z"]), "{fields:?}");
    relay.terminate(SOON).await;
}

/// Both streams are in one call, and only one of them is refused. Its events are held back, and so are later ones for a
/// while, as with every sink.
#[tokio::test]
async fn right_that_one_stream_lacks_is_named_and_waited_for() {
    let pipeline = pipeline(Redis::start().await, "acl", "").await;
    let redis = &pipeline.server.redis;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.insert("other", "b", &[1]).await;
    pipeline.await_values("other", "b", &["1"]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    admin(redis, "ACL SETUSER relay resetkeys ~postrider:* ~other", "+OK\r\n").await;
    for number in 2..6 {
        pipeline.insert("other", "b", &[number]).await;
        pipeline.insert("orders", "a", &[number]).await;
    }
    pipeline.await_values("other", "b", &["1", "2"]).await;
    relay.await_log("redis-cli ACL SETUSER relay", SOON).await;
    admin(redis, "ACL SETUSER relay ~orders", "+OK\r\n").await;
    pipeline.await_values("orders", "a", &["1", "2", "3", "4", "5"]).await;
    pipeline.await_values("other", "b", &["1", "2", "3", "4", "5"]).await;
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn check_names_what_can_lose_events() {
    let pipeline = pipeline(Redis::start().await, "checks", "").await;
    let redis = &pipeline.server.redis;
    let config = pipeline.config.replace("topic = \"{aggregate_type}\"", "topic = \"orders\"");
    let check = |config: &str| {
        let output = postrider(config, &["check"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    admin(redis, "ACL SETUSER relay +acl|getuser", "+OK\r\n").await;
    let good = check(&config);
    assert!(good.contains("Redis 7.0.15, role and rights OK"), "{good}");
    for (command, id, fix) in [
        (
            "CONFIG SET maxmemory-policy allkeys-lru",
            "redis_eviction",
            "maxmemory-policy noeviction",
        ),
        ("CONFIG SET appendfsync everysec", "redis_durability", "appendfsync always"),
        ("CONFIG SET appendonly no", "redis_durability", "appendonly yes"),
        ("ACL SETUSER default -@all", "redis_default_user", "ACL SETUSER default"),
        ("ACL SETUSER relay -xadd", "redis_rights", "+xadd"),
        ("ACL SETUSER relay -set +xadd", "redis_rights", "+set"),
    ] {
        admin(redis, command, "+OK\r\n").await;
        let found = check(&config);
        assert!(found.contains(id) && found.contains(fix), "{command}: {found}");
        if id == "redis_durability" {
            admin(redis, "CONFIG SET appendonly yes", "+OK\r\n").await;
        }
    }
    admin(redis, "ACL SETUSER relay +set", "+OK\r\n").await;
    admin(redis, "SET orders text", "+OK\r\n").await;
    let found = check(&config);
    assert!(found.contains("redis_type"), "{found}");
    admin(redis, "DEL orders", ":1\r\n").await;
    redis.admin("XADD orders * a b").await.expect("an entry");
    admin(redis, "EXPIRE orders 1000", ":1\r\n").await;
    let found = check(&config);
    assert!(found.contains("redis_expiry"), "{found}");
    admin(redis, "REPLICAOF 127.0.0.1 1", "+OK\r\n").await;
    let found = check(&config);
    assert!(found.contains("redis_role"), "{found}");
}

#[tokio::test]
async fn replicas_are_waited_for() {
    let more = "replicas = 1\nreplica_timeout = \"100ms\"\n";
    let server = Valkey::with("repl-diskless-sync-delay 0").await;
    let port = server.redis.port();
    let pipeline = pipeline(server, "replicas", more).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    relay.await_log("0 of 1 replicas", SOON).await;
    relay.await_state("broker_down", SOON).await;
    let replica = PrivateRedis::start(Flavor::Valkey9, &replica_of(port)).await;
    pipeline.resolved().await;
    pipeline.insert("orders", "a", &[3]).await;
    pipeline.resolved().await;
    let values: Vec<_> = read(&replica, "orders").await.expect("records");
    assert_eq!(values.len(), 3, "the replica has each event once");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn replicas_are_waited_for_by_each_transaction() {
    let server = RedisServer::<true, true>::with("repl-diskless-sync-delay 0").await;
    let port = server.redis.port();
    let sink = server.sink_with("replicas = 1\nreplica_timeout = \"100ms\"\n");
    let pipeline = SinkPipeline::to(server, "replicastx", &sink).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    relay.await_log("0 of 1 replicas", SOON).await;
    relay.await_state("broker_down", SOON).await;
    let replica = PrivateRedis::start(Flavor::Valkey9, &replica_of(port)).await;
    pipeline.resolved().await;
    replica.freeze();
    pipeline.insert("orders", "a", &[3]).await;
    relay.await_state("broker_down", SOON).await;
    replica.thaw();
    pipeline.resolved().await;
    let values: Vec<_> = read(&replica, "orders").await.expect("records");
    assert_eq!(values.len(), 3, "the replica has each event once");
    relay.terminate(SOON).await;
}

fn replica_of(port: u16) -> String {
    format!("replicaof 127.0.0.1 {port}\nmasteruser admin\nmasterauth admin")
}

/// Three nodes, and two streams on different nodes. A node is killed and comes back.
#[tokio::test]
async fn cluster_has_each_event_once_when_a_node_comes_back() {
    let extra = |port: u16| {
        format!("cluster-enabled yes\ncluster-port {port}\ncluster-require-full-coverage no")
    };
    let server = Valkey::with(&extra(free_port())).await;
    let mut second = PrivateRedis::start(Flavor::Valkey9, &extra(free_port())).await;
    let third = PrivateRedis::start(Flavor::Valkey9, &extra(free_port())).await;
    let nodes = [&server.redis, &second, &third];
    for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
        admin(node, &format!("CLUSTER ADDSLOTSRANGE {slots}"), "+OK\r\n").await;
    }
    for node in &nodes[1..] {
        let bus = node.admin("CONFIG GET cluster-port").await.expect("a port");
        let bus = bus.lines().last().unwrap_or_default().to_owned();
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port());
        admin(nodes[0], &meet, "+OK\r\n").await;
    }
    for node in nodes {
        await_that("the cluster", SOON, || async {
            let info = node.admin("CLUSTER INFO").await?;
            let is_whole = info.contains("cluster_state:ok") && info.contains("cluster_size:3");
            if is_whole { Ok(()) } else { Err(info) }
        })
        .await;
    }
    let servers = format!("127.0.0.1:{},127.0.0.1:{}", third.port(), second.port());
    let sink = server.sink_at(&servers, "mode = \"cluster\"\n");
    let pipeline = SinkPipeline::to(server, "cluster", &sink).await;
    let relay = pipeline.run();
    for number in 1..=50 {
        pipeline.insert("foo", "a", &[number]).await;
        pipeline.insert("bar", "b", &[number]).await;
        pipeline.insert("payments", "c", &[number]).await;
        if number == 25 {
            second.kill().await;
            second.restart().await;
        }
    }
    pipeline.resolved().await;
    // By slots 12182, 5061 and 8507.
    for (stream, node) in [("foo", &third), ("bar", &pipeline.server.redis), ("payments", &second)]
    {
        let records = read(node, stream).await.expect("records");
        let values: Vec<_> = records.iter().filter_map(ReadRecord::value_text).collect();
        let expected: Vec<String> = (1..=50).map(|number: u32| number.to_string()).collect();
        assert_eq!(values, expected, "{stream}");
    }
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

/// The primary is killed under load, and a sentinel promotes its replica. With `replicas = 1` nothing that counts as
/// published is lost. The old primary comes back as one before the sentinel makes it a replica: then the pipeline
/// starts again from its cursor.
#[tokio::test]
async fn failover_by_sentinels_loses_nothing() {
    let login = "masteruser admin\nmasterauth admin\nrepl-diskless-sync-delay 0";
    let server = Valkey::with(login).await;
    let port = server.redis.port();
    let replica = PrivateRedis::start(Flavor::Valkey9, &replica_of(port)).await;
    await_that("the replica", SOON, || async {
        let info = server.redis.admin("INFO replication").await?;
        if info.contains("state=online") { Ok(()) } else { Err(info) }
    })
    .await;
    let sentinel = PrivateSentinel::start(port).await;
    let more = "mode = \"sentinel\"\nsentinel_master = \"main\"\nreplicas = 1\n";
    let sink = server.sink_at(&format!("127.0.0.1:{}", sentinel.port()), more);
    let mut pipeline = SinkPipeline::to(server, "sentinel", &sink).await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    pipeline.await_records("orders", 1_000).await;
    pipeline.server.kill().await;
    await_that("the replica to be the primary", SOON, || async {
        let info = replica.admin("INFO replication").await?;
        if info.contains("role:master") { Ok(()) } else { Err(info) }
    })
    .await;
    // It becomes the replica.
    pipeline.server.restart().await;
    relay.await_log("broker available again", SOON).await;
    let ledger = load.stop().await;
    let found = await_that("every committed event", SOON, || async {
        let found = ledger.check(&read(&replica, "orders").await?);
        let is_whole = found.lost.is_empty() && found.cut_off.is_empty();
        if is_whole { Ok(found) } else { Err(found.to_string()) }
    })
    .await;
    // What was published since the last cursor row, and what was in flight.
    found.assert_balanced(10_000 + IN_FLIGHT_EVENTS);
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// A relay that can't reach its first server uses the next one.
#[tokio::test]
async fn several_servers_are_tried_in_turn() {
    let server = Redis::start().await;
    let servers = format!("127.0.0.1:{},127.0.0.1:{}", free_port(), server.redis.port());
    let sink = server.sink_at(&servers, "");
    let pipeline = SinkPipeline::to(server, "turn", &sink).await;
    let relay = Relay::spawn(&pipeline.config);
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    relay.terminate(SOON).await;
}

/// A replica answers, and takes nothing.
#[tokio::test]
async fn replica_among_the_servers_is_passed_over() {
    let mut server = Redis::start().await;
    let port = server.redis.port();
    let lines = format!("replicaof 127.0.0.1 {port}\nmasteruser admin\nmasterauth admin");
    let replica = PrivateRedis::start(Flavor::Redis7, &lines).await;
    let servers = format!("127.0.0.1:{port},127.0.0.1:{}", replica.port());
    let sink = server.sink_at(&servers, "");
    server.redis.kill().await;
    let mut pipeline = SinkPipeline::to(server, "replica", &sink).await;
    let relay = Relay::spawn(&pipeline.config);
    pipeline.insert("orders", "a", &[1]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("is a replica", SOON).await;
    pipeline.server.redis.restart().await;
    pipeline.await_values("orders", "a", &["1"]).await;
    relay.terminate(SOON).await;
}

/// A commit with an entry that the server refuses: the entries that were added before it are removed again.
#[tokio::test]
async fn refused_commit_leaves_nothing_of_it() {
    let server = RedisServer::<true, true>::start().await;
    // No later ID is possible, so nothing can be added.
    let last = u64::MAX;
    let command = format!("XADD full {last}-{last} a b");
    server.redis.admin(&command).await.expect("an entry");
    let sink = server.sink_with("commit_interval = \"200ms\"\n");
    let pipeline = SinkPipeline::to(server, "undo", &sink).await;
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               values ('orders', 'b', 'T', '1'), ('full', 'a', 'T', '2'), ('orders', 'b', 'T', '3')";
    pipeline.sql.batch(sql).await;
    let relay = pipeline.run();
    relay.await_log("stream \\\"full\\\" accepts no events", SOON).await;
    // The events before it are published by a commit of their own; those behind it wait, as with a deleted stream.
    pipeline.await_values("orders", "b", &["1"]).await;
    relay.await_log("waiting for topic \"full\"", SOON).await;
    admin(&pipeline.server.redis, "DEL full", ":1\r\n").await;
    pipeline.await_values("full", "a", &["2"]).await;
    pipeline.insert("orders", "b", &[4]).await;
    pipeline.await_values("orders", "b", &["1", "3", "4"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// A pipeline that changes its delivery, there and back, goes on behind what it has published.
#[tokio::test]
async fn delivery_is_changed_without_a_repetition() {
    let mut pipeline = pipeline(Valkey::start().await, "delivery", "").await;
    let at_least_once = pipeline.config.clone();
    let line = "kind = \"redis\"\n";
    let exactly_once = at_least_once.replace(line, &format!("{line}delivery = \"exactly-once\"\n"));
    let mut values = Vec::new();
    for (config, number) in [
        (&at_least_once, 1),
        (&exactly_once, 2),
        (&exactly_once, 3),
        (&at_least_once, 4),
        (&exactly_once, 5),
    ] {
        pipeline.config.clone_from(config);
        let relay = pipeline.run();
        pipeline.insert("orders", "a", &[number]).await;
        values.push(number.to_string());
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        pipeline.await_values("orders", "a", &values).await;
        pipeline.resolved().await;
        relay.terminate(SOON).await;
    }
}

/// A server that has lost its last commits, and the way out that the page describes.
#[tokio::test]
async fn server_with_an_older_position_halts_the_pipeline() {
    let pipeline = pipeline_of(RedisServer::<true, true>::start().await, "older").await;
    let redis = &pipeline.server.redis;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let key = progress_key(redis).await;
    let copy = format!("COPY {key} postrider:copy");
    admin(redis, &copy, ":1\r\n").await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    admin(redis, &format!("RENAME postrider:copy {key}"), "+OK\r\n").await;
    admin(redis, "XTRIM orders MAXLEN 1", ":2\r\n").await;
    let halted = crate::halted::run_to_halt(&pipeline.config).await;
    halted.assert_says("PR025", &["is behind the cursor row at"], &["docs/sinks/redis.md"]);
    admin(redis, &format!("DEL {key}"), ":1\r\n").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[4]).await;
    pipeline.await_values("orders", "a", &["3", "4"]).await;
    relay.terminate(SOON).await;
}

async fn pipeline_of<const VALKEY: bool, const EXACT: bool>(
    server: RedisServer<VALKEY, EXACT>,
    test: &str,
) -> SinkPipeline<RedisServer<VALKEY, EXACT>> {
    let sink = server.sink_with("");
    SinkPipeline::to(server, test, &sink).await
}

/// The server lets only clients with a certificate of its authority in.
#[tokio::test]
async fn client_certificate_that_the_server_requires_is_shown() {
    let server = Redis::with("tls-auth-clients yes").await;
    let address = format!("localhost:{}", server.redis.tls_port());
    let ca = server.redis.ca();
    let tls = format!("[.sink.redis.tls]\nca_file = \"{}\"\n", ca.display());
    let client = format!(
        "{tls}cert_file = \"{}\"\nkey_file = \"{}\"\n",
        ca.with_file_name("client.pem").display(),
        ca.with_file_name("client.key").display()
    );
    let (without, with) = (server.sink_at(&address, &tls), server.sink_at(&address, &client));
    let pipeline = SinkPipeline::to(server, "redismtls", &without).await;
    pipeline.insert("orders", "a", &[1, 2]).await;
    let relay = pipeline.run();
    relay.await_state("broker_down", SOON).await;
    relay.terminate(SOON).await;
    assert!(pipeline.server.read("orders").await.is_ok_and(|records| records.is_empty()));
    let relay = Relay::spawn(&pipeline.with_sink(&with));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.terminate(SOON).await;
}
