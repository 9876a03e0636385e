//! What the person at the keyboard has chosen, and what each key does.
//!
//! Pure: keys go in, effects come out, and the terminal is left to `terminal.rs`.

use std::time::Duration;

use quorate_protocol::{MonotonicTime, ServerAddress};
use quorate_server_discovery::ServerType;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::palette::Palette;
use crate::view::View;
use crate::view::actions::Action;
use crate::view::log::Entry;
use crate::view::summary::MemberSummary;

/// How long a message stays.
const MESSAGE_STAYS: Duration = Duration::from_secs(5);

/// The most characters of a filter.
const MAX_FILTER: usize = 40;

/// How many lines a page of the log moves.
const PAGE: usize = 5;

quorate_protocol::named! {
    /// What the members are sorted by.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum Sort {
        /// By address.
        #[default]
        Address = "address",
        /// The primary first.
        Role = "role",
        /// The furthest behind first.
        Lag = "lag",
        /// The slowest first.
        RoundTrip = "round trip",
        /// Servers that do not answer first.
        Health = "health",
    }
}

impl Sort {
    fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// What covers the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialog {
    /// Nothing.
    #[default]
    None,
    /// The keys.
    Help,
    /// The chosen member, in full.
    Member,
    /// A filter is being typed.
    Filter,
    /// A destructive action is to be confirmed.
    Confirm(Action, ServerAddress),
}

/// Something that the key wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Leave.
    Quit,
    /// Draw everything anew: something else has written on the terminal.
    Redraw,
    /// Put the text into the clipboard of the terminal.
    Copy(String),
    /// Break or mend a member.
    Act(Action, ServerAddress),
}

/// What the person has chosen.
#[derive(Clone, Debug)]
pub(crate) struct Dashboard {
    pub(super) palette: Palette,
    /// Whether the set was started here and can be broken.
    pub(super) can_act: bool,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) dialog: Dialog,
    selected: Option<ServerAddress>,
    /// The moment at which the picture stands still.
    paused: Option<(MonotonicTime, Box<View>)>,
    message: Option<(MonotonicTime, String)>,
    pub(super) log_offset: usize,
}

impl Dashboard {
    /// The screen as it is at first.
    pub(crate) fn new(palette: Palette, can_act: bool) -> Self {
        Self {
            palette,
            can_act,
            sort: Sort::default(),
            filter: String::new(),
            dialog: Dialog::None,
            selected: None,
            paused: None,
            message: None,
            log_offset: 0,
        }
    }

    /// The view to draw: the current one, or the one at the pause.
    pub(super) fn shown<'a>(
        &'a self,
        view: &'a View,
        now: MonotonicTime,
    ) -> (&'a View, MonotonicTime) {
        match &self.paused {
            Some((at, view)) => (view, *at),
            None => (view, now),
        }
    }

    /// Whether the picture stands still.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Tells the person something for a while.
    pub(crate) fn say(&mut self, now: MonotonicTime, message: String) {
        self.message = Some((now, message));
    }

    /// The displayed message.
    pub(super) fn message(&self, now: MonotonicTime) -> Option<&str> {
        let (at, message) = self.message.as_ref()?;
        (now.since(*at) < MESSAGE_STAYS).then_some(message)
    }

    /// The members that pass the filter, in order.
    pub(super) fn members<'a>(&self, view: &'a View) -> Vec<MemberSummary<'a>> {
        let mut members = view.members();
        members.retain(|member| {
            let words = [
                member.address.as_str(),
                member.client_type.map_or("", ServerType::name),
                member.state.map_or("", |state| state.name()),
                member.health.name(),
            ];
            self.passes(&words)
        });
        // Stable: equal servers stay in the order of the addresses.
        match self.sort {
            Sort::Address => {}
            Sort::Role => members.sort_by_key(|member| role_order(member.shown_type())),
            Sort::Lag => members.sort_by_key(|member| std::cmp::Reverse(member.lag)),
            Sort::RoundTrip => members.sort_by_key(|member| std::cmp::Reverse(member.round_trip)),
            Sort::Health => members.sort_by_key(|member| std::cmp::Reverse(member.health)),
        }
        members
    }

    /// The entries of the log that pass the filter, the newest first.
    pub(super) fn entries<'a>(&self, view: &'a View) -> Vec<&'a Entry> {
        let entries = view.log().entries().rev();
        let passing = entries.filter(|entry| {
            let member = entry.member.as_ref().map_or("", ServerAddress::as_str);
            self.passes(&[member, &entry.text])
        });
        passing.collect()
    }

    fn passes(&self, words: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        words.iter().any(|word| word.to_lowercase().contains(&wanted))
    }

    /// The chosen member, or the first.
    pub(super) fn selected<'a>(&self, members: &[MemberSummary<'a>]) -> Option<&'a ServerAddress> {
        let chosen = members.iter().find(|member| Some(member.address) == self.selected.as_ref());
        chosen.or(members.first()).map(|member| member.address)
    }

    /// A key was pressed.
    pub(crate) fn on_key(
        &mut self,
        key: KeyEvent,
        view: &View,
        now: MonotonicTime,
    ) -> Option<Effect> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Effect::Quit);
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('l') {
            return Some(Effect::Redraw);
        }
        match std::mem::take(&mut self.dialog) {
            Dialog::None => self.on_plain_key(key.code, view, now),
            // Any key leaves the help.
            Dialog::Help | Dialog::Member => None,
            Dialog::Filter => {
                self.on_filter_key(key.code);
                None
            }
            Dialog::Confirm(action, member) => match key.code {
                KeyCode::Char('y' | 'Y') | KeyCode::Enter => Some(Effect::Act(action, member)),
                _ => {
                    self.say(now, format!("{member} was left alone"));
                    None
                }
            },
        }
    }

    fn on_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => return self.filter.clear(),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER => {
                self.filter.push(letter);
            }
            _ => {}
        }
        self.log_offset = 0;
        self.dialog = Dialog::Filter;
    }

    fn on_plain_key(&mut self, code: KeyCode, view: &View, now: MonotonicTime) -> Option<Effect> {
        match code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('?' | 'h') => self.dialog = Dialog::Help,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.dialog = Dialog::Filter,
            KeyCode::Char('p' | ' ') => {
                self.paused = match self.paused.take() {
                    Some(_) => None,
                    None => Some((now, Box::new(view.clone()))),
                };
            }
            KeyCode::Enter => self.dialog = Dialog::Member,
            KeyCode::Char('c') => {
                // Terminals do not say whether they took it.
                self.say(now, format!("sent to the clipboard of the terminal: {}", view.uri()));
                return Some(Effect::Copy(view.uri().to_owned()));
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.choose(view, now, -1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(view, now, 1),
            KeyCode::PageDown => self.log_offset = self.log_offset.saturating_add(PAGE),
            KeyCode::PageUp => self.log_offset = self.log_offset.saturating_sub(PAGE),
            KeyCode::Char(letter) => return self.on_action_key(letter, view, now),
            _ => {}
        }
        None
    }

    fn choose(&mut self, view: &View, now: MonotonicTime, step: isize) {
        let (shown, _) = self.shown(view, now);
        let members = self.members(shown);
        let Some(current) = self.selected(&members) else { return };
        let place = members.iter().position(|member| member.address == current).unwrap_or(0);
        let place = place.saturating_add_signed(step).min(members.len() - 1);
        self.selected = Some(members[place].address.clone());
    }

    fn on_action_key(&mut self, letter: char, view: &View, now: MonotonicTime) -> Option<Effect> {
        let action = action_of(letter)?;
        if !self.can_act {
            self.say(now, "only a set that was started here can be broken: quorate up".to_owned());
            return None;
        }
        let target = match action {
            // It makes no sense anywhere else.
            Action::StepDown => view.facts(now).primary.cloned(),
            _ => {
                let (shown, _) = self.shown(view, now);
                self.selected(&self.members(shown)).cloned()
            }
        };
        let Some(target) = target else {
            self.say(now, format!("there is no member to {action}"));
            return None;
        };
        if action.is_destructive() {
            self.dialog = Dialog::Confirm(action, target);
            return None;
        }
        self.say(now, format!("{action} {target} …"));
        Some(Effect::Act(action, target))
    }
}

/// The key of each action: capitals, so that nothing breaks by accident.
pub(super) const ACTION_KEYS: [(char, Action); 5] = [
    ('D', Action::StepDown),
    ('K', Action::Kill),
    ('Z', Action::Pause),
    ('X', Action::Partition),
    ('R', Action::Restore),
];

fn action_of(letter: char) -> Option<Action> {
    ACTION_KEYS.iter().find(|(key, _)| *key == letter).map(|(_, action)| *action)
}

fn role_order(kind: ServerType) -> u8 {
    match kind {
        ServerType::RsPrimary | ServerType::Standalone | ServerType::Mongos => 0,
        ServerType::RsSecondary => 1,
        ServerType::RsArbiter => 2,
        ServerType::Unknown | ServerType::PossiblePrimary => 4,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::test_view::{Stage, address};

    fn press(dashboard: &mut Dashboard, stage: &Stage, keys: &str) -> Option<Effect> {
        let mut effect = None;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            let key = KeyEvent::new(code, KeyModifiers::NONE);
            effect = dashboard.on_key(key, &stage.view, stage.now);
        }
        effect
    }

    fn names(dashboard: &Dashboard, stage: &Stage) -> Vec<String> {
        let members = dashboard.members(&stage.view);
        members.iter().map(|member| member.address.host().to_owned()).collect()
    }

    fn broken_set() -> (Dashboard, Stage) {
        (Dashboard::new(Palette::new(false), true), Stage::healthy())
    }

    #[test]
    fn destructive_actions_are_confirmed_and_others_are_not() {
        let (mut dashboard, stage) = broken_set();
        assert_eq!(press(&mut dashboard, &stage, "jK"), None);
        assert_eq!(dashboard.dialog, Dialog::Confirm(Action::Kill, address("b:27017")));
        assert_eq!(press(&mut dashboard, &stage, "n"), None);
        assert_eq!(dashboard.message(stage.now), Some("b:27017 was left alone"));
        let killed = Effect::Act(Action::Kill, address("b:27017"));
        assert_eq!(press(&mut dashboard, &stage, "Ky"), Some(killed));
        let restored = Effect::Act(Action::Restore, address("b:27017"));
        assert_eq!(press(&mut dashboard, &stage, "R"), Some(restored));
    }

    #[test]
    fn the_primary_steps_down_whichever_member_is_chosen() {
        let (mut dashboard, mut stage) = broken_set();
        let stepped = Effect::Act(Action::StepDown, address("a:27017"));
        assert_eq!(press(&mut dashboard, &stage, "jD"), Some(stepped));
        stage.lose("a:27017", "refused");
        assert_eq!(press(&mut dashboard, &stage, "D"), None);
        assert_eq!(dashboard.message(stage.now), Some("there is no member to step down"));
    }

    #[test]
    fn a_set_of_somebody_else_cannot_be_broken() {
        let stage = Stage::healthy();
        let mut dashboard = Dashboard::new(Palette::new(false), false);
        for key in ["D", "K", "Z", "X", "R"] {
            assert_eq!(press(&mut dashboard, &stage, key), None);
            assert_eq!(dashboard.dialog, Dialog::None);
        }
        assert!(dashboard.message(stage.now).unwrap().contains("quorate up"));
    }

    #[test]
    fn members_are_sorted_and_filtered() {
        let (mut dashboard, mut stage) = broken_set();
        assert_eq!(names(&dashboard, &stage), ["a", "b", "c"]);
        stage.lose("b:27017", "refused");
        press(&mut dashboard, &stage, "s");
        assert_eq!((dashboard.sort, names(&dashboard, &stage)), (Sort::Role, words("a c b")));
        press(&mut dashboard, &stage, "sss");
        assert_eq!((dashboard.sort, names(&dashboard, &stage)), (Sort::Health, words("b a c")));
        press(&mut dashboard, &stage, "s/PRIM\n");
        assert_eq!(names(&dashboard, &stage), ["a"]);
        assert!(dashboard.entries(&stage.view).iter().all(|entry| entry.text.contains("rim")));
        press(&mut dashboard, &stage, "\u{1b}");
        assert_eq!(names(&dashboard, &stage).len(), 3);
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_pause_shows_its_moment() {
        let (mut dashboard, mut stage) = broken_set();
        press(&mut dashboard, &stage, "p");
        let then = stage.now;
        stage.after(1000).lose("a:27017", "refused");
        let (shown, at) = dashboard.shown(&stage.view, stage.now);
        assert!(shown.facts(at).primary.is_some() && at == then);
        press(&mut dashboard, &stage, "p");
        let (shown, at) = dashboard.shown(&stage.view, stage.now);
        assert!(shown.facts(at).primary.is_none());
    }

    #[test]
    fn the_uri_is_copied_and_messages_fade() {
        let (mut dashboard, mut stage) = broken_set();
        let copy = Effect::Copy(stage.view.uri().to_owned());
        assert_eq!(press(&mut dashboard, &stage, "c"), Some(copy));
        assert!(dashboard.message(stage.now).is_some());
        stage.after(5000);
        assert_eq!(dashboard.message(stage.now), None);
        assert_eq!(press(&mut dashboard, &stage, "?"), None);
        assert_eq!(press(&mut dashboard, &stage, "q"), None, "it only leaves the help");
        assert_eq!(press(&mut dashboard, &stage, "q"), Some(Effect::Quit));
    }

    #[test]
    fn the_choice_stays_in_the_list() {
        let (mut dashboard, stage) = broken_set();
        press(&mut dashboard, &stage, "jjjjj");
        let members = dashboard.members(&stage.view);
        assert_eq!(dashboard.selected(&members), Some(&address("c:27017")));
        press(&mut dashboard, &stage, "kkkkk");
        assert_eq!(dashboard.selected(&members), Some(&address("a:27017")));
    }
}
