//! Findings about reaching each server: names, ports, TLS, and the names that a set advertises.
//!
//! A function of the facts that `probe` collected.

use std::net::IpAddr;

use quorate_protocol::ServerAddress;
use quorate_server_discovery::ServerType;

use super::examination::Examination;
use super::probe::{HelloFault, PortFault, ServerProbe};
use crate::finding::Finding;
use crate::remedy;
use crate::words::{Foreign, listed};

/// Everything about reaching the servers.
pub(super) fn findings(seen: &Examination) -> Vec<Finding> {
    let mut findings = Vec::new();
    for probe in seen.probes.values() {
        findings.extend(name(seen, probe));
        findings.extend(port(seen, probe));
        findings.extend(hello(seen, probe));
    }
    findings.extend(loopback_advertised(seen));
    findings.extend(seeds_called_otherwise(seen));
    findings
}

/// Whether a host is this machine, by its name or its literal address.
pub(super) fn is_loopback(address: &ServerAddress) -> bool {
    let host = address.host();
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// "Seed x answered (rs0, RSPrimary)", for the sentence about what it advertises.
fn advertiser(seen: &Examination, by: &ServerAddress) -> String {
    let Some(answer) = seen.probes.get(by).and_then(ServerProbe::answer) else {
        return by.to_string();
    };
    let kind = ServerType::from_reply(&answer.reply);
    let set = answer.reply.set_name.as_deref().unwrap_or_default();
    let what = if seen.is_seed(by) { "seed " } else { "" };
    format!("{what}{by} answered ({}, {kind})", Foreign(set))
}

fn name(seen: &Examination, probe: &ServerProbe) -> Option<Finding> {
    let Some(Err(reason)) = &probe.resolved else { return None };
    let address = &probe.address;
    let advertised_by = seen.advertised_by(address).filter(|_| !seen.is_seed(address));
    let Some(by) = advertised_by else {
        return Some(
            Finding::problem(
                "name_not_found",
                format!("{} does not resolve here: {}", address.host(), Foreign(reason)),
            )
            .because("the connection string names it, and nothing can be asked")
            .fix(format!("correct the host, or see what DNS says: getent hosts {}", address.host()))
            .fix(remedy::hosts_line("IP_OF_THE_MEMBER", address.host())),
        );
    };
    let port = address.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
    let reached_ip = seen
        .probes
        .get(by)
        .and_then(|probe| probe.ports.iter().find(|(_, result)| result.is_ok()))
        .map(|(socket, _)| socket.ip().to_string());
    let only = seen.answers().count() == 1;
    Some(
        Finding::problem(
            "advertised_name_not_found",
            format!(
                "{}, but the set advertises {address}, which does not resolve here",
                advertiser(seen, by)
            ),
        )
        .because("every driver drops the seed and dials the advertised name")
        .fix(remedy::rename_member(address.as_str(), &better_name(seen, by, port)))
        .fix(remedy::hosts_line(
            reached_ip.as_deref().filter(|_| only).unwrap_or("IP_OF_THE_MEMBER"),
            address.host(),
        ))
        .fix("add directConnection=true to the connection string (one server only, no failover)"),
    )
}

/// A name under which everybody may reach the member that was dialled as `by`: that very address if
/// the set has no other member whom it could mislead.
fn better_name(seen: &Examination, by: &ServerAddress, port: u16) -> String {
    let members = seen.probes.get(by).and_then(ServerProbe::answer);
    match members.map(|answer| answer.reply.members().count()) {
        Some(0 | 1) => by.to_string(),
        _ => format!("NAME_THAT_ALL_REACH:{port}"),
    }
}

fn port(seen: &Examination, probe: &ServerProbe) -> Option<Finding> {
    if probe.ports.is_empty() {
        return None;
    }
    let address = &probe.address;
    let told = listed(probe.ports.iter().map(|(socket, result)| match result {
        Ok(_) => format!("{} (open)", socket.ip()),
        Err(PortFault::Refused) => format!("{} (refused)", socket.ip()),
        Err(PortFault::Silent) => format!("{} (silent)", socket.ip()),
        Err(PortFault::Other(text)) => format!("{} ({})", socket.ip(), Foreign(text)),
    }));
    let open = probe.ports.iter().filter(|(_, result)| result.is_ok()).count();
    if open == probe.ports.len() {
        return None;
    }
    let port = address.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
    if open > 0 {
        let literal = probe.ports.iter().find(|(_, result)| result.is_ok());
        let literal = literal.map(|(socket, _)| socket.to_string()).unwrap_or_default();
        return Some(
            Finding::warning("some_addresses_closed", format!("{} is {told}", address.host()))
                .because(
                    "a client that tries only the first address fails here; ours tries every one",
                )
                .fix(format!("write {literal} in the connection string"))
                .fix("let the server listen on both: mongod --ipv6 --bind_ip localhost"),
        );
    }
    let whose = match (seen.is_seed(address), seen.advertised_by(address)) {
        (false, Some(by)) => format!("{}, and advertises ", advertiser(seen, by)),
        _ => String::new(),
    };
    let silent = probe.ports.iter().any(|(_, result)| *result == Err(PortFault::Silent));
    Some(match silent {
        true => Finding::problem(
            "connect_timed_out",
            format!("{whose}{address}, which does not answer: {told}"),
        )
        .because(
            "nothing refuses and nothing answers: a firewall drops the packets, or the \
             address is not reachable from here",
        )
        .fix(format!("try by hand: nc -vz {} {port}", address.host()))
        .fix("allow this machine in the firewall or access list of the deployment"),
        false => {
            Finding::problem("refused", format!("{whose}{address}, where nothing listens: {told}"))
                .because(
                    "the host answers, but no server has that port open: it is stopped, listens on \
             another port, or only on loopback (bindIp)",
                )
                .fix(format!("on that host: ss -ltn | grep {port}"))
                .fix("start it, or let it listen on the network: net.bindIp in mongod.conf")
        }
    })
}

fn hello(seen: &Examination, probe: &ServerProbe) -> Option<Finding> {
    let Some(Err(fault)) = &probe.hello else { return None };
    Some(match &probe.otherwise {
        Some(Ok(_)) => other_way(&probe.address, fault, seen.uri.tls_enabled()),
        _ => neither_way(&probe.address, fault),
    })
}

/// The server answers, but not the way the connection string wants it.
fn other_way(address: &ServerAddress, fault: &HelloFault, wants_tls: bool) -> Finding {
    match wants_tls {
        false => Finding::problem(
            "tls_required",
            format!("{address}: TCP ✓, plain hello ✗ ({fault}), TLS hello ✓"),
        )
        .because(
            "the server takes TLS only; without it drivers report a timeout or a closed connection",
        )
        .fix(
            "add tls=true to the connection string, and tlsCAFile=FILE if its authority is your own",
        ),
        true => Finding::problem(
            "tls_against_plain",
            format!("{address}: TCP ✓, TLS hello ✗ ({fault}), plain hello ✓"),
        )
        .because("the server speaks no TLS on that port; drivers report a timeout")
        .fix("remove tls=true from the connection string (for mongodb+srv://, write tls=false)")
        .fix("start the server with TLS: net.tls.mode: requireTLS in mongod.conf"),
    }
}

/// The port is open, and hello is not answered in either way.
fn neither_way(address: &ServerAddress, fault: &HelloFault) -> Finding {
    match fault {
        HelloFault::Tls(reason) => Finding::problem(
            "certificate",
            format!("{address}: the TLS handshake failed: {}", Foreign(reason)),
        )
        .because("the port is open and speaks TLS; the certificate does not convince")
        .fix("add tlsCAFile=/path/to/ca.pem to the connection string")
        .fix(format!("see it: openssl s_client -connect {address} -showcerts </dev/null")),
        HelloFault::Refused { text: reason, .. } => Finding::problem(
            "hello_refused",
            format!("{address} answers hello with an error: {}", Foreign(reason)),
        )
        .because("the network is fine; the server itself says no")
        .fix("read that error, and the server's log at the same time"),
        HelloFault::Malformed(reason) => Finding::problem(
            "no_mongodb",
            format!(
                "{address} answers with something that is no MongoDB reply: \
                 {}",
                Foreign(reason)
            ),
        )
        .because("another program listens on that port, or a proxy is between")
        .fix("check the port in the connection string"),
        HelloFault::Connect(reason) => {
            let (seen, step) = reason.split_once("; ").unwrap_or((reason, "check the address"));
            Finding::problem("connect_failed", format!("{address}: {}", Foreign(seen)))
                .because("nobody took the connection, so that nothing could be asked")
                .fix(step)
                .fix("see which sockets are open: ss -lx | grep mongodb; ss -ltn | grep 27017")
        }
        HelloFault::Closed | HelloFault::Silent => Finding::problem(
            "hello_unanswered",
            format!(
                "{address}: the port is open, but neither plain nor TLS hello is answered \
                 ({fault})"
            ),
        )
        .because(
            "a proxy, a load balancer without a server behind it, a server that hangs, or \
             one that requires a client certificate",
        )
        .fix("look at the server itself: its log, its CPU, its open files")
        .fix("if it wants a client certificate: tls=true&tlsCertificateKeyFile=FILE"),
    }
}

/// Pain 2: the URI has real addresses, the set advertises this machine.
fn loopback_advertised(seen: &Examination) -> Option<Finding> {
    let (by, answer) = seen
        .answers()
        .find(|(by, answer)| !is_loopback(by) && answer.reply.members().any(is_loopback))?;
    let advertised = answer.reply.members().find(|member| is_loopback(member))?;
    let port = advertised.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
    Some(
        Finding::problem(
            "loopback_advertised",
            format!("you dialled {by}; the set advertises {advertised}, which is this machine"),
        )
        .because(
            "drivers drop the seed and dial what is advertised: your own machine, where \
             nothing or another server listens",
        )
        .fix(remedy::rename_member(advertised.as_str(), &format!("{}:{port}", by.host())))
        .fix("add directConnection=true to the connection string (one server only, no failover)"),
    )
}

/// A seed that works, but under a name that the set does not use.
fn seeds_called_otherwise(seen: &Examination) -> Vec<Finding> {
    let direct = seen.uri.options().direct_connection == Some(true);
    let called = seen.answers().filter_map(|(address, answer)| {
        let reply = &answer.reply;
        let listed = reply.members().any(|member| member == address);
        let me = reply.me.as_ref()?;
        let reachable = seen.probes.get(me).is_some_and(|probe| probe.answer().is_some());
        (seen.is_seed(address) && !listed && !direct && reachable).then(|| {
            Finding::note(
                "seed_called_otherwise",
                format!("you dialled {address}; its set calls it {me}, and that works too"),
            )
            .because(
                "clients go on with the advertised name, so that name must stay reachable \
                 from every client",
            )
            .fix(format!("write {me} in the connection string"))
        })
    });
    called.collect()
}
