//! A pipeline's beginning, from what was configured, and its end.

use super::{Cluster, Next, Pipeline};
use crate::driver::budget::Budget;
use crate::driver::destinations::Destinations;
use crate::driver::former::Ownership;
use crate::driver::halts;
use crate::driver::judge::Rechecked;
use crate::driver::lag::LagMeter;
use crate::driver::marking::{Handed, Marking};
use crate::driver::returning::Returning;
use crate::driver::run::{Exit, Stop};
use crate::driver::say;
use crate::driver::shelf::Shelf;
use crate::driver::spec::{Mode, PipelineSpec};
use crate::error::Halt;
use crate::event::{Histories, PgTime};
use crate::lsn::Watermark;
use crate::metrics::PipelineMetrics;
use crate::outbox::Mapper;
use crate::postgres::action::Repeats;
use crate::relay::{Relay, Settings};
use crate::sink::{self, Mailbox};
use crate::status::Board;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Pipeline {
    /// Lives one pipeline.
    pub(in crate::driver) async fn live(
        spec: PipelineSpec,
        board: Board,
        metrics: PipelineMetrics,
        stop: Stop,
    ) -> Exit {
        let name = spec.name().to_owned();
        board.update(|snapshot| {
            snapshot.source = spec.source_name();
            snapshot.slot.clone_from(&spec.names.slot);
        });
        let exit = match Self::new(spec, board.clone(), metrics) {
            Ok(mut pipeline) => {
                let exit = pipeline.run(&stop).await;
                pipeline.leave_nothing_in_flight();
                pipeline.sink.close(pipeline.spec.shutdown_grace.min(Duration::from_secs(2)));
                // From here on nothing is read.
                pipeline.tell.streaming = false;
                pipeline.report(None);
                exit
            }
            Err(halt) => Exit::Halted(Box::new(halt)),
        };
        say::ended(&name, &board, &exit);
        exit
    }

    pub(super) fn new(
        spec: PipelineSpec,
        board: Board,
        metrics: PipelineMetrics,
    ) -> Result<Self, Halt> {
        let mailbox = Mailbox::default();
        let mapper = Mapper::new(spec.outbox.clone()).map_err(|e| halts::unfit_outbox(&e))?;
        let mut sink =
            sink::open(&spec.sink, mailbox.clone()).map_err(|e| halts::unfit_sink(&e))?;
        sink.hold();
        let settings = Settings {
            limits: spec.limits,
            cursor_interval: spec.cursor_interval,
            rules: spec.parking,
        };
        let auto = spec.mode == Mode::Auto;
        let marking = Marking::new(auto || spec.poll.mark_streamed, auto);
        let budget = spec.wal_retain_max.map(|max| Budget::new(max, spec.polls_in_its_stead()));
        let destinations = Destinations::new(spec.name(), spec.park_after);
        Ok(Self {
            spec: Arc::new(spec),
            relay: Relay::new(settings),
            mapper,
            unknown_types: Vec::new(),
            sink,
            cluster: Cluster::default(),
            mailbox,
            effects: Vec::new(),
            confirmed: Watermark::default(),
            committed_at: PgTime::default(),
            board,
            metrics,
            tell: say::Tell::default(),
            lag: LagMeter::new(std::time::Instant::now()),
            shelf: Shelf::default(),
            destinations,
            marking,
            handed: Handed::default(),
            returning: Returning::default(),
            lets_go: false,
            stalled_at: None,
            budget,
            next: Next::Stream,
            repaired: false,
            posts: Vec::new(),
            sink_due: None,
            observed: (PgTime::default(), 0),
            epoch: Instant::now(),
            ever_streamed: false,
            history: None,
            server: None,
            histories: Histories::default(),
            published: None,
            owned: None,
            ownership: Ownership::default(),
            lease_ends: Instant::now(),
            rechecked: Rechecked::default(),
            repeats: Repeats::default(),
            pause_min: Duration::ZERO,
        })
    }
}
