//! One full row of every layout.

use super::support::{INT, JSON, TEXT, TIMESTAMPTZ, UUID, map_layout, null, text, typed};
use crate::Layout;
use expect_test::expect;

#[test]
fn a_row_of_layout_postrider() {
    let record = map_layout(
        Layout::Postrider,
        &[
            typed("id", INT, "42"),
            text("aggregate_type", "order"),
            text("aggregate_id", "o-7"),
            text("event_type", "OrderPlaced"),
            typed("payload", JSON, r#"{"total":  9.50}"#),
            typed("headers", JSON, r#"{"source": "shop", "attempt": 1.0, "a": {"b": [1, 2]}}"#),
            typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05.678901+00"),
        ],
    );
    expect![[r#"
        event     42 "OrderPlaced"
        aggregate order / o-7
        topic     order
        key       "o-7"
        value     "{\"total\":  9.50}"
        timestamp 1704164645678
        header    id = "42"
        header    type = "OrderPlaced"
        header    position = "00000000-0000000001A2B3C8-00000005"
        header    source = "shop"
        header    attempt = "1.0"
        header    a = "{\"b\": [1, 2]}"
    "#]]
    .assert_eq(&record);
}

#[test]
fn a_row_of_layout_debezium() {
    let record = map_layout(
        Layout::Debezium,
        &[
            typed("id", UUID, "0b6c8a4e-1111-4222-8333-944444444444"),
            typed("aggregatetype", TEXT, "Order"),
            typed("aggregateid", TEXT, "42"),
            typed("type", TEXT, "OrderCreated"),
            typed("payload", JSON, r#"{"total": 9.5}"#),
        ],
    );
    expect![[r#"
        event     0b6c8a4e-1111-4222-8333-944444444444 "OrderCreated"
        aggregate Order / 42
        topic     outbox.event.Order
        key       "42"
        value     "{\"total\": 9.5}"
        timestamp 1704164645500
        header    id = "0b6c8a4e-1111-4222-8333-944444444444"
    "#]]
    .assert_eq(&record);
}

#[test]
fn a_row_of_layout_commerce() {
    let record = map_layout(
        Layout::Commerce,
        &[
            typed("id", INT, "9"),
            typed("tenant_id", INT, "3"),
            text("aggregate_type", "Order"),
            typed("aggregate_id", INT, "77"),
            text("event_type", "OrderConfirmed"),
            typed("event_version", INT, "2"),
            typed("payload", JSON, r#"{"ok": true}"#),
            typed("occurred_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
            typed("available_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
            null("processed_at", TIMESTAMPTZ),
            typed("attempts", INT, "0"),
            null("last_error", TEXT),
            text("trace_id", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ],
    );
    expect![[r#"
        event     9 "OrderConfirmed"
        aggregate Order / 77
        topic     Order
        key       "77"
        value     "{\"ok\": true}"
        timestamp 1704164645000
        header    id = "9"
        header    type = "OrderConfirmed"
        header    position = "00000000-0000000001A2B3C8-00000005"
        header    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        header    tenant_id = "3"
        header    event_version = "2"
    "#]]
    .assert_eq(&record);
}

#[test]
fn a_row_of_layout_gcx() {
    let record = map_layout(
        Layout::Gcx,
        &[
            typed("id", UUID, "0b6c8a4e-1111-4222-8333-944444444444"),
            typed("aggregate_type", TEXT, "Trade"),
            typed("aggregate_id", UUID, "aaaaaaaa-1111-4222-8333-944444444444"),
            typed("event_type", TEXT, "trade.matched"),
            typed("topic", TEXT, "trades"),
            typed("partition_key", TEXT, "BTC-EUR"),
            typed("payload", JSON, r#"{"price": 1}"#),
            typed("headers", JSON, r#"{"source": "engine", "traceId": "t-1"}"#),
            typed("status", TEXT, "pending"),
            typed("retry_count", INT, "0"),
            typed("max_retries", INT, "5"),
            null("published_at", TIMESTAMPTZ),
            typed("expires_at", TIMESTAMPTZ, "2024-01-03 03:04:05+00"),
            typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
        ],
    );
    expect![[r#"
        event     0b6c8a4e-1111-4222-8333-944444444444 "trade.matched"
        aggregate Trade / aaaaaaaa-1111-4222-8333-944444444444
        topic     trades
        key       "BTC-EUR"
        value     "{\"price\": 1}"
        timestamp 1704164645000
        header    id = "0b6c8a4e-1111-4222-8333-944444444444"
        header    type = "trade.matched"
        header    position = "00000000-0000000001A2B3C8-00000005"
        header    source = "engine"
        header    traceId = "t-1"
    "#]]
    .assert_eq(&record);
}

#[test]
fn a_row_of_layout_sqlgarden() {
    let record = map_layout(
        Layout::Sqlgarden,
        &[
            typed("id", INT, "1"),
            text("aggregate_type", "User"),
            text("aggregate_id", "u-1"),
            text("event_type", "UserEmailUpdated"),
            typed("payload", JSON, r#"{"email": "a@b.example"}"#),
            text("status", "PENDING"),
            typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05.000001+00"),
            null("last_attempt_at", TIMESTAMPTZ),
            typed("attempt_count", INT, "0"),
        ],
    );
    expect![[r#"
        event     1 "UserEmailUpdated"
        aggregate User / u-1
        topic     User
        key       "u-1"
        value     "{\"email\": \"a@b.example\"}"
        timestamp 1704164645000
        header    id = "1"
        header    type = "UserEmailUpdated"
        header    position = "00000000-0000000001A2B3C8-00000005"
    "#]]
    .assert_eq(&record);
}

#[test]
fn a_row_of_layout_adr30() {
    let record = map_layout(
        Layout::Adr30,
        &[
            typed("id", UUID, "0b6c8a4e-1111-4222-8333-944444444444"),
            typed("aggregate_type", TEXT, "booking"),
            typed("aggregate_id", UUID, "aaaaaaaa-1111-4222-8333-944444444444"),
            typed("event_type", TEXT, "booking.created"),
            typed("payload", JSON, r#"{"guest": "x"}"#),
            typed("metadata", JSON, r#"{"userId": "u", "traceId": "t"}"#),
            typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
            null("published_at", TIMESTAMPTZ),
        ],
    );
    expect![[r#"
        event     0b6c8a4e-1111-4222-8333-944444444444 "booking.created"
        aggregate booking / aaaaaaaa-1111-4222-8333-944444444444
        topic     booking.created
        key       "aaaaaaaa-1111-4222-8333-944444444444"
        value     "{\"guest\": \"x\"}"
        timestamp 1704164645000
        header    id = "0b6c8a4e-1111-4222-8333-944444444444"
        header    type = "booking.created"
        header    position = "00000000-0000000001A2B3C8-00000005"
        header    userId = "u"
        header    traceId = "t"
    "#]]
    .assert_eq(&record);
}

#[test]
fn a_row_of_layout_pgtrickle() {
    let record = map_layout(
        Layout::Pgtrickle,
        &[
            typed("id", INT, "42"),
            text("aggregate_type", "orders"),
            text("aggregate_id", "public.orders"),
            text("event_type", "INSERT"),
            typed("payload", JSON, r#"{"v" : 1, "inserted" : [{"id":1}], "deleted" : []}"#),
            typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
            null("published_at", TIMESTAMPTZ),
            null("unread_since", TIMESTAMPTZ),
        ],
    );
    expect![[r#"
        event     42 "INSERT"
        aggregate orders / public.orders
        topic     orders
        key       "public.orders"
        value     "{\"v\" : 1, \"inserted\" : [{\"id\":1}], \"deleted\" : []}"
        timestamp 1704164645000
        header    id = "42"
        header    type = "INSERT"
        header    position = "00000000-0000000001A2B3C8-00000005"
    "#]]
    .assert_eq(&record);
}
