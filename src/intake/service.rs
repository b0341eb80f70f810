//! The intakes of one process, each on a thread of its own.

use super::observer::IntakeObserver;
use super::spec::{IntakeSource, IntakeSpec};
#[cfg(feature = "nats")]
use crate::inbox::nats::NatsSource;
#[cfg(feature = "rabbitmq")]
use crate::inbox::rabbitmq::RabbitSource;
#[cfg(feature = "redis")]
use crate::inbox::redis::RedisSource;
use crate::intake_status::{IntakeHandle, IntakeState};
use crate::pipeline::Stop;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// How an intake ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntakeExit {
    /// On request.
    Stopped,
    /// By a panic, whose message is in the log.
    Bug,
}

/// The intakes of one process.
#[derive(Debug)]
pub struct IntakeService {
    intakes: Vec<(String, JoinHandle<()>, oneshot::Receiver<()>)>,
}

impl IntakeService {
    /// Starts a thread for each intake.
    ///
    /// # Errors
    /// The system can't create a thread, or what its runtime needs.
    pub fn start(intakes: Vec<(IntakeSpec, IntakeHandle)>, stop: &Stop) -> std::io::Result<Self> {
        let mut started = Vec::with_capacity(intakes.len());
        for (spec, handle) in intakes {
            let name = spec.name.clone();
            // Made here, so that a system without descriptors is an error of the start and not the end of a thread.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (ended, wait) = oneshot::channel();
            let stop = stop.clone();
            let thread =
                std::thread::Builder::new().name(format!("inbox-{name}")).spawn(move || {
                    // If the thread panics, its sender is dropped.
                    let guard = FailedOnPanic(handle.clone());
                    runtime.block_on(run(&spec, &stop, IntakeObserver::new(&spec.name, handle)));
                    drop(guard);
                    // The receiver is dropped if the process is exiting.
                    ended.send(()).unwrap_or_default();
                })?;
            started.push((name, thread, wait));
        }
        Ok(Self { intakes: started })
    }

    /// Waits until an intake has ended; `None` if none is left.
    pub async fn next_exit(&mut self) -> Option<(String, IntakeExit)> {
        if self.intakes.is_empty() {
            return None;
        }
        let (index, exit) = std::future::poll_fn(|context| {
            for (index, (_, _, wait)) in self.intakes.iter_mut().enumerate() {
                // A dropped sender means that the thread panicked.
                if let std::task::Poll::Ready(ended) =
                    std::future::Future::poll(std::pin::Pin::new(wait), context)
                {
                    let exit = ended.map_or(IntakeExit::Bug, |()| IntakeExit::Stopped);
                    return std::task::Poll::Ready((index, exit));
                }
            }
            std::task::Poll::Pending
        })
        .await;
        let (name, thread, _) = self.intakes.swap_remove(index);
        // The exit reports a panic already.
        drop(thread.join());
        Some((name, exit))
    }
}

async fn run(spec: &IntakeSpec, stop: &Stop, observer: IntakeObserver) {
    match &spec.source {
        #[cfg(feature = "kafka")]
        IntakeSource::Kafka(config) => super::kafka::run(spec, config, stop, observer).await,
        #[cfg(feature = "nats")]
        IntakeSource::Nats(config) => {
            super::acked::run::<NatsSource>(spec, config, stop, observer).await;
        }
        #[cfg(feature = "rabbitmq")]
        IntakeSource::RabbitMq(config) => {
            super::acked::run::<RabbitSource>(spec, config, stop, observer).await;
        }
        #[cfg(feature = "redis")]
        IntakeSource::Redis(config) => {
            super::acked::run::<RedisSource>(spec, config, stop, observer).await;
        }
        #[cfg(feature = "admin")]
        IntakeSource::Webhook(config) => super::webhook::run(spec, config, stop, observer).await,
        #[cfg(not(feature = "admin"))]
        IntakeSource::Webhook(config) => {
            let mut observer = observer;
            let reason = format!("could not listen on {}: built without a server", config.listen);
            let hint = "build with the feature `admin`";
            observer.waits(IntakeState::ListenerDown, &reason, Some(hint));
            stop.drain().await;
            observer.stopped();
        }
    }
}

/// Marks the intake as failed if its thread panics.
struct FailedOnPanic(IntakeHandle);

impl Drop for FailedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.update(|snapshot| {
                snapshot.state = IntakeState::Failed;
                snapshot.reason = Some("a bug in Postrider: see the log".to_owned());
            });
        }
    }
}
