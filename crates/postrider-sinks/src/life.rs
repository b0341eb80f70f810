//! The life of a sink, as its worker thread sees it: resets, and the end.

use tokio::sync::watch;

/// What a worker does belongs to one generation. What belongs to an earlier one is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Life {
    /// Raised by each reset.
    pub(crate) generation: u64,
    /// The sink is closed: the worker ends.
    pub(crate) closed: bool,
}

/// The life of one sink.
#[derive(Debug)]
pub(crate) struct SinkLife(watch::Sender<Life>);

impl SinkLife {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Life::default()))
    }

    /// The present state.
    pub(crate) fn now(&self) -> Life {
        *self.0.borrow()
    }

    /// Whether the sink is open, and in this generation.
    pub(crate) fn is(&self, generation: u64) -> bool {
        self.now() == Life { generation, closed: false }
    }

    /// The sink was reset.
    pub(crate) fn reset(&self) {
        self.0.send_modify(|life| life.generation += 1);
    }

    /// The sink is closed.
    pub(crate) fn close(&self) {
        self.0.send_modify(|life| life.closed = true);
    }

    /// Waits until the sink is in another generation, or closed. Cancel-safe.
    pub(crate) async fn ended(&self, generation: u64) {
        let mut life = self.0.subscribe();
        // The sender lives as long as this.
        drop(life.wait_for(|life| life.closed || life.generation != generation).await);
    }
}
