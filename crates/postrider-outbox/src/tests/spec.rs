//! Specifications that do not hold together: every fault at once, each with its key.

use crate::{Extra, Layout, Mapper, OutboxSpec, Placement, Replace, Role};
use expect_test::expect;
use postrider_core::error::Chain;

fn errors(spec: OutboxSpec) -> String {
    let errors = Mapper::new(spec).unwrap_err();
    errors.iter().fold(String::new(), |out, error| {
        let what = Chain(error).to_string().replace("; ", ";\n  ");
        out + &format!("{}\n  {what}\n", error.key())
    })
}

fn spec() -> OutboxSpec {
    OutboxSpec::for_layout(Layout::Postrider)
}

#[test]
fn every_layout_is_sound_and_known_by_its_name() {
    for (layout, name) in Layout::ALL.iter().zip(Layout::NAMES) {
        assert_eq!(layout.name(), *name);
        assert_eq!(Layout::from_name(name), Some(*layout));
        assert!(Mapper::new(OutboxSpec::for_layout(*layout)).is_ok());
        let create = format!("CREATE TABLE {} (", layout.table());
        assert!(layout.create_sql().contains(&create), "{name}");
    }
    assert_eq!(Layout::from_name("Postrider"), None);
}

#[test]
fn roles_go_by_their_own_name_and_by_the_layouts() {
    assert_eq!(Layout::Debezium.role("aggregatetype"), Some(Role::AggregateType));
    assert_eq!(Layout::Debezium.role("aggregate_type"), Some(Role::AggregateType));
    assert_eq!(Layout::Commerce.role("occurred_at"), Some(Role::Time));
    assert_eq!(Layout::Adr30.role("metadata"), Some(Role::Headers));
    assert_eq!(Layout::Adr30.role("kind"), None);
}

/// A member of an object has one value: Debezium refuses such a schema too.
#[test]
fn two_members_of_the_envelope_have_two_names() {
    let placed = |column: &str, name: &str| Extra {
        column: column.to_owned(),
        placement: Placement::Envelope(name.to_owned()),
        may_lack: false,
    };
    for (envelope, extra, member) in [
        (None, vec![placed("a", "payload")], "payload"),
        (Some("event"), vec![placed("a", "event")], "event"),
        (None, vec![placed("a", "x"), placed("b", "x")], "x"),
    ] {
        let key = extra.last().map(|extra| extra.column.clone()).unwrap();
        let spec = OutboxSpec { envelope: envelope.map(str::to_owned), extra, ..spec() };
        let told = format!(
            "outbox.extra.{key}\n  outbox.extra.{key} is placed in the envelope as {member:?}, and the envelope has a \
             member of this name already\n"
        );
        assert_eq!(errors(spec), told);
    }
    let extra = vec![placed("a", "payload"), placed("b", "event_")];
    assert!(
        Mapper::new(OutboxSpec { envelope: Some("event".to_owned()), extra, ..spec() }).is_ok()
    );
}

#[test]
fn every_fault_is_told_at_once() {
    let mut spec = spec();
    spec.topic = "{aggregate_typ}".to_owned();
    spec.key = "{aggregate_id".to_owned();
    spec.partition = "}".to_owned();
    spec.replace = Some(Replace { pattern: "(".to_owned(), with: String::new() });
    spec.columns = vec![(Role::Id, String::new()), (Role::Payload, String::new())];
    spec.headers =
        vec![("source".to_owned(), "{x|id}".to_owned()), (String::new(), "y".to_owned())];
    spec.table = None;
    let placement = Placement::Header(String::new());
    spec.extra = vec![Extra { column: "tenant".to_owned(), placement, may_lack: false }];
    expect![[r#"
        outbox.columns.id
          outbox.columns.id must name a column
        outbox.columns.payload
          outbox.columns.payload must name a column
        route.topic
          the template of route.topic names "aggregate_typ";
          it may name aggregate_type, aggregate_id, event_type, headers, time, tenant
        route.key
          the template of route.key can't be read: "{" without "}";
          a brace itself is written "{{"
        route.partition
          the template of route.partition can't be read: "}" without "{";
          a brace itself is written "}}"
        outbox.extra.tenant
          outbox.extra.tenant must not be empty nor hold a zero byte
        route.headers.source
          the template of route.headers.source names "x";
          it may name aggregate_type, aggregate_id, event_type, headers, time, tenant
        route.headers.
          route.headers. must not be empty nor hold a zero byte
        route.replace.pattern
          the pattern of route.replace can't be used: regex parse error:
            (
            ^
        error: unclosed group
        outbox.table
          outbox names neither a table nor a message_prefix
    "#]]
    .assert_eq(&errors(spec));
}

#[test]
fn an_empty_topic_and_an_empty_field_are_refused() {
    expect![[r#"
        route.topic
          route.topic must not be empty nor hold a zero byte
    "#]]
    .assert_eq(&errors(OutboxSpec { topic: String::new(), ..spec() }));
    expect![[r#"
        route.topic
          the template of route.topic names "";
          it may name id, aggregate_type, aggregate_id, event_type, payload, headers, time
    "#]]
    .assert_eq(&errors(OutboxSpec { topic: "a{}".to_owned(), ..spec() }));
}

#[test]
fn a_layout_without_a_topic_column_has_no_topic_field() {
    expect![[r#"
        route.topic
          the template of route.topic names "topic";
          it may name id, aggregate_type, aggregate_id, event_type, payload, headers, time
    "#]]
    .assert_eq(&errors(OutboxSpec { topic: "{topic}".to_owned(), ..spec() }));
}

#[test]
fn replacements_are_checked_against_their_pattern() {
    let mut all = String::new();
    for with in ["$2", "${name}", "a$", "a\\", "${1}"] {
        let replace = Some(Replace { pattern: "(.*)".to_owned(), with: with.to_owned() });
        all += &errors(OutboxSpec { replace, ..spec() });
    }
    expect![[r#"
        route.replace.with
          the replacement of route.replace can't be used: "$" names no group of the pattern;
          a dollar is written "\$"
        route.replace.with
          the replacement of route.replace can't be used: "${name}" names no group of the pattern
        route.replace.with
          the replacement of route.replace can't be used: "$" names no group of the pattern;
          a dollar is written "\$"
        route.replace.with
          the replacement of route.replace can't be used: "\" at the end escapes nothing
        route.replace.with
          the replacement of route.replace can't be used: "${name}" names no group of the pattern
    "#]]
    .assert_eq(&all);
}

#[test]
fn there_is_one_partition() {
    let extra = |column: &str| {
        let placement = Placement::Partition;
        Extra { column: column.to_owned(), placement, may_lack: false }
    };
    let two = OutboxSpec { extra: vec![extra("a"), extra("b")], ..spec() };
    let template = OutboxSpec { extra: vec![extra("a")], partition: "1".to_owned(), ..spec() };
    for spec in [two, template] {
        assert_eq!(
            errors(spec),
            "route.partition\n  route.partition and an extra column are both the partition\n"
        );
    }
}

#[test]
fn required_columns_are_those_a_row_is_read_for() {
    let columns = |layout| OutboxSpec::for_layout(layout).required_columns().join("\n");
    expect![[r#"
        id
        aggregate_type
        aggregate_id
        event_type
        payload
        headers
        created_at"#]]
    .assert_eq(&columns(Layout::Postrider));
    expect![[r#"
        id
        aggregatetype
        aggregateid
        payload"#]]
    .assert_eq(&columns(Layout::Debezium));
    expect![[r#"
        id
        aggregate_type
        aggregate_id
        event_type
        payload
        occurred_at
        trace_id
        tenant_id
        event_version"#]]
    .assert_eq(&columns(Layout::Commerce));
    expect![[r#"
        id
        aggregate_type
        aggregate_id
        event_type
        payload
        headers
        topic
        partition_key
        created_at"#]]
    .assert_eq(&columns(Layout::Gcx));
    let extra =
        |column: &str, placement| Extra { column: column.to_owned(), placement, may_lack: false };
    let mut spec = OutboxSpec::for_layout(Layout::Commerce);
    spec.columns = vec![(Role::Trace, String::new()), (Role::Time, "happened".to_owned())];
    spec.extra.push(extra("tenant_id", Placement::Ignore));
    spec.extra.push(extra("region", Placement::Ignore));
    spec.key = "{region}:{aggregate_id}".to_owned();
    expect![[r#"
        id
        aggregate_type
        aggregate_id
        event_type
        payload
        happened
        event_version
        region"#]]
    .assert_eq(&spec.required_columns().join("\n"));
}

#[test]
fn a_column_of_a_state_has_the_name_that_its_role_has() {
    for (layout, role, column) in [
        (Layout::Commerce, Role::AvailableAt, "available_at"),
        (Layout::Gcx, Role::ExpiresAt, "expires_at"),
    ] {
        let mut spec = OutboxSpec::for_layout(layout);
        let names = |spec: &OutboxSpec| {
            let states = spec.row_state();
            states.columns().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let before = names(&spec);
        assert!(before.iter().any(|name| name == column), "{before:?}");
        spec.columns = vec![(role, "at".to_owned()), (Role::Payload, "attempts".to_owned())];
        let after = names(&spec);
        let wanted: Vec<String> = before.iter().map(|name| name.replace(column, "at")).collect();
        assert_eq!(after, wanted);
        // Without a column of the role, the state still needs one.
        spec.columns = vec![(role, String::new())];
        assert_eq!(names(&spec), before);
    }
}
