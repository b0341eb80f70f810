//! The worker: sends the records of the queue, and settles them by the server's answers.
//!
//! A connection that is lost takes all other connections with it: the records are kept, the nodes are found again, and
//! each chain asks for its progress before it sends.

use super::chain::{Claim, SlotChain};
use super::held::{HeldRecords, RecordPlace};
use super::link::{Answered, RedisCall, RedisLink};
use super::looks::Looks;
use super::problem::{RedisProblem, RedisStep, RedisVerdict};
use super::resp::Reply;
use super::script::{self, ScriptAnswer, StoreCall, WhyStopped};
use super::slots::{key_of_slot, slot_of};
use super::spec::{Mode, RedisSpec};
use crate::send_queue::SendQueue;
use postrider_core::backoff::Backoff;
use postrider_core::record::{Refusal, RefusalKind, Scope, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events of a call at most, and their bytes. The server does nothing else while it executes a call.
const CALL_RECORDS: usize = 256;
const CALL_BYTES: usize = 256 << 10;

/// Streams of a call at most.
const CALL_TOPICS: usize = 64;

/// Calls to a node that are not answered at most.
const CALLS_MAX: usize = 8;

/// The shortest and the longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The thread's state.
pub(super) struct RedisWorker {
    queue: Arc<SendQueue<()>>,
    spec: RedisSpec,
    /// The records belong to this generation of the sink.
    generation: u64,
    /// Nothing is sent until the reset.
    failed: bool,
    held: HeldRecords,
    /// By hash slot; only slot 0 without a cluster.
    chains: BTreeMap<u16, SlotChain>,
    /// `None` after a connection was lost.
    link: Option<RedisLink>,
    looks: Looks,
    pauses: Backoff,
    /// Nothing is sent, or no connection is made, before this time.
    not_before: Option<Instant>,
    /// A problem of the server is reported.
    down: bool,
}

impl RedisWorker {
    pub(super) fn new(queue: Arc<SendQueue<()>>, spec: RedisSpec) -> Self {
        Self {
            queue,
            spec,
            generation: 0,
            failed: false,
            held: HeldRecords::default(),
            chains: BTreeMap::new(),
            link: None,
            looks: Looks::default(),
            pauses: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            not_before: None,
            down: false,
        }
    }

    /// Works until the sink is closed.
    pub(super) async fn run(mut self) {
        loop {
            let life = self.queue.life();
            if life.closed {
                return;
            }
            let is_quiet = self.link.as_ref().is_none_or(|link| link.unanswered() == 0);
            if life.generation != self.generation && is_quiet {
                self.begin(life.generation);
            }
            let is_current = life.generation == self.generation;
            if is_current && !self.failed {
                self.take();
            }
            let may_act = self.not_before.is_none_or(|time| time <= Instant::now());
            if may_act {
                self.not_before = None;
                if self.link.is_none() {
                    self.connect().await;
                    continue;
                }
                if is_current && !self.failed {
                    self.look_up();
                    self.send();
                }
            }
            self.wait().await;
        }
    }

    /// The records of the generation before are given up. None of them is in flight.
    fn begin(&mut self, generation: u64) {
        let mut dropped = 0;
        for chain in self.chains.values_mut() {
            for place in chain.clear() {
                self.held.settle(place, |batch| self.queue.recycle(batch));
                dropped += 1;
            }
        }
        // Without records a chain of a cluster is worth nothing but its claim.
        self.chains.retain(|_, chain| chain.claim == Claim::Yes);
        self.queue.dropped(dropped);
        self.generation = generation;
        self.failed = false;
    }

    /// Takes what waits in the queue.
    fn take(&mut self) {
        let batch = self.queue.take(self.generation);
        if batch.is_empty() {
            return;
        }
        let spec = &self.spec;
        let slots: Vec<u16> = batch.iter().map(|record| slot(spec, record.topic)).collect();
        for (place, slot) in self.held.push(batch).zip(slots) {
            let chain = self.chains.entry(slot);
            let chain = chain.or_insert_with(|| SlotChain::new(state_key(spec, slot)));
            chain.push(place);
        }
    }

    /// Waits for an answer, for work, for the end of a pause, or for an answer that is late.
    async fn wait(&mut self) {
        let deadline = self.link.as_ref().and_then(RedisLink::deadline);
        let wake = [deadline, self.not_before].into_iter().flatten().min();
        let late = async {
            match wake {
                Some(time) => tokio::time::sleep_until(time.into()).await,
                None => std::future::pending().await,
            }
        };
        let Self { link, queue, .. } = self;
        let answered = async {
            match link {
                Some(link) => link.next().await,
                None => std::future::pending().await,
            }
        };
        let answered = tokio::select! {
            biased;
            answered = answered => answered,
            () = queue.worked() => return,
            () = late => match self.link.as_ref().and_then(RedisLink::late) {
                Some(problem) => Err(problem),
                None => return,
            },
        };
        match answered {
            Ok(answered) => self.settle(answered),
            Err(problem) => self.lose(&problem),
        }
    }

    /// Connects, and asks for everything again that is not known.
    async fn connect(&mut self) {
        let attempt = usize::try_from(self.pauses.attempts()).unwrap_or_default();
        let queue = Arc::clone(&self.queue);
        let opened = tokio::select! {
            biased;
            // Nothing is in flight, so the next generation begins at once.
            () = queue.ended(self.generation) => return,
            opened = Box::pin(RedisLink::open(&self.spec, attempt)) => opened,
        };
        match opened {
            Ok(link) => {
                self.link = Some(link);
                if self.chains.values().all(|chain| chain.len() == 0) {
                    self.works();
                }
            }
            Err(problem) => self.report(&problem),
        }
    }

    /// The connections are given up.
    fn lose(&mut self, problem: &RedisProblem) {
        self.link = None;
        self.looks.disconnected();
        self.chains.values_mut().for_each(SlotChain::disconnected);
        self.report(problem);
    }

    /// Reports a problem of the server, and pauses.
    fn report(&mut self, problem: &RedisProblem) {
        self.down = true;
        self.queue.down(problem.reason.clone(), problem.hint.clone());
        self.pause();
    }

    fn pause(&mut self) {
        self.not_before = Some(Instant::now() + self.pauses.next(fastrand::f64()));
    }

    /// The server works.
    fn works(&mut self) {
        self.pauses.reset();
        if std::mem::take(&mut self.down) {
            self.queue.up();
        }
    }

    /// The pipeline has to start again from its cursor. What was in flight does not matter any more.
    fn broken(&mut self, slot: u16, reason: String) {
        if let Some(chain) = self.chains.get_mut(&slot) {
            chain.forget();
        }
        if self.failed {
            // The answers to the calls behind it.
            return;
        }
        self.fail();
        self.queue.broken(self.generation, reason);
        // Whoever else has taken the progress over would be fenced at once.
        self.pause();
    }

    /// Nothing of this generation is sent any more.
    fn fail(&mut self) {
        self.failed = true;
    }

    /// Asks for streams that are to be looked up.
    fn look_up(&mut self) {
        let Self { looks, link, queue, spec, .. } = self;
        while let Some(topic) = queue.next_wanted() {
            looks.want(topic);
        }
        let Some(link) = link else { return };
        if let Some(slot) = looks.send(link, spec, |topic| slot(spec, topic)) {
            self.lose(&unassigned(slot));
        }
    }

    /// Sends what can be sent.
    fn send(&mut self) {
        let slots: Vec<u16> = self.chains.keys().copied().collect();
        for slot in slots {
            let has_some = |chain: &SlotChain| chain.has_unsent() || chain.has_stored();
            if self.link.as_ref().is_some_and(|link| !link.has(slot))
                && self.chains.get(&slot).is_some_and(has_some)
            {
                return self.lose(&unassigned(slot));
            }
            while self.send_of(slot) {}
        }
    }

    /// Sends the next call of a chain. Returns whether there may be another one.
    fn send_of(&mut self, slot: u16) -> bool {
        let Self { chains, link, held, spec, .. } = self;
        let (Some(chain), Some(link)) = (chains.get_mut(&slot), link) else { return false };
        let is_full = link.unanswered_of(slot) >= CALLS_MAX;
        if is_full || chain.failing || !(chain.has_unsent() || chain.has_stored()) {
            return false;
        }
        let Some(mut calls) = link.line(slot, spec.timeout) else { return false };
        match chain.claim {
            Claim::Sent => return false,
            Claim::No => {
                let token = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
                let own = chain.next_token(token);
                script::take_over(
                    calls.out,
                    calls.take_over,
                    &chain.state_key,
                    chain.token(),
                    &own,
                );
                chain.calls += 1;
                calls.sent(RedisCall::TakeOver { slot }, Duration::ZERO);
                return false;
            }
            Claim::Yes => {}
        }
        let Some(sent) = encode(chain, held, spec, calls.out, calls.store) else { return false };
        chain.sent(sent);
        calls.sent(RedisCall::Store { slot }, Duration::ZERO);
        if spec.storing.replicas > 0 {
            let (first, _) = chain.unsent();
            ask_replicas(chain, spec, &mut calls, slot, first.saturating_sub(1));
        }
        true
    }

    /// An answer has come.
    fn settle(&mut self, answered: Answered) {
        let Answered { call, reply, place } = answered;
        match call {
            RedisCall::MayAdd { topic } => self.may_add(topic, &place, reply),
            RedisCall::Exists { topic } => self.exists(&topic, &place, reply),
            RedisCall::TakeOver { slot } => self.taken_over(slot, &place, ScriptAnswer::of(reply)),
            RedisCall::Store { slot } => self.answered(slot, &place, ScriptAnswer::of(reply)),
            RedisCall::Replicas { slot, upto } => self.replicated(slot, upto, &place, reply),
        }
    }

    fn may_add(&mut self, topic: String, place: &str, reply: Reply) {
        // XADD of an entry that can't be: after the rights and the state of the server were checked.
        if let Err(error) = reply.checked() {
            let problem = RedisProblem::server(RedisStep::LookUp, place, &error, &self.spec);
            match (problem.verdict, error.code()) {
                (RedisVerdict::Rights, _) => {
                    return self.looks.refused(&self.queue, topic, &problem);
                }
                // The ID is refused, or the next event shows the problem.
                (_, "ERR") | (RedisVerdict::Wait | RedisVerdict::Destination, _) => {}
                (RedisVerdict::Reconnect, _) => return self.lose(&problem),
            }
        }
        self.looks.may_add(&topic);
    }

    fn exists(&mut self, topic: &str, place: &str, reply: Reply) {
        let problem = match reply.checked() {
            Ok(kind) => {
                let kind = kind.text().unwrap_or_default();
                return self.looks.found(&self.queue, topic, &kind, &self.spec);
            }
            Err(error) => RedisProblem::server(RedisStep::LookUp, place, &error, &self.spec),
        };
        match problem.verdict {
            RedisVerdict::Rights | RedisVerdict::Destination => {
                self.looks.refused(&self.queue, topic.to_owned(), &problem);
                self.looks.found(&self.queue, topic, "", &self.spec);
            }
            RedisVerdict::Wait | RedisVerdict::Reconnect => self.lose(&problem),
        }
    }

    fn taken_over(&mut self, slot: u16, place: &str, answer: ScriptAnswer) {
        let Some(chain) = self.chains.get_mut(&slot) else { return };
        chain.calls = chain.calls.saturating_sub(1);
        match answer {
            ScriptAnswer::Stored(number) => {
                let lost = chain.last_acked().checked_sub(number).filter(|lost| *lost > 0);
                if let Some(lost) = lost {
                    return self.broken(slot, lost_acknowledged(place, Some(lost)));
                }
                if chain.stored(number).is_err() {
                    return self.broken(slot, fenced(&self.spec));
                }
                chain.claimed();
                if self.spec.storing.replicas == 0 {
                    self.ack(slot, number);
                } else {
                    self.ask_replicas_again(slot);
                }
            }
            ScriptAnswer::Fenced | ScriptAnswer::Stopped { .. } => {
                self.broken(slot, fenced(&self.spec));
            }
            ScriptAnswer::Gone => self.broken(slot, lost_acknowledged(place, None)),
            ScriptAnswer::Foreign => {
                let key = &chain.state_key;
                let reason = format!("{place}: key {key:?} has other content than progress");
                let hint = "rename or delete the key, or set another sink.redis.state_key";
                self.lose(&RedisProblem::lost(reason, hint));
            }
            ScriptAnswer::Refused(error) => {
                self.lose(&RedisProblem::server(RedisStep::TakeOver, place, &error, &self.spec));
            }
            ScriptAnswer::Unknown => self.lose(&unknown(place)),
        }
    }

    /// What the script that stores has answered.
    fn answered(&mut self, slot: u16, place: &str, answer: ScriptAnswer) {
        let Some(chain) = self.chains.get_mut(&slot) else { return };
        chain.calls = chain.calls.saturating_sub(1);
        match answer {
            ScriptAnswer::Stored(number) => {
                if chain.stored(number).is_err() {
                    return self.lose(&unknown(place));
                }
                if self.spec.storing.replicas == 0 {
                    self.ack(slot, number);
                    self.works();
                }
            }
            ScriptAnswer::Stopped { stored, why } => {
                if chain.stored(stored).is_err() {
                    return self.lose(&unknown(place));
                }
                if self.spec.storing.replicas == 0 {
                    self.ack(slot, stored);
                }
                self.stopped(slot, place, why);
            }
            ScriptAnswer::Fenced => self.broken(slot, fenced(&self.spec)),
            ScriptAnswer::Gone => self.broken(slot, lost_acknowledged(place, None)),
            ScriptAnswer::Foreign | ScriptAnswer::Unknown => self.lose(&unknown(place)),
            ScriptAnswer::Refused(error) => {
                let problem = RedisProblem::server(RedisStep::Store, place, &error, &self.spec);
                self.refused(slot, problem);
            }
        }
        self.rewind(slot);
    }

    /// The first record that is not stored could not be stored.
    fn stopped(&mut self, slot: u16, place: &str, why: WhyStopped) {
        let problem = match why {
            // A call before it has failed, and is answered before.
            WhyStopped::Gap => {
                return if let Some(chain) = self.chains.get_mut(&slot) {
                    chain.failing = true;
                };
            }
            WhyStopped::Missing => RedisProblem {
                verdict: RedisVerdict::Destination,
                reason: format!("{place}: the stream does not exist any more"),
                hint: Some("create it again; the sink continues automatically".to_owned()),
            },
            WhyStopped::Error(error) => {
                RedisProblem::server(RedisStep::Add, place, &error, &self.spec)
            }
        };
        self.refused(slot, problem);
    }

    /// A call was refused, or the first record that is not stored.
    fn refused(&mut self, slot: u16, problem: RedisProblem) {
        let Some(chain) = self.chains.get_mut(&slot) else { return };
        let is_first = !std::mem::replace(&mut chain.failing, true);
        match problem.verdict {
            RedisVerdict::Reconnect => self.lose(&problem),
            // The answers to the calls behind it.
            _ if !is_first => {}
            RedisVerdict::Wait => self.report(&problem),
            // One of several streams, or the only one: the progress was taken over with the same rights.
            RedisVerdict::Rights if !chain.careful => {
                // The take-over finds out whether the progress may still be used.
                (chain.careful, chain.claim) = (true, Claim::No);
            }
            RedisVerdict::Rights | RedisVerdict::Destination => self.reject(slot, problem),
        }
    }

    /// The stream of the first record that is not stored accepts no events.
    fn reject(&mut self, slot: u16, problem: RedisProblem) {
        let Some(chain) = self.chains.get_mut(&slot) else { return };
        let Some(place) = chain.refuse() else { return };
        let Some(record) = self.held.get(place) else { return };
        let (topic, ticket, is_retry) = (record.topic.to_owned(), record.ticket, record.is_retry);
        self.held.settle(place, |batch| self.queue.recycle(batch));
        self.looks.rejected(&self.queue, &topic, problem.reason, problem.hint);
        let refusal = Refusal { kind: RefusalKind::Other, native: None, of_batch: false };
        if is_retry {
            // The records behind it are sent again: no reset follows.
            self.queue.retry_rejected(ticket, Scope::Destination, refusal);
        } else {
            self.fail();
            self.queue.rejected(self.generation, ticket, Scope::Destination, refusal);
        }
    }

    /// After a failure, and once nothing is in flight: what was not stored is sent again.
    fn rewind(&mut self, slot: u16) {
        if let Some(chain) = self.chains.get_mut(&slot)
            && chain.failing
            && chain.calls == 0
        {
            chain.rewind();
        }
    }

    /// The records up to this number are published.
    fn ack(&mut self, slot: u16, number: u64) {
        let Self { chains, held, queue, looks, .. } = self;
        let Some(chain) = chains.get_mut(&slot) else { return };
        let places: Vec<RecordPlace> = chain.ack(number).collect();
        if looks.has_rejected() {
            let records = places.iter().filter_map(|place| held.get(*place));
            records.for_each(|record| looks.accepted(record.topic));
        }
        let tickets: Vec<Ticket> =
            places.iter().filter_map(|place| Some(held.get(*place)?.ticket)).collect();
        queue.acked(&tickets);
        for place in places {
            held.settle(place, |batch| queue.recycle(batch));
        }
    }

    /// Asks again whether the replicas have what is stored.
    fn ask_replicas_again(&mut self, slot: u16) {
        let Self { chains, link, spec, .. } = self;
        let (Some(chain), Some(link)) = (chains.get_mut(&slot), link) else { return };
        let Some(mut calls) = link.line(slot, spec.timeout) else { return };
        let upto = chain.last_stored();
        ask_replicas(chain, spec, &mut calls, slot, upto);
    }

    /// So many replicas have what was stored before the question.
    fn replicated(&mut self, slot: u16, upto: u64, place: &str, reply: Reply) {
        let Some(chain) = self.chains.get_mut(&slot) else { return };
        chain.calls = chain.calls.saturating_sub(1);
        let (wanted, timeout) = (self.spec.storing.replicas, self.spec.storing.replica_timeout);
        match reply.checked().map(|reply| reply.integer()) {
            Ok(Some(found)) if found >= i64::from(wanted) => {
                let upto = upto.min(chain.last_stored());
                self.ack(slot, upto);
                self.works();
            }
            Ok(found) => {
                let found = found.unwrap_or_default();
                let problem = RedisProblem::replicas(place, (found, wanted), timeout);
                self.down = true;
                self.queue.down(problem.reason, problem.hint);
                // After a reset the events are sent again.
                if self.queue.life().generation == self.generation && !self.failed {
                    self.ask_replicas_again(slot);
                }
            }
            Err(error) => {
                self.lose(&RedisProblem::server(RedisStep::Store, place, &error, &self.spec));
            }
        }
        self.rewind(slot);
    }
}

/// Encodes the next call of a chain. Returns the number of its records; `None` without one.
fn encode(
    chain: &SlotChain,
    held: &HeldRecords,
    spec: &RedisSpec,
    out: &mut Vec<u8>,
    sha: &str,
) -> Option<usize> {
    let (first, places) = chain.unsent();
    let topics_max = if chain.careful { 1 } else { CALL_TOPICS };
    let mut topics: Vec<&str> = Vec::new();
    let mut records = Vec::with_capacity(CALL_RECORDS.min(chain.len()));
    let mut bytes = 0;
    for place in places.take(CALL_RECORDS) {
        let record = held.get(place)?;
        let known = topics.iter().rposition(|topic| *topic == record.topic);
        if known.is_none() && topics.len() == topics_max {
            break;
        }
        let topic = known.unwrap_or_else(|| {
            topics.push(record.topic);
            topics.len() - 1
        });
        records.push((record, topic));
        bytes += record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        bytes += record.headers.map(|header| header.size_bytes()).sum::<usize>();
        if bytes >= CALL_BYTES {
            break;
        }
    }
    if records.is_empty() {
        return None;
    }
    let call = StoreCall {
        sha,
        state_key: &chain.state_key,
        token: chain.token(),
        first,
        storing: &spec.storing,
        topics: &topics,
    };
    call.encode(out, records.iter().copied());
    Some(records.len())
}

/// Asks how many replicas have what was stored before.
fn ask_replicas(
    chain: &mut SlotChain,
    spec: &RedisSpec,
    line: &mut super::link::CallLine<'_>,
    slot: u16,
    upto: u64,
) {
    let timeout = spec.storing.replica_timeout;
    let (replicas, millis) = (spec.storing.replicas.to_string(), timeout.as_millis().to_string());
    super::resp::command(line.out, &[b"WAIT", replicas.as_bytes(), millis.as_bytes()]);
    chain.calls += 1;
    line.sent(RedisCall::Replicas { slot, upto }, timeout);
}

/// The slot of a stream.
pub(super) fn slot(spec: &RedisSpec, topic: &str) -> u16 {
    match spec.mode {
        Mode::Single | Mode::Sentinel => 0,
        Mode::Cluster => slot_of(topic.as_bytes()),
    }
}

/// The key with the progress of a slot.
pub(super) fn state_key(spec: &RedisSpec, slot: u16) -> String {
    match spec.mode {
        Mode::Single | Mode::Sentinel => spec.state_key.clone(),
        Mode::Cluster => key_of_slot(&spec.state_key, slot),
    }
}

pub(super) fn fenced(spec: &RedisSpec) -> String {
    format!(
        "the progress key {:?} is not this process's any more: another process publishes the pipeline, two pipelines \
         have the same sink.redis.state_key, or the server failed over or was restored to an earlier state",
        spec.state_key
    )
}

fn unassigned(slot: u16) -> RedisProblem {
    RedisProblem::lost(
        format!("no node of the cluster has slot {slot}"),
        "wait until the cluster is complete (redis-cli CLUSTER INFO); the sink asks again automatically",
    )
}

pub(super) fn lost_acknowledged(place: &str, events: Option<u64>) -> String {
    match events {
        Some(events) => format!(
            "{place} has lost {events} events that it had acknowledged: a replica without them has become the primary, \
             or older data was restored"
        ),
        None => format!(
            "{place} has lost the pipeline's progress, and so perhaps events: its data was deleted, or a replica \
             without it has become the primary"
        ),
    }
}

pub(super) fn unknown(place: &str) -> RedisProblem {
    RedisProblem::lost(
        format!("{place} has given an answer that the sink does not know"),
        "let sink.redis.servers name Redis 6.2 or newer, or Valkey",
    )
}
