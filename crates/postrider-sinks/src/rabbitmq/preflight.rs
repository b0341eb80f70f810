//! `postrider check` for RabbitMQ: whether the server can be reached, what it would refuse, and what it would lose.

use super::codec::{
    EXCHANGE_DECLARE_OK, QUEUE_BIND_OK, QUEUE_DECLARE_OK, put_counted, put_field, put_short,
};
use super::commands::{declare_queue, set_permissions};
use super::link::AmqpLink;
use super::problem::{RESOURCE_LOCKED, RabbitProblem, RabbitStep};
use super::spec::{CreateQueues, Protocol, RabbitSpec};
use crate::worker_thread;
use postrider_core::finding::{Finding, shell_word};

/// The oldest version that is supported.
const OLDEST: (u32, u32) = (3, 13);

/// The findings about the settings alone.
pub(super) fn settings(no_lock: bool, exposed: bool, protocol: Protocol) -> Vec<Finding> {
    let mut out = Vec::new();
    if no_lock {
        out.push(
            Finding::warning("rabbitmq_lock", "sink.rabbitmq.lock_queue is \"none\"")
                .why(
                    "a process that froze, or a connection that broke, can publish old events behind newer ones of \
                     another process or connection",
                )
                .config("lock_queue = \"auto\""),
        );
    }
    if exposed {
        out.push(
            Finding::warning("rabbitmq_tls", "sink.rabbitmq.url has no TLS, and a host that is not local")
                .why(match protocol {
                    Protocol::Amqp => {
                        "everybody on the network can read the events and the password: write amqps:// in url"
                    }
                    Protocol::Stream => {
                        "everybody on the network can read the events and the password: write rabbitmq-stream+tls:// \
                         in url"
                    }
                }),
        );
    }
    out
}

/// The findings about the server, and about the routing keys that are known before the first event.
pub(super) fn check(spec: &RabbitSpec, management: &str, topics: &[String]) -> Vec<Finding> {
    answered(spec, || findings(spec, management, topics))
}

/// Creates the exchange, and for each topic a queue of its name with its binding.
pub(super) fn create(spec: &RabbitSpec, create: CreateQueues, topics: &[String]) -> Vec<Finding> {
    answered(spec, || created(spec, create, topics))
}

/// Asks the server; a finding if there is no answer.
fn answered<A: Future<Output = Result<Vec<Finding>, RabbitProblem>>>(
    spec: &RabbitSpec,
    question: impl FnOnce() -> A + Send,
) -> Vec<Finding> {
    match worker_thread::ask(question) {
        Ok(Ok(findings)) => findings,
        Ok(Err(RabbitProblem { reason, hint, .. })) => {
            let why = "nothing is published until it answers";
            let why = hint.map_or_else(|| why.to_owned(), |hint| format!("{why}; {hint}"));
            vec![Finding::error("rabbitmq_server", reason).why(why)]
        }
        Err(unanswered) => {
            let what = format!("RabbitMQ at {}: {unanswered}", spec.address.place());
            vec![Finding::error("rabbitmq_server", what)]
        }
    }
}

async fn connect(spec: &RabbitSpec) -> Result<AmqpLink, RabbitProblem> {
    let mut last = None;
    for host in &spec.address.hosts {
        match AmqpLink::open(spec, host).await {
            Ok(link) => return Ok(link),
            Err(problem) => last = Some(problem),
        }
    }
    let none = || RabbitProblem::new(RabbitStep::Connect, "no host is given", None);
    Err(last.unwrap_or_else(none))
}

async fn findings(
    spec: &RabbitSpec,
    management: &str,
    topics: &[String],
) -> Result<Vec<Finding>, RabbitProblem> {
    let mut link = connect(spec).await?;
    let mut out = Vec::new();
    let server = link.server.clone();
    out.push(Finding::ok(
        "rabbitmq_server",
        format!(
            "connected to {} {} at {}, virtual host {:?}, user {}",
            server.product,
            server.version,
            link.host(),
            spec.address.vhost,
            spec.address.user_shown()
        ),
    ));
    out.extend(of_version(&server.version));
    out.extend(of_exchange(&mut link, spec).await?);
    out.extend(of_lock(&mut link, spec).await?);
    if spec.rules.exchange.is_empty() {
        for topic in topics {
            out.push(of_queue(&mut link, spec, topic).await?);
        }
    }
    link.close(spec).await;
    out.extend(super::management::findings(spec, management, topics).await);
    Ok(out)
}

/// A finding about a version that is too old.
pub(super) fn of_version(version: &str) -> Option<Finding> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    ((major, minor) < OLDEST).then(|| {
        let (major, minor) = OLDEST;
        let what = format!("RabbitMQ {version} is older than {major}.{minor}");
        Finding::warning("rabbitmq_version", what).why("Postrider is not tested with it")
    })
}

async fn of_exchange(
    link: &mut AmqpLink,
    spec: &RabbitSpec,
) -> Result<Option<Finding>, RabbitProblem> {
    let exchange = &spec.rules.exchange;
    if exchange.is_empty() {
        return Ok(None);
    }
    let answer = link.ask(RabbitStep::Exchange, (40, 10), EXCHANGE_DECLARE_OK, spec, |out| {
        put_exchange(out, exchange, "topic", true);
    });
    Ok(Some(match answer.await? {
        Ok(()) => Finding::ok("rabbitmq_exchange", format!("exchange {exchange:?} exists")),
        Err(close) => {
            let what = format!("exchange {exchange:?}: {}", close.text);
            let (vhost, name) = (shell_word(&spec.address.vhost), shell_word(exchange));
            Finding::error("rabbitmq_exchange", what)
                .why("nothing is published until it exists")
                .shell(format!(
                    "rabbitmqadmin --vhost {vhost} exchanges declare --name {name} --type topic --durable true"
                ))
        }
    }))
}

/// Takes the lock for a moment: only so the right to declare it is known.
async fn of_lock(link: &mut AmqpLink, spec: &RabbitSpec) -> Result<Option<Finding>, RabbitProblem> {
    let Some(queue) = &spec.lock_queue else { return Ok(None) };
    let answer = super::worker::declare_lock(link, queue, spec).await;
    Ok(match answer {
        Ok(true) => {
            super::worker::free_lock(link, queue, spec).await?;
            Some(Finding::ok("rabbitmq_lock", format!("lock queue {queue:?} can be declared")))
        }
        Ok(false) => {
            let what = format!("lock queue {queue:?} belongs to a connection that publishes");
            Some(Finding::ok("rabbitmq_lock", what))
        }
        Err(problem) if problem.code.is_some_and(|code| code != RESOURCE_LOCKED) => {
            let what = format!("lock queue {queue:?} can't be declared: {}", problem.reason);
            Some(
                Finding::error("rabbitmq_lock", what)
                    .why(
                        "nothing is published; sink.rabbitmq.lock_queue = \"none\" does without it",
                    )
                    .shell(set_permissions(spec)),
            )
        }
        Err(problem) => return Err(problem),
    })
}

async fn of_queue(
    link: &mut AmqpLink,
    spec: &RabbitSpec,
    topic: &str,
) -> Result<Finding, RabbitProblem> {
    if super::worker::queue_exists(link, topic, spec).await? {
        return Ok(Finding::ok("rabbitmq_route", format!("queue {topic:?} exists")));
    }
    Ok(Finding::error("rabbitmq_route", format!("queue {topic:?} does not exist"))
        .why("its events are parked until it exists")
        .shell(declare_queue(&spec.address.vhost, "", topic)))
}

async fn created(
    spec: &RabbitSpec,
    create: CreateQueues,
    topics: &[String],
) -> Result<Vec<Finding>, RabbitProblem> {
    let mut link = connect(spec).await?;
    let exchange = &spec.rules.exchange;
    let mut out = Vec::new();
    let refused = |id, what: String, text: &str| {
        Finding::error(id, format!("{what}: {text}")).why(
            "the user needs the right to configure and to read it, or an administrator declares it",
        )
    };
    if !exchange.is_empty() {
        let what = format!("exchange {exchange:?}");
        let step = RabbitStep::Create;
        let answer = link.ask(step, (40, 10), EXCHANGE_DECLARE_OK, spec, |out| {
            put_exchange(out, exchange, create.exchange_type, false);
        });
        out.push(match answer.await? {
            Ok(()) => Finding::ok("rabbitmq_exchange", format!("{what} is declared")),
            Err(close) => refused("rabbitmq_exchange", what, &close.text),
        });
    }
    for topic in topics {
        let what = format!("queue {topic:?}");
        let answer = link.ask(RabbitStep::Create, (50, 10), QUEUE_DECLARE_OK, spec, |out| {
            out.extend_from_slice(&[0; 2]);
            put_short(out, topic.as_bytes());
            out.push(0b10);
            put_counted(out, |out| {
                put_field(out, "x-queue-type", Some(create.queue_type.as_bytes()));
            });
        });
        let mut answer = answer.await?;
        if answer.is_ok() && !exchange.is_empty() {
            let bound = link.ask(RabbitStep::Create, (50, 20), QUEUE_BIND_OK, spec, |out| {
                out.extend_from_slice(&[0; 2]);
                put_short(out, topic.as_bytes());
                put_short(out, exchange.as_bytes());
                put_short(out, topic.as_bytes());
                out.extend_from_slice(&[0; 5]);
            });
            answer = bound.await?;
        }
        out.push(match answer {
            Ok(()) => Finding::ok("rabbitmq_route", format!("{what} is declared and bound")),
            Err(close) => refused("rabbitmq_route", what, &close.text),
        });
    }
    link.close(spec).await;
    Ok(out)
}

fn put_exchange(out: &mut Vec<u8>, name: &str, kind: &str, passive: bool) {
    out.extend_from_slice(&[0; 2]);
    put_short(out, name.as_bytes());
    put_short(out, kind.as_bytes());
    // Passive, or durable.
    out.push(if passive { 1 } else { 0b10 });
    out.extend_from_slice(&[0; 4]);
}
