//! Findings about reaching each server: names, ports, TLS, and the names that a set advertises.
//!
//! A function of the facts that `probe` collected.

use std::net::IpAddr;

use quorate_protocol::ServerAddress;
use quorate_server_discovery::ServerType;

use super::examination::Examination;
use super::probe::{HelloFault, PortFault, ServerProbe};
use crate::finding::{Finding, Stops};
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
    findings.extend(one_socket_for_several(seen));
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
            finding!(problem "name_not_found",
                "{} does not resolve here: {}", address.host(), Foreign(reason))
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
        finding!(problem "advertised_name_not_found",
            "{}, but the set advertises {address}, which does not resolve here",
            advertiser(seen, by))
        .because("every driver drops the seed and dials the advertised name")
        .fix(
            seen.mongosh_on(
                by,
                &remedy::rename_member(address.as_str(), &better_name(seen, by, port)),
            ),
        )
        .fix(remedy::hosts_line(
            reached_ip.as_deref().filter(|_| only).unwrap_or("IP_OF_THE_MEMBER"),
            address.host(),
        ))
        .fix(remedy::CONNECT_DIRECTLY),
    )
}

/// A name under which all clients may reach the member that was dialled as `by`: that very address if
/// the set has no other member, which that address could mislead.
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
            finding!(warning "some_addresses_closed", "{} is {told}", address.host())
                .because(
                    "a client that tries only the first address fails here; ours tries every one",
                )
                .fix(format!("write {literal} in the connection string"))
                .fix(remedy::LISTEN_ON_BOTH),
        );
    }
    let whose = match (seen.is_seed(address), seen.advertised_by(address)) {
        (false, Some(by)) => format!("{}, and advertises ", advertiser(seen, by)),
        _ => String::new(),
    };
    let silent = probe.ports.iter().any(|(_, result)| *result == Err(PortFault::Silent));
    let refused = probe.ports.iter().any(|(_, result)| *result == Err(PortFault::Refused));
    if !silent && !refused {
        return Some(unreachable(address, &whose, &told));
    }
    Some(match silent {
        true => finding!(problem "connect_timed_out",
            "{whose}{address}, which does not answer: {told}")
        .because(
            "nothing refuses and nothing answers: a firewall drops the packets, or the \
             address is not reachable from here",
        )
        .fix(remedy::try_by_hand(address.host(), port))
        .fix(remedy::ALLOW_THIS_MACHINE),
        false => finding!(problem "refused", "{whose}{address}, where nothing listens: {told}")
            .because(
                "the host answers, but no server has that port open: it is stopped, listens on \
             another port, or only on loopback (bindIp)",
            )
            .fix(remedy::is_it_running(port))
            .fix(remedy::LISTEN_ON_THE_NETWORK),
    })
}

/// A router or a firewall on the way says no, not the host.
fn unreachable(address: &ServerAddress, whose: &str, told: &str) -> Finding {
    finding!(problem "unreachable", "{whose}{address} cannot be reached: {told}")
        .because(
            "the network itself says no: there is no route to that address, or a firewall rejects \
             the connection on the way",
        )
        .fix(remedy::way_to(address.host()))
        .fix(remedy::ALLOW_THIS_MACHINE)
}

fn hello(seen: &Examination, probe: &ServerProbe) -> Option<Finding> {
    let Some(Err(fault)) = &probe.hello else { return None };
    if let HelloFault::Tls(reason) = fault
        && wants_client_certificate(reason)
    {
        return Some(client_certificate(&probe.address));
    }
    if let Some(Err(HelloFault::Tls(reason))) = &probe.otherwise
        && wants_client_certificate(reason)
    {
        return Some(client_certificate(&probe.address));
    }
    Some(match &probe.otherwise {
        Some(Ok(_)) => other_way(&probe.address, fault, seen.uri.tls_enabled()),
        _ => neither_way(&probe.address, fault),
    })
}

/// The server answers, but not the way the connection string wants it.
fn other_way(address: &ServerAddress, fault: &HelloFault, wants_tls: bool) -> Finding {
    match wants_tls {
        false => finding!(problem "tls_required",
            "{address}: TCP ✓, plain hello ✗ ({fault}), TLS hello ✓")
        .because(
            "the server takes TLS only; without it drivers report a timeout or a closed connection",
        )
        .fix(remedy::SPEAK_TLS),
        true => finding!(problem "tls_against_plain",
            "{address}: TCP ✓, TLS hello ✗ ({fault}), plain hello ✓")
        .because("the server speaks no TLS on that port; drivers report a timeout")
        .fix(remedy::SPEAK_PLAIN)
        .fix(remedy::SERVE_TLS),
    }
}

/// The port is open, and hello is not answered in either way.
fn neither_way(address: &ServerAddress, fault: &HelloFault) -> Finding {
    match fault {
        HelloFault::Tls(reason) => certificate(address, reason),
        HelloFault::Refused { text: reason, .. } => finding!(problem "hello_refused",
            "{address} answers hello with an error: {}", Foreign(reason))
        .because("the network is fine; the server itself says no")
        .fix("read that error, and the server's log at the same time"),
        HelloFault::Malformed(reason) => no_mongodb(address, reason),
        HelloFault::Connect(reason) => {
            let (seen, step) = reason.split_once("; ").unwrap_or((reason, "check the address"));
            finding!(problem "connect_failed", "{address}: {}", Foreign(seen))
                .because("no connection was made, so that nothing could be asked")
                .fix(step)
                .fix(match address.is_unix() {
                    true => "see which sockets are open: ss -lx | grep mongodb".to_owned(),
                    false => format!(
                        "see which ports are open on that host: ss -ltn | grep :{}",
                        address.port().unwrap_or(quorate_protocol::DEFAULT_PORT)
                    ),
                })
        }
        HelloFault::Closed | HelloFault::Silent => finding!(problem "hello_unanswered",
            "{address}: the port is open, but neither plain nor TLS hello is answered ({fault})")
        .because(
            "a proxy, a load balancer without a server behind it, a server that hangs, or \
             one that requires a client certificate",
        )
        .fix("look at the server itself: its log, its CPU, its open files")
        .fix("if it wants a client certificate: tls=true&tlsCertificateKeyFile=FILE"),
    }
}

/// Whether the server turned the client away for want of a certificate.
fn wants_client_certificate(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    reason.contains("certificaterequired") || reason.contains("certificate required")
}

fn client_certificate(address: &ServerAddress) -> Finding {
    finding!(problem "client_certificate_missing",
        "{address} wants a certificate of the client, and the connection string has none")
    .because("the server ends the TLS handshake with \"certificate required\"")
    .fix("add tls=true&tlsCertificateKeyFile=/path/to/client.pem to the connection string")
    .stopping(Stops::Everything)
}

/// The finding about a certificate, by the text of the TLS library.
fn certificate(address: &ServerAddress, reason: &str) -> Finding {
    let look = format!(
        "openssl s_client -connect {address} </dev/null | openssl x509 -noout -dates -subject -ext \
         subjectAltName"
    );
    let words = reason.to_lowercase();
    let told = |what: &str| format!("{address}: {what}: {}", Foreign(reason));
    if words.contains("expired") || words.contains("not valid after") {
        return Finding::problem("certificate_expired", told("its certificate has expired"))
            .because("drivers refuse it, whatever authority signed it; so do the other members")
            .fix(remedy::RENEW_CERTIFICATE)
            .fix(format!("see until when it was good: {look}"))
            .fix("see that the clock of this machine is right: timedatectl");
    }
    if words.contains("not valid before") || words.contains("notvalidyet") {
        return Finding::problem(
            "certificate_not_yet_valid",
            told("its certificate is not valid yet"),
        )
        .because("its time has not begun by the clock of this machine")
        .fix("see that the clocks are right on both machines: timedatectl")
        .fix(format!("see from when it is good: {look}"));
    }
    if words.contains("not valid for name") || words.contains("notvalidforname") {
        return Finding::problem(
            "certificate_name",
            told(&format!("its certificate is not for the name {}", address.host())),
        )
        .because("the certificate was issued for other names than the one that was dialled")
        .fix(format!("dial it by a name that it has: {look}"))
        .fix(format!("issue a certificate with {} among its names", address.host()));
    }
    if words.contains("unknownissuer") || words.contains("unknown issuer") {
        return Finding::problem(
            "certificate_issuer",
            told("its certificate was signed by an authority that is not trusted here"),
        )
        .because("the port is open and speaks TLS; the authority is unknown")
        .fix(remedy::TRUST_AUTHORITY)
        .fix(format!("see it: openssl s_client -connect {address} -showcerts </dev/null"));
    }
    Finding::problem("certificate", told("the TLS handshake failed"))
        .because("the port is open and speaks TLS; the two do not agree")
        .fix(format!("see it: openssl s_client -connect {address} -showcerts </dev/null"))
        .fix(remedy::TRUST_AUTHORITY)
}

/// Another program answers: which one, its first bytes often tell.
fn no_mongodb(address: &ServerAddress, reason: &str) -> Finding {
    let speaks = first_bytes(reason).map(|bytes| match &bytes {
        b"HTTP" => "a web server (HTTP)",
        b"SSH-" => "an SSH server",
        b"220 " | b"220-" => "a mail or FTP server",
        [0x15 | 0x16, 3, ..] => "a server that speaks TLS",
        b"-ERR" | b"+OK " => "a Redis or mail server",
        _ => "another program",
    });
    match speaks {
        Some(speaks) => {
            finding!(problem "no_mongodb", "{address} is {speaks}, not a MongoDB server")
        }
        None => finding!(problem "no_mongodb",
            "{address} answers with something that is no MongoDB reply: {}", Foreign(reason)),
    }
    .because("another program listens on that port, or a proxy is between")
    .fix("check the port in the connection string")
    .fix(format!(
        "on that host, see which program it is: ss -ltnp | grep :{}",
        address.port().unwrap_or(quorate_protocol::DEFAULT_PORT)
    ))
}

/// The first four bytes of an answer whose length made no sense: they are text.
fn first_bytes(reason: &str) -> Option<[u8; 4]> {
    let (_, rest) = reason.split_once("message of ")?;
    let number: i64 = rest.split_whitespace().next()?.parse().ok()?;
    let bytes = u32::try_from(number)
        .ok()
        .or_else(|| i32::try_from(number).ok().map(i32::cast_unsigned))?;
    Some(bytes.to_le_bytes())
}

/// Several members of one set whose names lead to one socket, as with containers whose ports are
/// mapped while their names are all this machine.
fn one_socket_for_several(seen: &Examination) -> Option<Finding> {
    let listed_members: Vec<&ServerAddress> =
        seen.probes.keys().filter(|address| seen.advertised_by(address).is_some()).collect();
    let socket_of = |address: &ServerAddress| {
        let probe = seen.probes.get(address)?;
        probe.answer()?;
        probe.ports.iter().find(|(_, result)| result.is_ok()).map(|(socket, _)| *socket)
    };
    let (socket, members) = listed_members.iter().find_map(|address| {
        let socket = socket_of(address)?;
        let same: Vec<&ServerAddress> = listed_members
            .iter()
            .copied()
            .filter(|other| socket_of(other) == Some(socket))
            .collect();
        (same.len() > 1).then_some((socket, same))
    })?;
    let me = seen.probes.get(members[0]).and_then(ServerProbe::answer);
    let me = me.and_then(|answer| answer.reply.me.as_ref());
    let called = me.map_or_else(String::new, |me| format!(", which calls itself {me}"));
    Some(
        finding!(problem "one_socket_for_several",
            "the members {} all lead to {socket} from here: one server{called}", listed(&members))
        .because(
            "each member has another port on this machine (mapped ports of containers), but the \
             set advertises its own: the others are never reached",
        )
        .fix("let each member listen on a port of its own, and map it to the same number")
        .fix("run the client in the network of the containers, where the names are right")
        .fix(remedy::CONNECT_DIRECTLY),
    )
}

/// The URI has real addresses, the set advertises this machine.
fn loopback_advertised(seen: &Examination) -> Option<Finding> {
    let (by, answer) = seen
        .answers()
        .find(|(by, answer)| !is_loopback(by) && answer.reply.members().any(is_loopback))?;
    let advertised = answer.reply.members().find(|member| is_loopback(member))?;
    let port = advertised.port().unwrap_or(quorate_protocol::DEFAULT_PORT);
    Some(
        finding!(problem "loopback_advertised",
            "you dialled {by}; the set advertises {advertised}, which is this machine")
        .because(
            "drivers drop the seed and dial what is advertised: your own machine, where \
             nothing or another server listens",
        )
        .fix(seen.mongosh_on(
            by,
            &remedy::rename_member(advertised.as_str(), &format!("{}:{port}", by.host())),
        ))
        .fix(remedy::CONNECT_DIRECTLY),
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
            finding!(note "seed_called_otherwise",
                "you dialled {address}; its set calls it {me}, and that works too")
            .because(
                "clients go on with the advertised name, so that name must stay reachable \
                 from every client",
            )
            .fix(format!("write {me} in the connection string"))
        })
    });
    called.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> ServerAddress {
        "h:27017".parse().expect("an address")
    }

    #[test]
    fn each_fault_of_a_certificate_has_its_own_advice() {
        for (reason, code) in [
            (
                "invalid peer certificate: certificate expired: verification time 2",
                "certificate_expired",
            ),
            ("invalid peer certificate: certificate not valid for name \"h\"", "certificate_name"),
            ("invalid peer certificate: UnknownIssuer", "certificate_issuer"),
            ("invalid peer certificate: NotValidYet", "certificate_not_yet_valid"),
            ("peer is incompatible", "certificate"),
        ] {
            let finding = certificate(&address(), reason);
            assert_eq!(finding.code, code, "{reason}");
            let advises_authority = finding.fixes[0].contains("tlsCAFile");
            assert_eq!(advises_authority, code == "certificate_issuer", "{reason}");
        }
        assert!(wants_client_certificate("received fatal alert: CertificateRequired"));
    }

    #[test]
    fn other_programs_are_known_by_their_first_bytes() {
        for (text, says) in [
            ("a message of 1347703880 bytes is too long", "a web server (HTTP)"),
            ("a message of 759714643 bytes is too long", "an SSH server"),
        ] {
            let finding = no_mongodb(&address(), text);
            assert!(finding.seen.contains(says), "{}", finding.seen);
            assert!(!finding.seen.contains("bytes"), "{}", finding.seen);
        }
    }
}
