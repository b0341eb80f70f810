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
        // Polling ends for a slot that can be used: not for a slot that exists while the role may not stream. The login
        // comes first and ends before the next one: the role may be limited to as many sessions as there are otherwise.
        if step == SlotStep::Create
            && let Err(error) =
                WalConnection::connect(&spec.conninfo, &application_name(&spec)).await
        {
            return Ok(SlotOutcome::NotYet(Chain(&error).to_string()));
        }
        let control = Control::connect(&spec.conninfo, &application_name(&spec)).await?;
        // A slot of another server would not stream what this table lacks.
        if let Some(differs) = instance.differs(&catalog::instance(control.client()).await?) {
            return Ok(SlotOutcome::NotYet(differs));
        }
        match step {
            SlotStep::Drop => return setup::drop_slot(&control, &spec.names.slot).await,
            SlotStep::ReadRetained => {
                return setup::retained_wal(&control, &spec.names.slot).await;
            }
            SlotStep::Create => {}
        }
        let columns = spec.columns();
        let ask = spec.ask(&None, &columns);
        setup::recreate_slot(&control, &ask, epoch).await
    })
}
