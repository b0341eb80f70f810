//! The long ledger of a sink: 100,000 events while relays, server, connections and database sessions are ended in turn.
//!
//! A successor waits 8 s before it publishes (docs/guarantees/order.md), so the owner is ended once in each round, and
//! the next round begins when the successor has published. Everything else is ended while events flow.

use super::pipeline::SinkPipeline;
use super::pipeline::{IN_FLIGHT_EVENTS, state};
use super::scenarios::{grown, row};
use super::server::SinkServer;
use crate::await_that::{SOON, await_or_dump, await_that};
use crate::load::{Load, Plan};
use crate::proxy::Proxy;
use crate::relay::Relay;
use std::time::Instant;

/// Events that are committed at least; every tenth transaction besides is rolled back.
const COMMITTED: usize = 100_000;

/// Events offered in a second, rolled back ones included.
const RATE: u32 = 1_250;

/// Committed between two faults, which is about a second.
const STEP: usize = 1_000;

/// Most repetitions after a change of the owner: what was published since the last cursor row (1 s, or 10,000 events),
/// and what was in flight.
const REPEATS_PER_OWNER: usize = 10_000 + IN_FLIGHT_EVENTS;

/// An owner and a stand-by, with the same configuration.
struct Pair {
    config: String,
    relays: [Option<Relay>; 2],
}

impl Pair {
    fn start(config: &str) -> Self {
        let relays = [(); 2].map(|()| Some(Relay::spawn(config)));
        Self { config: config.to_owned(), relays }
    }

    /// Events that each process has published since its start; 0 if it does not answer.
    async fn published(&self) -> [u64; 2] {
        let mut counts = [0; 2];
        for (count, relay) in counts.iter_mut().zip(&self.relays) {
            let Some(relay) = relay else { continue };
            let status = relay.status().await.unwrap_or_default();
            *count = status["pipelines"][0]["published_total"].as_u64().unwrap_or(0);
        }
        counts
    }

    /// Waits until one of them has published so many events more, and returns its place.
    async fn owner(&self, events: u64) -> usize {
        let before = self.published().await;
        let look = || async {
            let now = self.published().await;
            let owner = (0..2).find(|place| now[*place] >= before[*place] + events);
            owner.ok_or_else(|| format!("published {before:?}, then {now:?}"))
        };
        await_or_dump("an owner that publishes", SOON, look, || self.logs()).await
    }

    /// kill -9, and another process in its place.
    async fn replace(&mut self, place: usize) {
        if let Some(relay) = self.relays[place].take() {
            relay.kill().await;
        }
        self.relays[place] = Some(Relay::spawn(&self.config));
    }

    fn logs(&self) -> String {
        let logs = self.relays.iter().flatten().map(Relay::stderr);
        logs.collect::<Vec<_>>().join("\n--- the other one ---\n")
    }

    /// Waits until one of them streams, and the other one stands by.
    async fn settled(&self) {
        let look = || async {
            let mut states = Vec::new();
            for relay in self.relays.iter().flatten() {
                states.push(state(&relay.status().await?).to_owned());
            }
            states.sort();
            if states == ["standing_by", "streaming"] { Ok(()) } else { Err(states.join(", ")) }
        };
        await_or_dump("one to stream, one to stand by", SOON, look, || self.logs()).await;
    }
}

/// How often what was ended.
#[derive(Default)]
struct Faults {
    owners: usize,
    standbys: usize,
    streams: usize,
    sessions: usize,
    servers: usize,
    cuts: usize,
}

impl Faults {
    /// Most repetitions that they explain. Each of them that ends a session may change the owner.
    fn repeats_max<S: SinkServer>(&self) -> usize {
        let changes = self.owners + self.streams + self.sessions;
        changes * REPEATS_PER_OWNER + (self.servers + self.cuts) * S::REPEATS_PER_LOSS
    }
}

/// Ends a session of the pipeline: the stream (`true`), or those that read and write Postrider's tables.
async fn end_sessions<S: SinkServer>(pipeline: &SinkPipeline<S>, stream: bool) {
    let kind = if stream { "walsender" } else { "client backend" };
    let sql = format!(
        "select count(pg_terminate_backend(pid))::text from pg_stat_activity \
         where datname = current_database() and application_name like 'postrider%' and backend_type = '{kind}'"
    );
    await_that(&format!("a {kind} that is ended"), SOON, || async {
        let ended = pipeline.sql.text(&sql).await;
        if ended.as_deref().is_some_and(|count| count != "0") { Ok(()) } else { Err("none") }
    })
    .await;
}

/// One round of faults, each of them under load.
async fn round<S: SinkServer>(
    number: usize,
    (pipeline, pair): (&mut SinkPipeline<S>, &mut Pair),
    (load, proxy): (&Load, Option<&Proxy>),
    faults: &mut Faults,
) {
    let owner = pair.owner(STEP as u64).await;
    if let Some(proxy) = proxy {
        // In the middle of a command or of an answer, then a reset between two.
        proxy.halve();
        grown(load, STEP).await;
        proxy.cut();
        faults.cuts += 2;
    }
    grown(load, STEP).await;
    pair.replace(1 - owner).await;
    faults.standbys += 1;
    end_sessions(pipeline, false).await;
    faults.sessions += 1;
    grown(load, STEP).await;
    pipeline.server.kill().await;
    faults.servers += 1;
    grown(load, STEP).await;
    pipeline.server.restart().await;
    let owner = pair.owner(STEP as u64).await;
    if number.is_multiple_of(2) {
        pair.replace(owner).await;
        faults.owners += 1;
    } else {
        end_sessions(pipeline, true).await;
        faults.streams += 1;
    }
}

pub(super) async fn hundred_thousand_events_survive_kills<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("ledger").await;
    let proxy = pipeline.server.port().map(|port| Proxy::start(port, None));
    let config = match &proxy {
        Some(proxy) => pipeline.with_sink(&pipeline.server.sink(Some(proxy.port))),
        None => pipeline.config.clone(),
    };
    let started = Instant::now();
    let mut pair = Pair::start(&config);
    let load = Load::start(&Plan { rate: RATE, ..pipeline.plan() }, 1);
    let mut faults = Faults::default();
    let mut number = 0;
    while load.committed() < COMMITTED {
        let ended = (&mut pipeline, &mut pair);
        round(number, ended, (&load, proxy.as_ref()), &mut faults).await;
        number += 1;
    }
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    let bound = faults.repeats_max::<S>();
    found.assert_balanced(bound);
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    pair.settled().await;
    pipeline.insert("orders", "fresh", &[1]).await;
    pipeline.await_values("orders", "fresh", &["1"]).await;
    pipeline.resolved().await;
    let Faults { owners, standbys, streams, sessions, servers, cuts } = faults;
    let rolled_back = ledger.entries.len() - ledger.committed();
    let row_text = format!(
        "{rolled_back} events rolled back; kill -9 of {servers} servers, {owners} owners, {standbys} stand-bys; \
         ended: {streams} streams, {sessions} times the other sessions, {cuts} times the connections; in {:.0?}: \
         {found} (bound {bound})",
        started.elapsed()
    );
    row(&pipeline.server, "100,000 events", &row_text.replace('\n', ", ")).await;
    for relay in pair.relays.into_iter().flatten() {
        relay.terminate(SOON).await;
    }
}
