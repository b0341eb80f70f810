//! Hand-over, as statements: with `mode = "auto"`, the way from polling back to streaming.
//! `postrider_relay::claims::HandOver` decides which step comes next, and when the stream may continue.

use super::connect::application_name;
use super::spec::PipelineSpec;
use super::store_job::StoreJob;
use crate::claims::SlotStep;
use crate::error::Chain;
use crate::postgres::WalConnection;
use crate::postgres::catalog::{self, Instance};
use crate::postgres::control::Control;
use crate::postgres::setup::{self, SlotOutcome};
use std::sync::Arc;

/// Starts a step for the slot, on a session of its own. `epoch`: that of the owner. `instance`: the server process that
/// the other sessions have reached.
pub(super) fn slot_step(
    spec: Arc<PipelineSpec>,
    epoch: i64,
    instance: Instance,
    step: SlotStep,
) -> StoreJob<SlotOutcome> {
    Box::pin(async move {
        // An existing slot is of no use while the role may not log in for replication, so that is tried first. The
        // session ends before the next login: the role's connection limit may leave room for only one more.
        let refused = match step {
            SlotStep::Create => {
                WalConnection::connect(&spec.conninfo, &application_name(&spec)).await.err()
            }
            SlotStep::Drop | SlotStep::ReadRetained => None,
        };
        let control = Control::connect(&spec.conninfo, &application_name(&spec)).await?;
        // A slot of another server would not stream what this table lacks.
        if let Some(differs) = instance.differs(&catalog::instance(control.client()).await?) {
            return Ok(SlotOutcome::NotYet(differs));
        }
        if let Some(error) = refused {
            // A slot that nobody reads retains WAL, also while it can't be dropped by this role.
            let reason = Chain(&error).to_string();
            let bytes = setup::retained_wal(&control, &spec.names.slot).await?;
            return Ok(SlotOutcome::Refused { reason, bytes });
        }
        match step {
            SlotStep::Drop => return setup::drop_slot(&control, &spec.names.slot).await,
            SlotStep::ReadRetained => {
                let bytes = setup::retained_wal(&control, &spec.names.slot).await?;
                return Ok(SlotOutcome::Retains(bytes));
            }
            SlotStep::Create => {}
        }
        let columns = spec.columns();
        let ask = spec.ask(&None, &columns);
        setup::recreate_slot(&control, &ask, epoch).await
    })
}
