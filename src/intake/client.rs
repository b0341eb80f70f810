//! The Kafka client of an intake, and whether group and broker answer it.

use super::writer::BACKOFF;
use crate::backoff::Backoff;
use crate::inbox::kafka::{KafkaSource, KafkaSourceConfig};
use std::time::{Duration, Instant};

/// A client whose login was refused is made again after this time, with secrets that are read again.
const REOPEN_AFTER: Duration = Duration::from_secs(15);

/// Pause between two questions to a broker that is not available.
const ASK_INTERVAL: Duration = Duration::from_secs(5);

/// The client.
pub(super) struct IntakeClient<'a> {
    config: &'a KafkaSourceConfig,
    id: String,
    source: KafkaSource,
    /// The group has answered: it has assigned partitions, or none.
    is_member: bool,
    /// The broker can't be reached, or refuses requests, as far as its errors say.
    is_broker_down: bool,
    /// When the client is made again.
    reopen_at: Option<Instant>,
    asked_at: Instant,
    backoff: Backoff,
}

impl<'a> IntakeClient<'a> {
    /// Makes a client.
    ///
    /// # Errors
    /// librdkafka's text, if it makes no client of the settings.
    pub(super) fn open(config: &'a KafkaSourceConfig, intake: &str) -> Result<Self, String> {
        let id = format!("postrider-inbox-{intake}");
        let source = KafkaSource::open(config, &id).map_err(|error| error.to_string())?;
        Ok(Self {
            config,
            id,
            source,
            is_member: false,
            is_broker_down: false,
            reopen_at: None,
            asked_at: Instant::now(),
            backoff: BACKOFF,
        })
    }

    pub(super) const fn source(&self) -> &KafkaSource {
        &self.source
    }

    pub(super) fn group(&self) -> &str {
        &self.config.group
    }

    pub(super) const fn is_member(&self) -> bool {
        self.is_member
    }

    pub(super) const fn is_broker_down(&self) -> bool {
        self.is_broker_down
    }

    /// The group has answered.
    pub(super) const fn joins(&mut self) {
        self.is_member = true;
    }

    /// Makes the client again if it is time, with secrets that are read again; `None` if it is not.
    pub(super) fn reopens(&mut self) -> Option<Result<(), String>> {
        self.reopen_at.filter(|at| Instant::now() >= *at)?;
        self.reopen_at = None;
        let opened = KafkaSource::open(self.config, &self.id);
        Some(match opened {
            Ok(source) => {
                self.source = source;
                (self.is_broker_down, self.is_member) = (false, false);
                Ok(())
            }
            Err(error) => {
                // A file may be missing in the middle of a rotation.
                self.is_refused();
                Err(error.to_string())
            }
        })
    }

    /// The login was refused: the client is made again after a while.
    pub(super) fn is_refused(&mut self) {
        self.reopen_at.get_or_insert(Instant::now() + REOPEN_AFTER);
    }

    /// A fatal error has closed the client: it is made again at once.
    pub(super) fn is_closed(&mut self) {
        self.reopen_at.get_or_insert(Instant::now());
    }

    /// The broker is not available. Returns the pause before partitions are placed again.
    pub(super) fn broker_fails(&mut self) -> Duration {
        self.is_broker_down = true;
        self.backoff.next(fastrand::f64())
    }

    /// The broker answers; returns whether it was not available before.
    pub(super) fn broker_answers(&mut self) -> bool {
        self.backoff.reset();
        std::mem::take(&mut self.is_broker_down)
    }

    /// Now and then while the broker is not available: whether it answers again.
    pub(super) fn asks_broker(&mut self) -> bool {
        if !self.is_broker_down || self.asked_at.elapsed() < ASK_INTERVAL {
            return false;
        }
        self.asked_at = Instant::now();
        self.source.answers()
    }
}
