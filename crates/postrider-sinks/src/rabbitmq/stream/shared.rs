//! What the parts of a stream sink share: the worker, one publisher for each stream, and the look-up of streams.

use super::line::PublishingIds;
use super::problem::StreamProblem;
use super::reference::new_reference;
use crate::fence::Fence;
use crate::rabbitmq::spec::{RabbitHost, RabbitSpec};
use crate::send_queue::SendQueue;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore};

/// Connections of publishers at a time. A stream without events frees its connection for another one.
const CONNECTIONS_MAX: usize = 200;

/// The frame that RabbitMQ takes unless it is configured otherwise. Unit: bytes.
const FRAME_MAX: usize = 1 << 20;

/// What the sink has learned of the servers, for the rules that judge records on the pipeline's thread.
#[derive(Debug)]
pub(super) struct FrameLimit(AtomicUsize);

impl FrameLimit {
    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(FRAME_MAX))
    }

    /// Bytes of the largest frame of the last connection.
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Release);
    }
}

/// What the publishers follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WorkerLife {
    /// The number of the fence: records with a lower one are given up.
    pub(super) epoch: u64,
    pub(super) closed: bool,
}

/// Why a stream accepts no records, and how to fix it.
type StreamTrouble = (String, Option<String>);

#[derive(Debug, Default)]
struct Troubles {
    /// The parts that can't reach a server, by name.
    servers: HashSet<String>,
    /// The streams that accept no records.
    streams: HashMap<String, StreamTrouble>,
}

/// What the parts share.
#[derive(Debug)]
pub(super) struct PublisherShared {
    pub(super) queue: Arc<SendQueue<()>>,
    pub(super) spec: RabbitSpec,
    pub(super) limit: Arc<FrameLimit>,
    /// Its number is raised by each stall of the process and by each reset: what was taken before is given up.
    pub(super) fence: Fence,
    pub(super) ids: PublishingIds,
    pub(super) reference: String,
    pub(super) connections: Semaphore,
    /// Streams are to be looked up.
    pub(super) wanted: Notify,
    troubles: Mutex<Troubles>,
    next_host: AtomicUsize,
}

impl PublisherShared {
    pub(super) fn new(queue: Arc<SendQueue<()>>, spec: RabbitSpec, limit: Arc<FrameLimit>) -> Self {
        let reference = new_reference(&spec);
        Self {
            queue,
            spec,
            limit,
            fence: Fence::new(),
            ids: PublishingIds::new(),
            reference,
            connections: Semaphore::new(CONNECTIONS_MAX),
            wanted: Notify::new(),
            troubles: Mutex::default(),
            next_host: AtomicUsize::new(0),
        }
    }

    fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server to try next.
    pub(super) fn host(&self) -> RabbitHost {
        let hosts = &self.spec.address.hosts;
        let at = self.next_host.load(Ordering::Relaxed) % hosts.len().max(1);
        // An address has at least one host.
        let none = || RabbitHost { name: String::new(), port: 0 };
        hosts.get(at).cloned().unwrap_or_else(none)
    }

    /// A server can't be used: the next one is tried.
    pub(super) fn next_host(&self) {
        self.next_host.fetch_add(1, Ordering::Relaxed);
    }

    /// The publisher of a stream, or the look-up (`name` is empty), has failed. Repeated with each attempt. `is_live`:
    /// the publisher holds events of the live stream, and not only parked ones.
    pub(super) fn failed(&self, name: &str, is_live: bool, problem: StreamProblem) {
        let StreamProblem { of_stream, reason, hint, .. } = problem;
        if of_stream {
            // The server answers.
            self.reached(name);
            self.troubles().streams.insert(name.to_owned(), (reason.clone(), hint.clone()));
            self.queue.unavailable(name, false, reason.clone(), hint.clone());
            if is_live {
                self.queue.held(name, true, reason, hint);
            }
        } else {
            self.troubles().servers.insert(name.to_owned());
            self.queue.down(reason, hint);
        }
    }

    /// A server answers this part.
    pub(super) fn reached(&self, name: &str) {
        let mut troubles = self.troubles();
        let over = troubles.servers.remove(name) && troubles.servers.is_empty();
        drop(troubles);
        if over {
            self.queue.up();
        }
    }

    /// The sink has no record for the stream: whether it accepts some is found out with the next one.
    pub(super) fn rests(&self, name: &str) {
        self.reached(name);
        let trouble = self.troubles().streams.remove(name);
        if trouble.is_some() {
            self.queue.released(name);
        }
    }

    /// The stream accepts records.
    pub(super) fn works(&self, name: &str) {
        self.reached(name);
        let trouble = self.troubles().streams.remove(name);
        if trouble.is_some() {
            self.queue.opened(name, (), true);
        }
    }

    /// Why the stream accepts no records, if its publisher has found that.
    pub(super) fn trouble(&self, name: &str) -> Option<StreamTrouble> {
        self.troubles().streams.get(name).cloned()
    }
}
