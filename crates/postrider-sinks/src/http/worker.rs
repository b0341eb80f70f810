//! The worker: takes records from the queue, sends their requests line by line, and reports the answers.

use super::answer::{HostState, Meaning, WebhookAnswer};
use super::event::WebhookEvent;
use super::exchange::{Exchanger, OutgoingRequest, Probe};
use super::hosts::Hosts;
use super::lines::{AggregateLines, LineId};
use super::places::{Places, Unavailable};
use super::spec::HttpSpec;
use super::target::Target;
use crate::fence::Fence;
use crate::send_queue::SendQueue;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::header::HeaderValue;
use postrider_core::record::{Refusal, RefusalKind, Scope, Ticket};
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a refusal waits for the answers of the other requests in flight, so that the pipeline does not repeat them.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Destinations that are asked at a time.
const PROBES_MAX: usize = 8;

/// URLs of destinations that are kept.
const TARGETS_MAX: usize = 2_000;

/// Attempts of a request that are logged.
const LOGGED_ATTEMPTS: [u32; 4] = [5, 50, 500, 5_000];

/// The worker runs at least so often, for the fence.
const TURN_MAX: Duration = Duration::from_secs(1);

type Pending<T> = FuturesUnordered<Pin<Box<dyn Future<Output = T>>>>;

/// The state of the worker.
pub(super) struct HttpWorker {
    queue: Arc<SendQueue<()>>,
    spec: Rc<HttpSpec>,
    exchanger: Rc<Exchanger>,
    content_type: HeaderValue,
    destinations: HttpDestinations,
    lines: AggregateLines,
    hosts: Hosts,
    in_flight: InFlight,
    generation: u64,
    /// A request was refused: nothing more of this generation is sent.
    failing: Option<Failing>,
    /// A host was reported as down.
    is_down: bool,
    fence: Arc<Fence>,
}

/// Requests that are not answered.
#[derive(Default)]
struct InFlight {
    exchanges: Pending<(LineId, WebhookAnswer)>,
    probes: Pending<(String, Probe)>,
    /// The destinations of `probes`.
    probed: HashSet<String>,
}

/// What is known of destinations.
#[derive(Default)]
struct HttpDestinations {
    places: Places,
    targets: HashMap<Rc<str>, Target>,
}

/// A refusal that is reported when the other requests in flight are answered.
struct Failing {
    tickets: Vec<Ticket>,
    scope: Scope,
    refusal: Refusal,
    reason: String,
    deadline: Instant,
    is_reported: bool,
}

impl HttpWorker {
    pub(super) fn new(queue: Arc<SendQueue<()>>, spec: HttpSpec) -> Self {
        let json = HeaderValue::from_static("application/json");
        let fence = Arc::new(Fence::new());
        Self {
            queue,
            exchanger: Rc::new(Exchanger::new(spec.clone(), Arc::clone(&fence))),
            // It was checked with the settings.
            content_type: HeaderValue::from_str(&spec.content_type).unwrap_or(json),
            spec: Rc::new(spec),
            destinations: HttpDestinations::default(),
            lines: AggregateLines::default(),
            hosts: Hosts::default(),
            in_flight: InFlight::default(),
            generation: 0,
            failing: None,
            is_down: false,
            fence,
        }
    }

    /// Runs until the sink is closed.
    pub(super) async fn run(mut self) {
        loop {
            let life = self.queue.life();
            if life.closed {
                return;
            }
            if life.generation != self.generation {
                self.restart(life.generation);
            }
            self.notice_stall(Instant::now());
            self.take();
            self.look_up();
            self.send(Instant::now());
            self.report_failure(Instant::now());
            self.wait().await;
        }
    }

    /// Gives up what waits, if the process was stopped for long: another one may have published it, and later events.
    fn notice_stall(&mut self, now: Instant) {
        let Some(stall) = self.fence.runs().filter(|_| self.failing.is_none()) else { return };
        let reason = format!("the process did not run for {} s", stall.as_secs());
        self.failing = Some(Failing {
            tickets: Vec::new(),
            scope: Scope::Broker,
            refusal: Refusal { kind: RefusalKind::Other, native: None, of_batch: false },
            reason: reason.clone(),
            deadline: now,
            is_reported: true,
        });
        self.queue.broken(self.generation, reason);
    }

    /// Waits for an answer, work, or the end of a pause.
    async fn wait(&mut self) {
        let deadline = self.failing.as_ref().filter(|failing| !failing.is_reported);
        let deadline = deadline.map(|failing| failing.deadline);
        let dues = match self.failing {
            Some(_) => [deadline, None],
            None => [self.lines.next_due(), self.hosts.next_due()],
        };
        let turn = Some(Instant::now() + TURN_MAX);
        let due = dues.into_iter().flatten().chain(turn).min();
        let queue = Arc::clone(&self.queue);
        let pause = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((line, answer)) = self.in_flight.exchanges.next() => self.answered(line, &answer),
            Some((name, probe)) = self.in_flight.probes.next() => self.probed(&name, &probe),
            () = queue.worked() => {}
            () = queue.ended(self.generation) => {}
            () = pause => {}
        }
    }

    /// The pipeline has reset the sink.
    fn restart(&mut self, generation: u64) {
        // A request that waits for its connection must not be written behind what another process publishes. The
        // connections of before are not used again.
        self.fence.resets();
        self.exchanger = Rc::new(self.exchanger.renewed());
        let mut given_up = self.lines.reset();
        self.hosts.reset();
        // No request is left that could find the receiver back. The next one reports a problem again.
        if std::mem::take(&mut self.is_down) {
            self.queue.up();
        }
        if let Some(failing) = self.failing.take().filter(|failing| !failing.is_reported) {
            given_up += failing.tickets.len();
        }
        self.queue.dropped(given_up);
        self.generation = generation;
    }

    /// Takes the records that wait.
    fn take(&mut self) {
        if self.failing.is_some() {
            return;
        }
        let batch = self.queue.take(self.generation);
        if batch.is_empty() {
            return;
        }
        for record in batch.iter() {
            let Some((topic, target)) = self.destinations.target(&self.spec, record.topic) else {
                // The rules have admitted the name.
                self.queue.broken(self.generation, "a destination has no URL".to_owned());
                self.queue.dropped(1);
                continue;
            };
            let key = record.key.filter(|_| self.spec.limits.batch == 1);
            self.lines.push((&topic, &target), key, WebhookEvent::of(&self.spec, &record));
        }
        self.queue.recycle(batch);
    }

    /// Looks up the destinations that the pipeline asks for.
    fn look_up(&mut self) {
        while self.in_flight.probes.len() < PROBES_MAX {
            let Some(name) = self.queue.next_wanted() else { return };
            let Some((_, target)) = self.destinations.target(&self.spec, &name) else {
                let reason = "the topic leads to no URL".to_owned();
                let hint = Some("fix route.topic".to_owned());
                self.queue.unavailable(&name, true, reason, hint);
                continue;
            };
            if !self.destinations.places.is_closed(&name) {
                self.queue.opened(&name, (), false);
                continue;
            }
            if !self.in_flight.probed.insert(name.clone()) {
                // Its answer comes.
                continue;
            }
            let exchanger = Rc::clone(&self.exchanger);
            self.in_flight.probes.push(Box::pin(async move {
                let probe = exchanger.probe(&target).await;
                (name, probe)
            }));
        }
    }

    fn probed(&mut self, name: &str, probe: &Probe) {
        self.in_flight.probed.remove(name);
        if !self.destinations.places.is_closed(name) {
            self.queue.opened(name, (), true);
            return;
        }
        match self.destinations.places.probed(name, probe, Instant::now()) {
            None => self.queue.opened(name, (), true),
            Some(found) => self.unavailable(name, found),
        }
    }

    fn unavailable(&self, name: &str, found: Unavailable) {
        let Unavailable { missing, reason, hint } = found;
        self.queue.unavailable(name, missing, reason, hint.map(str::to_owned));
    }

    /// Sends the requests of the lines that are ready, up to `concurrency`.
    fn send(&mut self, now: Instant) {
        if self.failing.is_some() {
            return;
        }
        self.lines.wake(now);
        let awake = self.hosts.wake(now);
        self.lines.return_ready(awake);
        let limits = self.spec.limits;
        while self.in_flight.exchanges.len() < limits.concurrency {
            let Some(line) = self.lines.next_ready() else { return };
            let Some(target) = self.lines.get(line).map(|line| line.target.clone()) else {
                continue;
            };
            if !self.hosts.admits(&target.host, line, now) {
                continue;
            }
            let content_type = &self.content_type;
            let headers = match self.lines.first(line) {
                Some(first) if limits.batch == 1 => first.headers(content_type),
                Some(_) | None => {
                    [(hyper::header::CONTENT_TYPE, content_type.clone())].into_iter().collect()
                }
            };
            let Some(front) = self.lines.begin(line, limits.batch, limits.batch_bytes) else {
                continue;
            };
            let (id, body, events) = (front.id, front.body, front.events);
            let fence = self.fence.number();
            let outgoing = OutgoingRequest { target, id, headers, body, events, fence };
            let exchanger = Rc::clone(&self.exchanger);
            self.in_flight.exchanges.push(Box::pin(async move {
                let answer = exchanger.send(&outgoing).await;
                (line, answer)
            }));
        }
    }

    /// A request has ended.
    fn answered(&mut self, line: LineId, answer: &WebhookAnswer) {
        let now = Instant::now();
        let Some((topic, host)) =
            self.lines.get(line).map(|line| (Rc::clone(&line.topic), Rc::clone(&line.target.host)))
        else {
            return;
        };
        self.judge_host(&host, answer, now);
        if answer.verdict == Meaning::Published {
            self.destinations.places.accepted(&topic);
            let tickets: Vec<Ticket> =
                self.lines.finish(line).into_iter().map(|(ticket, _)| ticket).collect();
            self.queue.acked(&tickets);
            return;
        }
        if self.lines.is_old(line) {
            let given_up = self.lines.finish(line).len();
            self.queue.dropped(given_up);
            return;
        }
        match answer.verdict {
            Meaning::Published => {}
            Meaning::Again { after, .. } => {
                let attempts = self.lines.again(line, now, after, fastrand::f64());
                if LOGGED_ATTEMPTS.contains(&attempts) {
                    log_retried(&topic, attempts, answer);
                }
            }
            Meaning::Refused(refusal) => self.refuse(line, Scope::Event, refusal, answer, now),
            Meaning::Destination { may_be_missing } => {
                let (at, random) = (now, fastrand::f64());
                let places = &mut self.destinations.places;
                let found = places.refused(&topic, (answer, may_be_missing), (at, random));
                self.unavailable(&topic, found);
                let native = answer.status.map(|status| i32::from(status.as_u16()));
                let refusal = Refusal { kind: RefusalKind::Other, native, of_batch: false };
                self.refuse(line, Scope::Destination, refusal, answer, now);
            }
        }
    }

    fn judge_host(&mut self, host: &Rc<str>, answer: &WebhookAnswer, now: Instant) {
        let state = match answer.verdict {
            Meaning::Again { host, .. } => host,
            // A destination that is not connected to says nothing about a host.
            Meaning::Destination { .. } if answer.status.is_none() => {
                self.hosts.not_tried(host, (now, fastrand::f64()));
                return;
            }
            Meaning::Published | Meaning::Refused(_) | Meaning::Destination { .. } => {
                HostState::Answers
            }
        };
        let (is_closed, lines) = self.hosts.ended(host, state, (now, fastrand::f64()));
        self.lines.return_ready(lines);
        if is_closed {
            self.is_down = true;
            let reason = format!("{host}: {}", answer.reason);
            self.queue.down(reason, answer.hint.map(str::to_owned));
        } else if self.is_down && !self.hosts.any_closed() {
            self.is_down = false;
            self.queue.up();
        }
    }

    /// Events of a request are refused. After a live one nothing more is sent until the reset.
    fn refuse(
        &mut self,
        line: LineId,
        scope: Scope,
        refusal: Refusal,
        answer: &WebhookAnswer,
        now: Instant,
    ) {
        let events = self.lines.finish(line);
        if let [(ticket, true)] = events[..] {
            self.queue.retry_rejected(ticket, scope, refusal);
            return;
        }
        if self.failing.is_some() {
            // The pipeline offers it again after the reset.
            self.queue.dropped(events.len());
            return;
        }
        self.failing = Some(Failing {
            tickets: events.into_iter().map(|(ticket, _)| ticket).collect(),
            scope,
            refusal,
            reason: answer.reason.clone(),
            deadline: now + DRAIN_MAX,
            is_reported: false,
        });
    }

    /// Reports a refusal when nothing else is in flight, or has been for too long.
    fn report_failure(&mut self, now: Instant) {
        let Some(failing) = &mut self.failing else { return };
        if failing.is_reported || (!self.in_flight.exchanges.is_empty() && now < failing.deadline) {
            return;
        }
        failing.is_reported = true;
        for &ticket in &failing.tickets {
            self.queue.rejected(self.generation, ticket, failing.scope, failing.refusal);
        }
        if failing.refusal.of_batch {
            // Which event of the batch is meant is found out one by one.
            self.queue.broken(self.generation, failing.reason.clone());
        }
    }
}

impl HttpDestinations {
    /// The URL of a destination.
    fn target(&mut self, spec: &HttpSpec, topic: &str) -> Option<(Rc<str>, Target)> {
        if let Some((name, target)) = self.targets.get_key_value(topic) {
            return Some((Rc::clone(name), target.clone()));
        }
        let target = spec.target(topic)?;
        if self.targets.len() >= TARGETS_MAX {
            self.targets.clear();
        }
        let name: Rc<str> = topic.into();
        self.targets.insert(Rc::clone(&name), target.clone());
        Some((name, target))
    }
}

fn log_retried(topic: &str, attempts: u32, answer: &WebhookAnswer) {
    tracing::warn!(
        event = "webhook_retried",
        topic,
        attempts,
        reason = answer.reason,
        hint = answer.hint,
        "a request was not accepted {attempts} times and is sent again; later events of its aggregate wait"
    );
}
