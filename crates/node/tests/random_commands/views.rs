//! Views: what they show, and what becomes of their descriptions.

use bson::{Bson, Document, doc};

use crate::model::{Effects, Told, View};
use crate::running::{ONE_BATCH, Run, Verdict, first_batch};
use crate::steps::{Read, VIEWS, ViewChange, name_of_view};

const NOT_ON_A_VIEW: i32 = 166;

impl Run {
    pub(crate) fn change_view(&mut self, view: usize, change: &ViewChange) -> Verdict {
        if self.sessions.iter().any(|session| session.open.is_some()) {
            return self.skip();
        }
        let known = self.model.views.get(&view).cloned();
        let mut after = self.model.clone();
        after.clock += 1;
        let described = after.clock;
        let expected = match change {
            ViewChange::Create { on, filter } => {
                let new = View { on: *on, filter: filter.clone(), described };
                let is_same = known.as_ref().is_none_or(|known| {
                    *known == View { described: known.described, ..new.clone() }
                });
                after.views.entry(view).or_insert(new);
                is_same
            }
            ViewChange::Modify { on, filter } => match after.views.get_mut(&view) {
                None => false,
                Some(known) => {
                    *known = View { on: *on, filter: filter.clone(), described };
                    true
                }
            },
            ViewChange::Drop => {
                after.views.remove(&view);
                true
            }
            ViewChange::Write(_) if known.is_none() => return self.skip(),
            ViewChange::Write(_) => false,
        };
        let command = change.command(view);
        let reply = self.member.run(command.clone());
        let (fine, error) = (reply.get_f64("ok").ok() == Some(1.0), Told::of(&reply).error());
        let agrees = match change {
            ViewChange::Write(_) => error == Some(NOT_ON_A_VIEW),
            _ => fine == expected,
        };
        if !agrees {
            return Err(format!("{command}\n  answered {reply}\n  expected {expected}"));
        }
        if fine && expected {
            self.model = after;
        }
        self.record(Effects::default(), None);
        Ok(())
    }

    pub(crate) fn read_view(&mut self, view: usize, read: &Read) -> Verdict {
        let wanted = self.model.read_view(view, read);
        let reply = self.member.run(read.command_on(&name_of_view(view)));
        self.compare_read(read, wanted, &reply, true)
    }

    /// A transaction sees its own changes through a view.
    pub(crate) fn read_view_within(&mut self, session: usize, view: usize, read: &Read) -> Verdict {
        let open = self.sessions[session].open.as_ref();
        let seen = open.map_or(&self.model, |open| open.view()).base_of(view);
        if matches!(read, Read::Count { .. }) || seen.is_none() || seen != self.model.base_of(view)
        {
            return self.skip();
        }
        let mut command = read.command_on(&name_of_view(view));
        if command.contains_key("find") {
            command.insert("batchSize", ONE_BATCH);
        }
        let reply = self.run_within(session, None, command);
        let Some(open) = self.sessions[session].open.as_ref() else { return Ok(()) };
        let wanted = open.view().read_view(view, read);
        self.compare_read(read, wanted, &reply, false)
    }

    /// The views that the member has are those of the model.
    pub(crate) fn look_at_views(&self) -> Verdict {
        for view in 0..VIEWS as usize {
            let filter = doc! { "name": name_of_view(view) };
            let listed =
                first_batch(&self.member.run(doc! { "listCollections": 1, "filter": filter }));
            let found = listed.first().and_then(|listed| listed.get_document("options").ok());
            let wanted = self.model.views.get(&view).map(options);
            if found != wanted.as_ref() {
                return Err(format!("the view {view} is {found:?}\n  expected {wanted:?}"));
            }
        }
        Ok(())
    }

    /// After a crash within a command each view is as it was before or after it.
    pub(crate) fn adopt_views(&mut self, becomes: &crate::model::Model) -> Verdict {
        for view in 0..VIEWS as usize {
            let filter = doc! { "name": name_of_view(view) };
            let listed =
                first_batch(&self.member.run(doc! { "listCollections": 1, "filter": filter }));
            let found =
                listed.first().and_then(|listed| listed.get_document("options").ok().cloned());
            let known = [self.model.views.get(&view), becomes.views.get(&view)];
            let adopted = known.into_iter().find(|known| known.map(options) == found);
            let adopted = adopted.ok_or_else(|| format!("the view {view} is {found:?}"))?.cloned();
            match adopted {
                Some(adopted) => self.model.views.insert(view, adopted),
                None => self.model.views.remove(&view),
            };
        }
        Ok(())
    }
}

fn options(view: &View) -> Document {
    let stage: Bson = doc! { "$match": view.filter.command() }.into();
    doc! { "viewOn": view.on.name(), "pipeline": [stage] }
}
