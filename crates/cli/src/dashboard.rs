//! The live screen: a view on a terminal, with keys.
//!
//! `state` says what keys do, `draw` where things go; both are pure and tested without a terminal.
//! This module joins them to a real one. The view is collected elsewhere and goes on while the
//! picture is paused.

mod comparison;
mod draw;
mod members;
mod palette;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::ServerAddress;
use ratatui::crossterm::event::{Event, KeyEventKind};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::clock;
use crate::view::Input;
use crate::view::actions::{Action, ActionError, Actions};
use crate::view::collector::Live;
use palette::Palette;
use state::{Dashboard, Effect};
pub(crate) use terminal::{Keys, Taken};

/// How often ages are drawn anew while nothing happens.
const REDRAW: Duration = Duration::from_millis(200);

/// The least time between two pictures: more than a person sees, little enough for SSH.
const LEAST_PAUSE: Duration = Duration::from_millis(40);

/// Outcomes of actions that wait to be told.
const MAX_OUTCOMES: usize = 16;

/// Whether there is a terminal that a screen can be drawn on.
pub(crate) fn is_possible() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb
}

type Outcome = (Action, ServerAddress, Result<String, ActionError>);

/// Shows the view until the person leaves. Dropping the future gives the terminal back. Fails if
/// the terminal cannot be used any more.
pub(crate) async fn show(live: &Live, actions: Option<Arc<dyn Actions>>) -> io::Result<()> {
    let mut taken = Taken::take()?;
    let mut keys = Keys::read();
    let mut dashboard = Dashboard::new(Palette::of_environment(), actions.is_some());
    let mut revision = live.revision();
    let mut tick = interval(REDRAW);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (tell, mut outcomes) = mpsc::channel::<Outcome>(MAX_OUTCOMES);
    loop {
        live.read(|view| {
            let drawn =
                taken.terminal.draw(|frame| draw::draw(frame, &dashboard, view, clock::now()));
            drawn.map(|_| ())
        })?;
        tokio::select! {
            _ = tick.tick() => {}
            _ = revision.changed() => sleep(LEAST_PAUSE).await,
            Some((action, member, outcome)) = outcomes.recv() => {
                if action == Action::StepDown && outcome.is_ok() {
                    // No process shows it, so no other task puts it into the log.
                    live.tell(Input::Done { member, text: "stepped down on request".to_owned() });
                }
                dashboard.say(clock::now(), told(action, outcome));
            }
            event = keys.next() => {
                let Some(event) = event else { return Ok(()) };
                let effect = match event? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        live.read(|view| dashboard.on_key(key, view, clock::now()))
                    }
                    _ => None,
                };
                match effect {
                    Some(Effect::Quit) => return Ok(()),
                    Some(Effect::Redraw) => taken.terminal.clear()?,
                    Some(Effect::Copy(text)) => taken.copy(&text)?,
                    Some(Effect::Act(action, member)) => {
                        if let Some(actions) = actions.clone() {
                            let tell = tell.clone();
                            tokio::spawn(async move {
                                let outcome = actions.perform(action, &member).await;
                                // Ignore send errors: the receiver is gone.
                                let _ = tell.send((action, member, outcome)).await;
                            });
                        }
                    }
                    None => {}
                }
            }
        }
    }
}

/// The outcome of an action in words.
fn told(action: Action, outcome: Result<String, ActionError>) -> String {
    match outcome {
        Ok(done) => done,
        Err(error) => format!("cannot {action}: {error}"),
    }
}
