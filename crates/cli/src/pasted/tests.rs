//! Messages as people paste them, and what must be said about each.
//!
//! The wordings are those of the drivers; hosts, names and ids are made up.

use super::*;
use proptest::prelude::Strategy;

/// A message, the codes of its findings in order, and words that the answer must hold.
pub(super) type Sample = (&'static str, &'static [&'static str], &'static [&'static str]);

fn answer(text: &str) -> (Vec<&'static str>, String) {
    let diagnosis = diagnose(text);
    let mut said = String::new();
    for finding in &diagnosis.findings {
        assert!(!finding.why.is_empty(), "{} has a reason", finding.code);
        assert!(!finding.fixes.is_empty(), "{} has a next step", finding.code);
        said.push_str(&format!("{}\n{}\n", finding.seen, finding.why));
        said.push_str(&finding.fixes.join("\n"));
        said.push('\n');
    }
    (diagnosis.findings.iter().map(|finding| finding.code).collect(), said)
}

#[track_caller]
pub(super) fn check(samples: &[Sample]) {
    for (text, codes, words) in samples {
        let (found, said) = answer(text);
        assert_eq!(found, *codes, "{text}\n{said}");
        for word in *words {
            assert!(said.contains(word), "{word:?} is missing in the answer to {text}\n{said}");
        }
    }
}

/// Advertised names that mean nothing here.
#[test]
fn names_that_do_not_resolve() {
    check(&[
        (
            "MongooseServerSelectionError: getaddrinfo ENOTFOUND 508be0425c52",
            &["name_not_found"],
            &["508be0425c52 does not resolve", "container's id", "c.members.find", "hosts"],
        ),
        (
            "Error: getaddrinfo EAI_AGAIN mongo1 at GetAddrInfoReqWrap.onlookup",
            &["name_not_found"],
            &["mongo1 does not resolve", "a short name"],
        ),
        (
            "pymongo.errors.ServerSelectionTimeoutError: db-0.db.default.svc.cluster.local:27017: \
             [Errno -2] Name or service not known (configured timeouts: connectTimeoutMS: 20000.0ms)",
            &["name_not_found"],
            &["db-0.db.default.svc.cluster.local:27017", "Kubernetes"],
        ),
        (
            "com.mongodb.MongoSocketException: mongo2: Name or service not known, caused by \
             {java.net.UnknownHostException: mongo2: Name or service not known}",
            &["name_not_found"],
            &["mongo2"],
        ),
        (
            "server selection error: server selection timeout, current topology: { Type: \
             ReplicaSetNoPrimary, Servers: [{ Addr: mongo1:27017, Type: Unknown, Last error: dial \
             tcp: lookup mongo1 on 127.0.0.11:53: no such host }, ] }",
            &["name_not_found"],
            &["mongo1:27017 does not resolve", "hosts", "REACHABLE_NAME:27017"],
        ),
        (
            "Kind: Server selection timeout: No available servers. Topology: { Type: \
             ReplicaSetNoPrimary, Set Name: rs0, Servers: [ { Address: mongo1:27017, Type: \
             Unknown, Error: Kind: I/O error: failed to lookup address information: Name or \
             service not known, labels: {} } ] }, labels: {}",
            &["name_not_found"],
            &["mongo1:27017 does not resolve"],
        ),
        (
            "No suitable servers found: `serverSelectionTimeoutMS` expired: [Failed to resolve \
             'mongo3']. Topology type: ReplicaSetNoPrimary",
            &["name_not_found"],
            &["mongo3"],
        ),
        (
            "mongodb://localhost:27017/?replicaSet=rs0 failed: getaddrinfo ENOTFOUND 508be0425c52",
            &["name_not_found"],
            &["does not name it", "dial the advertised names"],
        ),
    ]);
}

#[test]
fn srv_records() {
    check(&[
        (
            "Error: querySrv ENOTFOUND _mongodb._tcp.cluster0.abcde.example.net",
            &["srv_lookup_failed"],
            &["_mongodb._tcp.cluster0.abcde.example.net", "dig +short SRV", "misspelt"],
        ),
        (
            "Error: querySrv ECONNREFUSED _mongodb._tcp.cluster0.example.net",
            &["srv_lookup_failed"],
            &["did not answer", "another resolver"],
        ),
        (
            "pymongo.errors.ConfigurationError: The DNS query name does not exist: \
             _mongodb._tcp.cluster0.example.net.",
            &["srv_lookup_failed"],
            &["cluster0.example.net"],
        ),
        (
            "error parsing uri: lookup _mongodb._tcp.db.example.net on 10.0.0.2:53: no such host",
            &["srv_lookup_failed", "connection_string"],
            &["db.example.net"],
        ),
    ]);
}

/// A set that advertises loopback, and localhost that means ::1.
#[test]
fn loopback() {
    check(&[
        (
            "MongooseServerSelectionError: connect ECONNREFUSED 127.0.0.1:27017",
            &["refused_on_loopback"],
            &["127.0.0.1:27017 is this machine", "the set advertises loopback", "ss -ltn"],
        ),
        (
            "MongoServerSelectionError: connect ECONNREFUSED ::1:27017",
            &["refused_on_loopback"],
            &["[::1]:27017", "localhost was resolved to ::1", "127.0.0.1:27017 instead"],
        ),
        (
            // Both refuse, so that 127.0.0.1 is no way out.
            "AggregateError: connect ECONNREFUSED ::1:27017, connect ECONNREFUSED 127.0.0.1:27017",
            &["refused_on_loopback"],
            &["are this machine, and nothing listens there", "either no server runs here"],
        ),
        (
            "connecting to mongodb://192.168.10.10:27017,192.168.10.11:27017/?replicaSet=rs0\n\
             MongoServerSelectionError: connect ECONNREFUSED 127.0.0.1:27017",
            &["loopback_advertised"],
            &["the set advertises 127.0.0.1:27017, which is this machine", "REAL_NAME:27017"],
        ),
        (
            "pymongo.errors.ServerSelectionTimeoutError: localhost:27017: [Errno 111] Connection \
             refused (configured timeouts: socketTimeoutMS: 20000.0ms), Timeout: 30s, Topology \
             Description: <TopologyDescription id: 65a0, topology_type: Unknown, servers: \
             [<ServerDescription ('localhost', 27017) server_type: Unknown, rtt: None, \
             error=AutoReconnect('localhost:27017: [Errno 111] Connection refused')>]>",
            &["refused_on_loopback"],
            &["localhost:27017 is this machine"],
        ),
        (
            "No suitable servers found (`serverSelectionTryOnce` set): [connection refused calling \
             hello on 'localhost:27017']",
            &["refused_on_loopback"],
            &["localhost:27017"],
        ),
    ]);
}

#[test]
fn refused_elsewhere() {
    check(&[
        (
            "dial tcp 10.0.0.5:27017: connect: connection refused",
            &["refused"],
            &["10.0.0.5:27017 refuses connections", "bindIp"],
        ),
        (
            "com.mongodb.MongoTimeoutException: Timed out after 30000 ms while waiting for a \
             server that matches WritableServerSelector. Client view of cluster state is \
             {type=REPLICA_SET, servers=[{address=db0:27017, type=UNKNOWN, state=CONNECTING, \
             exception={com.mongodb.MongoSocketOpenException: Exception opening socket}, caused by \
             {java.net.ConnectException: Connection refused}}, {address=db1:27017, type=UNKNOWN, \
             state=CONNECTING, exception={com.mongodb.MongoSocketOpenException: Exception opening \
             socket}, caused by {java.net.ConnectException: Connection refused}}]",
            &["refused"],
            &["db0:27017 and db1:27017 refuse connections"],
        ),
    ]);
}

#[test]
fn silence_and_routes() {
    check(&[
        ("connect ETIMEDOUT 52.1.2.3:27017", &["connect_timed_out"], &["nc -vz 52.1.2.3 27017"]),
        ("dial tcp 10.1.1.1:27017: i/o timeout", &["connect_timed_out"], &["firewall"]),
        (
            "pymongo.errors.ServerSelectionTimeoutError: db0.example.net:27017: timed out",
            &["connect_timed_out"],
            &["db0.example.net:27017 did not answer"],
        ),
        (
            "MongoServerSelectionError: connection <monitor> to 10.2.3.4:27017 timed out",
            &["connect_timed_out"],
            &["10.2.3.4:27017"],
        ),
        (
            "No suitable servers found: `serverSelectionTimeoutMS` expired: [connection timeout \
             calling hello on '10.0.0.9:27017']",
            &["connect_timed_out"],
            &["10.0.0.9:27017"],
        ),
        (
            "dial tcp 10.9.9.9:27017: connect: no route to host",
            &["no_route"],
            &["ip route get 10.9.9.9"],
        ),
        (
            "MongooseServerSelectionError: Could not connect to any servers in your MongoDB Atlas \
             cluster. One common reason is that you're trying to access the database from an IP \
             that isn't whitelisted.",
            &["access_list"],
            &["IP access list"],
        ),
        (
            "MongoServerSelectionError: connect ENOENT /tmp/mongodb-27017.sock",
            &["socket_path_missing"],
            &["/tmp/mongodb-27017.sock"],
        ),
    ]);
}

/// TLS faults that look like anything else.
#[test]
fn tls() {
    check(&[
        (
            "MongoNetworkError: connection <monitor> to 10.0.0.1:27017 closed",
            &["connection_closed"],
            &["10.0.0.1:27017 accepted", "tls=true"],
        ),
        (
            "com.mongodb.MongoSocketReadException: Prematurely reached end of stream",
            &["connection_closed"],
            &["tls=true"],
        ),
        (
            "connection(db0:27017[-5]) socket was unexpectedly closed: EOF",
            &["connection_closed"],
            &["db0:27017"],
        ),
        (
            "MongoServerSelectionError: 140735:error:1408F10B:SSL routines:ssl3_get_record:wrong \
             version number:../deps/openssl/ssl/record/ssl3_record.c:332:",
            &["tls_against_plain"],
            &["remove tls=true"],
        ),
        ("tls: first record does not look like a TLS handshake", &["tls_against_plain"], &[]),
        (
            "pymongo.errors.ServerSelectionTimeoutError: SSL handshake failed: db0:27017: [SSL: \
             CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer \
             certificate (_ssl.c:1129)",
            &["certificate_untrusted"],
            &["tlsCAFile="],
        ),
        ("x509: certificate signed by unknown authority", &["certificate_untrusted"], &[]),
        (
            "javax.net.ssl.SSLHandshakeException: PKIX path building failed",
            &["certificate_untrusted"],
            &[],
        ),
        ("invalid peer certificate: UnknownIssuer", &["certificate_untrusted"], &[]),
        (
            "MongoServerSelectionError: certificate has expired",
            &["certificate_expired"],
            &["openssl x509 -noout -dates"],
        ),
        (
            "Hostname/IP does not match certificate's altnames: Host: db0. is not in the cert's \
             altnames: DNS:db0.example.net",
            &["certificate_name"],
            &["for DNS:db0.example.net, and db0 was dialled"],
        ),
        (
            "x509: certificate is valid for db0.example.net, not 10.0.0.1",
            &["certificate_name"],
            &["certificate is for db0.example.net, and 10.0.0.1 was dialled"],
        ),
    ]);
}

/// TLS faults, the other half.
#[test]
fn authentication() {
    check(&[
        (
            "MongoServerError: Authentication failed.",
            &["authentication_failed"],
            &["the network is fine", "authSource=admin", "%40"],
        ),
        ("MongoServerError: bad auth : Authentication failed.", &["authentication_failed"], &[]),
        (
            "com.mongodb.MongoSecurityException: Exception authenticating \
             MongoCredential{mechanism=SCRAM-SHA-256, userName='ada', source='shop', \
             password=<hidden>, mechanismProperties=<hidden>}",
            &["authentication_failed"],
            &["for user ada (mechanism SCRAM-SHA-256, database shop)", "getUser(\"ada\")"],
        ),
        (
            "connection() error occurred during connection handshake: auth error: sasl \
             conversation error: unable to authenticate using mechanism \"SCRAM-SHA-1\": \
             (AuthenticationFailed) Authentication failed.",
            &["authentication_failed"],
            &["mechanism SCRAM-SHA-1"],
        ),
        (
            "pymongo.errors.OperationFailure: Authentication failed., full error: {'ok': 0.0, \
             'errmsg': 'Authentication failed.', 'code': 18, 'codeName': 'AuthenticationFailed'}",
            &["authentication_failed"],
            &[],
        ),
        (
            "not authorized on shop to execute command { find: \"orders\" }",
            &["not_authorized"],
            &["grantRolesToUser", "db: \"shop\""],
        ),
        ("Command find requires authentication", &["not_authorized"], &["before find"]),
    ]);
}

/// Set names and configurations.
#[test]
fn sets() {
    check(&[
        (
            "Expecting replica set member from set 'rs_dev', but found one from set 'rs0'. \
             Removing db0:27017 from client view of cluster.",
            &["wrong_set_name"],
            &["says replicaSet=rs_dev, db0:27017 says rs0", "write replicaSet=rs0"],
        ),
        (
            "client is configured to connect to a replica set named 'rs_dev' but this node belongs \
             to a set named 'rs0'",
            &["wrong_set_name"],
            &["replicaSet=rs_dev", "replicaSet=rs0"],
        ),
        (
            "client is configured to connect to a replica set named 'rs0' but this node belongs to \
             a set named None",
            &["wrong_set_name"],
            &["belongs to no set", "remove replicaSet"],
        ),
        (
            "MongoServerError: no replset config has been received, code: 94, codeName: \
             'NotYetInitialized'",
            &["never_initiated"],
            &["rs.initiate({_id: \"NAME\"", "--replSet"],
        ),
        (
            "mongodb://db0,db1/?replicaSet=prod { Type: ReplicaSetNoPrimary, Servers: [{ Addr: \
             db0:27017, Type: RSGhost }, { Addr: db1:27017, Type: RSGhost }, ] }",
            &["never_initiated"],
            &["{_id: \"prod\", members: [{_id: 0, host: \"db0:27017\"}, {_id: 1, host: \
                 \"db1:27017\"}]"],
        ),
        (
            "Our replica set config is invalid or we are not a member of it \
             (InvalidReplicaSetConfig)",
            &["config_lost_self"],
            &["does not find itself", "rs.reconfig(c)"],
        ),
        (
            "MongoServerError: Transaction numbers are only allowed on a replica set member or \
             mongos",
            &["no_replication"],
            &["--replSet rs0"],
        ),
        (
            "replSetInitiate quorum check failed because not all proposed set members responded \
             affirmatively: db1:27017 failed with Error connecting to db1:27017",
            &["configuration_quorum"],
            &["db1:27017"],
        ),
    ]);
}

/// Write concerns, read preferences, and members that lose track of the others.
#[test]
fn members_that_cannot_serve() {
    check(&[
        (
            "MongoBulkWriteError: waiting for replication timed out",
            &["write_concern_unsatisfied"],
            &["arbiter", "majority"],
        ),
        ("Not enough data-bearing nodes", &["write_concern_unsatisfied"], &[]),
        (
            "RS102 too stale to catch up, at least from db1:27017",
            &["too_stale"],
            &["replSetResizeOplog", "empty its data directory"],
        ),
        (
            "Replication: transition to ROLLBACK, rolled back 214 documents",
            &["rolled_back"],
            &["w=majority"],
        ),
        (
            "Initial sync attempt failed -- attempts left: 9",
            &["initial_sync_failed"],
            &["initialSync"],
        ),
        (
            "Could not find host matching read preference { mode: \"secondary\" } for set rs0",
            &["read_preference_unsatisfied"],
            &["(secondary)", "secondaryPreferred"],
        ),
        (
            "pymongo.errors.ServerSelectionTimeoutError: No replica set members match selector \
             \"Secondary(tag_sets=[{'dc': 'tokyo'}], max_staleness=-1, hedge=None)\"",
            &["read_preference_unsatisfied"],
            &["tokyo"],
        ),
    ]);
}

/// A secondary where a primary was meant.
#[test]
fn primaries() {
    check(&[
        ("MongoServerError: not primary", &["not_primary"], &["replicaSet=NAME"]),
        (
            "mongodb://db1:27017/?directConnection=true (NotWritablePrimary) not primary",
            &["not_primary_direct"],
            &["mode Single", "remove directConnection=true"],
        ),
        (
            "Command failed with error 13436 (NotPrimaryOrSecondary): 'node is recovering' on \
             server db2:27017",
            &["recovering"],
            &["rs.status()"],
        ),
        (
            "(PrimarySteppedDown) primary stepped down while waiting for replication",
            &["stepped_down"],
            &["retryWrites=true"],
        ),
        (
            "server selection error: context deadline exceeded, current topology: { Type: Single, \
             Servers: [{ Addr: db1:27017, Type: RSSecondary, Average RTT: 900 }] }",
            &["direct_to_secondary"],
            &["db1:27017 is a secondary"],
        ),
        ("No primary available for writes", &["no_primary"], &["quorate doctor URI"]),
        (
            "server selection timeout, current topology: { Type: ReplicaSetWithPrimary, Servers: \
             [{ Addr: db0:27017, Type: RSPrimary, Average RTT: 900 }] }",
            &["primary_known"],
            &["db0:27017", "readPreferenceTags"],
        ),
    ]);
}

/// Selection errors, pools, versions and platforms.
#[test]
fn clients() {
    check(&[
        (
            "MongoServerSelectionError: Server selection timed out after 30000 ms",
            &["cause_hidden"],
            &["console.dir(error.reason", "quorate doctor URI"],
        ),
        (
            "Kind: Server selection timeout: No available servers. Topology: { Type: Unknown, \
             Servers: [ { Address: localhost:27017, Type: Unknown } ] }",
            &["never_checked"],
            &["neither well nor badly", "runtime"],
        ),
        (
            "MongooseError: Operation `users.findOne()` buffering timed out after 10000ms",
            &["buffering_timed_out"],
            &["10000 ms", "await mongoose.connect"],
        ),
        (
            "MongoServerSelectionError: connect ETIMEDOUT 10.0.0.1:27017\n    at \
             /var/task/node_modules/mongodb/lib/sdam/topology.js:278:38",
            &["connect_timed_out", "function_platform"],
            &["outside the handler", "serverMonitoringMode=poll"],
        ),
        (
            "MongoWaitQueueTimeoutError: Timed out while checking out a connection from connection \
             pool",
            &["pool_exhausted"],
            &["maxPoolSize"],
        ),
        (
            "connection refused because too many open connections: 819",
            &["too_many_connections"],
            &["20,400"],
        ),
        ("MongoTopologyClosedError: Topology is closed", &["client_closed"], &[]),
        (
            "MongoPoolClearedError: Connection pool for db0:27017 was cleared because another \
             operation failed",
            &["pool_cleared"],
            &["db0:27017"],
        ),
        (
            "MongoParseError: Invalid scheme, expected connection string to start with \
             \"mongodb://\" or \"mongodb+srv://\"",
            &["connection_string"],
            &["quorate doctor 'URI'"],
        ),
        (
            "Server at db0:27017 reports maximum wire version 2, but this version of the Node.js \
             Driver requires at least 6 (MongoDB 3.6)",
            &["wire_version"],
            &["db0:27017 is older"],
        ),
        (
            "Server at db0:27017 requires wire version 30, but this version of PyMongo only \
             supports up to 25.",
            &["wire_version"],
            &["db0:27017 is newer", "upgrade the driver"],
        ),
    ]);
}

/// What our own client says is understood too.
#[test]
fn our_own_wording() {
    check(&[(
        "error: no server for a write after 30 s (topology ReplicaSetNoPrimary rs0, 3 servers)\n  \
         c:27017 RSSecondary: not the primary; 1 s ago\n  a:27017 Unknown: cannot connect to \
         a:27017: Connection refused (os error 111); check that the server runs; 2 s ago\n  b:27017 \
         Unknown: never checked\nno primary: 1 of 3 members answer, and an election needs 2 votes",
        &["refused", "no_primary"],
        &["a:27017 refuses connections", "1 of 3 servers answer, an election needs 2 votes"],
    )]);
}

/// Older versions.
#[test]
fn older_wordings() {
    check(&[
        (
            "ServerSelectionTimeoutError: 10.0.0.10:27017: [Errno 110] Connection timed out, \
             Topology Description: <TopologyDescription id: 6, topology_type: ReplicaSetNoPrimary, \
             servers: [<ServerDescription (u'10.0.0.10', 27017) server_type: Unknown, rtt: None, \
             error=AutoReconnect(u'10.0.0.10:27017: [Errno 110] Connection timed out',)>]>",
            &["connect_timed_out"],
            &["10.0.0.10:27017 did not answer"],
        ),
        (
            "Server selection timeout: No available servers. Topology: { Type: \
             ReplicaSetNoPrimary, Servers: [ { Address: db0:27017, Type: Unknown, Error: timed out \
             }, { Address: db1:27017, Type: Unknown, Error: timed out }, ] }",
            &["connect_timed_out"],
            &["db0:27017 and db1:27017 did not answer"],
        ),
        (
            "No servers suitable for criteria. Current topology: { Type: ReplicaSetNoPrimary, \
             Servers: [ { Address: a:1, Type: RSArbiter, Average RTT: Some(1ms), LastError: None }, \
             { Address: b:1, Type: RSSecondary, Average RTT: Some(1ms), LastError: None }, ] }",
            &["no_primary"],
            &["2 of 2 servers answer"],
        ),
        (
            "A timeout occured after 30000ms selecting a server. Client view of cluster state is { \
             ClusterId : \"1\", Type : \"Unknown\", Servers : [{ ServerId: \"{ ClusterId : 1, \
             EndPoint : \"Unspecified/localhost:27017\" }\", EndPoint: \
             \"Unspecified/localhost:27017\", State: \"Disconnected\", Type: \"Unknown\", \
             HeartbeatException: \"System.Net.Sockets.SocketException: No connection could be made \
             because the target machine actively refused it 127.0.0.1:27017\" }] }",
            &["refused_on_loopback"],
            &["localhost:27017"],
        ),
        (
            "A timeout occured after 30000ms selecting a server. Client view of cluster state is { \
             ClusterId : \"1\", ConnectionMode : \"ReplicaSet\", Type : \"ReplicaSet\", State : \
             \"Disconnected\", Servers : [] }.",
            &["every_host_dropped"],
            &["db.hello().setName"],
        ),
    ]);
}

/// Formats of which only one sample was ever seen.
#[test]
fn rare_wordings() {
    check(&[
        (
            "No server chosen by WritableServerSelector from cluster description \
             ClusterDescription{type=REPLICA_SET, connectionMode=SINGLE, serverDescriptions=[]}",
            &["every_host_dropped"],
            &[],
        ),
        (
            "Timed out after 30000 ms while waiting for a server that matches \
             ReadPreferenceServerSelector{readPreference=primary}. Client view of cluster state is \
             {type=REPLICA_SET, servers=[{address=db0:27017, type=REPLICA_SET_OTHER, \
             roundTripTime=0.5 ms, state=CONNECTED}, {address=db1:27017, type=REPLICA_SET_OTHER, \
             roundTripTime=0.5 ms, state=CONNECTED}]",
            &["nobody_serves"],
            &["db0:27017 and db1:27017 answer", "stateStr"],
        ),
        (
            "No suitable servers found: `serverSelectionTimeoutMS` expired: [socket timeout calling \
             hello on 'db0.example.net:27017']",
            &["connect_timed_out"],
            &["db0.example.net:27017"],
        ),
        (
            "ServerSelectionTimeoutError: SSL handshake failed: db0:27017: [Errno 0] Error",
            &["tls_handshake"],
            &["(db0:27017)"],
        ),
        (
            "It looks like you are trying to access MongoDB over HTTP on the native driver port.",
            &["http_on_driver_port"],
            &["mongodb://"],
        ),
    ]);
}

/// Several servers, several causes: each is laid at its own door.
#[test]
fn mixed_descriptions_are_taken_apart() {
    let text = "MongoServerSelectionError: getaddrinfo ENOTFOUND mongo2\n  reason: \
                TopologyDescription { type: 'ReplicaSetNoPrimary', servers: Map(4) {\n\
                'mongo1:27017' => ServerDescription { address: 'mongo1:27017', type: 'Unknown', \
                error: MongoNetworkError: connect ECONNREFUSED 172.18.0.2:27017 },\n\
                'mongo2:27017' => ServerDescription { address: 'mongo2:27017', type: 'Unknown', \
                error: MongoNetworkError: getaddrinfo ENOTFOUND mongo2 },\n\
                'mongo3:27017' => ServerDescription { address: 'mongo3:27017', type: 'Unknown', \
                error: MongoNetworkError: connection <monitor> to 172.18.0.4:27017 closed },\n\
                'mongo4:27017' => ServerDescription { address: 'mongo4:27017', type: \
                'RSSecondary', error: null } }, setName: 'rs0' }";
    let diagnosis = diagnose(text);
    assert_eq!(diagnosis.topology.as_deref(), Some("ReplicaSetNoPrimary"));
    let causes: Vec<_> =
        diagnosis.servers.iter().map(|(server, cause)| (server.address.as_str(), *cause)).collect();
    assert_eq!(
        causes,
        [
            ("mongo1:27017", Some("refused")),
            ("mongo2:27017", Some("name_not_found")),
            ("mongo3:27017", Some("connection_closed")),
            ("mongo4:27017", None),
        ]
    );
    let (codes, said) = answer(text);
    assert_eq!(codes, ["refused", "name_not_found", "connection_closed", "no_primary"]);
    for words in [
        "mongo1:27017 refuses connections",
        "mongo2:27017 does not resolve",
        "mongo3:27017 accepted the connection",
        "no primary: 1 of 4 servers answer, an election needs 3 votes",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Containers and process managers put their name before every line.
#[test]
fn names_before_each_line_are_no_part_of_the_message() {
    for prefix in ["app_1  | ", "[web]", "[web-7d9f] "] {
        let lines = [
            "MongoServerSelectionError: connection timed out {",
            "  reason: TopologyDescription {",
            "    type: 'ReplicaSetNoPrimary',",
            "    servers: Map(1) {",
            "      'db0:27017' => ServerDescription {",
            "        address: 'db0:27017',",
            "        type: 'Unknown',",
            "        error: MongoNetworkTimeoutError: connection timed out",
        ];
        let text: String = lines.iter().map(|line| format!("{prefix}{line}\n")).collect();
        let diagnosis = diagnose(&text);
        assert_eq!(diagnosis.topology.as_deref(), Some("ReplicaSetNoPrimary"), "{text}");
        assert_eq!(diagnosis.servers.len(), 1, "{text}");
        assert_eq!(answer(&text).0, ["connect_timed_out"], "{text}");
    }
}

#[test]
fn an_unknown_text_is_not_guessed_at() {
    for text in ["Segmentation fault", "hello", "TypeError: x is not a function", "{}", "🦀"] {
        let (codes, said) = answer(text);
        assert!(codes.is_empty(), "{text}: {said}");
    }
}

#[test]
fn passwords_in_the_text_are_not_repeated() {
    let text = "mongodb://ada:s3cret-pass@db0:27017/?replicaSet=rs0 MongoServerError: \
                Authentication failed. connect ECONNREFUSED 10.0.0.1:27017";
    let (codes, said) = answer(text);
    assert_eq!(codes, ["refused", "authentication_failed"]);
    assert!(said.contains("for user ada") && !said.contains("s3cret"), "{said}");
}

#[test]
fn a_text_of_any_size_is_looked_at_in_bounds() {
    let long = "é connect ECONNREFUSED 10.0.0.1:27017 ".repeat(4_000);
    assert!(long.len() > MAX_TEXT_LENGTH);
    assert_eq!(answer(&long).0, ["refused"]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Pieces of real messages in any order, with anything between them.
    #[test]
    fn any_text_gets_findings_with_a_reason_and_a_next_step(
        pieces in proptest::collection::vec(
            proptest::prop_oneof![
                "\\PC{0,12}",
                proptest::sample::select(vec![
                    "[é]", "| ", "\n", "  a:1 Unknown: ", "{ Addr: ", "address: 'b:2'", "=> {",
                    "error=", "<ServerDescription ('c', 3)", "{address=d:4, type=UNKNOWN",
                    "connect ECONNREFUSED ", "::1:27017", "mongodb://u:p@h/", "getaddrinfo ENOTFOUND ",
                ]).prop_map(str::to_owned),
            ],
            0..12,
        )
    ) {
        // The checks are within.
        answer(&pieces.concat());
    }
}

#[test]
fn a_pasted_resume_token_is_explained() {
    let text = "cannot resume stream; the resume token was not found. \
                {_data: \"8263515EAC000000022B0429296E1404\"}";
    let found = diagnose(text).findings;
    let token = found.iter().find(|finding| finding.code == "resume_token").unwrap();
    let told = token.to_json().to_string();
    assert!(told.contains("2022-10-20") && told.contains("quorate token 8263515EAC"), "{told}");
    let plain = diagnose("82 and 8200 and deadbeef are no tokens").findings;
    assert!(plain.iter().all(|finding| finding.code != "resume_token"));
}
