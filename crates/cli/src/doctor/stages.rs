//! The results of the probes, line by line.

use std::io;

use quorate_protocol::{HelloReply, ServerAddress};
use quorate_server_discovery::ServerType;
use serde_json::{Value, json};

use super::examination::Examination;
use super::login::Login;
use super::probe::{Answer, HelloFault, PortFault, ServerProbe};
use crate::screen::{FINE, PROBLEM, QUIET, STRONG, Screen};
use crate::topology_view::topology_to_json;
use crate::words::{Foreign, OneLine, Span, listed};

/// One stage of one server.
struct Stage<'a> {
    server: Option<&'a str>,
    name: &'static str,
    ok: bool,
    detail: String,
}

impl Stage<'_> {
    fn tell(&self, screen: &mut Screen) -> io::Result<()> {
        let (style, mark) = if self.ok { (FINE, "✓") } else { (PROBLEM, "✗") };
        screen.line(format_args!(
            "  {:<5} {style}{mark}{style:#} {}",
            self.name,
            OneLine(&self.detail)
        ))?;
        screen.event(
            "stage",
            json!({
                "stage": self.name,
                "server": self.server,
                "ok": self.ok,
                "detail": self.detail,
            }),
        )
    }
}

/// Tells that the connection string was read, without its password.
pub(super) fn tell_uri(shown: &str, screen: &mut Screen) -> io::Result<()> {
    screen.line(format_args!("{STRONG}connection string{STRONG:#}"))?;
    Stage { server: None, name: "uri", ok: true, detail: shown.to_owned() }.tell(screen)
}

/// Tells the hosts that DNS listed.
pub(super) fn tell_seeds(seeds: &[ServerAddress], screen: &mut Screen) -> io::Result<()> {
    Stage { server: None, name: "srv", ok: true, detail: listed(seeds) }.tell(screen)
}

/// Tells everything about one server.
pub(super) fn tell_probe(
    probe: &ServerProbe,
    wants_tls: bool,
    screen: &mut Screen,
) -> io::Result<()> {
    let server = Some(probe.address.as_str());
    screen.line(format_args!("{STRONG}{}{STRONG:#}", probe.address))?;
    if let Some(resolved) = &probe.resolved {
        let (ok, detail) = match resolved {
            Ok(sockets) => {
                let ips: Vec<_> = sockets.iter().map(|socket| socket.ip().to_string()).collect();
                (true, ips.join(", "))
            }
            Err(reason) => (false, Foreign(reason).to_string()),
        };
        Stage { server, name: "dns", ok, detail }.tell(screen)?;
    }
    for (socket, result) in &probe.ports {
        let (ok, detail) = match result {
            Ok(took) => (true, format!("{socket} open, {}", Span(*took))),
            Err(PortFault::Refused) => (false, format!("{socket} refused")),
            Err(PortFault::Silent) => (false, format!("{socket} silent")),
            Err(PortFault::Other(text)) => (false, format!("{socket} {}", Foreign(text))),
        };
        Stage { server, name: "tcp", ok, detail }.tell(screen)?;
    }
    let (wanted, other) = if wants_tls { ("tls", "plain") } else { ("plain", "tls") };
    for (name, result) in [(wanted, &probe.hello), (other, &probe.otherwise)] {
        if let Some(result) = result {
            let (ok, detail) = hello(result);
            Stage { server, name, ok, detail }.tell(screen)?;
        }
    }
    Ok(())
}

fn hello(result: &Result<Answer, HelloFault>) -> (bool, String) {
    match result {
        Ok(answer) => {
            (true, format!("hello: {}, {}", about(&answer.reply), Span(answer.round_trip)))
        }
        Err(fault) => (false, format!("hello: {}", Foreign(fault))),
    }
}

fn about(reply: &HelloReply) -> String {
    let kind = ServerType::from_reply(reply);
    let versions = reply.wire_versions;
    let set =
        reply.set_name.as_ref().map_or_else(String::new, |name| format!(" of {}", Foreign(name)));
    format!("{kind}{set}, wire versions {} to {}", versions.min, versions.max)
}

/// Tells what came of the login, if there was one to make.
pub(super) fn tell_login(login: &Login, screen: &mut Screen) -> io::Result<()> {
    let Some(result) = &login.authenticated else { return Ok(()) };
    screen.line(format_args!("{STRONG}login at {}{STRONG:#}", login.address))?;
    let (ok, detail) = match result {
        Ok(who) => (true, who.clone()),
        Err(cause) => (false, Foreign(cause).to_string()),
    };
    Stage { server: Some(login.address.as_str()), name: "auth", ok, detail }.tell(screen)
}

/// Prints what a client believes after all this, and which servers it dropped.
pub(super) fn tell_topology(
    seen: &Examination,
    removals: &[(ServerAddress, String)],
    screen: &mut Screen,
) -> io::Result<()> {
    screen.line(format_args!("{STRONG}what a client believes{STRONG:#}"))?;
    let topology = &seen.topology;
    let set = topology.set_name().map_or_else(String::new, |name| format!(" {}", Foreign(name)));
    screen.line(format_args!("  {}{set}", topology.topology_type()))?;
    for server in topology.servers().iter() {
        screen.line(format_args!("  {} {}", server.address(), server.server_type()))?;
    }
    for (address, reason) in removals {
        screen.line(format_args!("  {address} {QUIET}dropped: {}{QUIET:#}", Foreign(reason)))?;
    }
    let mut event = topology_to_json(topology);
    event["dropped"] = removals
        .iter()
        .map(|(address, reason)| json!({"address": address.as_str(), "reason": reason}))
        .collect::<Value>();
    screen.event("topology", event)
}
