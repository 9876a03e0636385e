//! The page: its guards over plain HTTP, and itself in a real browser.

use std::io::BufRead;
use std::path::PathBuf;

use quorate_protocol::ServerAddress;
use quorate_test_support::FakeServer;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::down::RunDirectory;
use crate::http::{Reply, request, stream};
use crate::live::Living;

/// How many pages may listen at once, as the program has it.
const MAX_LISTENERS: usize = 32;

/// A set with a page and a writer, and the address of the page.
fn shown_set(run: &RunDirectory) -> (Living, String) {
    let up = ["up", "--port", "0", "--web", "0", "--workload", "--json"];
    let mut set = run.start(&up);
    let page = set.wait_for("page", |_| true);
    set.wait_for("ready", |_| true);
    let url = page["url"].as_str().unwrap();
    (set, url.trim_start_matches("http://").trim_end_matches('/').to_owned())
}

fn get(address: &str, path: &str) -> Reply {
    request(address, "GET", path, &[("host", address)], "")
}

/// The token that the page carries.
fn token(address: &str) -> String {
    let page = get(address, "/").body;
    let token = page.split("name=\"quorate-token\" content=\"").nth(1).unwrap();
    token.split('"').next().unwrap().to_owned()
}

fn act(address: &str, token: &str, order: &Value) -> Reply {
    let headers = [("host", address), ("x-quorate-token", token)];
    request(address, "POST", "/actions", &headers, &order.to_string())
}

#[test]
fn strangers_are_refused_and_every_reply_forbids_the_rest() {
    let run = RunDirectory::new();
    let (set, address) = shown_set(&run);
    let page = get(&address, "/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(get(&address, "/nothing").status, 404);

    // DNS rebinding: the name of another host that leads here.
    let rebound = request(&address, "GET", "/", &[("host", "evil.example")], "");
    assert_eq!(rebound.status, 403);
    assert!(!rebound.body.contains("quorate-token"), "{}", rebound.body);
    assert!(rebound.header("content-security-policy").is_some());
    // A page elsewhere that knows our address.
    let token = token(&address);
    let order = json!({"action": "kill", "member": "127.0.0.1:1"}).to_string();
    for other in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
        let headers = [("host", address.as_str()), other, ("x-quorate-token", &token)];
        let reply = request(&address, "POST", "/actions", &headers, &order);
        assert_eq!(reply.status, 403, "{other:?}");
    }
    // No request acts without the token, or with another one.
    let headers = [("host", address.as_str())];
    assert_eq!(request(&address, "POST", "/actions", &headers, &order).status, 403);
    let wrong = token.replace(|c: char| c.is_ascii_digit(), "f");
    assert_eq!(act(&address, &wrong, &json!({})).status, 403);
    // With it, orders must make sense.
    assert_eq!(act(&address, &token, &json!({})).status, 400);
    let stranger = json!({"action": "kill", "member": "127.0.0.1:1"});
    assert_eq!(act(&address, &token, &stranger).status, 404);
    let long = json!({"action": "kill", "member": "x".repeat(10_000)});
    assert_eq!(act(&address, &token, &long).status, 413);
    assert_eq!(set.terminate(), Some(0));
}

#[test]
fn members_are_broken_and_mended_from_the_page() {
    let run = RunDirectory::new();
    let (mut set, address) = shown_set(&run);
    let token = token(&address);
    let view = get(&address, "/view").json();
    let primary = view["set"]["primary"].as_str().unwrap().to_owned();
    let order = |action: &str| json!({"action": action, "member": primary});
    assert_eq!(act(&address, &token, &order("restore")).status, 409, "nothing is broken yet");
    for (action, state) in [("pause", "paused"), ("partition", "partitioned"), ("kill", "gone")] {
        let done = act(&address, &token, &order(action));
        assert_eq!(done.status, 200, "{action}: {}", done.body);
        assert!(done.json()["message"].as_str().unwrap().contains(&primary), "{}", done.body);
        wait_for_view(&address, |view| process(view, &primary) == state);
        let mended = act(&address, &token, &order("restore"));
        assert_eq!(mended.status, 200, "{action}: {}", mended.body);
        wait_for_view(&address, |view| process(view, &primary) == "running");
    }
    set.wait_for("member_exited", |event| event["host"] == primary.as_str());
    wait_for_view(&address, |view| view["set"]["primary"].is_string());
    assert_eq!(set.terminate(), Some(0));
}

fn process<'a>(view: &'a Value, member: &str) -> &'a str {
    let members = view["members"].as_array().unwrap();
    let member = members.iter().find(|found| found["address"] == member).unwrap();
    member["process"]["state"].as_str().unwrap_or("none")
}

/// Waits for a view that satisfies the condition.
fn wait_for_view(address: &str, accepts: impl Fn(&Value) -> bool) -> Value {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
    loop {
        let view = get(address, "/view").json();
        if accepts(&view) {
            return view;
        }
        assert!(std::time::Instant::now() < deadline, "never: {view:#}");
    }
}

#[test]
fn views_are_streamed_to_a_bounded_number_of_pages() {
    let run = RunDirectory::new();
    let (set, address) = shown_set(&run);
    let mut listening = Vec::new();
    for _ in 0..MAX_LISTENERS {
        let (status, reader) = stream(&address, "/events");
        assert_eq!(status, 200);
        listening.push(reader);
    }
    assert_eq!(stream(&address, "/events").0, 503);
    let first = listening.pop().unwrap();
    let mut lines = first.lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "event: view"));
    let data = lines.next().unwrap();
    let view: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(view["members"].as_array().unwrap().len(), 3, "{view}");
    drop((listening, lines));
    // A viewer that leaves makes room, as soon as that is noticed.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
    while stream(&address, "/events").0 != 200 {
        assert!(std::time::Instant::now() < deadline, "the places are not given back");
    }
    assert_eq!(set.terminate(), Some(0));
}

/// A deployment that is not ours, without a primary: shown, measured, and not to be broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_foreign_set_without_a_primary_is_shown_and_left_alone() {
    let server = FakeServer::start().await.unwrap();
    let member: ServerAddress = server.address().clone();
    let members = [member.clone()];
    server.set_hello(crate::doctor_uri::secondary_hello("rs0", &member, &members, None));
    let uri = format!("mongodb://{member}/?replicaSet=rs0");
    let tried = tokio::task::spawn_blocking(move || {
        let mut watch = Living::start(&["watch", "--json", "--web", "0", &uri]);
        let url = watch.wait_for("page", |_| true)["url"].as_str().unwrap().to_owned();
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        wait_for_view(&address, |view| view["members"][0]["state"] == "SECONDARY");
        let page = get(&address, "/").body;
        assert!(page.contains("name=\"quorate-breakable\" content=\"false\""), "{page}");
        let refused = act(&address, &token(&address), &json!({"action": "kill", "member": "a:1"}));
        assert_eq!(refused.status, 404);
        let metrics = get(&address, "/metrics");
        let kind = metrics.header("content-type");
        assert_eq!(kind, Some("text/plain; version=0.0.4; charset=utf-8"));
        for line in [
            "quorate_set_has_primary{set=\"rs0\"} 0".to_owned(),
            format!("quorate_member_up{{member=\"{member}\"}} 1"),
            format!("quorate_member_is_primary{{member=\"{member}\"}} 0"),
        ] {
            assert!(metrics.body.lines().any(|found| found == line), "{line}\n{}", metrics.body);
        }
        // The client's own counters stand beside, and no family is told twice.
        assert!(metrics.body.contains("\nquorate_client_commands_started_total "));
        let mut families: Vec<&str> =
            metrics.body.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let told = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), told, "{}", metrics.body);
        assert_eq!(watch.terminate(), Some(0));
    });
    tried.await.unwrap();
}

/// Where the pictures go that the test takes. Those of the README are made with this variable.
fn pictures() -> PathBuf {
    match std::env::var_os("QUORATE_PICTURES") {
        Some(folder) => PathBuf::from(folder),
        None => quorate_provision::target_directory().join("page"),
    }
}

#[test]
fn the_page_shows_a_failover_in_a_real_browser() {
    let run = RunDirectory::new();
    let (set, address) = shown_set(&run);
    let browser = Browser::start();
    browser.resize(1280, 900, false);
    browser.prefer("light");
    browser.open(&format!("http://{address}/"));
    browser.wait("document.querySelector('#headline').textContent.endsWith('is primary')");
    browser.wait("document.querySelectorAll('#graph .node').length === 3");
    browser.wait("document.querySelectorAll('#graph .sync').length === 2");
    browser.wait("Number(document.querySelector('#figure-writes').textContent) > 0");
    let primary = browser.run("return document.querySelector('#headline').textContent");

    browser.click("[data-action='step-down']:not([hidden])");
    browser.wait("document.querySelector('#log [data-kind=write_gap]')");
    browser.wait("document.querySelectorAll('#log [data-kind=elected]').length > 1");
    browser.wait(&format!(
        "document.querySelector('#headline').textContent.endsWith('is primary') && \
         document.querySelector('#headline').textContent !== {primary}"
    ));
    browser.wait("/\\d m?s$/.test(document.querySelector('#figure-gap').innerText.trim())");
    browser.wait("document.querySelector('#throughput .gap')");
    browser.wait("document.querySelector('#throughput .election')");
    browser.wait("document.querySelectorAll('#graph .sync').length === 2");
    browser.picture(&pictures().join("light.png"));

    // A kill wants a second press; then the member is shown as killed, and comes back.
    browser.click(".member:last-child [data-action='kill']");
    browser.click(".member:last-child [data-action='kill'].sure");
    browser.wait("document.querySelector('.member:last-child .chip').textContent === 'killed'");
    browser.wait("document.querySelector('#graph .node[data-broken]')");
    browser.prefer("dark");
    browser.picture(&pictures().join("dark.png"));
    browser.click(".member:last-child [data-action='restore']");
    browser.wait("!document.querySelector('#graph .node[data-broken]')");
    browser.wait("document.querySelector('.member:last-child .chip').textContent === 'secondary'");

    // On a phone nothing is wider than the screen.
    browser.resize(390, 844, true);
    browser.wait("document.documentElement.scrollWidth <= innerWidth");
    browser.wait("document.querySelector('#graph').viewBox.baseVal.width < 640");
    browser.picture(&pictures().join("phone.png"));

    assert_eq!(browser.console(), Vec::<String>::new());
    let requests = browser.requests();
    let ours = format!("http://{address}/");
    assert!(requests.len() > 6, "{requests:?}");
    let elsewhere: Vec<_> = requests.iter().filter(|url| !url.starts_with(&ours)).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    drop(browser);
    assert_eq!(set.terminate(), Some(0));
}

/// How far the arrows of the graph stay away from members at which they neither begin nor end, less the
/// radius of the members: negative where one crosses a member.
const ARROWS_CLEAR: &str = "
    const nodes = [...document.querySelectorAll('#graph .node')].map((node) => {
      const at = node.transform.baseVal.consolidate().matrix;
      return { x: at.e, y: at.f, r: Number(node.querySelector('.disc').getAttribute('r')) };
    });
    const away = (point, node) => Math.hypot(point.x - node.x, point.y - node.y) - node.r;
    let least = Infinity;
    for (const path of document.querySelectorAll('#graph .sync')) {
      const length = path.getTotalLength();
      const points = Array.from({ length: 61 }, (_, i) => path.getPointAtLength(length * i / 60));
      const ends = [points[0], points[60]];
      for (const node of nodes) {
        if (ends.some((end) => away(end, node) < 20)) continue;
        least = Math.min(least, ...points.map((point) => away(point, node)));
      }
    }
    return least;";

/// Seven members, and then four of them gone: an outage, on a desk and on a phone, light and dark.
#[test]
fn the_page_shows_seven_members_and_an_outage_in_progress() {
    let run = RunDirectory::new();
    let up = ["up", "--members", "7", "--port", "0", "--web", "0", "--workload", "--json"];
    let mut set = run.start(&[&up[..], &["--election-timeout", "2s"]].concat());
    let url = set.wait_for("page", |_| true)["url"].as_str().unwrap().to_owned();
    set.wait_for("ready", |_| true);
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let browser = Browser::start();
    browser.resize(1280, 900, false);
    browser.prefer("light");
    browser.open(&url);
    browser.wait("document.querySelectorAll('#graph .sync').length === 6");
    let clear = |what: &str| {
        let least = browser.run(ARROWS_CLEAR).as_f64().expect("arrows");
        assert!(least > 0.0, "an arrow crosses a member by {least} {what}");
    };
    clear("on a desk");
    browser.resize(390, 844, true);
    browser.wait("document.querySelector('#graph').viewBox.baseVal.width < 640");
    clear("on a phone");

    let token = token(&address);
    let view = wait_for_view(&address, |view| view["set"]["primary"].is_string());
    let members: Vec<&str> = view["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["address"].as_str().unwrap())
        .collect();
    for member in &members[..4] {
        let killed = act(&address, &token, &json!({"action": "kill", "member": member}));
        assert_eq!(killed.status, 200, "{}", killed.body);
    }
    for (width, height, phone) in [(1280, 900, false), (390, 844, true)] {
        browser.resize(width, height, phone);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            // The outage is told: no member leads, the open gap grows and is shaded.
            browser.wait("/no primary/i.test(document.querySelector('#headline').textContent)");
            browser.wait("document.querySelector('#gap-title').textContent === 'No write for'");
            browser.wait("document.querySelector('#throughput .gap.open')");
            // Headline and tile count the same votes.
            browser.wait(
                "document.querySelector('#figure-votes').innerText.replace(/\\s/g, '').startsWith('3')",
            );
            browser.wait("document.documentElement.scrollWidth <= innerWidth");
            browser.wait(
                "[...document.querySelectorAll('[data-action=kill]:not([hidden])')].length <= 3",
            );
            browser.picture(&pictures().join(format!("outage-{width}-{scheme}.png")));
        }
    }
    // On a phone what can be pressed stands above what can only be read.
    browser.wait(
        "document.querySelector('[data-action=restore]:not([hidden])').getBoundingClientRect().top \
         < document.querySelector('#log').getBoundingClientRect().top",
    );
    assert_eq!(browser.console(), Vec::<String>::new());
    drop(browser);
    assert_eq!(set.terminate(), Some(0));
}

/// WebDriver's code points of keys.
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';

#[test]
fn the_page_is_reached_with_the_keyboard_and_tells_when_its_program_ends() {
    let run = RunDirectory::new();
    let (set, address) = shown_set(&run);
    let browser = Browser::start();
    browser.resize(1280, 900, false);
    browser.open(&format!("http://{address}/"));
    browser.wait("document.querySelectorAll('.member').length === 3");
    let focused = |expression: &str| {
        browser.run(&format!("return String(document.activeElement.{expression})"))
    };
    browser.press(TAB);
    assert_eq!(focused("className"), "skip");
    let mut seen = Vec::new();
    // Every control of a set of three, and some to spare.
    for _ in 0..40 {
        browser.press(TAB);
        let name = focused("getAttribute('data-action')");
        let name = if name == "null" { focused("id") } else { name };
        let first = !seen.iter().any(|found| *found == name);
        seen.push(name.as_str().unwrap().to_owned());
        if first && name == "theme" {
            browser.press(ENTER);
            assert_eq!(browser.run("return document.documentElement.dataset.theme"), "light");
        }
    }
    for name in ["copy", "theme", "only-marks", "log", "step-down", "kill", "partition"] {
        assert!(seen.iter().any(|found| found == name), "{name} is not reached: {seen:?}");
    }
    // What is read aloud has words for everything that can be pressed.
    browser.wait(
        "[...document.querySelectorAll('button, .node, #log')].every((e) => \
         (e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent).trim())",
    );
    assert_eq!(set.terminate(), Some(0));
    browser.wait("!document.querySelector('#banner').hidden");
    // Nothing can be broken any more.
    browser.wait("document.querySelectorAll('[data-action=kill]').length === 3");
    browser.wait(
        "[...document.querySelectorAll('[data-action]')].every((b) => b.disabled || b.hidden)",
    );
}
