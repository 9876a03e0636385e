//! Every row of the table of configuration fields (docs/replication-rules.md#configuration), each broken on purpose.

use super::*;
use crate::testing::{config, member};
use quorate_protocol::{ObjectId, Priority};

fn three() -> ReplicaSetConfig {
    config((0..3).map(member).collect())
}

fn broken(change: impl FnOnce(&mut ReplicaSetConfig)) -> Result<(), ConfigError> {
    let mut config = three();
    change(&mut config);
    validate(&config, "rs0", Allowances::default())
}

#[test]
fn an_ordinary_configuration_is_sound() {
    assert_eq!(broken(|_| ()), Ok(()));
}

#[test]
fn row_id_must_be_the_start_up_name() {
    let error = broken(|config| config.set_name = "other".into()).unwrap_err();
    assert!(matches!(error, ConfigError::SetName { .. }));
    assert_eq!(error.code(), 93);
}

#[test]
fn row_version_is_1_to_2_to_the_31_minus_1_and_exactly_1_at_initiate() {
    for version in [i64::MIN, -1, 0, MAX_CONFIG_VERSION + 1] {
        assert_eq!(broken(|c| c.version = version), Err(ConfigError::Version(version)));
    }
    assert_eq!(broken(|c| c.version = MAX_CONFIG_VERSION), Ok(()));
    let mut second = three();
    second.version = 2;
    let own = [member(0).host];
    let error = validate_for_initiate(&second, "rs0", Allowances::default(), &own).unwrap_err();
    assert_eq!((error.clone(), error.code()), (ConfigError::FirstVersion(2), 103));
}

#[test]
fn row_protocol_version_is_only_1() {
    assert_eq!(broken(|c| c.protocol_version = 0), Err(ConfigError::ProtocolVersion(0)));
}

#[test]
fn row_members_are_1_to_50_with_1_to_7_voters() {
    assert_eq!(broken(|c| c.members.clear()), Err(ConfigError::MemberCount(0)));
    let many = |count: i32| {
        move |config: &mut ReplicaSetConfig| {
            config.members = (0..count).map(member).collect();
            for member in config.members.iter_mut().skip(7) {
                member.votes = 0;
                member.priority = Priority::ZERO;
            }
        }
    };
    assert_eq!(broken(many(50)), Ok(()));
    assert_eq!(broken(many(51)), Err(ConfigError::MemberCount(51)));
    let eight = |config: &mut ReplicaSetConfig| config.members = (0..8).map(member).collect();
    assert_eq!(broken(eight), Err(ConfigError::VoterCount(8)));
}

#[test]
fn row_somebody_must_be_electable() {
    let none = broken(|config| {
        for member in &mut config.members {
            member.priority = Priority::ZERO;
        }
    });
    assert_eq!(none, Err(ConfigError::NoElectableMember));
}

#[test]
fn row_ids_and_hosts_are_unique() {
    assert_eq!(
        broken(|c| c.members[1].id = MemberId(0)),
        Err(ConfigError::DuplicateId(MemberId(0)))
    );
    assert!(matches!(
        broken(|c| c.members[1].host = c.members[0].host.clone()),
        Err(ConfigError::DuplicateHost(_))
    ));
    for id in [-1, 256] {
        assert_eq!(broken(|c| c.members[1].id = MemberId(id)), Err(ConfigError::MemberIdRange(id)));
    }
}

#[test]
fn row_all_at_localhost_or_none() {
    let local = |port| ServerAddress::tcp("localhost", port).unwrap();
    assert!(matches!(
        broken(|c| c.members[1].host = local(1)),
        Err(ConfigError::MixedLocalhost(_))
    ));
    let all = broken(|config| {
        for (port, member) in (1..).zip(&mut config.members) {
            member.host = local(port);
        }
    });
    assert_eq!(all, Ok(()));
}

#[test]
fn row_priority_is_0_to_1000() {
    for priority in [-0.5, 1000.5, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            broken(|c| c.members[1].priority = Priority(priority)),
            Err(ConfigError::PriorityRange(MemberId(1), _))
        ));
    }
    assert_eq!(broken(|c| c.members[1].priority = Priority(1000.0)), Ok(()));
    assert_eq!(broken(|c| c.members[1].priority = Priority(0.5)), Ok(()));
}

#[test]
fn row_votes_are_0_or_1() {
    for votes in [-1, 2] {
        assert_eq!(
            broken(|c| c.members[1].votes = votes),
            Err(ConfigError::VotesRange(MemberId(1), votes))
        );
    }
}

#[test]
fn row_an_electable_member_votes_shows_itself_keeps_up_and_builds_indexes() {
    let changes: [fn(&mut MemberConfig); 4] = [
        |m| m.votes = 0,
        |m| m.hidden = true,
        |m| m.secondary_delay_secs = 60,
        |m| m.build_indexes = false,
    ];
    for change in changes {
        assert!(matches!(
            broken(|c| change(&mut c.members[1])),
            Err(ConfigError::ElectableMust(MemberId(1), _))
        ));
        let passive = broken(|c| {
            c.members[1].priority = Priority::ZERO;
            change(&mut c.members[1]);
        });
        assert_eq!(passive, Ok(()));
    }
}

#[test]
fn row_secondary_delay_is_0_to_31622400() {
    for delay in [-1, MAX_SECONDARY_DELAY_SECS + 1] {
        let result = broken(|c| {
            c.members[1].priority = Priority::ZERO;
            c.members[1].secondary_delay_secs = delay;
        });
        assert_eq!(result, Err(ConfigError::DelayRange(MemberId(1), delay)));
    }
}

#[test]
fn row_an_arbiter_votes_once_and_has_nothing_else() {
    let arbiter = |change: fn(&mut MemberConfig)| {
        broken(move |config| {
            config.members[2] = MemberConfig::arbiter(MemberId(2), member(2).host);
            change(&mut config.members[2]);
        })
    };
    assert_eq!(arbiter(|_| ()), Ok(()));
    let changes: [fn(&mut MemberConfig); 6] = [
        |m| m.votes = 0,
        |m| m.tags.insert("dc", "ny"),
        |m| m.priority = Priority(1.0),
        |m| m.hidden = true,
        |m| m.secondary_delay_secs = 1,
        |m| m.build_indexes = false,
    ];
    for change in changes {
        assert!(matches!(arbiter(change), Err(ConfigError::ArbiterMust(MemberId(2), _))));
    }
}

#[test]
fn row_a_second_arbiter_needs_permission() {
    let mut config = three();
    for id in [1, 2] {
        config.members[id as usize] = MemberConfig::arbiter(MemberId(id), member(id).host);
    }
    let refused = validate(&config, "rs0", Allowances::default());
    assert_eq!(refused, Err(ConfigError::TooManyArbiters(2)));
    assert_eq!(validate(&config, "rs0", Allowances { multiple_arbiters: true }), Ok(()));
}

#[test]
fn row_intervals_are_positive_and_catch_up_may_be_minus_1() {
    let changes: [fn(&mut ReplicaSetConfig); 3] = [
        |c| c.settings.heartbeat_interval_millis = 0,
        |c| c.settings.heartbeat_timeout_secs = 0,
        |c| c.settings.election_timeout_millis = -1,
    ];
    for change in changes {
        assert!(matches!(broken(change), Err(ConfigError::SettingNotPositive(..))));
    }
    let changes: [fn(&mut ReplicaSetConfig, i64); 2] = [
        |c, value| c.settings.catch_up_timeout_millis = value,
        |c, value| c.settings.catch_up_takeover_delay_millis = value,
    ];
    for change in changes {
        assert_eq!(broken(|c| change(c, -1)), Ok(()));
        assert_eq!(broken(|c| change(c, 0)), Ok(()));
        assert!(matches!(broken(|c| change(c, -2)), Err(ConfigError::SettingBelowMinusOne(_, -2))));
    }
}

/// Allowed, as everywhere; but no administrator wants it.
#[test]
fn an_election_timeout_below_the_heartbeat_interval_is_worth_a_warning() {
    let warned = |election, heartbeat| {
        let mut config = three();
        config.settings.election_timeout_millis = election;
        config.settings.heartbeat_interval_millis = heartbeat;
        assert_eq!(validate(&config, "rs0", Allowances::default()), Ok(()));
        warnings(&config)
    };
    assert!(warned(10_000, 2_000).is_empty() && warned(2_001, 2_000).is_empty());
    for election in [1, 2_000] {
        let told = warned(election, 2_000);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("electionTimeoutMillis") && told[0].contains("at least twice"));
    }
}

#[test]
fn row_modes_name_tags_that_exist_and_are_not_called_majority() {
    let with_mode = |name: &'static str, wanted| {
        broken(move |config| {
            config.members[0].tags.insert("dc", "ny");
            let mode = [("dc".to_owned(), wanted)].into_iter().collect();
            config.settings.get_last_error_modes.insert(name.into(), mode);
        })
    };
    assert_eq!(with_mode("one", 1), Ok(()));
    assert!(matches!(with_mode("two", 2), Err(ConfigError::ModeUnsatisfiable { .. })));
    assert!(matches!(with_mode("none", 0), Err(ConfigError::ModeUnsatisfiable { .. })));
    assert!(matches!(with_mode("majority", 1), Err(ConfigError::ModeReserved(_))));
}

#[test]
fn row_replica_set_id_is_refused_at_initiate() {
    let mut config = three();
    config.settings.replica_set_id = Some(ObjectId::from_bytes([1; 12]));
    let own = [member(0).host];
    assert_eq!(
        validate_for_initiate(&config, "rs0", Allowances::default(), &own),
        Err(ConfigError::ReplicaSetIdGiven)
    );
}

#[test]
fn initiate_needs_this_member_to_be_listed_and_electable() {
    let mut config = three();
    let initiate = |config: &ReplicaSetConfig, own: i32| {
        validate_for_initiate(config, "rs0", Allowances::default(), &[member(own).host])
    };
    assert_eq!(initiate(&config, 1), Ok(MemberId(1)));
    assert_eq!(initiate(&config, 9).unwrap_err().code(), 74);
    config.members[1].priority = Priority::ZERO;
    assert_eq!(initiate(&config, 1).unwrap_err().code(), 104);
}

#[test]
fn horizons_are_the_same_names_on_every_member_and_no_address_twice() {
    let address = |text: &str| text.parse::<ServerAddress>().unwrap();
    let horizons = |names: [Option<(&'static str, &'static str)>; 3]| {
        broken(move |config| {
            for (member, horizon) in config.members.iter_mut().zip(names) {
                if let Some((name, text)) = horizon {
                    member.horizons.insert(name.into(), address(text));
                }
            }
        })
    };
    let out = |text| Some(("outside", text));
    assert_eq!(horizons([out("x:1"), out("x:2"), out("x:3")]), Ok(()));
    assert_eq!(
        horizons([out("x:1"), out("x:2"), None]),
        Err(ConfigError::HorizonNames(MemberId(2)))
    );
    assert!(matches!(
        horizons([out("x:1"), out("x:2"), out("x:1")]),
        Err(ConfigError::HorizonDuplicate(_))
    ));
    assert!(matches!(
        horizons([out("host1:27017"), out("x:2"), out("x:3")]),
        Err(ConfigError::HorizonDuplicate(_))
    ));
    assert_eq!(
        horizons([Some(("__default", "x:1")), None, None]),
        Err(ConfigError::HorizonReserved(MemberId(0)))
    );
}
