//! The commands of a scenario.
//!
//! ```text
//! members 3 [m1:priority=2] [m2:arbiter] ...   processes m0, m1, m2, as the configuration has them
//! settings chaining=false catchUpTimeout=0 ... settings of the configuration
//! initiate m0 with m0 m1 m2                    replSetInitiate at m0
//! slow 40ms                                    messages take so long from now on
//! far m0 20ms                                  messages to and from it take so much longer
//! run 2s                                       time passes
//! crash m0 | restart m0                        the process dies (connections reset, port refuses)
//! silence m0 | cut m0 m1 | cut-one-way m0 m1 | heal
//! hold-disk m1 | release-disk m1               writes are not synced
//! stall m1 | resume m1                         its fetches get no answer
//! hold-copy m1 | release-copy m1               its initial sync stands still while it copies
//! forget m0 3                                  its three oldest entries leave the capped oplog
//! write m0 3 [w=majority|w=2|w=mode]           three writes; the last waits
//! ask m0 stepDown 60s 10s [force] | stepUp | freeze 30s | syncFrom m1 | maintenance on
//! ask m0 reconfig [force] (add m3 | remove m2 | set m1:priority=3)
//! show commits | show votes                    say more
//! status | explain m0 | hello m0               ask
//! ```

use std::time::Duration;

use quorate_protocol::{
    HelloReply, MemberConfig, MemberId, Priority, ReplicaSetConfig, ServerAddress,
};
use quorate_replication::{Acknowledgements, Input, Request, WaiterId, WriteConcern};

use super::actor::Actor;
use super::{Cue, HOP, Stage};

fn index(name: &str) -> usize {
    name.strip_prefix('m').and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name:?}?"))
}

fn duration(text: &str) -> Duration {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    Duration::from_millis(digits.parse::<u64>().unwrap_or_else(|_| panic!("{text:?}?")) * unit)
}

fn adjust(member: &mut MemberConfig, settings: &str) {
    for setting in settings.split(',') {
        match setting.split_once('=').unwrap_or((setting, "")) {
            ("priority", value) => member.priority = Priority(value.parse().unwrap()),
            ("votes", value) => member.votes = value.parse().unwrap(),
            ("delay", value) => member.secondary_delay_secs = value.parse().unwrap(),
            ("hidden", _) => member.hidden = true,
            ("noindexes", _) => member.build_indexes = false,
            ("arbiter", _) => *member = MemberConfig::arbiter(member.id, member.host.clone()),
            ("tag", value) => {
                let (name, value) = value.split_once('.').unwrap();
                member.tags.insert(name, value);
            }
            other => panic!("{other:?}?"),
        }
    }
}

impl Stage {
    pub(super) fn direct(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["members", count, kinds @ ..] => self.assemble(count.parse().unwrap(), kinds),
            ["settings", settings @ ..] => settings.iter().for_each(|s| self.set(s)),
            ["initiate", at, "with", members @ ..] => {
                let listed: Vec<usize> = members.iter().map(|name| index(name)).collect();
                let mut config = self.config.clone();
                config.members.retain(|m| listed.contains(&(m.id.0 as usize)));
                self.ask(index(at), Request::Initiate(Some(Box::new(config))));
            }
            ["slow", hop] => self.hop = duration(hop),
            ["far", name, longer] => {
                self.far.insert(index(name), duration(longer));
            }
            ["run", interval] => self.run(duration(interval)),
            ["crash", name] => self.crash(index(name)),
            ["restart", name] => self.start(index(name)),
            ["silence", name] => {
                for other in 0..self.actors.len() {
                    self.cut.insert((index(name), other));
                    self.cut.insert((other, index(name)));
                }
            }
            ["cut", a, b] => {
                self.cut.insert((index(a), index(b)));
                self.cut.insert((index(b), index(a)));
            }
            ["cut-one-way", a, b] => {
                self.cut.insert((index(a), index(b)));
            }
            ["heal"] => self.cut.clear(),
            ["hold-disk", name] => self.actors[index(name)].disk_held = true,
            ["release-disk", name] => {
                let actor = &mut self.actors[index(name)];
                actor.disk_held = false;
                for (ticket, change) in std::mem::take(&mut actor.held) {
                    self.store(index(name), ticket, &change);
                }
            }
            ["hold-copy", name] => self.actors[index(name)].copy_held = true,
            ["release-copy", name] => self.release_copy(index(name)),
            ["stall", name] => {
                self.stalled.insert(index(name));
            }
            ["resume", name] => {
                self.stalled.remove(&index(name));
            }
            ["forget", name, count] => {
                self.actors[index(name)].log.drain(..count.parse::<usize>().unwrap());
            }
            ["write", name, count, concern @ ..] => {
                self.write(index(name), count.parse().unwrap(), concern.first().copied());
            }
            ["ask", name, what @ ..] => self.administer(index(name), what),
            ["show", "commits"] => self.show_commits = true,
            ["show", "votes"] => self.show_votes = true,
            ["status"] => self.status(),
            ["explain", name] => {
                let text = self.actors[index(name)]
                    .member
                    .as_ref()
                    .map(|member| member.status().explain().to_string());
                for line in text.unwrap_or_default().lines() {
                    self.out.push_str(&format!("  {line}\n"));
                }
            }
            ["hello", name] => self.hello(index(name)),
            other => panic!("no such direction: {other:?}"),
        }
    }

    fn assemble(&mut self, count: usize, kinds: &[&str]) {
        for number in 0..count {
            let actor = Actor::new(number);
            let host = actor.address.clone();
            self.config.members.push(MemberConfig::new(MemberId(number as i32), host));
            self.actors.push(actor);
            self.start(number);
        }
        for kind in kinds {
            let (name, settings) = kind.split_once(':').unwrap();
            adjust(&mut self.config.members[index(name)], settings);
        }
    }

    fn set(&mut self, setting: &str) {
        let settings = &mut self.config.settings;
        match setting.split_once('=').unwrap() {
            ("chaining", value) => settings.chaining_allowed = value == "true",
            ("catchUpTimeout", value) => settings.catch_up_timeout_millis = value.parse().unwrap(),
            ("catchUpTakeoverDelay", value) => {
                settings.catch_up_takeover_delay_millis = value.parse().unwrap();
            }
            ("electionTimeout", value) => {
                settings.election_timeout_millis = value.parse().unwrap();
            }
            ("heartbeatInterval", value) => {
                settings.heartbeat_interval_millis = value.parse().unwrap();
            }
            ("mode", value) => {
                let (name, rule) = value.split_once(':').unwrap();
                let (tag, wanted) = rule.split_once('.').unwrap();
                let rule = [(tag.to_owned(), wanted.parse().unwrap())].into_iter().collect();
                settings.get_last_error_modes.insert(name.to_owned(), rule);
            }
            other => panic!("{other:?}?"),
        }
    }

    fn ask(&mut self, at: usize, request: Request) {
        let token = self.actors[at].token(None, request.name());
        self.give(at, Input::RequestReceived { token, request });
    }

    fn crash(&mut self, at: usize) {
        self.stop(at);
        let peer = self.actors[at].address.clone();
        for other in (0..self.actors.len()).filter(|other| *other != at) {
            if !self.cut.contains(&(at, other)) {
                let life = self.actors[other].life;
                let input = Box::new(Input::ConnectionReset { peer: peer.clone() });
                self.cue(HOP, Cue::Give(other, life, input));
            }
        }
    }

    fn write(&mut self, at: usize, count: u32, concern: Option<&str>) {
        for number in 1..=count {
            let Some(member) = &self.actors[at].member else { return };
            if !member.status().is_writable() {
                return self.say(at, "refuses the write: 10107 not primary");
            }
            let term = member.status().term().0;
            let last = self.append_own(at, term);
            self.give(at, Input::EntriesAppended { last });
            let Some(concern) = concern.filter(|_| number == count) else { continue };
            let mut parts = concern.trim_start_matches("w=").split(',');
            let acknowledgements = match parts.next().unwrap() {
                "majority" => Acknowledgements::Majority,
                text => text.parse().map_or_else(
                    |_| Acknowledgements::Mode(text.to_owned()),
                    Acknowledgements::Number,
                ),
            };
            let mut concern = WriteConcern { acknowledgements, journal: None, timeout: None };
            for part in parts {
                match part {
                    "j" => concern.journal = Some(true),
                    wtimeout => concern.timeout = Some(duration(wtimeout)),
                }
            }
            self.waiters += 1;
            let waiter = WaiterId(self.waiters);
            let op_time = last.op_time;
            self.give(at, Input::AcknowledgementWanted { waiter, op_time, concern });
        }
    }

    fn administer(&mut self, at: usize, what: &[&str]) {
        let request = match what {
            ["stepDown", period, catch_up, force @ ..] => Request::StepDown {
                period: duration(period),
                catch_up_period: duration(catch_up),
                force: force == ["force"],
            },
            ["stepUp"] => Request::StepUp { skip_dry_run: false },
            ["freeze", period] => Request::Freeze(duration(period)),
            ["syncFrom", name] => Request::SyncFrom(ServerAddress::tcp(name, 27017).unwrap()),
            ["maintenance", on] => Request::Maintenance(*on == "on"),
            ["reconfig", "force", change @ ..] => self.reconfig(at, change, true),
            ["reconfig", change @ ..] => self.reconfig(at, change, false),
            ["shutdown"] => return self.give(at, Input::ShutdownWanted),
            other => panic!("{other:?}?"),
        };
        self.ask(at, request);
    }

    fn reconfig(&self, at: usize, change: &[&str], force: bool) -> Request {
        let status = self.actors[at].member.as_ref().unwrap().status();
        let mut config: ReplicaSetConfig = (**status.config().unwrap()).clone();
        config.version += 1;
        match change {
            ["add", name] => config.members.push(self.config.members[index(name)].clone()),
            ["remove", names @ ..] => {
                config.members.retain(|m| !names.iter().any(|n| index(n) == m.id.0 as usize));
            }
            ["set", kind] => {
                let (name, settings) = kind.split_once(':').unwrap();
                let id = MemberId(index(name) as i32);
                let member = config.members.iter_mut().find(|m| m.id == id).unwrap();
                adjust(member, settings);
            }
            other => panic!("{other:?}?"),
        }
        Request::Reconfig { config: Box::new(config), force, max_time: None }
    }

    fn status(&mut self) {
        for at in 0..self.actors.len() {
            let line = match &self.actors[at].member {
                None => format!("  m{at} (down)\n"),
                Some(member) => {
                    let status = member.status();
                    let writable = if status.is_writable() { ", writable" } else { "" };
                    let source = status.sync_source();
                    let source = source.map_or(String::new(), |s| format!(", from {}", s.host()));
                    format!(
                        "  m{at} {}{writable}, {:?}, at {}, committed {}{source}\n",
                        status.state(),
                        status.term(),
                        status.written(),
                        status.commit_point(),
                    )
                }
            };
            self.out.push_str(&line);
        }
    }

    fn hello(&mut self, at: usize) {
        let Some(member) = &self.actors[at].member else { return };
        let hello = member.status().hello(HelloReply::default(), None);
        let reply = &hello.reply;
        let names = |list: &[ServerAddress]| -> String {
            list.iter().map(ServerAddress::host).collect::<Vec<_>>().join(" ")
        };
        let mut line = format!(
            "  isWritablePrimary {}, secondary {}",
            reply.is_writable_primary, reply.secondary
        );
        let marks = [
            ("arbiterOnly", reply.arbiter_only),
            ("passive", reply.passive),
            ("hidden", reply.hidden),
            ("isreplicaset", reply.is_replica_set),
            ("buildIndexes: false", hello.builds_no_indexes),
        ];
        for (name, _) in marks.iter().filter(|(_, on)| *on) {
            line.push_str(&format!(", {name}"));
        }
        if let Some(delay) = hello.secondary_delay_secs {
            line.push_str(&format!(", secondaryDelaySecs {delay}"));
        }
        if let (Some(name), Some(version)) = (&reply.set_name, reply.set_version) {
            line.push_str(&format!(", set {name} v{version}"));
            line.push_str(&format!("\n  hosts [{}]", names(&reply.hosts)));
            line.push_str(&format!(" passives [{}]", names(&reply.passives)));
            line.push_str(&format!(" arbiters [{}]", names(&reply.arbiters)));
        }
        if let Some(primary) = &reply.primary {
            line.push_str(&format!(", primary {}", primary.host()));
        }
        if let Some(election) = reply.election_id {
            line.push_str(&format!(", electionId {election}"));
        }
        if let Some(info) = hello.info {
            line.push_str(&format!("\n  info: {info}"));
        }
        let counter = reply.topology_version.map_or(0, |version| version.counter);
        line.push_str(&format!(", topologyVersion {counter}\n"));
        self.out.push_str(&line);
    }
}
