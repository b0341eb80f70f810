//! A real primary and a real physical standby: promotion under load with the slot and without it, restored backups, and
//! what `check` says of the pair.

mod backups;
mod behind;
pub(crate) mod pair;
mod phantom;
mod positions;
pub(crate) mod promotion;
mod readiness;
