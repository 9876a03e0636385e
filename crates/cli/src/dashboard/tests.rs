//! The screen in many states, compared with committed text.
//!
//! Run with `QUORATE_UPDATE_SNAPSHOTS=1` to write the files anew, then read the difference.

use std::path::Path;
use std::time::Duration;

use quorate_protocol::{MemberState, WallTime};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::palette::Palette;
use super::state::Dashboard;
use crate::view::member::Process;
use crate::view::reply::{Counters, Explanation, InitialSync, TransactionCounters};
use crate::view::test_view::{Stage, address, hello, primary_hello, status};
use crate::view::{Input, Told};

const MEMBERS: [&str; 3] = ["a:27017", "b:27017", "c:27017"];

fn screen(can_act: bool) -> Dashboard {
    Dashboard::new(Palette::new(false), can_act)
}

fn press(dashboard: &mut Dashboard, stage: &Stage, keys: &str) {
    for letter in keys.chars() {
        let code = match letter {
            '\n' => KeyCode::Enter,
            letter => KeyCode::Char(letter),
        };
        dashboard.on_key(KeyEvent::new(code, KeyModifiers::NONE), &stage.view, stage.now);
    }
}

fn drawn(dashboard: &Dashboard, stage: &Stage, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| super::draw::draw(frame, dashboard, &stage.view, stage.now)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[track_caller]
fn snapshot(name: &str, dashboard: &Dashboard, stage: &Stage, size: (u16, u16)) {
    let found = drawn(dashboard, stage, size);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/snapshots");
    let path = folder.join(format!("{name}.txt"));
    quorate_provision::snapshot(&path, &found)
        .unwrap_or_else(|difference| panic!("{difference}\n\n{found}"));
}

/// A healthy set with something to see: writes, round trips and a process each.
fn lively() -> Stage {
    let mut stage = Stage::healthy();
    for (pid, member) in (4001..).zip(MEMBERS) {
        let process = Process::Running;
        stage.view.handle(stage.now, Input::Process { member: address(member), pid, process });
    }
    for second in 1..=8_u64 {
        stage.after(1000);
        for _ in 0..97 {
            stage.wrote("a:27017");
        }
        for (slowness, member) in (1..).zip(MEMBERS) {
            let mut reply = hello(member, &MEMBERS, Some("a:27017"));
            if member == "a:27017" {
                reply = primary_hello(member, &MEMBERS, 1);
            }
            stage.own_hello(member, reply, 1 + slowness * (second % 4));
        }
    }
    stage
}

#[test]
fn a_healthy_set() {
    let stage = lively();
    snapshot("healthy-80x24", &screen(true), &stage, (80, 24));
    snapshot("healthy-120x40", &screen(true), &stage, (120, 40));
    snapshot("healthy-60x20", &screen(true), &stage, (60, 20));
    // Columns go before names do.
    for width in [40, 60, 80] {
        let narrow = drawn(&screen(true), &stage, (width, 24));
        assert!(MEMBERS.iter().all(|member| narrow.contains(member)), "{narrow}");
        assert!(narrow.contains("PRIMARY"), "{narrow}");
    }
    // The comparison that has no room opens on Enter.
    let mut opened = screen(true);
    press(&mut opened, &stage, "j\n");
    let shown = drawn(&opened, &stage, (80, 16));
    assert!(shown.contains("THE CLIENT BELIEVES"), "{shown}");
    press(&mut opened, &stage, "x");
    assert!(!drawn(&opened, &stage, (80, 16)).contains("THE CLIENT BELIEVES"));
}

/// A line tells of transactions while there are any, and of what they cost others.
#[test]
fn open_transactions_and_conflicts() {
    let mut stage = lively();
    let primary = |stage: &mut Stage, transactions| {
        let counters = Counters { transactions: Some(transactions), ..Counters::default() };
        stage.tell("a:27017", Told::Counters(counters));
    };
    let quiet = TransactionCounters { conflicts: Some(100), ..TransactionCounters::default() };
    primary(&mut stage, quiet);
    stage.after(1000);
    primary(&mut stage, quiet);
    let shown = drawn(&screen(true), &stage, (120, 40));
    assert!(!shown.contains("transaction"), "{shown}");
    stage.after(2000);
    let busy = TransactionCounters {
        open: 3,
        oldest: Some(Duration::from_secs(12)),
        waiting_writes: Some(2),
        conflicts: Some(180),
    };
    primary(&mut stage, busy);
    snapshot("transactions-120x40", &screen(true), &stage, (120, 40));
    snapshot("transactions-80x24", &screen(true), &stage, (80, 24));
    let set = &stage.view.to_json(stage.now)["set"]["transactions"];
    assert_eq!((&set["open"], &set["conflicts_per_second"]), (&3.into(), &40.0.into()));
}

/// Seven members have a row each, and what was promised on the screen still has room.
#[test]
fn seven_members() {
    let names: Vec<String> = (1..=7).map(|number| format!("db{number}:27017")).collect();
    let members: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut stage = Stage::new(&members);
    stage.all_say(&members, "db1:27017", 1);
    stage.statuses(&members, "db1:27017", 1);
    for (name, size) in
        [("seven-60x20", (60, 20)), ("seven-80x24", (80, 24)), ("seven-120x40", (120, 40))]
    {
        snapshot(name, &screen(true), &stage, size);
        let shown = drawn(&screen(true), &stage, size);
        assert!(members.iter().all(|member| shown.contains(member)), "{shown}");
    }
    assert!(drawn(&screen(true), &stage, (120, 40)).contains("THE CLIENT BELIEVES"));
}

/// A primary that hangs is still the primary for the client: the screen says since when it is silent.
#[test]
fn a_primary_that_hangs_is_shown_as_silent() {
    let mut stage = lively();
    stage.own_silence("a:27017", "no answer to hello within 2 s");
    stage.after(3_000);
    let shown = drawn(&screen(true), &stage, (80, 24));
    assert!(shown.contains("primary a:27017, silent for 3.0 s"), "{shown}");
    let view = stage.view.to_json(stage.now);
    assert_eq!(view["members"][0]["silent_ms"], 3_000.0, "{view:#}");
}

#[test]
fn no_primary_and_why() {
    let mut stage = lively();
    stage.lose("a:27017", "connection reset by peer; see whether it runs");
    stage.after(100).lose("b:27017", "connection refused");
    let mut told = status("c:27017", &MEMBERS, "a:27017", 1);
    for member in &mut told.members[..2] {
        (member.is_up, member.state) = (false, Some(MemberState::Down));
    }
    stage.tell("c:27017", Told::Status(told));
    let text = "1 of 2 votes needed are visible".to_owned();
    let explanation = Explanation {
        text,
        votes_visible: Some(1),
        votes_needed: Some(2),
        ..Explanation::default()
    };
    stage.tell("c:27017", Told::Explanation(explanation));
    stage.after(3200);
    snapshot("no-primary-80x24", &screen(false), &stage, (80, 24));
    snapshot("no-primary-120x40", &screen(false), &stage, (120, 40));
    // The sentence is broken between words, not cut.
    snapshot("no-primary-60x20", &screen(false), &stage, (60, 20));
    let narrow = drawn(&screen(false), &stage, (60, 20));
    let words: Vec<&str> = narrow.split_whitespace().collect();
    assert!(words.join(" ").contains("1 of 2 votes needed are visible"), "{narrow}");
}

#[test]
fn an_arbiter_votes_and_holds_nothing() {
    let mut stage = Stage::healthy();
    let mut reply = hello("c:27017", &MEMBERS, Some("a:27017"));
    (reply.secondary, reply.arbiter_only, reply.last_write) = (false, true, None);
    stage.client_hears("c:27017", reply.clone());
    stage.own_hello("c:27017", reply, 1);
    let mut told = status("c:27017", &MEMBERS, "a:27017", 1);
    (told.state, told.sync_source) = (Some(MemberState::Arbiter), None);
    stage.tell("c:27017", Told::Status(told));
    let mut told = status("a:27017", &MEMBERS, "a:27017", 1);
    told.members[2].sync_source = None;
    stage.tell("a:27017", Told::Status(told));
    let mut dashboard = screen(false);
    press(&mut dashboard, &stage, "jj");
    snapshot("arbiter-80x24", &dashboard, &stage, (80, 24));
}

#[test]
fn nothing_reachable() {
    let mut stage = Stage::new(&MEMBERS);
    for member in MEMBERS {
        stage.lose(member, "connection refused");
    }
    stage.after(61_000);
    snapshot("nothing-reachable-80x24", &screen(false), &stage, (80, 24));
}

#[test]
fn nothing_known_yet() {
    let stage = Stage::new(&MEMBERS);
    snapshot("starting-80x24", &screen(false), &stage, (80, 24));
}

#[test]
fn a_difference_is_marked() {
    let mut stage = lively();
    // The old primary was cut off, and believes in itself; the client has seen a newer one.
    stage.client_hears("b:27017", primary_hello("b:27017", &MEMBERS, 2));
    stage.own_hello("b:27017", primary_hello("b:27017", &MEMBERS, 2), 2);
    stage.own_hello("a:27017", primary_hello("a:27017", &MEMBERS, 1), 1);
    let process = Process::Partitioned;
    stage.view.handle(stage.now, Input::Process { member: address("a:27017"), pid: 4001, process });
    stage.after(40).wrote("b:27017");
    stage.after(1460);
    snapshot("difference-80x24", &screen(true), &stage, (80, 24));
    snapshot("difference-120x40", &screen(true), &stage, (120, 40));
}

#[test]
fn an_initial_sync_has_a_bar_and_lag_is_shown() {
    let mut stage = Stage::healthy();
    let mut told = status("b:27017", &MEMBERS, "a:27017", 1);
    told.state = Some(MemberState::Startup2);
    told.initial_sync = Some(InitialSync {
        stage: Some("Cloning".to_owned()),
        attempt: Some(1),
        copied_bytes: Some(37),
        total_bytes: Some(100),
        remaining: Some(Duration::from_secs(190)),
    });
    stage.tell("b:27017", Told::Status(told));
    let mut told = status("a:27017", &MEMBERS, "a:27017", 1);
    told.members[0].op_time_date = Some(WallTime(1_700_000_012_000));
    told.members[2].op_time_date = Some(WallTime(1_700_000_009_500));
    stage.tell("a:27017", Told::Status(told));
    let mut dashboard = screen(false);
    press(&mut dashboard, &stage, "ssj");
    snapshot("initial-sync-80x24", &dashboard, &stage, (80, 24));
}

#[test]
fn sorted_filtered_and_paused() {
    let mut stage = lively();
    let mut dashboard = screen(true);
    press(&mut dashboard, &stage, "ssssp");
    stage.after(5000).lose("b:27017", "connection refused");
    snapshot("paused-80x24", &dashboard, &stage, (80, 24));
    press(&mut dashboard, &stage, "p/b:2");
    snapshot("filter-80x24", &dashboard, &stage, (80, 24));
    press(&mut dashboard, &stage, "\n");
    snapshot("filtered-80x24", &dashboard, &stage, (80, 24));
}

#[test]
fn dialogs() {
    let stage = lively();
    let mut dashboard = screen(true);
    press(&mut dashboard, &stage, "jK");
    snapshot("confirm-80x24", &dashboard, &stage, (80, 24));
    press(&mut dashboard, &stage, "n");
    snapshot("message-80x24", &dashboard, &stage, (80, 24));
    press(&mut dashboard, &stage, "?");
    snapshot("help-80x24", &dashboard, &stage, (80, 24));
}

#[test]
fn a_dropped_member_and_long_names() {
    let long = [
        "shard-00-00.cluster0.example.net:27017",
        "shard-00-01.cluster0.example.net:27017",
        "shard-00-02.cluster0.example.net:27017",
    ];
    let mut stage = Stage::new(&["10.0.0.7:27017"]);
    let mut reply = primary_hello(long[0], &long, 3);
    stage.client_hears("10.0.0.7:27017", reply.clone());
    reply.me = Some(address(long[0]));
    stage.own_hello("10.0.0.7:27017", reply, 12);
    stage.after(400);
    snapshot("dropped-80x24", &screen(false), &stage, (80, 24));
}

#[test]
fn small_and_odd_sizes_do_not_panic() {
    let stage = lively();
    let mut dashboard = screen(true);
    for keys in ["", "?", "qK", "n/x"] {
        press(&mut dashboard, &stage, keys);
        for size in [(1, 1), (39, 7), (40, 8), (41, 9), (80, 10), (200, 8), (40, 60), (300, 90)] {
            drawn(&dashboard, &stage, size);
        }
    }
    assert!(drawn(&screen(true), &stage, (39, 7)).contains("is needed"));
}

#[test]
fn no_colour_means_none() {
    let stage = lively();
    for (colours, any) in [(true, true), (false, false)] {
        let dashboard = Dashboard::new(Palette::new(colours), true);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal
            .draw(|frame| super::draw::draw(frame, &dashboard, &stage.view, stage.now))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset), any);
    }
}
