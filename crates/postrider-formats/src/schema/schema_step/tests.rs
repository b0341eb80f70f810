use super::*;
use crate::schema::framing::SchemaId;
use crate::schema::registry::{RegisteredSchema, SchemaKind};
use crate::schema::subject_cache::SubjectAnswer;
use crate::step::DEAD_LETTER;
use postrider_core::record::{Header, OwnedRecord};

const SCHEMA: &str =
    r#"{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}"#;

struct Bench {
    step: SchemaStep,
    cache: Arc<SubjectCache>,
    draft: Draft,
}

impl Bench {
    fn new(place: IdPlace, pinned: &[&str]) -> Self {
        let settings = SchemaStepSettings {
            rule: SubjectRule::parse("record_name").unwrap(),
            place,
            encoding: Encoding::Avro,
            refresh: Duration::from_mins(1),
            pinned: pinned.iter().map(|&subject| subject.to_owned()).collect(),
        };
        let cache = Arc::new(SubjectCache::default());
        Self { step: SchemaStep::new(settings, Arc::clone(&cache)), cache, draft: Draft::default() }
    }

    /// The record behind the step, or why there is none.
    fn apply(
        &mut self,
        value: Option<&str>,
        since: Option<Instant>,
    ) -> Result<OwnedRecord, NotReady> {
        self.apply_with(value, &[Header { name: "type", value: Some(b"R") }], since)
    }

    fn apply_with(
        &mut self,
        value: Option<&str>,
        headers: &[Header<'_>],
        since: Option<Instant>,
    ) -> Result<OwnedRecord, NotReady> {
        let value = value.map(str::as_bytes);
        let (partition, key, timestamp_ms) = (None, None, None);
        let record = Record { topic: "t", partition, key, value, timestamp_ms, headers };
        self.draft.begin();
        self.step.apply(&record, &mut self.draft, since)?;
        Ok(self.draft.lend(&record, OwnedRecord::of))
    }

    /// The registry has answered so long ago.
    fn answered(&self, schema: Result<&str, &'static str>, ago: Duration) {
        let schema = schema.map(|text| {
            let id = SchemaId { id: 7, guid: None };
            let (text, references) = (text.to_owned(), Vec::new());
            let registered = RegisteredSchema { id, kind: SchemaKind::Avro, text, references };
            Arc::new(SubjectSchema::compile(registered, Encoding::Avro).unwrap())
        });
        self.cache.want("R", false);
        self.cache.next();
        let at = Instant::now().checked_sub(ago).unwrap();
        self.cache.answered("R", SubjectAnswer { at, schema });
    }

    /// The subjects that were asked for.
    fn wanted(&self) -> usize {
        std::iter::from_fn(|| self.cache.next()).count()
    }
}

const JUST_NOW: Duration = Duration::ZERO;
const LONG_AGO: Duration = Duration::from_secs(30);
const HEADER: IdPlace = IdPlace::Header { binary: true };

#[test]
fn a_record_waits_until_its_schema_is_known_and_is_encoded_then() {
    let mut bench = Bench::new(HEADER, &[]);
    assert_eq!(bench.apply(Some("{\"n\": 1}"), None), Err(NotReady::Waits));
    assert_eq!(bench.apply(Some("{\"n\": 1}"), None), Err(NotReady::Waits));
    assert_eq!(bench.wanted(), 1);
    assert!(bench.cache.is_awaited());
    bench.answered(Ok(SCHEMA), JUST_NOW);
    let record = bench.apply(Some("{\"n\": 1}"), None).unwrap();
    assert_eq!(record.value.as_deref(), Some(&[2][..]));
    assert_eq!(record.headers[1], (HEADER.header().unwrap().to_owned(), Some(vec![0, 0, 0, 0, 7])));
    let mut bench = Bench::new(IdPlace::Prefix, &[]);
    bench.answered(Ok(SCHEMA), JUST_NOW);
    let record = bench.apply(Some("{\"n\": 1}"), None).unwrap();
    assert_eq!(record.value.as_deref(), Some(&[0, 0, 0, 0, 7, 2][..]));
    assert_eq!(record.headers.len(), 1);
}

/// Programs differ in which of two headers they read.
#[test]
fn a_header_of_the_application_with_this_name_is_replaced() {
    let mut bench = Bench::new(HEADER, &[]);
    bench.answered(Ok(SCHEMA), JUST_NOW);
    let name = HEADER.header().unwrap();
    let headers =
        [Header { name, value: Some(b"own") }, Header { name: "type", value: Some(b"R") }];
    let record = bench.apply_with(Some("{\"n\": 1}"), &headers, None).unwrap();
    assert_eq!(record.headers.len(), 2);
    assert_eq!(record.headers[0], (name.to_owned(), Some(vec![0, 0, 0, 0, 7])));
}

#[test]
fn tombstones_and_dead_letters_pass_as_they_are() {
    let mut bench = Bench::new(IdPlace::Prefix, &[]);
    assert_eq!(bench.apply(None, None).unwrap().value, None);
    let dead = DEAD_LETTER.map(|name| Header { name, value: Some(b"x") });
    let letter = bench.apply_with(Some("no JSON"), &dead, None).unwrap();
    assert_eq!(letter.value.as_deref(), Some(&b"no JSON"[..]));
    // One header of this name is the application's own.
    assert_eq!(
        bench.apply_with(Some("{}"), &[Header { name: "type", value: Some(b"R") }, dead[0]], None),
        Err(NotReady::Waits)
    );
}

/// The subject was deleted, or its newest version can't be used.
#[test]
fn a_schema_that_is_known_is_used_whatever_becomes_of_its_subject() {
    let mut bench = Bench::new(HEADER, &[]);
    bench.answered(Ok(SCHEMA), LONG_AGO);
    bench.answered(Err("no such subject"), JUST_NOW);
    let record = bench.apply(Some("{\"n\": 1}"), None).unwrap();
    assert_eq!(record.value.as_deref(), Some(&[2][..]));
    // Without one the answer counts.
    let mut bench = Bench::new(HEADER, &[]);
    bench.answered(Err("no such subject"), JUST_NOW);
    let refused = NotReady::Refused(Refusal::content("no such subject"));
    assert_eq!(bench.apply(Some("{\"n\": 1}"), None), Err(refused));
}

#[test]
fn an_event_that_does_not_fit_is_refused_after_the_registry_was_asked_again() {
    let mut bench = Bench::new(HEADER, &[]);
    let refused = NotReady::Refused(Refusal::content("$.n: expected long, found string"));
    bench.answered(Ok(SCHEMA), LONG_AGO);
    assert_eq!(bench.apply(Some("{\"n\": \"1\"}"), None), Err(NotReady::Waits));
    assert_eq!(bench.wanted(), 1);
    bench.answered(Ok(SCHEMA), JUST_NOW);
    assert_eq!(bench.apply(Some("{\"n\": \"1\"}"), None), Err(refused));
    assert_eq!(bench.wanted(), 0);
    // A retry asks again; one answer is used for all that were retried before it.
    let since = Some(Instant::now() + Duration::from_millis(1));
    assert_eq!(bench.apply(Some("{\"n\": \"1\"}"), since), Err(NotReady::Waits));
    // The schema of a file does not change.
    let mut bench = Bench::new(HEADER, &["R"]);
    bench.answered(Ok(SCHEMA), LONG_AGO);
    assert_eq!(bench.apply(Some("{\"n\": \"1\"}"), since), Err(refused));
}

#[test]
fn a_refused_subject_is_asked_for_again_by_a_retry_and_after_a_pause() {
    let mut bench = Bench::new(HEADER, &["R"]);
    bench.answered(Err("code 409"), JUST_NOW);
    let refused = NotReady::Refused(Refusal::content("code 409"));
    assert_eq!(bench.apply(Some("{}"), None), Err(refused));
    let since = Instant::now().checked_sub(Duration::from_secs(5));
    assert_eq!(bench.apply(Some("{}"), since), Err(refused));
    assert_eq!(bench.wanted(), 0);
    assert_eq!(bench.apply(Some("{}"), Some(Instant::now())), Err(NotReady::Waits));
    let mut bench = Bench::new(HEADER, &["R"]);
    bench.answered(Err("code 409"), LONG_AGO);
    assert_eq!(bench.apply(Some("{}"), None), Err(NotReady::Waits));
}

#[test]
fn an_old_schema_is_used_while_a_newer_one_is_asked_for() {
    let mut bench = Bench::new(HEADER, &[]);
    bench.answered(Ok(SCHEMA), Duration::from_mins(2));
    assert!(bench.apply(Some("{\"n\": 1}"), None).is_ok());
    assert!(bench.apply(Some("{\"n\": 1}"), Some(Instant::now())).is_ok());
    assert_eq!(bench.wanted(), 1);
    assert!(!bench.cache.is_awaited());
    bench.step.reset();
    assert!(!bench.cache.is_closed());
    drop(bench.step);
    assert!(bench.cache.is_closed());
}
