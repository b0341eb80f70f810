//! What the conformance test needs of a sink's server.

use crate::topic::ReadRecord;

/// A server of a test's own.
pub(crate) trait SinkServer: Sized {
    /// `sink.kind`.
    const KIND: &'static str;

    /// Most repetitions after one lost connection or one killed server, beside the events that the server had and could
    /// not acknowledge any more. 0 for a sink that asks the server what it has.
    const REPEATS_PER_LOSS: usize;

    /// A destination that does not exist is missing. False where the first record creates it.
    const DESTINATIONS_ARE_MADE: bool = true;

    /// Events are published once, whatever ends.
    const EXACTLY_ONCE: bool = false;

    /// A process that was frozen sends nothing of what it had in flight once another process has taken over, or the
    /// server passes over it.
    const FENCES_FROZEN_PROCESS: bool = true;

    /// The binding of CloudEvents by which its messages are read.
    const CLOUD_EVENTS: &'static str = "kafka";

    /// Starts a server without destinations.
    async fn start() -> Self;

    /// Its name and version, as it reports them: `nats-server 2.15.1`.
    async fn version(&self) -> String;

    /// The port that it listens on, for a proxy; `None` if clients are redirected past a proxy.
    fn port(&self) -> Option<u16>;

    /// `[pipelines.NAME.sink]` with all below it, for a relay that connects to `port`, or to the server itself. `[.`
    /// stands for `[pipelines.NAME.`.
    fn sink(&self, port: Option<u16>) -> String;

    /// The same with TLS. `right`: by the name in the server's certificate; else by another name of this machine. The
    /// server's authority is trusted.
    fn sink_over_tls(&self, right: bool) -> String;

    /// Creates a destination; `route.topic` has its name.
    async fn create(&self, destination: &str);

    /// Deletes a destination with its records.
    async fn delete(&self, destination: &str);

    /// From now on the destination, or the server, refuses an event of more than so many bytes; `None`: events up to
    /// 100 kB are accepted. Returns what the sink's configuration must have for it, as [`Self::sink`] has it.
    async fn limit(&mut self, destination: &str, bytes: Option<usize>) -> String;

    /// All records of a destination, in the server's order.
    ///
    /// # Errors
    /// The server does not answer, or there is no such destination.
    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String>;

    /// kill -9.
    async fn kill(&mut self);

    /// Starts it again on its data and its port, and waits until it answers.
    async fn restart(&mut self);

    /// SIGSTOP.
    fn freeze(&self);

    /// SIGCONT.
    fn thaw(&self);

    /// Ends the relay's connections. Where there is a proxy, the proxy does it.
    async fn cut(&mut self) {
        self.kill().await;
        self.restart().await;
    }

    /// Takes the relay's rights away (`false`), or gives them back. Its connections are ended, or refused on them.
    async fn allow(&mut self, allowed: bool);
}
