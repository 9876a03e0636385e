//! The specification "Authentication": what a credential is made of, mechanism by mechanism.

use quorate_connection_string::{Credential, CredentialError, Mechanism, ParseError, Warning};

use crate::{parse, refusal};

fn credential(text: &str) -> Credential {
    parse(text).credential().cloned().unwrap_or_else(|| panic!("{text} gives no credential"))
}

fn credential_error(text: &str) -> CredentialError {
    match refusal(text) {
        ParseError::Credential(error) => error,
        other => panic!("{text}: {other}"),
    }
}

#[test]
fn neither_a_database_nor_a_source_asks_to_authenticate() {
    for text in ["mongodb://a", "mongodb://a/db", "mongodb://a/db?authSource=other"] {
        assert_eq!(parse(text).credential(), None, "{text}");
    }
}

#[test]
fn the_source_has_a_default_for_each_mechanism() {
    for (text, source) in [
        ("mongodb://u:p@a", "admin"),
        ("mongodb://u:p@a/db", "db"),
        ("mongodb://u:p@a/db?authSource=other", "other"),
        ("mongodb://u:p@a/?authMechanism=SCRAM-SHA-256", "admin"),
        ("mongodb://u:p@a/?authMechanism=PLAIN", "$external"),
        ("mongodb://u:p@a/db?authMechanism=PLAIN", "db"),
        ("mongodb://u@a/db?authMechanism=GSSAPI", "$external"),
        ("mongodb://a/db?authMechanism=MONGODB-X509", "$external"),
        ("mongodb://a/db?authMechanism=MONGODB-AWS", "$external"),
        ("mongodb://a/db?authMechanism=MONGODB-OIDC", "$external"),
    ] {
        assert_eq!(credential(text).source, source, "{text}");
    }
    assert_eq!(refusal("mongodb://a/?authSource="), ParseError::EmptyAuthSource);
}

#[test]
fn external_mechanisms_take_no_other_source() {
    for text in [
        "mongodb://u@a/?authMechanism=GSSAPI&authSource=db",
        "mongodb://a/?authMechanism=MONGODB-X509&authSource=db",
        "mongodb://a/?authMechanism=MONGODB-AWS&authSource=db",
        "mongodb://a/?authMechanism=MONGODB-OIDC&authSource=db",
    ] {
        let error = credential_error(text);
        assert!(matches!(error, CredentialError::SourceNotExternal(_)), "{text}: {error}");
    }
}

#[test]
fn names_and_passwords_are_required_or_refused() {
    for name in ["SCRAM-SHA-1", "SCRAM-SHA-256", "PLAIN", "GSSAPI"] {
        let error = credential_error(&format!("mongodb://a/?authMechanism={name}"));
        let mechanism = Mechanism::from_name(name).unwrap();
        assert_eq!(error, CredentialError::MissingUserName(mechanism));
    }
    for name in ["MONGODB-X509", "MONGODB-OIDC"] {
        let error = credential_error(&format!("mongodb://u:p@a/?authMechanism={name}"));
        assert!(matches!(error, CredentialError::PasswordNotAllowed(_)), "{error}");
    }
    let error = credential_error("mongodb://u@a/?authMechanism=MONGODB-AWS");
    assert!(matches!(error, CredentialError::MissingPassword(_)), "{error}");
}

#[test]
fn a_password_may_be_missing_until_it_is_needed() {
    for text in ["mongodb://u@a", "mongodb://u@a/?authMechanism=SCRAM-SHA-256"] {
        let missing = credential(text).check_complete();
        assert!(matches!(missing, Err(CredentialError::MissingPassword(_))), "{text}");
    }
    for text in [
        "mongodb://u:@a",
        "mongodb://u@a/?authMechanism=GSSAPI",
        "mongodb://a/?authMechanism=MONGODB-X509",
        "mongodb://a/?authMechanism=MONGODB-AWS",
    ] {
        assert_eq!(credential(text).check_complete(), Ok(()), "{text}");
    }
    let oidc = credential("mongodb://a/?authMechanism=MONGODB-OIDC");
    assert_eq!(oidc.check_complete(), Err(CredentialError::MissingProperty("ENVIRONMENT")));
}

#[test]
fn an_unknown_mechanism_is_refused_rather_than_guessed() {
    let refused = refusal("mongodb://u:p@a/?authMechanism=MONGODB-CR");
    assert_eq!(refused, ParseError::UnknownMechanism("MONGODB-CR".into()));
}

#[test]
fn properties_belong_to_their_mechanism() {
    let gssapi = credential("mongodb://u@a/?authMechanism=GSSAPI");
    assert_eq!(gssapi.properties.get("SERVICE_NAME"), Some("mongodb"));
    for text in [
        "mongodb://u:p@a/?authMechanismProperties=SERVICE_NAME:x",
        "mongodb://u:p@a/?authMechanism=PLAIN&authMechanismProperties=SERVICE_NAME:x",
        "mongodb://a/?authMechanism=MONGODB-OIDC&authMechanismProperties=ALLOWED_HOSTS:x",
    ] {
        let error = credential_error(text);
        assert!(matches!(error, CredentialError::UnknownProperty(..)), "{text}: {error}");
    }
    let canonical = "mongodb://u@a/?authMechanism=GSSAPI&authMechanismProperties=\
                     CANONICALIZE_HOST_NAME:";
    for good in ["none", "forward", "forwardAndReverse", "true", "false"] {
        credential(&format!("{canonical}{good}"));
    }
    let error = credential_error(&format!("{canonical}sideways"));
    assert!(matches!(error, CredentialError::BadProperty(..)), "{error}");
}

#[test]
fn oidc_environments_have_their_own_rules() {
    let oidc = |user: &str, properties: &str| {
        format!(
            "mongodb://{user}a/?authMechanism=MONGODB-OIDC&authMechanismProperties={properties}"
        )
    };
    credential(&oidc("", "ENVIRONMENT:k8s"));
    credential(&oidc("", "ENVIRONMENT:gcp,TOKEN_RESOURCE:x"));
    credential(&oidc("u@", "ENVIRONMENT:azure,TOKEN_RESOURCE:api://x"));
    for (user, properties) in [
        ("u@", "ENVIRONMENT:k8s"),
        ("u@", "ENVIRONMENT:gcp,TOKEN_RESOURCE:x"),
        ("", "ENVIRONMENT:gcp"),
        ("", "ENVIRONMENT:k8s,TOKEN_RESOURCE:x"),
        ("", "TOKEN_RESOURCE:x"),
        ("", "ENVIRONMENT:moon"),
    ] {
        credential_error(&oidc(user, properties));
    }
}

#[test]
fn the_old_name_of_the_service_is_understood() {
    let old = parse("mongodb://u@a/?authMechanism=GSSAPI&gssapiServiceName=other");
    assert_eq!(old.credential().unwrap().properties.get("SERVICE_NAME"), Some("other"));
    assert!(matches!(old.warnings(), [Warning::DeprecatedOption { .. }]));
    let both = parse(
        "mongodb://u@a/?authMechanism=GSSAPI&gssapiServiceName=old\
         &authMechanismProperties=SERVICE_NAME:new",
    );
    assert_eq!(both.credential().unwrap().properties.get("SERVICE_NAME"), Some("new"));
    assert!(matches!(both.warnings(), [Warning::ReplacedOption { .. }]));
}
