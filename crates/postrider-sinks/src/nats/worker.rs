//! The worker: sends the records in their order, and finds out what became of each.
//!
//! With a chain each message names the sequence before it, and the identifier of the message before it while that one
//! is in flight. The sequence alone would not do: a message of another program takes the place of ours, so ours is
//! refused and the next one, for which the sequence is right again, would be stored.
//!
//! With a chain of each subject a message names the last one of its subject, whose sequence is known only from its
//! acknowledgement. So one of a subject is in flight, and after a failure the last message of each subject that had one
//! is looked at.
//!
//! After a failure nothing is sent until every message in flight is answered, or the connection is given up. Then the
//! stream is asked what it has: a message in flight can only be stored behind the sequence that it named.

use super::api::{ApiError, ErrCode, PubAck};
use super::ends::SubjectEnds;
use super::line::{ChainedMessage, Fate, Left, RefusedMessage, SendLine};
use super::link::{NatsLink, NatsLinkState, WINDOW};
use super::message::{self, ChainPlace, MSG_ID};
use super::problem::{NatsProblem, NatsVerdict};
use super::rules::StreamShared;
use super::spec::{ChainMode, NatsSpec};
use super::subject::{encode, encoded};
use crate::fence::Fence;
use crate::life::Life;
use crate::record_batch::{QueuedRecord, RecordBatch};
use crate::send_queue::SendQueue;
use async_nats::client::PublishErrorKind;
use async_nats::{Message, Subject};
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use postrider_core::backoff::Backoff;
use postrider_core::record::{Refusal, RefusalKind, Scope, Ticket};
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The worker runs at least so often, for the fence.
const RUNS_EACH: Duration = Duration::from_secs(1);

/// Refused chains in a row without an acknowledged record, before another writer is reported.
const CHAINS_MAX: u32 = 3;

/// Destinations and patterns that the worker remembers.
const NAMES_MAX: usize = 1_000;

/// Subjects that are looked at together.
const LOOKS_AT_ONCE: usize = 32;

/// Memory that messages share.
const ARENA_BYTES: usize = 64 << 10;

/// The worker.
pub(super) struct NatsWorker {
    queue: Arc<SendQueue<()>>,
    spec: Arc<NatsSpec>,
    shared: Arc<StreamShared>,
    line: SendLine,
    /// The generation whose records the line has.
    generation: u64,
    backoff: Backoff,
    /// A problem of the server was reported.
    down: bool,
    /// Where the server has the last acknowledged record, if the record was stored by an earlier process.
    repeated: Option<u64>,
    /// Refused chains since the last acknowledged record.
    chains: u32,
    /// The end of the stream, behind what is in flight.
    end: StreamEnd,
    names: Names,
    fence: Fence,
}

/// Where the next message is stored.
#[derive(Debug, Default)]
struct StreamEnd {
    last_seq: u64,
    /// The highest sequence that was acknowledged.
    acked_seq: u64,
    /// The ends of the subjects, if each of them is a chain.
    subjects: SubjectEnds,
    /// The identifier of the message in flight before.
    previous: String,
    /// The identifier of the next one.
    id: String,
    arena: BytesMut,
}

/// Destinations whose problem was reported, and patterns that the stream had.
#[derive(Debug, Default)]
struct Names {
    /// Whether it was never available.
    closed: HashMap<String, bool>,
    patterns: Vec<String>,
}

impl NatsWorker {
    pub(super) fn new(
        queue: Arc<SendQueue<()>>,
        spec: Arc<NatsSpec>,
        shared: Arc<StreamShared>,
    ) -> Self {
        let generation = queue.life().generation;
        Self {
            queue,
            spec,
            shared,
            line: SendLine::default(),
            generation,
            backoff: Backoff::new(BACKOFF_MIN, BACKOFF_MAX),
            down: false,
            repeated: None,
            chains: 0,
            end: StreamEnd::default(),
            names: Names::default(),
            fence: Fence::new(),
        }
    }

    /// Runs until the sink is closed.
    pub(super) async fn run(mut self) {
        let mut server = 0;
        loop {
            let Some(address) = self.spec.servers.get(server % self.spec.servers.len().max(1))
            else {
                return;
            };
            let address = address.clone();
            match self.connected(&address).await {
                Err(Left::Closed) => return,
                Err(Left::Failed(problem)) => {
                    server += 1;
                    if self.pause(problem).await.is_err() {
                        return;
                    }
                }
                Ok(never) => match never {},
            }
        }
    }

    /// Reports a problem, and waits before the next attempt.
    async fn pause(&mut self, problem: NatsProblem) -> Result<(), Left> {
        self.down = true;
        self.queue.down(problem.reason, problem.hint);
        let until = Instant::now() + self.backoff.next(fastrand::f64());
        loop {
            let life = self.queue.life();
            if life.closed {
                return Err(Left::Closed);
            }
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => return Ok(()),
                () = self.queue.ended(life.generation) => {}
            }
        }
    }

    /// Waits for an answer while the sink is open.
    async fn while_open<T>(&self, asked: impl Future<Output = T>) -> Result<T, Left> {
        let queue = Arc::clone(&self.queue);
        let closed = async move {
            loop {
                let life = queue.life();
                if life.closed {
                    return;
                }
                queue.ended(life.generation).await;
            }
        };
        tokio::select! {
            biased;
            () = closed => Err(Left::Closed),
            answer = asked => Ok(answer),
        }
    }

    /// The life of one connection.
    async fn connected(
        &mut self,
        server: &async_nats::ServerAddr,
    ) -> Result<std::convert::Infallible, Left> {
        let spec = Arc::clone(&self.spec);
        let mut link = self.while_open(NatsLink::open(&spec, server)).await??;
        self.end.subjects.forget();
        self.resume(&link).await?;
        loop {
            self.follow(&link).await?;
            self.settle();
            if let Some(refused) = self.line.refused() {
                if self.line.is_answered() {
                    self.refused(&link, &refused).await?;
                    continue;
                }
            } else {
                self.send(&link).await?;
            }
            self.look_up(&link).await?;
            self.wait(&mut link).await?;
        }
    }

    /// Another generation: the records of the one before are given up once they are answered.
    async fn follow(&mut self, link: &NatsLink) -> Result<(), Left> {
        let life = self.queue.life();
        if life.closed {
            return Err(Left::Closed);
        }
        self.notice_stall();
        if life.generation != self.generation && self.line.is_answered() {
            self.resume(link).await?;
            self.queue.dropped(self.line.clear());
            self.generation = life.generation;
        }
        Ok(())
    }

    /// Whether the line has records of the present generation.
    fn is_present(&self) -> bool {
        self.queue.life() == Life { generation: self.generation, closed: false }
    }

    /// After a stop of the process another one may have published what waits here, and later events. The chain refuses
    /// only what was sent before the stop, so the rest is given up.
    fn notice_stall(&mut self) {
        let Some(stall) = self.fence.runs() else { return };
        let reason = format!(
            "the process was stopped for {} s: another process may have published since",
            stall.as_secs()
        );
        if self.is_present() {
            self.queue.broken(self.generation, reason);
        }
        self.queue.dropped(self.line.clear());
    }

    /// Sends what waits, as much as may be in flight.
    async fn send(&mut self, link: &NatsLink) -> Result<(), Left> {
        let spec = Arc::clone(&self.spec);
        if !self.is_present() {
            return Ok(());
        }
        if self.line.in_flight() < WINDOW {
            self.line.push(self.queue.take(self.generation));
        }
        let now = Instant::now();
        let chained = message::is_chained(spec.chain);
        while self.line.in_flight() < WINDOW {
            let number = self.line.number();
            let Some(record) = self.line.next() else { break };
            if !self.line.may_send(spec.chain, &record) {
                break;
            }
            let is_done = self.line.next_is_done();
            let after = if spec.chain == ChainMode::Subject && !is_done {
                let order = message::order(&record, spec.chain);
                let Some(after) = self.end.subjects.get(order) else {
                    let subject = encoded(record.topic);
                    let look = link.last_of_subject(&spec, &subject, MSG_ID);
                    let (sequence, _) = self.while_open(look).await??;
                    self.end.subjects.set(order, sequence);
                    // The answer may be from after a stop of the process, and have what another one has published.
                    self.notice_stall();
                    if self.is_present() {
                        continue;
                    }
                    break;
                };
                after
            } else {
                self.end.last_seq
            };
            if !is_done {
                let StreamEnd { previous, id, arena, .. } = &mut self.end;
                message::write_id(&spec.id_prefix, &record, id);
                let follows = chained && self.line.in_flight() > 0;
                let place = ChainPlace {
                    stream: &spec.stream,
                    last_sequence: chained.then_some(after),
                    last_of_subject: (spec.chain == ChainMode::Subject).then_some(after),
                    previous: follows.then_some(previous.as_str()),
                };
                let headers = message::headers(&record, id, &place);
                let (subject, reply, payload) = parts(arena, &record, &link.inbox, number);
                let sent =
                    link.client.publish_with_reply_and_headers(subject, reply, headers, payload);
                match sent.await {
                    Ok(()) => {}
                    // This server takes less than the one that the record was admitted for.
                    Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                        self.line.sent(spec.chain, after, now);
                        self.line.answered(number, Fate::Refused(ApiError::too_large()));
                        break;
                    }
                    Err(error) => return Err(lost(link, &error.to_string())),
                }
                std::mem::swap(previous, id);
                self.end.last_seq += 1;
            }
            self.line.sent(spec.chain, after, now);
        }
        Ok(())
    }

    /// Waits for an answer, for work, or for the end of something.
    async fn wait(&mut self, link: &mut NatsLink) -> Result<(), Left> {
        check(link, &link.state.borrow().clone(), self.line.in_flight())?;
        let deadline = self.line.waits_since().map(|since| since + self.spec.ack_timeout);
        let late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let life = self.queue.life();
        tokio::select! {
            biased;
            answer = link.answers.next() => {
                let Some(answer) = answer else { return Err(lost(link, "the connection is lost")) };
                self.answer(link, &answer);
                while let Some(Some(answer)) = link.answers.next().now_or_never() {
                    self.answer(link, &answer);
                }
            }
            // The sender lives in the client's task.
            _changed = link.state.changed() => {}
            () = late => {
                let limit = self.spec.ack_timeout;
                return Err(lost(link, &format!("no acknowledgement within {limit:?}")));
            }
            () = self.queue.ended(life.generation) => {}
            () = self.queue.worked() => {}
            // For the fence.
            () = tokio::time::sleep(RUNS_EACH) => {}
            () = self.shared.doubted.notified() => self.read_stream(link).await?,
        }
        Ok(())
    }

    /// The answer to a message.
    fn answer(&mut self, link: &NatsLink, answer: &Message) {
        let token = answer.subject.strip_prefix(link.inbox.as_str());
        let number = token.and_then(|token| token.strip_prefix('.')?.parse().ok());
        let Some(number) = number else { return };
        let fate = if answer.status.is_some() {
            let description = "no stream takes the subject".to_owned();
            let code = ErrCode::NO_RESPONDERS;
            Fate::Refused(ApiError { code, err_code: code, description })
        } else {
            match serde_json::from_slice::<PubAck>(&answer.payload) {
                Ok(PubAck { error: Some(error), .. }) => Fate::Refused(error),
                Ok(ack) if ack.seq > 0 && ack.stream == self.spec.stream => {
                    self.repeated = ack.duplicate.then_some(ack.seq);
                    self.end.acked_seq = self.end.acked_seq.max(ack.seq);
                    // A repetition was stored earlier, and perhaps others behind it.
                    if let Some(order) = self.line.order_of(number).filter(|_| !ack.duplicate) {
                        self.end.subjects.set(order, ack.seq);
                    }
                    Fate::Stored
                }
                // What it means is not known: the message is unanswered until its time is up.
                Ok(_) | Err(_) => return,
            }
        };
        self.line.answered(number, fate);
    }

    /// Reports what is acknowledged.
    fn settle(&mut self) {
        let (mut tickets, mut empty): (Vec<Ticket>, Vec<RecordBatch>) = (Vec::new(), Vec::new());
        self.line.settle(self.spec.chain, &mut tickets, &mut empty);
        for batch in empty {
            self.queue.recycle(batch);
        }
        if tickets.is_empty() {
            if self.line.is_empty() {
                self.is_well();
            }
            return;
        }
        self.queue.acked(&tickets);
        self.chains = 0;
        self.is_well();
    }

    /// The server accepts records.
    fn is_well(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.down) {
            self.queue.up();
        }
    }

    /// Reads the stream again.
    async fn read_stream(&mut self, link: &NatsLink) -> Result<(), Left> {
        let facts = self.while_open(link.facts(&self.spec)).await??;
        for pattern in &facts.subjects {
            if self.names.patterns.len() < NAMES_MAX && !self.names.patterns.contains(pattern) {
                self.names.patterns.push(pattern.clone());
            }
        }
        if self.line.in_flight() == 0 {
            self.end.last_seq = facts.last_seq;
        }
        let lost = self.end.acked_seq.saturating_sub(facts.last_seq);
        if lost > 0 {
            self.end.acked_seq = facts.last_seq;
            let stream = &self.spec.stream;
            let reason = format!(
                "stream {stream} ends {lost} messages before the last one that it had acknowledged: it was made again, \
                 restored, or its server lost them"
            );
            self.queue.broken(self.generation, reason);
        }
        self.shared.set(facts);
        Ok(())
    }

    /// With a new connection, or after a refused chain: what is stored is reported, and the rest is sent again, behind
    /// the end that the stream had when it was asked.
    async fn resume(&mut self, link: &NatsLink) -> Result<(), Left> {
        self.read_stream(link).await?;
        let last_seq = self.shared.get().map_or(0, |facts| facts.last_seq);
        self.read_back(link, last_seq).await?;
        self.settle();
        self.read_repeated(link, last_seq).await?;
        self.line.rewind();
        self.end.last_seq = last_seq;
        Ok(())
    }

    /// An earlier process has stored the last acknowledged record, and perhaps those behind it: the server checks the
    /// chain before it looks for a repetition, so it would acknowledge one in each window. Each identifier is compared,
    /// because parked events may be missing there.
    async fn read_repeated(&mut self, link: &NatsLink, last_seq: u64) -> Result<(), Left> {
        let seq = self.repeated.take().filter(|_| self.spec.chain != ChainMode::Subject);
        let Some(seq) = seq else { return Ok(()) };
        let id_of = |(_, record): (&ChainedMessage, QueuedRecord<'_>)| {
            let mut id = String::new();
            message::write_id(&self.spec.id_prefix, &record, &mut id);
            id
        };
        let ids: Vec<String> = self.line.flight().into_iter().map(id_of).collect();
        let mut stored = 0;
        for (id, sequence) in ids.iter().zip(seq + 1..=last_seq) {
            let found = self.while_open(link.header_at(&self.spec, sequence, MSG_ID)).await??;
            if found.as_ref() != Some(id) {
                break;
            }
            (stored, self.repeated) = (stored + 1, Some(sequence));
        }
        self.line.found(stored);
        self.settle();
        Ok(())
    }

    /// Finds out which of the first messages in flight are stored. With a chain they are stored from the front, each
    /// behind the sequence that it named, so the last one is found by bisection. A message that a consumer has removed
    /// is not found, and is sent again: the server knows its identifier.
    async fn read_back(&mut self, link: &NatsLink, last_seq: u64) -> Result<(), Left> {
        match self.spec.chain {
            ChainMode::Stream => {}
            ChainMode::Subject => return self.read_subjects(link).await,
            ChainMode::None => return Ok(()),
        }
        let placed = |(sent, record): (&ChainedMessage, QueuedRecord<'_>)| {
            let mut id = String::new();
            message::write_id(&self.spec.id_prefix, &record, &mut id);
            (sent.after + 1, id)
        };
        let flight: Vec<(u64, String)> = self.line.flight().into_iter().map(placed).collect();
        let (mut stored, mut unknown) =
            (0, flight.partition_point(|(sequence, _)| *sequence <= last_seq));
        while stored < unknown {
            let middle = usize::midpoint(stored, unknown);
            let Some((sequence, id)) = flight.get(middle) else { break };
            let found = self.while_open(link.header_at(&self.spec, *sequence, MSG_ID)).await??;
            if found.as_ref() == Some(id) {
                stored = middle + 1;
            } else {
                unknown = middle;
            }
        }
        self.line.found(stored);
        Ok(())
    }

    /// Looks at the last message of each subject that has one in doubt: it is that message, or it was not stored.
    async fn read_subjects(&mut self, link: &NatsLink) -> Result<(), Left> {
        let spec = Arc::clone(&self.spec);
        let looks = self.line.in_doubt().into_iter().map(|(number, order, record)| {
            let (subject, mut id) = (encoded(record.topic), String::new());
            message::write_id(&spec.id_prefix, &record, &mut id);
            let spec = &spec;
            async move {
                let (sequence, found) = link.last_of_subject(spec, &subject, MSG_ID).await?;
                Ok::<_, NatsProblem>((number, order, sequence, found == Some(id)))
            }
        });
        let looks: Vec<_> = looks.collect();
        let looked = futures_util::stream::iter(looks).buffered(LOOKS_AT_ONCE).try_collect();
        let looked: Vec<(u64, u64, u64, bool)> = self.while_open(looked).await??;
        for (number, order, sequence, is_stored) in looked {
            self.end.subjects.set(order, sequence);
            if is_stored {
                self.line.found_at(number);
            }
        }
        Ok(())
    }

    /// A message was refused, and all in flight are answered.
    async fn refused(&mut self, link: &NatsLink, refused: &RefusedMessage) -> Result<(), Left> {
        let RefusedMessage { topic, error, .. } = refused;
        match NatsVerdict::of(error) {
            NatsVerdict::TooLarge => {
                // The limit was lowered since it was read.
                self.read_stream(link).await?;
                let refusal = Refusal {
                    kind: RefusalKind::TooLarge(None),
                    native: Some(error.err_code),
                    of_batch: false,
                };
                self.give_up(link, refused, Scope::Event, refusal).await?;
            }
            NatsVerdict::Subject => {
                self.read_stream(link).await?;
                let takes = self.shared.get().is_some_and(|facts| facts.takes(&encoded(topic)));
                if takes {
                    let what = format!("stream {} accepts no messages", self.spec.stream);
                    let problem = NatsProblem::answer(&what, error, &self.spec);
                    self.pause(problem).await?;
                    return self.resume(link).await;
                }
                self.close(topic, false);
                let refusal = Refusal {
                    kind: RefusalKind::Other,
                    native: Some(error.err_code),
                    of_batch: false,
                };
                self.give_up(link, refused, Scope::Destination, refusal).await?;
            }
            NatsVerdict::Chain => {
                self.chains += 1;
                if self.chains > CHAINS_MAX {
                    self.pause(other_writer(&self.spec)).await?;
                }
                self.resume(link).await?;
            }
            NatsVerdict::Wait => {
                let what = format!("stream {} accepts no messages", self.spec.stream);
                let problem = NatsProblem::answer(&what, error, &self.spec);
                self.pause(problem).await?;
                self.resume(link).await?;
            }
        }
        Ok(())
    }

    /// A record is refused: the pipeline starts again from its cursor, and all others are given up. Of a parked event
    /// that is retried it only hears: the others are sent again.
    async fn give_up(
        &mut self,
        link: &NatsLink,
        refused: &RefusedMessage,
        scope: Scope,
        refusal: Refusal,
    ) -> Result<(), Left> {
        if !self.is_present() {
            self.queue.dropped(self.line.clear());
        } else if refused.is_retry {
            self.line.leave_out();
            self.queue.retry_rejected(refused.ticket, scope, refusal);
            self.resume(link).await?;
        } else {
            self.queue.rejected(self.generation, refused.ticket, scope, refusal);
            self.queue.dropped(self.line.clear().saturating_sub(1));
        }
        Ok(())
    }

    /// Answers which destinations accept records.
    async fn look_up(&mut self, link: &NatsLink) -> Result<(), Left> {
        let Some(first) = self.queue.next_wanted() else { return Ok(()) };
        self.read_stream(link).await?;
        let mut wanted = Some(first);
        while let Some(topic) = wanted {
            let subject = encoded(&topic);
            if self.shared.get().is_some_and(|facts| facts.takes(&subject)) {
                let was_down = self.names.closed.remove(&topic).is_some();
                self.queue.opened(&topic, (), was_down);
            } else {
                let known = self.names.closed.get(&topic).copied();
                let taken = |pattern: &String| super::subject::covers(pattern, &subject);
                let missing = known.unwrap_or_else(|| !self.names.patterns.iter().any(taken));
                self.close(&topic, missing);
            }
            wanted = self.queue.next_wanted();
        }
        Ok(())
    }

    /// A destination accepts no records.
    fn close(&mut self, topic: &str, missing: bool) {
        if self.names.closed.len() >= NAMES_MAX {
            self.names.closed.clear();
        }
        self.names.closed.insert(topic.to_owned(), missing);
        let (subject, stream) = (encoded(topic), &self.spec.stream);
        let exists = self.shared.get().is_some_and(|facts| !facts.subjects.is_empty());
        let (reason, hint) = if exists {
            let reason = format!("stream {stream} does not take subject {subject}");
            let hint = format!(
                "add the subject: nats stream edit {stream} --subjects LIST, with all subjects of the stream and \
                     {subject}: the option replaces the list"
            );
            (reason, hint)
        } else {
            let reason = format!("stream {stream} does not exist");
            let hint = format!(
                "create the stream: nats stream add {stream} --subjects {subject}; or let postrider setup create it \
                 (table sink.nats.create)"
            );
            (reason, hint)
        };
        self.queue.unavailable(topic, missing, reason, Some(hint));
    }
}

/// Another program writes the stream, faster than the chain can follow.
fn other_writer(spec: &NatsSpec) -> NatsProblem {
    let stream = &spec.stream;
    let (what, hint) = if spec.chain == ChainMode::Subject {
        let hint = "let this pipeline alone write its subjects, or set sink.nats.chain = \"none\"";
        ("subjects of this pipeline in", hint)
    } else {
        let hint = "let this pipeline have the stream alone, or set sink.nats.chain = \"subject\" if the other \
                    program writes other subjects, else \"none\"";
        ("between the messages of this pipeline", hint)
    };
    let reason = if spec.chain == ChainMode::Subject {
        format!("nats_other_writer: another program writes {what} stream {stream}")
    } else {
        format!("nats_other_writer: another program writes stream {stream}, {what}")
    };
    NatsProblem::new(reason, hint)
}

/// The connection is given up.
fn lost(link: &NatsLink, why: &str) -> Left {
    let state = link.state.borrow();
    let error = state.error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
    let hint = "start the server, or look into its log; the sink connects again automatically";
    Left::Failed(NatsProblem::new(format!("NATS at {}: {why}{error}", link.address), hint))
}

/// Whether the connection can still be used.
fn check(link: &NatsLink, state: &NatsLinkState, in_flight: usize) -> Result<(), Left> {
    if let Some(words) = state.denied.as_ref().filter(|_| in_flight > 0) {
        return Err(Left::Failed(NatsProblem::denied(words)));
    }
    if state.lost {
        return Err(lost(link, "the connection is lost"));
    }
    Ok(())
}

/// Subject, reply and payload of a message, cut from one piece of memory.
fn parts(
    arena: &mut BytesMut,
    record: &QueuedRecord<'_>,
    inbox: &str,
    number: u64,
) -> (Subject, Subject, Bytes) {
    let payload = record.value.unwrap_or_default();
    let needed = 3 * record.topic.len() + inbox.len() + 32 + payload.len();
    if arena.capacity() < needed {
        *arena = BytesMut::with_capacity(ARENA_BYTES.max(needed));
    }
    let mut subject = Vec::with_capacity(record.topic.len());
    encode(record.topic, &mut subject);
    arena.extend_from_slice(&subject);
    let subject = arena.split().freeze();
    arena.extend_from_slice(inbox.as_bytes());
    let mut digits = [0; 24];
    let length = {
        let mut rest = &mut digits[..];
        // 24 bytes have room for every number.
        write!(rest, ".{number}").unwrap_or_default();
        24 - rest.len()
    };
    arena.extend_from_slice(digits.get(..length).unwrap_or_default());
    let reply = arena.split().freeze();
    arena.extend_from_slice(payload);
    (of(subject), of(reply), arena.split().freeze())
}

/// A subject of bytes that are ASCII, or were encoded from a `str`.
fn of(bytes: Bytes) -> Subject {
    Subject::try_from(bytes).unwrap_or_else(|_invalid| Subject::from_static("_"))
}
