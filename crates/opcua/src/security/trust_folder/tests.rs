use std::path::Path;
use std::time::Duration;

use x509_cert::der::asn1::Null;
use x509_cert::ext::pkix::KeyUsages;

use super::*;
use crate::security::test_pki::{ANY_USAGE, CLIENT_AUTH, DAY, Design, Hash, NOW, SERVER_AUTH, URI, extension};

/// A trust folder with what a test puts there.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub fn with(files: &[(&str, &[u8])]) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for (number, (sub, bytes)) in files.iter().enumerate() {
            folder.put(sub, &format!("{number}.der"), bytes);
        }
        folder
    }

    pub fn put(&self, sub: &str, name: &str, bytes: &[u8]) {
        std::fs::create_dir_all(self.path().join(sub)).unwrap();
        std::fs::write(self.path().join(sub).join(name), bytes).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// What becomes of a server that shows these certificates, its own first.
    pub fn check(&self, shown: &[&[u8]]) -> Result<(), String> {
        let certificates: Vec<Vec<u8>> = shown.iter().map(|der| der.to_vec()).collect();
        TrustFolder::new(self.path()).check(&Check {
            certificates: &certificates,
            url: "opc.tcp://plc:4840/",
            host: "plc",
            application_uri: URI,
            policy: SecurityPolicy::Basic256Sha256,
            now: Duration::from_secs(NOW),
        })
    }
}

fn refused(verdict: Result<(), String>, part: &str) {
    let error = verdict.expect_err(part);
    assert!(error.contains(part), "{part:?} is not in: {error}");
}

#[test]
fn an_authority_that_may_have_none_below_it_has_none() {
    let mut root = Design::authority("root", 0);
    root.constraints = Some((true, Some(0)));
    let middle = Design::authority("middle", 1);
    let server = Design::server(2);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &middle.signed_by(&root))]);
    refused(folder.check(&[&server.signed_by(&middle)]), "pathLenConstraint");
    folder.check(&[&server.signed_by(&root)]).unwrap();
}

/// A new certificate of the same authority, signed by its old key, is no step down.
#[test]
fn a_certificate_that_an_authority_issued_to_itself_does_not_count_as_one_below_it() {
    let mut root = Design::authority("root", 0);
    root.constraints = Some((true, Some(0)));
    let rolled = Design::authority("root", 1);
    let server = Design::server(2);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &rolled.signed_by(&root))]);
    folder.check(&[&server.signed_by(&rolled)]).unwrap();
}

#[test]
fn what_a_trusted_authority_issued_for_another_purpose_is_no_server() {
    let root = Design::authority("root", 0);
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    let with = |change: fn(&mut Design)| {
        let mut server = Design::server(2);
        change(&mut server);
        server.signed_by(&root)
    };
    for (change, part) in [
        (
            (|s| s.extended_usage = Some(vec![CLIENT_AUTH])) as fn(&mut Design),
            "serverAuth",
        ),
        (
            |s| s.usage = Some(KeyUsages::KeyEncipherment.into()),
            "digitalSignature",
        ),
        (
            |s| s.usage = Some(KeyUsages::DigitalSignature.into()),
            "keyEncipherment",
        ),
        (|s| s.constraints = Some((true, None)), "authority"),
    ] {
        let error = folder.check(&[&with(change)]).expect_err(part);
        assert!(
            error.contains(part) && error.contains("move it from rejected/ to trusted/"),
            "{error}"
        );
    }
    for change in [
        (|s| s.extended_usage = None) as fn(&mut Design),
        |s| s.extended_usage = Some(vec![CLIENT_AUTH, SERVER_AUTH]),
        |s| s.extended_usage = Some(vec![ANY_USAGE]),
        |s| s.usage = None,
        |s| s.usage = Some(KeyUsages::DigitalSignature | KeyUsages::DataEncipherment),
        |s| s.constraints = None,
    ] {
        folder.check(&[&with(change)]).unwrap();
    }
}

#[test]
fn an_authority_for_clients_vouches_for_no_server() {
    let root = Design::authority("root", 0);
    let mut middle = Design::authority("middle", 1);
    middle.extended_usage = Some(vec![CLIENT_AUTH]);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &middle.signed_by(&root))]);
    refused(folder.check(&[&Design::server(2).signed_by(&middle)]), "serverAuth");
}

/// Controllers sign their certificates themselves, and many set whatever their library sets.
#[test]
fn a_server_that_is_trusted_itself_is_taken_with_whatever_usages_it_has() {
    for change in [
        (|s| s.constraints = Some((true, Some(0)))) as fn(&mut Design),
        |s| s.usage = Some(KeyUsages::KeyCertSign.into()),
        |s| s.extended_usage = Some(vec![CLIENT_AUTH]),
        |s| s.hash = Hash::Sha1,
        |s| s.more = vec![extension("1.2.3.4", true, &Null)],
    ] {
        let mut server = Design::server(2);
        change(&mut server);
        let der = server.self_signed();
        Folder::with(&[("trusted", &der)]).check(&[&der]).unwrap();
    }
}

#[test]
fn a_server_that_is_trusted_itself_vouches_for_no_other() {
    let mut server = Design::server(2);
    server.constraints = Some((true, None));
    server.usage = Some(KeyUsages::KeyCertSign | KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment);
    let mut other = Design::server(3);
    other.name = "other".to_owned();
    let folder = Folder::with(&[("trusted", &server.self_signed())]);
    folder.check(&[&server.self_signed()]).unwrap();
    refused(folder.check(&[&other.signed_by(&server)]), "urn:server");
}

#[test]
fn an_expired_authority_beside_its_renewal_is_passed_over_in_any_order() {
    let root = Design::authority("root", 0);
    let old = Design {
        from: NOW - 200 * DAY,
        to: NOW - DAY,
        serial: 7,
        ..root.clone()
    };
    let server = Design::server(2).signed_by(&root);
    let (old, new) = (old.self_signed(), root.self_signed());
    for order in [["a.der", "b.der"], ["b.der", "a.der"]] {
        for (first, second) in [("trusted", "trusted"), ("issuers", "trusted"), ("trusted", "issuers")] {
            let folder = Folder::with(&[]);
            folder.put(first, order[0], &old);
            folder.put(second, order[1], &new);
            let verdict = folder.check(&[&server]);
            match second {
                "trusted" => verdict.unwrap(),
                _ => refused(verdict, "expired on"),
            }
        }
    }
}

#[test]
fn a_dead_end_before_a_trusted_authority_is_left_again() {
    let (root, lost) = (Design::authority("root", 0), Design::authority("lost", 3));
    let middle = Design::authority("middle", 1);
    let server = Design::server(2).signed_by(&middle);
    let (by_root, by_lost) = (middle.signed_by(&root), middle.signed_by(&lost));
    let trusted = root.self_signed();
    let folder = Folder::with(&[("trusted", &trusted)]);
    folder
        .check(&[&server, &by_lost, &lost.self_signed(), &by_root])
        .unwrap();
    for order in [["a.der", "b.der"], ["b.der", "a.der"]] {
        let folder = Folder::with(&[("trusted", &trusted), ("issuers", &lost.self_signed())]);
        folder.put("issuers", order[0], &by_lost);
        folder.put("issuers", order[1], &by_root);
        folder.check(&[&server]).unwrap();
    }
}

#[test]
fn what_a_certificate_says_must_be_known_is_known_or_it_is_refused() {
    let mut root = Design::authority("root", 0);
    let mut server = Design::server(2);
    let unknown = || vec![extension("1.2.3.4", true, &Null)];
    server.more = unknown();
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    refused(folder.check(&[&server.signed_by(&root)]), "1.2.3.4");
    server.more = vec![extension("1.2.3.4", false, &Null)];
    folder.check(&[&server.signed_by(&root)]).unwrap();
    // A known one with nonsense in it says nothing.
    server.extended_usage = None;
    server.more = vec![extension("2.5.29.37", false, &Null)];
    refused(folder.check(&[&server.signed_by(&root)]), "2.5.29.37");
    server.more = Vec::new();
    root.more = unknown();
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    refused(folder.check(&[&server.signed_by(&root)]), "1.2.3.4");
    // Whether its names are within the limits is not looked at, so the limits must not be passed over.
    root.more = vec![extension("2.5.29.30", false, &Null)];
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    refused(folder.check(&[&server.signed_by(&root)]), "2.5.29.30");
}

#[test]
fn a_list_counts_only_by_an_authority_that_may_sign_lists() {
    let mut root = Design::authority("root", 0);
    let server = Design::server(2).signed_by(&root);
    root.usage = Some(KeyUsages::KeyCertSign.into());
    let list = root.revokes(&[99], Vec::new());
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
    refused(folder.check(&[&server]), "cRLSign");
    root.usage = Some(KeyUsages::KeyCertSign | KeyUsages::CRLSign);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
    folder.check(&[&server]).unwrap();
}

/// `CN=root` in another kind of string, and in another case, is the same name to whoever issued it.
#[test]
fn a_list_of_the_issuer_is_found_however_its_name_is_written() {
    use x509_cert::der::Tag;
    let root = Design::authority("Root  Authority", 0);
    let written = Design {
        name: "root authority".to_owned(),
        name_tag: Tag::PrintableString,
        ..root.clone()
    };
    let server = Design::server(2);
    let list = written.revokes(&[server.serial], Vec::new());
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
    refused(folder.check(&[&server.signed_by(&root)]), "was revoked");
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    folder.check(&[&server.signed_by(&written)]).unwrap();
}
