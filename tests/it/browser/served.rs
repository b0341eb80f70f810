//! The admin endpoint in the process of the test: the statuses are those that the test writes.

use crate::private::free_port;
use postrider::admin::{Admin, AdminView, LogEvent, LogEvents};
use postrider::metrics::{Metrics, PipelineMetrics};
use postrider::status::{PipelineState, Snapshot, StatusHandle};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A served endpoint. It ends when the value is dropped.
pub(super) struct Served {
    /// The statuses, in the order of their names.
    pub(super) handles: Vec<StatusHandle>,
    /// The counters of each.
    pub(super) counters: Vec<PipelineMetrics>,
    view: AdminView,
    port: u16,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Served {
    /// Serves pipelines of these names, which stream.
    pub(super) async fn new(names: &[&str]) -> Self {
        let handles: Vec<_> = names.iter().map(|name| StatusHandle::new(name)).collect();
        let metrics = Metrics::default();
        let counters = handles.iter().map(|handle| metrics.pipeline(handle)).collect();
        for handle in &handles {
            handle.update(streams);
        }
        let view = AdminView {
            status_handles: handles.clone(),
            intake_handles: Vec::new(),
            maintenance_handles: Vec::new(),
            metrics,
            log_events: LogEvents::default(),
            ready_lag_max: Duration::from_secs(30),
        };
        let mut served = Self { handles, counters, view, port: free_port(), running: None };
        served.start().await;
        served
    }

    /// Serves at the port of before.
    #[expect(clippy::disallowed_methods, reason = "the handle is kept, and awaited")]
    pub(super) async fn start(&mut self) {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let admin = Admin::bind(address).await.expect("the port");
        let (stop, stopped) = oneshot::channel();
        let view = self.view.clone();
        let task = tokio::spawn(async move {
            admin.serve(view, async { stopped.await.unwrap_or_default() }).await;
        });
        self.running = Some((stop, task));
    }

    /// Answers no longer.
    pub(super) async fn stop(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            drop(stop);
            task.await.expect("the endpoint ends");
        }
    }

    /// The address of the page.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Adds a line of the log.
    pub(super) fn log(&self, level: &'static str, pipeline: &str, message: &str) {
        self.view.log_events.add(LogEvent {
            unix_ms: 0,
            level,
            event: "note".to_owned(),
            pipeline: Some(pipeline.to_owned()),
            message: message.to_owned(),
            hint: None,
        });
    }
}

/// What a pipeline without a problem shows.
fn streams(snapshot: &mut Snapshot) {
    snapshot.state = PipelineState::Streaming;
    // No loop turns here; without this, the pipeline is stuck after half a minute.
    snapshot.moments.turned_at = Some(Instant::now() + Duration::from_hours(1));
    "db.internal:5432/shop".clone_into(&mut snapshot.from.source);
    "postrider_orders".clone_into(&mut snapshot.from.slot);
    snapshot.read.wal_end = Some("16/B374D900".to_owned());
    "16/B374D900".clone_into(&mut snapshot.read.received);
    "16/B374D848".clone_into(&mut snapshot.watermark);
    snapshot.confirmed_flush_lsn = Some("16/B374D800".to_owned());
    snapshot.slot_state = Some("reserved".to_owned());
    snapshot.slot_retained_bytes = Some(48 << 20);
    snapshot.slot_safe_bytes = Some(9 << 30);
    snapshot.published_total = 1_234_567;
}
