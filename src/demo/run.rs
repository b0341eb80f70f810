//! One run of a demo: writes events, injects failures, delivers the rest, stops the relay, and makes the report.

use super::chaos::{Chaos, FREEZE, FailureKind, Injected, ROUND};
use super::database::Database;
use super::destination::Destination;
use super::error::DemoError;
use super::kind::DemoSink;
use super::ledger::SharedLedger;
use super::options::DemoOptions;
use super::probe::{Probe, RelayStatus};
use super::process::{Dir, Interrupts};
use super::reader::TopicReader;
use super::relay::Relay;
use super::report::DemoReport;
use super::screen::Screen;
use super::view::{Meter, Phase, Quantiles, ScreenView};
use super::writer::Writers;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// Interval of checks and of screen updates.
const TICK: Duration = Duration::from_millis(100);
/// How long the relay may take until it streams for the first time.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How long to wait for the first event before the others are written.
const WARM_UP_DEADLINE: Duration = Duration::from_secs(5);
/// How long the last events may take.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// How long the end may be delayed by failures that are not over.
const RECOVERY_DEADLINE: Duration = Duration::from_secs(45);
/// After the relay has ended, the reader has received everything when no record has arrived for so long.
const QUIET: Duration = Duration::from_millis(400);

/// Everything that runs during a demo, and ends when the value is dropped.
pub(super) struct DemoRun<'o> {
    options: &'o DemoOptions,
    // Fields are dropped in this order.
    writers: Option<Writers>,
    relay: Relay,
    probe: Probe,
    _reader: Option<TopicReader>,
    ledger: SharedLedger,
    meter: Meter,
    phase: Phase,
    chaos: Chaos,
    /// The number of delivered events when the present failure ended; `None` while it lasts.
    delivered_before: Option<u64>,
    repeatable: u64,
    started: Instant,
    phase_since: Instant,
}

impl<'o> DemoRun<'o> {
    /// Starts relay and reader, and waits until the relay streams.
    pub(super) async fn begin(
        options: &'o DemoOptions,
        dir: &Dir,
        database: &Database,
        broker: &Destination,
        ledger: &SharedLedger,
    ) -> Result<Self, DemoError> {
        let mut relay = Relay::set_up(options, dir, database, broker).await?;
        let reader = broker.read(ledger)?;
        let ledger = ledger.clone();
        let probe = Probe::start(relay.admin_port)?;
        relay.start()?;
        probe.watch(relay.pid());
        let (meter, now) = (Meter::new(&ledger), Instant::now());
        let mut show = Self {
            options,
            writers: None,
            relay,
            probe,
            _reader: reader,
            ledger,
            meter,
            phase: Phase::Writing,
            chaos: Chaos::new(failures(options), options.limit, options.chaos),
            delivered_before: None,
            repeatable: 0,
            started: now,
            phase_since: now,
        };
        show.await_streaming().await?;
        Ok(show)
    }

    async fn await_streaming(&mut self) -> Result<(), DemoError> {
        while !self.is_streaming() {
            self.relay.check()?;
            if self.started.elapsed() > READY_DEADLINE {
                let status = self.probe.look().status.unwrap_or_default();
                let reason = status.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
                return Err(DemoError::RelayNotReady {
                    seconds: READY_DEADLINE.as_secs(),
                    state: format!("state \"{}\"{reason}", status.state),
                    log: self.relay.log_tail(),
                });
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// Starts the writers, and waits until the first event is delivered, so that all clients have connected. The event
    /// counts in the ledger, but its latency is discarded.
    pub(super) async fn warm_up(&mut self, database: &Database) -> Result<(), DemoError> {
        let writers = Writers::start(database, &self.ledger, self.options.rate)?;
        let writers = self.writers.insert(writers);
        let deadline = Instant::now() + WARM_UP_DEADLINE;
        while self.ledger.lock().totals().delivered == 0 && Instant::now() < deadline {
            self.relay.check()?;
            tokio::time::sleep(TICK / 10).await;
        }
        self.probe.forget();
        self.ledger.lock().forget_latencies();
        self.meter.forget();
        writers.go();
        self.enter(Phase::Writing);
        self.started = Instant::now();
        Ok(())
    }

    fn is_streaming(&self) -> bool {
        let state = self.probe.look().status.map(|status| status.state);
        matches!(state.as_deref(), Some("streaming" | "catching_up"))
    }

    /// Runs until the end and returns the report.
    pub(super) async fn run(
        &mut self,
        database: &mut Database,
        broker: &mut Destination,
        interrupts: &mut Interrupts,
        parts: &[(&str, String)],
    ) -> Result<DemoReport, DemoError> {
        let mut screen = Screen::open(self.options.is_terminal, self.options.color, parts);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let interrupted = tokio::select! {
                biased;
                () = interrupts.next() => true,
                _ = ticks.tick() => screen.asked_to_stop().map_err(DemoError::Screen)?,
            };
            self.relay.check()?;
            broker.check()?;
            if database.is_gone() {
                return Err(database.ended());
            }
            self.inject_failures(database, broker)?;
            if self.advance(interrupted) {
                break;
            }
            let view = self.view();
            self.meter.plot(&view);
            screen.show(&view, &self.meter).map_err(DemoError::Screen)?;
        }
        drop(screen);
        self.finish(interrupts).await
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_since = Instant::now();
    }

    /// Advances the phase. Returns true when there is nothing left to wait for.
    fn advance(&mut self, interrupted: bool) -> bool {
        let totals = self.meter.sample();
        match self.phase {
            Phase::Writing => {
                if interrupted || self.is_over() {
                    self.writers.iter().for_each(Writers::stop);
                    self.enter(Phase::Draining);
                }
                false
            }
            Phase::Draining => {
                let written = self.writers.as_ref().is_none_or(Writers::are_done);
                let late = self.phase_since.elapsed() > DRAIN_DEADLINE;
                (written && totals.outstanding == 0) || late || interrupted
            }
        }
    }

    fn is_over(&self) -> bool {
        let elapsed = self.started.elapsed();
        let recovered = |limit| self.chaos.is_over() || elapsed >= limit + RECOVERY_DEADLINE;
        self.options.limit.is_some_and(|limit| elapsed >= limit && recovered(limit))
    }

    fn view(&self) -> ScreenView {
        let look = self.probe.look();
        ScreenView {
            phase: self.phase,
            elapsed: self.started.elapsed(),
            limit: self.options.limit,
            written: self.meter.written(),
            delivered: self.meter.delivered(),
            acknowledged: Quantiles {
                p50: look.recent.quantile(0.5),
                p99: look.recent.quantile(0.99),
            },
            consumed: self.meter.consumed(),
            totals: self.ledger.lock().totals(),
            look,
            breaking: self.chaos.current().map(|injected| injected.failure),
            broken: self.chaos.begun(),
            planned: self.chaos.planned(),
            chaos: self.options.chaos,
            trouble: self.writers.as_ref().and_then(Writers::trouble),
        }
    }

    /// Stops the relay, waits for the last records, and makes the report.
    async fn finish(&mut self, interrupts: &mut Interrupts) -> Result<DemoReport, DemoError> {
        let look = self.probe.look();
        let stopped = tokio::select! {
            biased;
            () = interrupts.next() => Err(DemoError::Interrupted),
            stopped = self.relay.stop() => stopped,
        };
        self.await_quiet().await;
        let ledger = self.ledger.lock();
        let totals = ledger.totals();
        let trouble = match stopped {
            Err(error) => Some(error.to_string()),
            Ok(()) if totals.outstanding > 0 => Some(self.why_outstanding(look.status)),
            Ok(()) => None,
        };
        Ok(DemoReport {
            totals,
            injected: self.chaos.injected.clone(),
            chaos: self.options.chaos,
            repeatable: self.repeatable,
            acknowledged: Quantiles {
                p50: look.total.quantile(0.5),
                p99: look.total.quantile(0.99),
            },
            consumed: Quantiles {
                p50: ledger.consumed.quantile(0.5),
                p99: ledger.consumed.quantile(0.99),
            },
            memory_peak: look.memory_peak,
            trouble,
        })
    }

    fn why_outstanding(&self, status: Option<RelayStatus>) -> String {
        let status = status.unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        let log = self.relay.log_tail();
        format!(
            "some events were not delivered in time; the relay was \"{}\" {reason}; the end of its log:{log}",
            status.state
        )
    }

    /// Waits until the reader has received every record of the broker, since late repetitions count too.
    async fn await_quiet(&self) {
        let deadline = Instant::now() + DRAIN_DEADLINE / 10;
        let (mut seen, mut since) = (self.records(), Instant::now());
        while since.elapsed() < QUIET && Instant::now() < deadline {
            tokio::time::sleep(TICK).await;
            let now = self.records();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }

    fn records(&self) -> u64 {
        self.ledger.lock().totals().records
    }

    /// Injects the next failure when it is due. A failure is injected only after events flow again, so that it hits a
    /// working relay. The number of events that may be repeated because of it is added up for the report.
    fn inject_failures(
        &mut self,
        database: &mut Database,
        broker: &mut Destination,
    ) -> Result<(), DemoError> {
        let elapsed = self.started.elapsed();
        if let Some(injected) = self.chaos.current() {
            return self.continue_failure(injected, elapsed, database, broker);
        }
        let writing = self.phase == Phase::Writing && self.is_streaming();
        let Some(failure) = self.chaos.due(elapsed).filter(|_| writing) else { return Ok(()) };
        self.chaos.begin(failure, elapsed);
        self.delivered_before = None;
        match failure {
            FailureKind::KillRelay => {
                self.repeatable += self.meter.repeatable() + self.probe.look().in_flight_peak;
                self.probe.watch(None);
                self.relay.kill_and_restart()?;
                self.probe.watch(self.relay.pid());
                Ok(())
            }
            FailureKind::FreezeBroker => broker.freeze(FREEZE),
            FailureKind::KillBroker => broker.kill_and_restart(),
            FailureKind::RestartDatabase => database.begin_restart(),
        }
    }

    /// Continues the present failure until it is over and events flow again.
    fn continue_failure(
        &mut self,
        injected: Injected,
        elapsed: Duration,
        database: &mut Database,
        broker: &mut Destination,
    ) -> Result<(), DemoError> {
        let delivered = self.ledger.lock().totals().delivered;
        if let Some(before) = self.delivered_before {
            if delivered > before && self.is_streaming() {
                self.chaos.recovered(elapsed);
            }
            return Ok(());
        }
        let done = match injected.failure {
            FailureKind::KillRelay | FailureKind::KillBroker => true,
            FailureKind::FreezeBroker => {
                let left = FREEZE.saturating_sub(elapsed.saturating_sub(injected.at));
                broker.freeze(left)?;
                left.is_zero()
            }
            FailureKind::RestartDatabase => database.step_restart()?,
        };
        if done {
            let status = self.probe.look().status;
            self.repeatable += status.map_or(0, |status| status.in_flight_events);
            self.delivered_before = Some(delivered);
        }
        Ok(())
    }
}

/// The failures of a run: the user's own servers are not broken.
fn failures(options: &DemoOptions) -> Vec<FailureKind> {
    if !options.chaos {
        let kills = usize::try_from(options.kills).unwrap_or(usize::MAX);
        return vec![FailureKind::KillRelay; kills];
    }
    let own = |failure: &FailureKind| match failure {
        FailureKind::KillRelay => true,
        FailureKind::FreezeBroker => options.brokers.is_none(),
        // The mock has nothing that would survive.
        FailureKind::KillBroker => options.sink != DemoSink::Kafka,
        FailureKind::RestartDatabase => options.url.is_none(),
    };
    ROUND.into_iter().filter(own).collect()
}

/// The failures of `--chaos` in one line.
pub(super) fn planned_failures(options: &DemoOptions) -> String {
    let failures: Vec<&str> = failures(options).iter().map(|failure| failure.words()).collect();
    let left = if options.brokers.is_some() || options.url.is_some() {
        "; your own servers are not affected"
    } else {
        ""
    };
    format!("{}{left}", failures.join(", then "))
}
