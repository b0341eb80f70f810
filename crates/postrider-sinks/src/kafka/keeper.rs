//! The sink's one background thread: asks for topics, watches whether brokers answer, and sees old producers out.
//!
//! Everything that waits for a broker waits here, so that `enqueue` never does. It says `Down`, `Up` and `Retry`;
//! what became of a record it never says.

mod topics;

use super::creation::Creation;
use super::forgotten::Forgotten;
use super::ids::Ids;
use super::polled::Producer;
use super::producers::Producers;
use super::rights::Rights;
use super::secrets::{SaslLogin, Secrets};
use super::shared::{Leaving, Shared, Suspicion};
use super::stall::{self, Stall};
use super::told::Told;
use super::trouble::{self, About, Trouble};
use crate::{KafkaSpec, Post};
use rdkafka::producer::Producer as _;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it looks, when nothing calls; also between two tries for a topic or a broker.
const TICK: Duration = Duration::from_secs(1);
/// How often it looks while a producer is on its way out.
const LEAVING_TICK: Duration = Duration::from_millis(20);
/// How long a broker may take to answer a question.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long an old producer's requests are waited for before they are purged. See `KafkaSink::reset`.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the reports of a broken producer are waited for. After a fatal error some never come (measured).
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How often a producer is tried to be made of files that have not changed.
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);

/// Secrets of which no producer could be made.
struct Unfit {
    secrets: Secrets,
    trouble: Trouble,
    tried_at: Instant,
}

pub(super) struct Keeper {
    shared: Arc<Shared>,
    spec: KafkaSpec,
    producers: Option<Arc<Producers>>,
    /// What the secret files held when the producers were made.
    made_with: Secrets,
    /// The same at the last look. Live producers have the SASL login of it.
    secrets: Secrets,
    /// Secrets of which no producer can be made, and what to say of that.
    unfit: Option<Unfit>,
    /// The sink has no producers, because none could be made: those here are former ones.
    unmade: bool,
    /// The first of them has had an answer from a broker.
    connected: bool,
    /// The cluster of the brokers that they have reached is known.
    located: bool,
    suspicion: Option<Suspicion>,
    forgotten: Forgotten,
    told: Told,
    /// Those that are given up have the time since that was seen.
    leaving: Vec<(Leaving, Option<Instant>)>,
    stall: Stall,
    refreshed_at: Instant,
    opened_at: Instant,
    /// Topics that are to be asked for again.
    stale: VecDeque<String>,
    /// Those of them whose configuration was not read in time: once it is waited for longer.
    unread: BTreeSet<String>,
    rights: Rights,
    creation: Creation,
    ids: Ids,
    /// When a topic that was made anew last cost the producers.
    anew_at: Option<Instant>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, spec: KafkaSpec, creation: Creation) -> Self {
        let now = Instant::now();
        // Those that are known are made before the first event of theirs.
        for topic in creation.known() {
            shared.want(&topic);
        }
        Self {
            told: Told::new(Arc::clone(&shared)),
            shared,
            forgotten: Forgotten::new(&spec.brokers),
            spec,
            producers: None,
            made_with: Secrets::default(),
            secrets: Secrets::default(),
            unfit: None,
            unmade: false,
            connected: false,
            located: false,
            suspicion: None,
            leaving: Vec::new(),
            stall: Stall::new(now),
            refreshed_at: now,
            opened_at: now,
            stale: VecDeque::new(),
            unread: BTreeSet::new(),
            rights: Rights::default(),
            creation,
            ids: Ids::default(),
            anew_at: None,
        }
    }

    /// Works until told to stop; then lets go of the producers.
    pub(super) fn run(mut self) {
        while self.take_orders() {
            self.see_out();
            self.read_secrets();
            if self.ask() {
                self.watch();
            } else {
                self.stall.no_answer();
            }
            self.refresh();
        }
    }

    /// False when there is nothing more to do.
    fn take_orders(&mut self) -> bool {
        let timeout = if self.leaving.is_empty() { TICK } else { LEAVING_TICK };
        let (stop, broken, unmade, producers, suspicion, leaving) =
            self.shared.wait(timeout, |inbox| {
                (
                    inbox.stop,
                    inbox.broken.is_some(),
                    inbox.unmade.take(),
                    inbox.producers.take(),
                    inbox.suspicion.take(),
                    std::mem::take(&mut inbox.leaving),
                )
            });
        let now = Instant::now();
        let hour = u32::try_from((now - self.opened_at).as_secs() / 3_600).unwrap_or(u32::MAX);
        self.shared.hour.store(hour, Ordering::Relaxed);
        self.leaving.extend(leaving.into_iter().map(|leaving| (leaving, None)));
        if let Some(trouble) = unmade {
            self.told.say(trouble);
            self.unmade = true;
        }
        if let Some((producers, secrets)) = producers {
            self.producers = Some(producers);
            (self.unfit, self.unmade) = (None, false);
            self.secrets.clone_from(&secrets);
            self.made_with = secrets;
            (self.connected, self.located) = (false, false);
            self.stall.new_producers(now);
            // What a topic was is known of those before.
            self.stale_are_all();
        }
        if broken {
            // Reports that are ready come first.
            if let Some(producers) = &self.producers {
                producers.flush(LAST_WORDS);
            }
            self.shared.say_broken();
        }
        if let Some(suspicion) = suspicion {
            suspicion.outweigh(&mut self.suspicion);
        }
        !stop
    }

    /// Reads the secret files, and hands a SASL login that has changed to the live producers, which use it from their
    /// next login on.
    ///
    /// Where a connection fails, producers that were made with other certificates or keys than the files hold now are
    /// given up: librdkafka reads those files only when a producer is made.
    fn read_secrets(&mut self) {
        let secrets = Secrets::read(&self.spec, &self.secrets);
        let before = std::mem::replace(&mut self.secrets, secrets);
        let in_doubt = self.suspicion.is_some() || self.told.is_about(About::Broker);
        let changed = self.secrets.needs_new_producers(&self.made_with);
        if !self.unmade && !changed {
            self.unfit = None;
        }
        if (self.unmade || in_doubt && changed) && self.are_fit() {
            let reason = "the files of its certificates or keys have changed since it was made";
            if self.unmade {
                self.shared.tell(|inbox| inbox.broken = Some(reason.to_owned()));
            } else if let Some(producers) = &self.producers {
                producers.first().client().context().broken(reason.to_owned());
            }
        }
        let login = self.secrets.login(&self.spec);
        if login == before.login(&self.spec) {
            return;
        }
        let Some(SaslLogin { username, password }) = login else { return };
        let leaving = self.leaving.iter().map(|(leaving, _)| &leaving.producers);
        for producers in leaving.chain(&self.producers) {
            producers.set_login(&username, &password);
        }
        tracing::info!(
            target: "postrider::kafka",
            "the SASL login was read again from its file: used from the next login on"
        );
    }

    /// Whether a producer can be made of the secrets as they are. Those of which none could be made are tried again
    /// when they change, and now and then: the reason may have been another one.
    fn are_fit(&mut self) -> bool {
        let same = |unfit: &Unfit| {
            unfit.secrets == self.secrets && unfit.tried_at.elapsed() < TRIAL_INTERVAL
        };
        if self.unfit.as_ref().is_some_and(same) {
            return false;
        }
        let tried = self.secrets.try_out(&self.spec);
        self.unfit = tried.as_ref().err().map(|error| Unfit {
            secrets: self.secrets.clone(),
            trouble: trouble::of_files(error),
            tried_at: Instant::now(),
        });
        tried.is_ok()
    }

    /// Lets old producers go: when their records have their reports, or when they were given up and have had their
    /// time.
    fn see_out(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        for (Leaving { producers }, given_up) in &mut self.leaving {
            // A reset may find them on their way out already: it waits for their requests as for those of others.
            if producers.muted() {
                given_up.get_or_insert_with(Instant::now);
            }
        }
        let (gone, staying) = std::mem::take(&mut self.leaving).into_iter().partition(
            |(Leaving { producers }, given_up): &(Leaving, Option<Instant>)| {
                if given_up.is_some() {
                    producers.purge(false);
                }
                let empty = producers.flush(LEAVING_TICK);
                empty || given_up.is_some_and(|since| since.elapsed() >= DRAIN_MAX)
            },
        );
        self.leaving = staying;
        let gone: Vec<_> = gone;
        // To drop some takes 0.4 s (0.2 s measured, the first and then the others): empty ones can take their time
        // while the new ones send.
        let (empty, full): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|(old, _)| old.producers.in_flight_count() == 0);
        drop(full);
        if self.leaving.is_empty() && self.shared.settles() {
            self.shared.mailbox.post(Post::Retry);
        }
        drop(empty);
    }

    /// Notices a broker that went away, came back, or answers without acknowledging.
    fn watch(&mut self) {
        let Some(producers) = self.producers.clone() else {
            return;
        };
        if self.unmade {
            let trouble = self.broker_trouble();
            self.told.say(trouble);
            return;
        }
        let acked = self.shared.acked.load(Ordering::Relaxed);
        // What is being emptied keeps the new one waiting: where that is not acknowledged, nothing goes on.
        let leaving = self.leaving.iter().map(|(leaving, _)| leaving.producers.in_flight_count());
        let flying = leaving.sum::<i32>() + producers.in_flight_count();
        if self.stall.look(acked, flying > 0, Instant::now()) {
            self.told.over(About::Stall);
        }
        let stalled = self.stall.is_told(Instant::now());
        let in_trouble = self.told.is_about(About::Broker);
        if self.connected && self.located && self.suspicion.is_none() && !in_trouble && !stalled {
            self.forgotten.over();
            return;
        }
        if !self.answers(producers.first()) {
            self.stall.no_answer();
            self.name_brokers(&producers);
            let trouble = self.broker_trouble();
            self.told.say(trouble);
            return;
        }
        self.connected = true;
        self.suspicion = None;
        self.told.over(About::Broker);
        if stalled {
            // One of the others may know no broker.
            self.name_brokers(&producers);
            let why = self.why_stalled(&producers);
            let explained =
                why.is_some() || self.shared.known_topics().values().any(|one| one.lacks());
            let hopeless = self.stall.is_hopeless(explained, Instant::now());
            // Something may have come while topics were asked for.
            if hopeless && self.shared.acked.load(Ordering::Relaxed) == acked {
                let reason = "brokers answer, and acknowledge nothing";
                producers.first().client().context().broken(reason.to_owned());
            }
            self.told.say(why.unwrap_or_else(|| trouble::of_stall(stall::STALL)));
        }
    }

    /// Whether a broker answers. The first question also makes the producer connect before it has anything to send.
    fn answers(&mut self, producer: &Producer) -> bool {
        let topic = self.shared.any_topic();
        let asks =
            |topic: Option<&str>| producer.client().fetch_metadata(topic, ANSWER_MAX).is_ok();
        if self.located {
            return asks(topic.as_deref());
        }
        let names = || producer.client().fetch_cluster_id(ANSWER_MAX);
        // The name comes with any answer to a question for topics, and is only waited for here. Where no record asks
        // for a topic, and librdkafka has forgotten the brokers, nobody else asks: the second time all topics are asked
        // for. Brokers that name no cluster answer all the same. A broker that came up meanwhile is not taken for
        // one of them: its name came with this answer.
        let again = self.told.is_about(About::Broker);
        let answers = || (topic.is_some() || again) && asks(topic.as_deref());
        let cluster = names().or_else(|| answers().then(|| names().unwrap_or_default()));
        let Some(cluster) = cluster else { return false };
        self.located = true;
        self.shared.mailbox.post(if self.shared.admission.locate(&cluster) {
            Post::Retry
        } else {
            Post::Located
        });
        true
    }

    /// Those that are emptied need their brokers as the others do.
    fn name_brokers(&mut self, producers: &Producers) {
        let leaving = self.leaving.iter().map(|(leaving, _)| &*leaving.producers);
        self.forgotten.silence(leaving.chain([producers]), Instant::now());
    }

    fn broker_trouble(&mut self) -> Trouble {
        if let Some(heard) = self.shared.heard() {
            heard.outweigh(&mut self.suspicion);
        }
        if let Some(unfit) = &self.unfit {
            return unfit.trouble.clone();
        }
        trouble::of_broker(&self.spec.brokers, self.suspicion.as_ref())
    }
}
