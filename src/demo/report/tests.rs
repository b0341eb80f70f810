use super::*;
use expect_test::expect;
use std::time::Duration;

fn report() -> Report {
    let millis = |p50, p99| Quantiles {
        p50: Some(Duration::from_millis(p50)),
        p99: Some(Duration::from_millis(p99)),
    };
    Report {
        totals: Totals {
            committed: 7_482,
            rolled_back: 612,
            records: 7_523,
            delivered: 7_482,
            duplicated: 41,
            ..Totals::default()
        },
        kills: 2,
        repeatable: 1_203,
        acknowledged: millis(2, 9),
        consumed: millis(4, 16),
        memory_peak: Some(24_100_000),
        trouble: None,
    }
}

#[test]
fn a_balanced_ledger_says_so() {
    expect![[r#"

        Ledger
          committed           7,482   COMMIT was answered
          delivered           7,482   different events, read back from the broker
          lost                    0   committed, not delivered
          out of order            0   of one aggregate
          invented                0   delivered, though rolled back (612) or never written
          duplicated             41   delivered again after 2 kills, at most 1,203 expected

          commit → acknowledged  p50  2.0 ms   p99  9.0 ms   by the relay's own histogram, repeated events too
          commit → consumed      p50  4.0 ms   p99   16 ms   from the writer's COMMIT to the reader
          peak memory                  24 MB   RSS of the relay

        Balanced: all that was committed was delivered, in order, and nothing else.
    "#]].assert_eq(&report().text(false));
    assert!(report().balances());
}

#[test]
fn what_is_lost_swapped_or_invented_does_not_balance() {
    let spoil: [fn(&mut Report); 5] = [
        |report| report.totals.outstanding = 1,
        |report| report.totals.out_of_order = 1,
        |report| report.totals.invented = 1,
        |report| report.totals.committed = 0,
        |report| report.trouble = Some("it did not end".to_owned()),
    ];
    for spoil in spoil {
        let mut spoiled = report();
        spoil(&mut spoiled);
        assert!(!spoiled.balances(), "{}", spoiled.text(false));
        assert!(spoiled.text(false).contains("\nNot balanced"));
    }
}

#[test]
fn colours_are_only_where_they_are_asked_for() {
    assert!(!report().text(false).contains('\x1b'));
    assert!(report().text(true).contains("\x1b[1;32mBalanced"));
}
