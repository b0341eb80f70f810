use super::*;
use expect_test::expect;
use std::time::Duration;

fn kill(seconds: u64) -> Injected {
    let back_after = Some(Duration::from_millis(1500));
    Injected {
        failure: chaos::FailureKind::KillRelay,
        at: Duration::from_secs(seconds),
        back_after,
    }
}

fn report() -> DemoReport {
    let millis = |p50, p99| Quantiles {
        p50: Some(Duration::from_millis(p50)),
        p99: Some(Duration::from_millis(p99)),
    };
    DemoReport {
        totals: Totals {
            committed: 7_482,
            rolled_back: 612,
            records: 7_523,
            delivered: 7_482,
            duplicated: 41,
            ..Totals::default()
        },
        injected: vec![kill(1), kill(2)],
        chaos: false,
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
          invented                0   rolled back (612) or never written
          duplicated             41   after 2 kills, at most 1,203 expected

          commit → acknowledged  p50  2.0 ms   p99  9.0 ms   with repeated events
          commit → consumed      p50  4.0 ms   p99   16 ms   from COMMIT to the reader
          peak memory                  24 MB   RSS of the relay

        Balanced: every committed event arrived at least once, in order, nothing else.
    "#]]
    .assert_eq(&report().text(false));
    assert!(report().balances());
}

#[test]
fn what_is_lost_swapped_or_invented_does_not_balance() {
    let spoil: [fn(&mut DemoReport); 7] = [
        |report| report.totals.outstanding = 1,
        |report| report.totals.out_of_order = 1,
        |report| report.totals.invented = 1,
        |report| report.totals.committed = 0,
        |report| report.injected.clear(),
        |report| report.injected[1].back_after = None,
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
fn without_kills_each_event_comes_once_and_the_page_fits_80_columns() {
    let mut calm = report();
    calm.injected.clear();
    (calm.totals.duplicated, calm.totals.unknown) = (0, 12);
    let page = calm.text(false);
    assert!(page.contains("arrived once, in order"), "{page}");
    let widths = [page, report().text(false), NEXT.to_owned()];
    let widths = widths.iter().flat_map(|page| page.lines()).map(|line| line.chars().count());
    let widths: Vec<usize> = widths.filter(|width| *width > 80).collect();
    assert!(widths.is_empty(), "{widths:?}");
}

#[test]
fn colours_are_only_where_they_are_asked_for() {
    assert!(!report().text(false).contains('\x1b'));
    assert!(report().text(true).contains("\x1b[1;32mBalanced"));
}
