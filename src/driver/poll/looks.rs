//! Looks at the polled table: how long its oldest ready row has waited.
//!
//! One look at a time, on the control connection, whether a claim is open or not. And one before the first claim:
//! whether the table has rows without a mark that the stream has passed.

use super::Polling;
use crate::driver::alarm::Alarm;
use crate::driver::change::{LeftBehind, left_behind};
use crate::driver::lag::OldestRow;
use crate::driver::pipeline::Pipeline;
use crate::driver::say;
use crate::driver::session::{Job, job};
use crate::driver::spec::PipelineSpec;
use crate::postgres::SourceError;
use crate::postgres::poll::OldestReady;
use crate::postgres::poll::listed::Table;
use crate::postgres::repair::{self, Method, Selection};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// The shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_secs(2);

/// A look that takes long is followed by a pause of so many times its own length: looks take no more than a tenth of
/// one session's time.
const PAUSE_FACTOR: u32 = 9;

/// Rows without a mark that are counted: there may be a whole table of them.
const UNMARKED_MAX: u32 = 10_000;

/// What one look has seen.
pub(in crate::driver) struct Looked {
    /// How long the oldest ready row has waited.
    pub(in crate::driver) oldest: OldestRow,
    /// The slot that is left behind.
    pub(in crate::driver) left: Option<LeftBehind>,
}

/// The looks at one table.
pub(in crate::driver) struct RowLooks {
    client: Arc<Client>,
    /// None for the list of a repair, all of which waits.
    question: Option<OldestReady>,
    /// The pipeline whose slot is watched: mode "poll" may have left one behind.
    slot_of: Option<Arc<PipelineSpec>>,
    running: Option<Job<Looked>>,
    began: Instant,
    next_at: Instant,
    alarm: Alarm,
}

impl RowLooks {
    pub(in crate::driver) fn new(client: Arc<Client>, question: Option<OldestReady>) -> Self {
        let now = Instant::now();
        let alarm = Alarm::default();
        Self { client, question, slot_of: None, running: None, began: now, next_at: now, alarm }
    }

    /// From here on the looks are also for a slot that is left behind.
    pub(in crate::driver) fn watch_slot(&mut self, of: Arc<PipelineSpec>) {
        self.slot_of = Some(of);
    }

    /// Waits for the next look, and gives the moment at which it began. Cancel-safe.
    pub(in crate::driver) async fn next(&mut self) -> Result<(Looked, Instant), SourceError> {
        if self.running.is_none() {
            self.alarm.at(self.next_at).await;
            let (client, question) = (Arc::clone(&self.client), self.question.clone());
            let slot_of = self.slot_of.clone();
            self.began = Instant::now();
            self.running = Some(Box::pin(async move {
                let left = match slot_of {
                    Some(spec) => left_behind(&client, &spec).await?,
                    None => None,
                };
                let Some(question) = question else {
                    return Ok(Looked { oldest: OldestRow::Unknown, left });
                };
                let oldest = match question.ask(&client).await? {
                    None => OldestRow::None,
                    Some(Some(age)) => OldestRow::Since(age),
                    Some(None) => OldestRow::Unknown,
                };
                Ok(Looked { oldest, left })
            }));
        }
        let outcome = job(&mut self.running).await;
        self.running = None;
        let pause = self.began.elapsed().saturating_mul(PAUSE_FACTOR).max(PAUSE_MIN);
        self.next_at = Instant::now() + pause;
        Ok((outcome?, self.began))
    }
}

impl Pipeline {
    /// Reports how many rows without a mark the stream has passed: polling publishes them, and they may be published.
    /// There are such rows where `mode` was "wal" before. A question that fails keeps nobody from polling.
    pub(super) async fn look_for_unmarked(&mut self, polling: &Polling) {
        let Some(spec) = self.spec.poll.table.clone() else { return };
        let (client, name) = (polling.desk.control.client(), self.spec.name());
        let counted = async {
            let ledger = repair::ledger(client, name, None, Duration::ZERO).await?;
            let method = Method::of(client, Selection::Both, ledger.known.as_deref()).await?;
            let table = Table::read(client, spec).await?;
            method.count_passed(client, &table, UNMARKED_MAX).await
        };
        match counted.await {
            Ok(None | Some(0)) => {}
            Ok(Some(rows)) => say::unmarked_rows(self, rows, rows >= u64::from(UNMARKED_MAX)),
            Err(error) => say::look_failed(self, &error),
        }
    }
}
