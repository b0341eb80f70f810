//! Rows that the stream brought are marked in their table once they are published, and, after polling, events that it
//! has published are passed over when the stream brings them again.
//!
//! Marks are committed before the cursor row that passes their events: so a row without a mark is one the stream still
//! brings, or brings again, and polling may take over at any moment. Ids are kept whole: a hash would one day pass over
//! an event that was never published.

use crate::lsn::Lsn;
use crate::postgres::SourceError;
use crate::postgres::poll::PollSpec;
use crate::postgres::poll::marks::Marker;
use crate::record::Ticket;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio_postgres::Client;

/// Events remembered as polled; further ones come twice.
const HANDED_MAX: usize = 200_000;

/// What is to be marked.
#[derive(Debug, Default)]
pub(super) struct Marking {
    on: bool,
    marker: Option<Marker>,
    flying: HashMap<Ticket, String>,
    done: Vec<String>,
    /// Taken for a cursor row that is being written.
    taken: Arc<Vec<String>>,
}

impl Marking {
    pub(super) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// An event is on its way.
    pub(super) fn sent(&mut self, ticket: Ticket, id: &str) {
        if self.on {
            self.flying.insert(ticket, id.to_owned());
        }
    }

    /// It is published.
    pub(super) fn published(&mut self, ticket: Ticket) {
        if self.on
            && let Some(id) = self.flying.remove(&ticket)
        {
            self.done.push(id);
        }
    }

    /// It is kept in the parked table: its row in the outbox is done with.
    pub(super) fn parked(&mut self, id: Option<&str>) {
        if self.on {
            self.done.extend(id.map(str::to_owned));
        }
    }

    /// Nothing is in flight any more.
    pub(super) fn given_up(&mut self) {
        self.flying.clear();
    }

    /// What is published was marked otherwise.
    pub(super) fn forget(&mut self) {
        self.flying.clear();
        self.done.clear();
    }

    /// Prepares the mark on a session.
    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        spec: Option<&PollSpec>,
    ) -> Result<(), SourceError> {
        self.put_back();
        if let Some(spec) = spec.filter(|_| self.on) {
            self.marker = Some(Marker::prepare(client, spec).await?);
        }
        Ok(())
    }

    /// What is to be marked before the next cursor row, and with what.
    pub(super) fn take(&mut self) -> Option<(Marker, Arc<Vec<String>>)> {
        self.put_back();
        let marker = self.marker.clone().filter(|_| !self.done.is_empty())?;
        self.taken = Arc::new(std::mem::take(&mut self.done));
        Some((marker, Arc::clone(&self.taken)))
    }

    /// What was taken last is marked.
    pub(super) fn marked(&mut self) {
        self.taken = Arc::default();
    }

    fn put_back(&mut self) {
        self.done.extend(self.taken.iter().cloned());
        self.taken = Arc::default();
    }
}

/// Events that polling has published though the stream will bring them.
#[derive(Debug, Default)]
pub(super) struct Handed {
    ids: HashSet<String>,
    /// What commits from here on was never polled; `None` while polling goes on.
    until: Option<Lsn>,
}

impl Handed {
    pub(super) fn note(&mut self, id: &str) {
        self.until = None;
        if self.ids.len() < HANDED_MAX {
            self.ids.insert(id.to_owned());
        }
    }

    /// Polling ends here.
    pub(super) fn ends(&mut self, until: Lsn) {
        self.until = Some(until);
    }

    /// Whether the event is to be passed over.
    #[inline]
    pub(super) fn has(&mut self, id: &str, commit_lsn: Lsn) -> bool {
        if self.ids.is_empty() {
            return false;
        }
        let Some(until) = self.until else { return false };
        if commit_lsn > until {
            self.ids = HashSet::new();
            return false;
        }
        self.ids.contains(id)
    }
}
