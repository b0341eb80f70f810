//! What is still looked at while a pipeline is halted: its slot, which keeps WAL meanwhile, or is gone.
//!
//! A short session of its own for each look, by a name that is no relay's, so that `postrider repair` and `setup` find
//! the pipeline at rest.

use super::run::Stop;
use super::spec::{Mode, PipelineSpec};
use crate::lsn::Lsn;
use crate::postgres::SourceError;
use crate::postgres::control::Control;
use crate::postgres::server;
use crate::postgres::slot::{self, SlotRow};
use crate::status::Board;
use std::time::{Duration, Instant};

/// Pause between two looks, each of which logs in.
const INTERVAL: Duration = Duration::from_secs(15);

/// The longest a look may take.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// What the server's lists show the looks as.
const APPLICATION_NAME: &str = "postrider (halted)";

/// `postrider_slot_state` of a slot that does not exist.
const MISSING: &str = "missing";

/// Keeps the slot's figures on the board up to date until the process is to stop.
pub(super) async fn watch(spec: &PipelineSpec, board: &Board, stop: &Stop) {
    loop {
        // A database that does not answer is not news of a halted pipeline: what was last seen stays, and
        // `source_contact_seconds` grows.
        if let Ok(Ok((slot, wal_end))) = tokio::time::timeout(LOOK_MAX, look(spec)).await
            // Polling has no slot, unless it has left one behind.
            && (spec.mode != Mode::Poll || slot.is_some())
        {
            show(board, slot.as_ref(), wal_end);
        }
        tokio::select! {
            () = stop.drain() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

async fn look(spec: &PipelineSpec) -> Result<(Option<SlotRow>, Lsn), SourceError> {
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let server = server::read(control.client()).await?;
    let slot = slot::read(control.client(), server.version, &spec.names.slot).await?;
    Ok((slot, server.wal_end))
}

fn show(board: &Board, slot: Option<&SlotRow>, wal_end: Lsn) {
    let since = |lsn: Option<Lsn>| lsn.map(|lsn| wal_end.bytes_since(lsn));
    board.update(|snapshot| {
        snapshot.source_contact_at = Some(Instant::now());
        snapshot.slot_state = match slot {
            Some(slot) => slot.wal_status.clone(),
            None => Some(MISSING.to_owned()),
        };
        snapshot.slot_safe_bytes = slot.and_then(|slot| slot.safe_wal_size);
        snapshot.slot_retained_bytes = since(slot.and_then(|slot| slot.restart_lsn));
        let confirmed = slot.and_then(|slot| slot.confirmed_flush_lsn);
        snapshot.confirmed_flush_lsn = confirmed.map(|lsn| lsn.to_string());
        if let Some(bytes) = since(confirmed) {
            snapshot.lag_bytes = bytes;
        }
    });
}
