//! `postrider check` for Redis: whether the server can be reached, keeps what it has acknowledged, and lets the
//! pipeline add to its streams. Nothing is changed.

use super::connection::Connection;
use super::link::{self, Located};
use super::looks::create_command;
use super::problem::{self, RedisProblem, RedisStep, RedisVerdict};
use super::resp::{Reply, ServerError};
use super::spec::{Mode, RedisSpec, Trim};
use super::worker::{slot, state_key};
use crate::worker_thread;
use postrider_core::finding::Finding;
use std::collections::HashMap;

/// The oldest version that has all commands that the sink uses.
const VERSION_MIN: (u32, u32) = (6, 2);

/// A script without an effect, for the rights to scripts and to the keys that they are called with.
const SCRIPT: &str = "return 1";

/// What is known without the server.
pub(super) fn settings(trim: Trim, has_tls: bool, servers: &str) -> Vec<Finding> {
    let mut out = Vec::new();
    let limit = match trim {
        Trim::Nothing => None,
        Trim::Length(length) => Some(format!("{length} entries")),
        Trim::Age(age) => Some(format!("{age:?}")),
    };
    if let Some(limit) = limit {
        let what = format!("streams are trimmed to about {limit}");
        out.push(Finding::warning("redis_trim", what).why(
            "entries that no consumer has read are removed too: watch the lag of the consumer groups (XINFO GROUPS)",
        ));
    }
    let is_local = |server: &str| {
        let host = server.trim();
        ["localhost", "127.", "[::1]"].iter().any(|local| host.starts_with(local))
    };
    if !has_tls && !servers.split(',').all(is_local) {
        let what = format!("connections to {servers} are not encrypted");
        out.push(
            Finding::warning("broker_plaintext", what)
                .why("payloads and the password can be read on the network")
                .config("[pipelines.NAME.sink.redis.tls]"),
        );
    }
    out
}

/// The findings about the servers, and about the streams that are known before the first event.
pub(super) fn check(spec: &RedisSpec, streams: &[String]) -> Vec<Finding> {
    match worker_thread::ask(|| findings(spec, streams)) {
        Ok(findings) => findings,
        Err(unanswered) => {
            vec![Finding::error("redis_server", format!("{}: {unanswered}", spec.place()))]
        }
    }
}

async fn findings(spec: &RedisSpec, streams: &[String]) -> Vec<Finding> {
    let mut out = Vec::new();
    match located(spec).await {
        Ok(mut located) => {
            let Located { map, connections } = &mut located;
            for connection in connections.iter_mut() {
                if let Err(problem) = of_server(spec, connection, &mut out).await {
                    out.push(unreachable(&problem));
                }
            }
            for stream in streams {
                let node = map.node(slot(spec, stream));
                let Some(connection) = node.and_then(|node| connections.get_mut(node)) else {
                    continue;
                };
                match of_stream(spec, connection, stream).await {
                    Ok(finding) => out.push(finding),
                    Err(problem) => out.push(unreachable(&problem)),
                }
            }
        }
        Err(problem) => out.push(unreachable(&problem)),
    }
    out
}

/// Connects to the primary, or to all of the cluster.
async fn located(spec: &RedisSpec) -> Result<Located, RedisProblem> {
    let mut problem = None;
    for address in &spec.servers {
        match link::locate(spec, address).await {
            Ok(located) => return Ok(located),
            Err(why) => problem = Some(why),
        }
    }
    Err(problem
        .unwrap_or_else(|| RedisProblem::lost("no server is named", "set sink.redis.servers")))
}

fn unreachable(problem: &RedisProblem) -> Finding {
    let hint = problem.hint.as_deref().unwrap_or("see the server's log");
    Finding::error("redis_server", problem.reason.clone())
        .why(format!("nothing is published until it can be reached; {hint}"))
}

/// The lines `name:value` of INFO.
struct Info(HashMap<String, String>);

impl Info {
    fn read(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Self(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or_default()
    }

    /// The name and version of the server. Valkey also has the version of Redis that it is compatible with.
    fn version(&self) -> String {
        let valkey = self.valkey();
        if valkey.is_empty() {
            format!("Redis {}", self.get("redis_version"))
        } else {
            format!("Valkey {valkey}")
        }
    }

    fn valkey(&self) -> &str {
        self.get("valkey_version")
    }

    /// The version of Redis that the server is, or is compatible with.
    fn redis(&self) -> (u32, u32) {
        let mut parts = self.get("redis_version").split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    fn is_too_old(&self) -> bool {
        self.redis() < VERSION_MIN
    }
}

async fn of_server(
    spec: &RedisSpec,
    connection: &mut Connection,
    out: &mut Vec<Finding>,
) -> Result<(), RedisProblem> {
    let place = connection.address.to_string();
    let before = out.len();
    let info = match connection.command(&[b"INFO"]).await?.checked() {
        Ok(reply) => Info::read(&reply.text().unwrap_or_default()),
        Err(_refused) => {
            let what = format!("login {:?} may not ask {place} for its state (INFO)", spec.user());
            let finding = Finding::warning("redis_unknown", what)
                .why("version, role, persistence and eviction are not checked");
            out.push(finding.shell(format!("redis-cli ACL SETUSER {} +info", spec.user())));
            return of_rights(spec, connection, out).await;
        }
    };
    if info.is_too_old() {
        let what = format!("{place} is {}", info.version());
        out.push(
            Finding::error("redis_version", what).why("Redis 6.2 or newer is needed, or Valkey"),
        );
    }
    of_role(spec, &place, &info, out);
    of_eviction(&place, &info, out);
    of_rights(spec, connection, out).await?;
    let is_good = out.len() == before;
    out.extend(of_persistence(connection, &place, &info).await?);
    out.extend(of_default_user(connection, &place, &info).await?);
    if is_good {
        let what = format!("connected to {place}, {}, role and rights OK", info.version());
        out.insert(before, Finding::ok("redis_server", what));
    }
    Ok(())
}

fn of_role(spec: &RedisSpec, place: &str, info: &Info, out: &mut Vec<Finding>) {
    let is_cluster = info.get("cluster_enabled") == "1";
    if is_cluster != (spec.mode == Mode::Cluster) {
        let (what, line) = if is_cluster {
            ("a node of a cluster", "mode = \"cluster\"")
        } else {
            ("no node of a cluster", "mode = \"single\"")
        };
        out.push(
            Finding::error("redis_mode", format!("{place} is {what}"))
                .why("events can't be published")
                .config(line),
        );
    }
    if info.get("role") == "slave" {
        let primary = format!("{}:{}", info.get("master_host"), info.get("master_port"));
        out.push(
            Finding::error("redis_role", format!("{place} is a replica of {primary}"))
                .why("a replica accepts no events; sentinels would name the primary")
                .config(format!("servers = \"{primary}\"")),
        );
    } else if info.number("connected_slaves") < spec.storing.replicas.into() {
        let found = info.number("connected_slaves");
        let what = format!(
            "{place} has {found} replicas, sink.redis.replicas is {}",
            spec.storing.replicas
        );
        out.push(
            Finding::error("redis_replicas", what)
                .why("no event counts as published until so many replicas have it")
                .config(format!("replicas = {found}")),
        );
    }
}

fn of_eviction(place: &str, info: &Info, out: &mut Vec<Finding>) {
    let policy = info.get("maxmemory_policy");
    let set = "redis-cli CONFIG SET maxmemory-policy noeviction";
    let keep = "redis-cli CONFIG REWRITE";
    if policy.starts_with("allkeys") {
        let what = format!("{place} has maxmemory-policy {policy}");
        out.push(
            Finding::error("redis_eviction", what)
                .why("at maxmemory the server deletes whole streams with unread events")
                .shell(set)
                .shell(keep),
        );
    }
}

async fn of_persistence(
    connection: &mut Connection,
    place: &str,
    info: &Info,
) -> Result<Option<Finding>, RedisProblem> {
    if info.get("aof_enabled") != "1" {
        let what = format!("{place} has appendonly no");
        return Ok(Some(
            Finding::warning("redis_durability", what)
                .why(
                    "an end of the server loses the events since its last snapshot, and Postrider does not publish \
                     them again",
                )
                .shell("redis-cli CONFIG SET appendonly yes")
                .shell("redis-cli CONFIG SET appendfsync always")
                // Without it the next start has neither, and loads an old snapshot.
                .shell("redis-cli CONFIG REWRITE"),
        ));
    }
    let Ok(reply) = connection.command(&[b"CONFIG", b"GET", b"appendfsync"]).await?.checked()
    else {
        let what = format!("the login may not ask {place} for appendfsync");
        let why = "with everysec, the default, an end of the machine loses the events of about one second";
        return Ok(Some(Finding::warning("redis_unknown", what).why(why)));
    };
    let value = reply.elements().get(1).and_then(Reply::text).unwrap_or_default();
    let why = match value.as_str() {
        "always" => return Ok(None),
        "everysec" => {
            "an end of the machine, not of the server, loses the events of about one second"
        }
        _ => "an end of the machine, not of the server, loses the events of up to a minute",
    };
    let what = format!("{place} has appendfsync {value}");
    let finding = Finding::warning("redis_durability", what).why(why);
    let finding = finding.shell("redis-cli CONFIG SET appendfsync always");
    Ok(Some(finding.shell("redis-cli CONFIG REWRITE")))
}

/// Redis 7.0 executes its append-only file as user `default`: without rights a script's effects are left out, and the
/// server starts without these events (seen with 7.0.15; not with Valkey 9.1).
async fn of_default_user(
    connection: &mut Connection,
    place: &str,
    info: &Info,
) -> Result<Option<Finding>, RedisProblem> {
    if info.get("aof_enabled") != "1" || !info.valkey().is_empty() || info.redis() >= (7, 2) {
        return Ok(None);
    }
    let why = "this version executes its append-only file as user \"default\": without rights it starts without the \
               events, and Postrider does not publish them again";
    let finding = match connection.command(&[b"ACL", b"GETUSER", b"default"]).await?.checked() {
        Ok(reply) => {
            let texts: Vec<String> = reply.elements().iter().filter_map(Reply::text).collect();
            if texts.iter().any(|text| text == "+@all") && texts.iter().any(|text| text == "~*") {
                return Ok(None);
            }
            Finding::error("redis_default_user", format!("{place}: user \"default\" lacks rights"))
        }
        Err(_refused) => {
            let what = format!("login may not ask {place} for the rights of user \"default\"");
            Finding::warning("redis_default_user", what)
        }
    };
    // The login may be this user, so it is not disabled here. The next start reads the users from a file.
    let finding = finding.why(why).shell("redis-cli ACL SETUSER default '~*' '&*' +@all");
    Ok(Some(finding.shell("redis-cli ACL SAVE || redis-cli CONFIG REWRITE")))
}

/// Whether the login may use the scripts and the progress key.
async fn of_rights(
    spec: &RedisSpec,
    connection: &mut Connection,
    out: &mut Vec<Finding>,
) -> Result<(), RedisProblem> {
    let key = match spec.mode {
        Mode::Single | Mode::Sentinel => state_key(spec, 0),
        // Any key will do for the rights, but this node has some slots only.
        Mode::Cluster => return Ok(()),
    };
    let name = key.as_bytes();
    let mut refused = connection.command(&[b"GET", name]).await?.checked().err();
    // These options are an error, after the rights were checked.
    let set: [&[u8]; 5] = [b"SET", name, b"", b"NX", b"XX"];
    let set = connection.command(&set).await?.checked().err();
    refused = refused.or(set.filter(|error| error.code() != "ERR"));
    match connection.command(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]).await?.checked() {
        Ok(sha) => {
            let sha = sha.text().unwrap_or_default();
            let words: [&[u8]; 4] = [b"EVALSHA", sha.as_bytes(), b"1", name];
            refused = refused.or(connection.command(&words).await?.checked().err());
        }
        Err(error) => refused = refused.or(Some(error)),
    }
    let Some(error) = refused else { return Ok(()) };
    let id = if error.code() == "NOPERM" { "redis_rights" } else { "redis_server" };
    out.push(denied(spec, id, &format!("progress key {key:?}"), &error));
    Ok(())
}

fn denied(spec: &RedisSpec, id: &'static str, of: &str, error: &ServerError) -> Finding {
    let finding = Finding::error(id, format!("login {:?}, {of}: {error}", spec.user()));
    let finding = finding.why("nothing can be published");
    if id == "redis_rights" { finding.shell(problem::rights_command(spec)) } else { finding }
}

async fn of_stream(
    spec: &RedisSpec,
    connection: &mut Connection,
    stream: &str,
) -> Result<Finding, RedisProblem> {
    let name = stream.as_bytes();
    let add: [&[u8]; 6] = [b"XADD", name, b"NOMKSTREAM", b"0-0", b"a", b"b"];
    let place = connection.address.to_string();
    let remove: [&[u8]; 3] = [b"XDEL", name, b"0-1"];
    let mut refused = connection.command(&add).await?.checked().err();
    refused = refused.filter(|error| error.code() != "ERR");
    if spec.storing.in_transactions && refused.is_none() {
        // No entry has this ID. Another type is found below.
        let removed = connection.command(&remove).await?.checked().err();
        refused = removed.filter(|error| error.code() != "WRONGTYPE");
    }
    if let Some(error) = refused {
        let of = format!("stream {stream:?}");
        let problem = RedisProblem::server(RedisStep::LookUp, &place, &error, spec);
        let id =
            if problem.verdict == RedisVerdict::Rights { "redis_rights" } else { "redis_server" };
        let finding = denied(spec, id, &of, &error);
        let hint = problem.hint.unwrap_or_default();
        return Ok(if id == "redis_rights" { finding } else { finding.why(hint) });
    }
    let kind = match connection.command(&[b"TYPE", name]).await?.checked() {
        Ok(kind) => kind.text().unwrap_or_default(),
        Err(error) => {
            return Ok(denied(spec, "redis_rights", &format!("stream {stream:?}"), &error));
        }
    };
    Ok(match kind.as_str() {
        "stream" => {
            // A login that may not ask sees no finding.
            let ttl = connection.command(&[b"TTL", name]).await?.integer().unwrap_or(-1);
            if ttl < 0 {
                return Ok(Finding::ok("redis_stream", format!("stream {stream:?} exists")));
            }
            let what = format!("stream {stream:?} expires in {ttl} seconds");
            let command = format!("redis-cli PERSIST {}", postrider_core::finding::shell_word(stream));
            Finding::error("redis_expiry", what)
                .why("the server deletes the whole stream then, or earlier if its memory is full")
                .shell(command)
        }
        "none" if spec.storing.creates => {
            let what = format!("stream {stream:?} does not exist, and is created with its first event");
            Finding::ok("redis_stream", what)
        }
        "none" => Finding::error("redis_missing", format!("stream {stream:?} does not exist"))
            .why("its events are parked until it exists; with missing_streams = \"create\" the first event creates it")
            .shell(create_command(stream)),
        other => Finding::error("redis_type", format!("key {stream:?} has type {other}"))
            .why("its events are parked, because they can only be added to a stream")
            .shell(format!("redis-cli RENAME {0} {0}-old", postrider_core::finding::shell_word(stream))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_with_the_oldest_that_will_do() {
        for (text, shown, too_old) in [
            ("redis_version:7.0.15\r\n", "Redis 7.0.15", false),
            ("redis_version:6.0.16\r\n", "Redis 6.0.16", true),
            ("redis_version:6.2.0\r\n", "Redis 6.2.0", false),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n", "Valkey 9.1.2", false),
        ] {
            let info = Info::read(text);
            assert_eq!((info.version().as_str(), info.is_too_old()), (shown, too_old));
        }
    }

    #[test]
    fn trimming_and_plain_connections_are_warned_of() {
        let ids = |findings: Vec<Finding>| -> Vec<&str> {
            findings.iter().map(|finding| finding.id).collect()
        };
        assert!(settings(Trim::Nothing, false, "localhost:6379,127.0.0.1").is_empty());
        assert_eq!(ids(settings(Trim::Length(5), true, "a")), ["redis_trim"]);
        assert_eq!(ids(settings(Trim::Nothing, false, "localhost,a:1")), ["broker_plaintext"]);
    }
}
