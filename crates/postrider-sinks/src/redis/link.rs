//! The connections of a sink: one to the primary, or one to each primary of a cluster.

use super::connection::Connection;
use super::problem::{RedisProblem, RedisStep};
use super::resp::Reply;
use super::script;
use super::slots::SlotMap;
use super::spec::{Address, Mode, RedisSpec};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

/// What a reply belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RedisCall {
    /// The progress of a chain is taken over.
    TakeOver { slot: u16 },
    /// Events of a chain are stored.
    Store { slot: u16 },
    /// Replicas have the events of a chain up to this number.
    Replicas { slot: u16, upto: u64 },
    /// The login may add to a stream.
    MayAdd { topic: String },
    /// A stream exists; the reply to `MayAdd` came before.
    Exists { topic: String },
}

/// A call that is not answered.
struct SentCall {
    call: RedisCall,
    /// When the connection is given up.
    deadline: Instant,
}

/// A node with its calls, in the order in which they were sent.
struct Node {
    connection: Connection,
    calls: VecDeque<SentCall>,
    /// The scripts.
    take_over: String,
    store: String,
}

/// The connections, all of them, or none of use.
pub(super) struct RedisLink {
    map: SlotMap,
    nodes: Vec<Node>,
}

/// Where a call is added: the commands of a node, and what is known of it.
pub(super) struct CallLine<'a> {
    pub(super) out: &'a mut Vec<u8>,
    /// The name of script `TAKE_OVER`.
    pub(super) take_over: &'a str,
    /// The name of script `STORE`.
    pub(super) store: &'a str,
    calls: &'a mut VecDeque<SentCall>,
    timeout: Duration,
}

impl CallLine<'_> {
    /// A command was added to `out`. Its clock starts now. `more`: what the server itself may wait.
    pub(super) fn sent(&mut self, call: RedisCall, more: Duration) {
        let deadline = Instant::now() + self.timeout + more;
        self.calls.push_back(SentCall { call, deadline });
    }
}

/// A reply, what it belongs to, and the server.
pub(super) struct Answered {
    pub(super) call: RedisCall,
    pub(super) reply: Reply,
    pub(super) place: String,
}

impl RedisLink {
    /// Connects, finds the primary or the nodes of the cluster, and loads the scripts. `attempt` chooses the server
    /// that is asked first.
    ///
    /// # Errors
    /// No server can be used; the problem of the last one.
    pub(super) async fn open(spec: &RedisSpec, attempt: usize) -> Result<Self, RedisProblem> {
        let Located { map, connections } = locate_any(spec, attempt).await?;
        let mut nodes = Vec::new();
        for connection in connections {
            nodes.push(Node::open(spec, connection).await?);
        }
        Ok(Self { map, nodes })
    }

    /// Whether a node has the slot.
    pub(super) fn has(&self, slot: u16) -> bool {
        self.map.node(slot).is_some_and(|node| node < self.nodes.len())
    }

    /// Where calls for a slot are added; `None` while no node has the slot.
    pub(super) fn line(&mut self, slot: u16, timeout: Duration) -> Option<CallLine<'_>> {
        let node = self.nodes.get_mut(self.map.node(slot)?)?;
        Some(CallLine {
            out: node.connection.out(),
            take_over: &node.take_over,
            store: &node.store,
            calls: &mut node.calls,
            timeout,
        })
    }

    /// Calls of the node of a slot that are not answered.
    pub(super) fn unanswered_of(&self, slot: u16) -> usize {
        let node = self.map.node(slot).and_then(|node| self.nodes.get(node));
        node.map_or(0, |node| node.calls.len())
    }

    /// All calls that are not answered.
    pub(super) fn unanswered(&self) -> usize {
        self.nodes.iter().map(|node| node.calls.len()).sum()
    }

    /// When the first answer is late.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.nodes.iter().filter_map(|node| Some(node.calls.front()?.deadline)).min()
    }

    /// The problem of an answer that is late.
    pub(super) fn late(&self) -> Option<RedisProblem> {
        let now = Instant::now();
        let is_late = |node: &&Node| node.calls.front().is_some_and(|sent| sent.deadline <= now);
        self.nodes.iter().find(is_late).map(|node| node.connection.late())
    }

    /// Writes what can be written, and returns the next reply of any node. Cancel-safe.
    ///
    /// # Errors
    /// A connection is lost.
    pub(super) async fn next(&mut self) -> Result<Answered, RedisProblem> {
        poll_fn(|context| {
            for node in &mut self.nodes {
                let Poll::Ready(reply) = node.connection.poll_reply(context) else { continue };
                return Poll::Ready(reply.and_then(|reply| node.answered(reply)));
            }
            Poll::Pending
        })
        .await
    }
}

impl Node {
    async fn open(spec: &RedisSpec, mut connection: Connection) -> Result<Self, RedisProblem> {
        let take_over = connection.load(script::TAKE_OVER, spec).await?;
        let store = connection.load(script::STORE, spec).await?;
        Ok(Self { connection, calls: VecDeque::new(), take_over, store })
    }

    fn answered(&mut self, reply: Reply) -> Result<Answered, RedisProblem> {
        let place = self.connection.address.to_string();
        match self.calls.pop_front() {
            Some(SentCall { call, .. }) => Ok(Answered { call, reply, place }),
            None => Err(self.connection.unasked()),
        }
    }
}

/// The nodes, and a connection to each.
pub(super) struct Located {
    pub(super) map: SlotMap,
    /// In the order of the map's nodes.
    pub(super) connections: Vec<Connection>,
}

/// As [`locate`], by the first of the servers that can be used. `attempt` chooses the one that is asked first.
///
/// # Errors
/// No server can be used; the problem of the last one.
async fn locate_any(spec: &RedisSpec, attempt: usize) -> Result<Located, RedisProblem> {
    let mut problem = None;
    for turn in 0..spec.servers.len() {
        let Some(address) = spec.servers.get((attempt + turn) % spec.servers.len()) else {
            continue;
        };
        match located_primary(spec, address).await {
            Ok(located) => return Ok(located),
            Err(why) => problem = Some(why),
        }
    }
    Err(problem
        .unwrap_or_else(|| RedisProblem::lost("no server is named", "set sink.redis.servers")))
}

/// As [`locate`]; a replica is an error.
async fn located_primary(spec: &RedisSpec, address: &Address) -> Result<Located, RedisProblem> {
    let mut located = locate(spec, address).await?;
    if spec.mode != Mode::Cluster {
        for connection in &mut located.connections {
            check_role(connection).await?;
        }
    }
    Ok(located)
}

/// Connects to the primary, where there is one. `attempt` chooses the server that is asked first.
///
/// # Errors
/// No server can be used; the problem of the last one.
pub(super) async fn primary_connection(
    spec: &RedisSpec,
    attempt: usize,
) -> Result<Connection, RedisProblem> {
    let connection = locate_any(spec, attempt).await?.connections.pop();
    connection.ok_or_else(|| RedisProblem::lost("no server is named", "set sink.redis.servers"))
}

/// Finds the primary or the nodes of the cluster by one of the servers, and connects.
///
/// # Errors
/// A server that can't be reached, or refuses the login.
pub(super) async fn locate(spec: &RedisSpec, address: &Address) -> Result<Located, RedisProblem> {
    let map = match spec.mode {
        Mode::Single => SlotMap::single(address.clone()),
        Mode::Sentinel => SlotMap::single(primary(spec, address).await?),
        Mode::Cluster => slots(spec, address).await?,
    };
    let mut connections = Vec::new();
    for address in &map.nodes {
        let mut connection = Connection::open(spec, address, &spec.login).await?;
        if spec.database > 0 {
            let database = spec.database.to_string();
            connection.ask(&[b"SELECT", database.as_bytes()], RedisStep::Connect, spec).await?;
        }
        connections.push(connection);
    }
    Ok(Located { map, connections })
}

/// A replica is not used: it answers, and accepts nothing. A login that may not ask finds out with its first event.
pub(super) async fn check_role(connection: &mut Connection) -> Result<(), RedisProblem> {
    let reply = connection.command(&[b"ROLE"]).await?;
    let role = reply.elements().first().and_then(Reply::text);
    if role.is_none_or(|role| role == "master") {
        return Ok(());
    }
    Err(RedisProblem::lost(
        format!("{} is a replica", connection.address),
        "let sink.redis.servers name the primary, or promote this server; the sink connects again automatically",
    ))
}

/// Asks a sentinel for the primary.
async fn primary(spec: &RedisSpec, sentinel: &Address) -> Result<Address, RedisProblem> {
    let mut connection = Connection::open(spec, sentinel, &spec.sentinel_login).await?;
    let name = spec.sentinel_master.as_bytes();
    let words: [&[u8]; 3] = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name];
    let reply = connection.ask(&words, RedisStep::Locate, spec).await?;
    let found = match reply.elements() {
        [host, port] => {
            let port = port.text().and_then(|port| port.parse().ok());
            host.text().zip(port).map(|(host, port)| Address { host, port })
        }
        _ => None,
    };
    found.ok_or_else(|| {
        let name = &spec.sentinel_master;
        RedisProblem::lost(
            format!("sentinel {sentinel} knows no primary {name:?}"),
            "correct sink.redis.sentinel_master, or the address of the sentinels in sink.redis.servers",
        )
    })
}

/// Asks a node for the slots of the cluster.
async fn slots(spec: &RedisSpec, address: &Address) -> Result<SlotMap, RedisProblem> {
    let mut connection = Connection::open(spec, address, &spec.login).await?;
    let reply = connection.ask(&[b"CLUSTER", b"SLOTS"], RedisStep::Locate, spec).await?;
    SlotMap::read(&reply, address).ok_or_else(|| {
        RedisProblem::lost(
            format!("node {address} knows no slots"),
            "wait until the cluster has formed; the sink connects again automatically",
        )
    })
}
