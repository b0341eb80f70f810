//! The worker: it hands each record to the publisher of its stream, and notices resets and stops of the process.

use super::inbox::PublisherInbox;
use super::line::LineRecord;
use super::look_up::StreamLookUp;
use super::publisher::StreamPublisher;
use super::shared::{FrameLimit, PublisherShared, WorkerLife};
use crate::destinations::DESTINATIONS_MAX;
use crate::rabbitmq::spec::RabbitSpec;
use crate::send_queue::SendQueue;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// The worker runs at least so often, for the fence.
const RUNS_EACH: Duration = Duration::from_secs(1);

/// How long connections are ended with a word to the server, when the sink is closed.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The worker.
#[derive(Debug)]
pub(super) struct StreamWorker {
    shared: Arc<PublisherShared>,
    publishers: HashMap<String, Arc<PublisherInbox>>,
    life: watch::Sender<WorkerLife>,
    generation: u64,
    tasks: JoinSet<()>,
}

impl StreamWorker {
    pub(super) fn new(queue: Arc<SendQueue<()>>, spec: RabbitSpec, limit: Arc<FrameLimit>) -> Self {
        let generation = queue.life().generation;
        Self {
            shared: Arc::new(PublisherShared::new(queue, spec, limit)),
            publishers: HashMap::new(),
            life: watch::Sender::new(WorkerLife::default()),
            generation,
            tasks: JoinSet::new(),
        }
    }

    /// Runs until the queue is closed.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let look_up = self.tasks.spawn(StreamLookUp::new(Arc::clone(&shared)).run());
        while !self.follow() {
            self.hand_out();
            shared.wanted.notify_one();
            tokio::select! {
                () = shared.queue.worked() => {}
                () = shared.queue.ended(self.generation) => {}
                () = tokio::time::sleep(RUNS_EACH) => {}
                Some(ended) = self.tasks.join_next() => passed_on(ended),
            }
        }
        look_up.abort();
        let ends = async {
            while let Some(ended) = self.tasks.join_next().await {
                passed_on(ended);
            }
        };
        drop(tokio::time::timeout(CLOSE_MAX, ends).await);
    }

    /// Follows resets and notices a stop of the process. Returns whether the sink is closed.
    fn follow(&mut self) -> bool {
        let shared = &self.shared;
        let life = shared.queue.life();
        if let Some(stall) = shared.fence.runs() {
            // Another process may have published what waits here, and later events.
            let reason = format!(
                "the process was stopped for {} s: another process may have published since",
                stall.as_secs()
            );
            shared.queue.broken(self.generation, reason);
        }
        if life.generation != self.generation {
            self.generation = life.generation;
            shared.fence.resets();
        }
        let now = WorkerLife { epoch: shared.fence.number(), closed: life.closed };
        self.life.send_if_modified(|known| std::mem::replace(known, now) != now);
        life.closed
    }

    /// Hands the records that wait to the publishers of their streams.
    fn hand_out(&mut self) {
        let batch = self.shared.queue.take(self.generation);
        if batch.is_empty() {
            return;
        }
        let (batch, epoch) = (Arc::new(batch), self.shared.fence.number());
        for at in 0..batch.len() {
            let inbox = self.publisher(batch.get(at).topic);
            inbox.give(LineRecord::new(&batch, at, epoch));
        }
    }

    /// The publisher of a stream.
    fn publisher(&mut self, stream: &str) -> Arc<PublisherInbox> {
        if let Some(known) = self.publishers.get(stream) {
            return Arc::clone(known);
        }
        self.make_room();
        let inbox = Arc::new(PublisherInbox::default());
        let publisher = StreamPublisher::new(
            Arc::clone(&self.shared),
            stream.to_owned(),
            Arc::clone(&inbox),
            self.life.subscribe(),
        );
        self.tasks.spawn(publisher.run());
        self.publishers.insert(stream.to_owned(), Arc::clone(&inbox));
        inbox
    }

    /// Ends publishers without records if there are too many. Those with records are as many as records are in flight,
    /// at most.
    fn make_room(&mut self) {
        if self.publishers.len() >= DESTINATIONS_MAX {
            for (_, inbox) in self.publishers.extract_if(|_, inbox| inbox.is_idle()) {
                inbox.end();
            }
        }
    }
}

/// A task that has panicked ends the worker, so that the pipeline ends too.
fn passed_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        resume_unwind(error.into_panic());
    }
}
