//! The operators' page in Chromium: what it shows, that texts of others do nothing, that a keyboard is enough.
//!
//! The pictures of docs/pictures are written by `POSTRIDER_BLESS=1 scripts/test it browser::`.

mod driver;
mod served;

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::Relay;
use crate::server::Version;
use driver::{Browser, ENTER, SPACE, TAB};
use postrider::status::{Head, Lag, PipelineState, RefusedByError};
use served::Served;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A picture in docs/pictures is no larger. Unit: bytes.
const PICTURE_BYTES_MAX: usize = 400 << 10;

/// Writes a picture if it is to be renewed, and otherwise checks that the one of the documentation is there.
async fn picture(browser: &Browser, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures").join(name);
    let taken = browser.picture().await;
    assert!(taken.starts_with(b"\x89PNG"), "no picture");
    assert!(taken.len() <= PICTURE_BYTES_MAX, "{name} has {} bytes", taken.len());
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        fs::write(&path, &taken).expect("a picture");
    }
    let kept = fs::read(&path).unwrap_or_default();
    assert!(kept.starts_with(b"\x89PNG"), "docs/pictures/{name} is missing");
}

/// Nothing was written to the console: no error of the script, no refused request, no violation of the policy.
async fn assert_no_error(browser: &Browser) {
    let console = browser.console().await;
    assert!(console.is_empty(), "{console:#?}");
}

/// Waits for the sentence of the chosen pipeline.
async fn await_sentence(browser: &Browser, words: &str) {
    let script =
        format!("return document.getElementById('sentence').innerText.includes({words:?})");
    browser.await_true(words, &script).await;
}

fn page_of(relay: &Relay) -> String {
    let (host, port) = relay.admin_address();
    format!("http://{host}:{port}/")
}

/// Publishes until the charts of a picture have something to show.
async fn fill_charts(browser: &Browser, pipeline: &Pipeline) {
    let points =
        "return document.querySelector('#charts path').getAttribute('d').split('L').length > 10";
    await_that("points of the charts", Duration::from_mins(10), || async {
        pipeline.insert(fastrand::usize(20..400)).await;
        if browser.run(points).await == true { Ok(()) } else { Err("too few") }
    })
    .await;
}

#[tokio::test]
async fn page_of_a_running_pipeline_shows_its_stages_its_parked_events_and_its_charts() {
    let pipeline = Pipeline::shared(Version::Pg17, "page").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let browser = Browser::start().await;
    browser.open(&page_of(&relay)).await;
    await_sentence(&browser, "streams").await;
    assert_eq!(browser.text("state").await, "streaming");
    assert_eq!(browser.text("summary").await, "1 of 1 pipelines ready");
    pipeline.insert(500).await;
    browser
        .await_true(
            "the published events",
            "return [...document.querySelectorAll('#tables td')].some(cell => cell.innerText === '500')",
        )
        .await;
    let stages = browser
        .run("return [...document.querySelectorAll('#pipe .stage')].map(stage => stage.innerText)")
        .await;
    let names = ["Committed", "Read", "In flight", "Acknowledged", "Confirmed"];
    assert_eq!(stages, serde_json::json!(names));
    browser
        .await_true(
            "a position of each stage",
            "const of = [...document.querySelectorAll('#pipe .main')].map(main => main.innerText); \
             return of.filter(text => /^[0-9A-F]+\\/[0-9A-F]+$/.test(text)).length === 4",
        )
        .await;
    assert!(browser.text("slot").await.contains("reserved"), "{}", browser.text("slot").await);
    pipeline
        .sql
        .batch(
            "alter table outbox alter event_type drop not null; \
             insert into outbox (aggregate_type, aggregate_id) values ('order', 'a'); \
             insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', 'a', 'T', '1'), ('order', 'a', 'T', '2')",
        )
        .await;
    await_sentence(&browser, "3 events are parked").await;
    let behind = "const rows = [...document.querySelectorAll('#parked tbody tr')]; \
                  return rows.length === 2 && rows[0].cells[4].innerText === '2' \
                    && rows[0].cells[2].innerText === rows[1].cells[0].innerText \
                    && rows[0].cells[2].innerText.length > 3";
    browser.await_true("the head, the two behind it, and its error", behind).await;
    browser
        .await_true("charts", "return document.querySelectorAll('#charts path').length >= 4")
        .await;
    browser
        .await_true(
            "the log line of the parked event",
            "return document.getElementById('log').innerText.includes('event parked')",
        )
        .await;
    assert_no_error(&browser).await;
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        fill_charts(&browser, &pipeline).await;
    }
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        picture(&browser, &format!("page-{scheme}.png")).await;
    }
    browser.close().await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn names_and_errors_of_others_are_shown_as_text_and_do_nothing() {
    const EVIL: &str = "\"><img src=x onerror=\"window.harmed=1\"><script>window.harmed=1</script>\
                        <svg onload=\"window.harmed=1\">javascript:window.harmed=1//\u{202e}&lt;";
    let served = Served::new(&[EVIL, "orders"]).await;
    served.handles[0].update(|snapshot| {
        snapshot.state = PipelineState::Halted;
        snapshot.halt_code = Some("PR002");
        snapshot.reason = Some(EVIL.to_owned());
        snapshot.hint = Some(format!("{EVIL}\n{EVIL}"));
        snapshot.from.source = EVIL.to_owned();
        snapshot.from.slot = EVIL.to_owned();
        snapshot.watermark = EVIL.to_owned();
        snapshot.slot_state = Some(EVIL.to_owned());
        snapshot.parked.dead = 1;
        let head = Head {
            position: EVIL.to_owned(),
            error_code: Some(EVIL.to_owned()),
            ..Head::default()
        };
        snapshot.parked.heads = vec![head];
        snapshot.parked.by_error = vec![RefusedByError { error_code: EVIL.to_owned(), events: 1 }];
        snapshot.maintenance.runs.waits(EVIL, Some(EVIL));
    });
    served.log("ERROR", EVIL, EVIL);
    let browser = Browser::start().await;
    browser.open(&served.url()).await;
    await_sentence(&browser, "halted with PR002").await;
    browser
        .await_true(
            "the log line",
            "return document.getElementById('log').innerText.includes('onerror')",
        )
        .await;
    for id in ["pipelines", "name", "sentence", "hint", "slot", "parked", "tables", "log"] {
        let text = browser.text(id).await;
        assert!(text.contains("<img src=x onerror="), "{id}: {text}");
    }
    let made = "return document.querySelectorAll('img, [onerror], [onload], body script, iframe, object').length";
    assert_eq!(browser.run(made).await, 0);
    assert_eq!(browser.run("return window.harmed === undefined").await, true);
    // Another pipeline, and the hostile one again by its link.
    browser.click("#pipelines li:nth-child(2) a").await;
    await_sentence(&browser, "streams").await;
    browser.click("#pipelines li:nth-child(1) a").await;
    await_sentence(&browser, "halted with PR002").await;
    assert_eq!(browser.run("return window.harmed === undefined").await, true);
    assert_no_error(&browser).await;
    browser.close().await;
}

#[tokio::test]
async fn policy_refuses_markup_scripts_and_connections_that_are_not_of_the_page() {
    let served = Served::new(&["orders"]).await;
    let browser = Browser::start().await;
    browser.open(&served.url()).await;
    await_sentence(&browser, "streams").await;
    assert_no_error(&browser).await;
    let refused = |script: &str| {
        format!("try {{ {script}; return 'done' }} catch (error) {{ return error.name }}")
    };
    for script in [
        "document.body.innerHTML = '<p>x</p>'",
        "document.write('<p>x</p>')",
        "const script = document.createElement('script'); script.textContent = 'window.harmed = 1'",
    ] {
        assert_eq!(browser.run(&refused(script)).await, "TypeError", "{script}");
    }
    let image = "const image = new Image(); image.src = 'https://192.0.2.1/x.png'; \
                 await image.decode()";
    let fetch = "await fetch('http://127.0.0.1:9/')";
    for script in [image, fetch] {
        let script = format!("return (async () => {{ {} }})()", refused(script));
        assert_ne!(browser.run(&script).await, "done", "{script}");
    }
    assert_eq!(browser.run("return window.harmed === undefined").await, true);
    let console = browser.console().await;
    let violations = console.iter().filter(|line| line.contains("Content Security Policy")).count();
    assert!(violations >= 2, "{console:#?}");
    browser.close().await;
}

/// The text of the result of a search.
async fn await_result(browser: &Browser, words: &str) {
    let script =
        format!("return document.getElementById('find-result').innerText.includes({words:?})");
    browser.await_true(words, &script).await;
}

/// Types into the field for an event, and clicks once.
async fn search(browser: &Browser, text: &str) {
    let set = format!("document.getElementById('find-text').value = {}", serde_json::json!(text));
    browser.run(&set).await;
    browser.click("#find-go").await;
}

#[tokio::test]
async fn published_event_is_found_with_one_click_and_hostile_ids_do_nothing() {
    const EVIL: &str = "\"><img src=x onerror=\"window.harmed=1\">'$(x)&id=1#\\";
    let pipeline = Pipeline::shared(Version::Pg17, "pagefind").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(30).await;
    let records = pipeline.topic.await_records(30, SOON).await;
    let browser = Browser::start().await;
    browser.open(&page_of(&relay)).await;
    await_sentence(&browser, "streams").await;
    let record = records.iter().find(|record| record.header("id") == Some("17")).expect("a record");
    search(&browser, "17").await;
    await_result(&browser, "published: the broker has acknowledged it").await;
    let cells =
        "return [...document.querySelectorAll('#find-result td')].map(cell => cell.innerText)";
    let cells = browser.run(cells).await;
    let (_, lsn, ordinal) = record.place().expect("a position");
    assert_eq!(cells[1], pipeline.topic.name.as_str(), "{cells}");
    assert_eq!(cells[2], record.partition.to_string(), "{cells}");
    assert_eq!(cells[3], record.offset.to_string(), "{cells}");
    assert_eq!(cells[4], format!("{lsn}:{ordinal}"), "{cells}");
    await_result(&browser, "everything since its start").await;
    await_result(&browser, &format!("postrider find -p {} -- 17", pipeline.name)).await;
    // An aggregate, by the key.
    browser.run("document.getElementById('find-text').value = ''").await;
    browser.click("#find-text").await;
    browser.press(&"order:7".chars().chain([ENTER]).collect::<Vec<_>>()).await;
    await_result(&browser, "Events of this aggregate, the newest first").await;
    let rows = "return document.querySelectorAll('#find-result tbody tr').length";
    assert_eq!(browser.run(rows).await, 3);
    search(&browser, EVIL).await;
    await_result(&browser, "Not found in the memory of this process").await;
    await_result(&browser, "<img src=x onerror=").await;
    let made = "return document.querySelectorAll('img, [onerror], body script').length";
    assert_eq!(browser.run(made).await, 0);
    assert_eq!(browser.run("return window.harmed === undefined").await, true);
    // A control character could hide what is copied.
    search(&browser, "a\u{202e}b").await;
    browser
        .await_true(
            "no command",
            "return document.querySelector('#find-result pre') === null \
               && document.getElementById('find-result').innerText.includes('Not found')",
        )
        .await;
    assert_no_error(&browser).await;
    browser.close().await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn one_of_a_hundred_pipelines_is_found_and_chosen_in_two_steps() {
    let names: Vec<String> = (0..100).map(|number| format!("pipeline_{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let served = Served::new(&names).await;
    served.handles[57].update(|snapshot| {
        snapshot.state = PipelineState::BrokerDown;
        snapshot.reason = Some("no broker answers".to_owned());
        snapshot.moments.lag = Lag::growing(Duration::from_secs(90));
    });
    let browser = Browser::start().await;
    browser.open(&served.url()).await;
    // The one that is not ready is shown first.
    await_sentence(&browser, "publishes nothing: no broker answers").await;
    assert_eq!(browser.text("name").await, "pipeline_057");
    assert_eq!(browser.text("summary").await, "99 of 100 pipelines ready");
    assert_eq!(browser.run("return document.title").await, "(1) Postrider");
    assert_eq!(browser.run("return document.querySelectorAll('#pipelines li').length").await, 100);
    let visible = "return [...document.querySelectorAll('#pipelines li')].filter(item => !item.hidden).length";
    browser.click("#trouble").await;
    assert_eq!(browser.run(visible).await, 1);
    browser.click("#trouble").await;
    browser.click("#filter").await;
    browser.press(&"_099".chars().collect::<Vec<_>>()).await;
    assert_eq!(browser.run(visible).await, 1);
    browser.click("#pipelines li:not([hidden]) a").await;
    browser
        .await_true(
            "the chosen one",
            "return document.getElementById('name').innerText === 'pipeline_099'",
        )
        .await;
    // It stays chosen when another one gets a problem.
    served.handles[3].update(|snapshot| snapshot.state = PipelineState::SourceDown);
    browser.await_true("98 are ready", "return document.title === '(2) Postrider'").await;
    assert_eq!(browser.text("name").await, "pipeline_099");
    assert_no_error(&browser).await;
    browser.close().await;
}

#[tokio::test]
async fn keyboard_is_enough_and_a_screen_reader_has_landmarks_and_the_sentence() {
    let served = Served::new(&["orders", "payments"]).await;
    let browser = Browser::start().await;
    browser.open(&served.url()).await;
    await_sentence(&browser, "streams").await;
    let focused = "const at = document.activeElement; return at.id || at.innerText.split('\\n')[0]";
    browser.press(&[TAB]).await;
    assert_eq!(browser.run(focused).await, "Skip to the pipeline");
    browser.press(&[ENTER, TAB]).await;
    assert_eq!(browser.run(focused).await, "find-text");
    browser.press(&[TAB]).await;
    assert_eq!(browser.run(focused).await, "find-go");
    browser.press(&[TAB]).await;
    assert_eq!(browser.run(focused).await, "hour");
    browser.press(&[TAB, SPACE]).await;
    assert_eq!(browser.run(focused).await, "day");
    browser
        .await_true("24 hours", "return document.getElementById('day').ariaPressed === 'true'")
        .await;
    browser.press(&[TAB]).await;
    assert_eq!(browser.run(focused).await, "log");
    // From the begin: filter, check box, the two pipelines.
    browser.open(&served.url()).await;
    await_sentence(&browser, "streams").await;
    browser.press(&[TAB, TAB]).await;
    assert_eq!(browser.run(focused).await, "filter");
    browser.press(&[TAB]).await;
    assert_eq!(browser.run(focused).await, "trouble");
    browser.press(&[TAB, TAB]).await;
    assert_eq!(browser.run(focused).await, "payments");
    browser.press(&[ENTER]).await;
    browser
        .await_true(
            "the chosen one",
            "return document.getElementById('name').innerText === 'payments'",
        )
        .await;
    assert_eq!(browser.run(focused).await, "detail");
    let landmarks = "return ['header', 'nav', 'main', 'footer'].every(tag => \
                     document.querySelectorAll(`body ${tag}`).length === 1)";
    assert_eq!(browser.run(landmarks).await, true);
    let named = "return [...document.querySelectorAll('section, nav, input, table, svg, button')].filter(of => \
                 !(of.ariaLabel || of.getAttribute('aria-labelledby') || of.labels?.length \
                   || of.caption || of.innerText)).map(of => of.outerHTML)";
    assert_eq!(browser.run(named).await, serde_json::json!([]));
    // The change of a state is announced.
    served.handles[1].update(|snapshot| {
        snapshot.state = PipelineState::SourceDown;
        snapshot.reason = Some("connection refused".to_owned());
    });
    let announced = "const region = document.getElementById('announce'); \
                     return region.ariaLive === 'polite' \
                       && region.textContent.startsWith('payments reads nothing: connection refused')";
    browser.await_true("the announcement", announced).await;
    assert_no_error(&browser).await;
    browser.close().await;
}

#[tokio::test]
async fn process_that_no_longer_answers_is_named_and_what_is_shown_is_called_old() {
    let mut served = Served::new(&["orders"]).await;
    let browser = Browser::start().await;
    browser.open(&served.url()).await;
    await_sentence(&browser, "streams").await;
    assert_no_error(&browser).await;
    served.stop().await;
    let stale = "const stale = document.getElementById('stale'); \
                 return !stale.hidden && stale.innerText.startsWith('No answer since')";
    browser.await_true("the process is missed", stale).await;
    assert!(browser.text("sentence").await.contains("streams"));
    served.start().await;
    browser.await_true("it is back", "return document.getElementById('stale').hidden").await;
    browser.close().await;
}

/// The contrast of each text with what is behind it, by the formula of WCAG 2; the lowest one and its text.
const CONTRAST: &str = "
const parse = (color) => color.match(/[\\d.]+/g).map(Number);
const light = ([red, green, blue]) => {
  const part = (value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
};
const ground = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const color = parse(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
let lowest = [99, ''];
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.checkVisibility() || node.closest('.unseen')) continue;
  const [one, other] = [light(parse(getComputedStyle(node).color)), light(ground(node))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < lowest[0]) lowest = [contrast, node.outerHTML];
}
return lowest";

#[tokio::test]
async fn each_state_is_named_and_can_be_read_in_light_and_dark() {
    let names: Vec<&str> = PipelineState::ALL.iter().map(|state| state.name()).collect();
    let served = Served::new(&names).await;
    for (handle, state) in served.handles.iter().zip(PipelineState::ALL) {
        handle.update(|snapshot| {
            snapshot.state = *state;
            snapshot.reason = Some("the reason".to_owned());
            snapshot.hint = Some("the line that fixes it".to_owned());
        });
    }
    served.log("WARN", "halted", "a warning");
    let browser = Browser::start().await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        browser.open(&served.url()).await;
        for (place, name) in names.iter().enumerate() {
            browser.click(&format!("#pipelines li:nth-child({}) a", place + 1)).await;
            let shown = name.replace('_', " ");
            let script = format!("return document.getElementById('state').innerText === '{shown}'");
            browser.await_true(&shown, &script).await;
        }
        // Transitions of colours are over.
        let still = "return document.getAnimations().length === 0";
        browser.await_true("nothing moves", still).await;
        let lowest = browser.run(CONTRAST).await;
        assert!(lowest[0].as_f64() >= Some(4.5), "{scheme}: {lowest}");
        let ground = browser.run("return getComputedStyle(document.body).backgroundColor").await;
        assert_eq!(ground == "rgb(255, 255, 255)", scheme == "light", "{ground}");
    }
    browser.click("#pipelines li:nth-child(10) a").await;
    await_sentence(&browser, "halted").await;
    picture(&browser, "page-halted.png").await;
    assert_no_error(&browser).await;
    browser.close().await;
}

#[tokio::test]
async fn charts_show_latencies_and_say_when_there_is_no_data() {
    let served = Served::new(&["orders"]).await;
    let browser = Browser::start().await;
    browser.open(&served.url()).await;
    await_sentence(&browser, "streams").await;
    // A point of the day takes a minute.
    browser.click("#day").await;
    browser
        .await_true(
            "no data yet",
            "return [...document.querySelectorAll('#charts figcaption')].filter(of => \
             of.innerText.endsWith('no data yet')).length === 6",
        )
        .await;
    browser.click("#hour").await;
    served.counters[0].latency().observe_many(Duration::from_millis(4), 100);
    served.handles[0].update(|snapshot| snapshot.published_total += 100);
    browser
        .await_true(
            "the mean latency, and the bound of its bucket",
            "return [...document.querySelectorAll('#charts figcaption')].some(of => \
             of.innerText === 'Latency, and 99 of 100 below: 4 ms, at most 5 ms')",
        )
        .await;
    assert_no_error(&browser).await;
    browser.close().await;
}
