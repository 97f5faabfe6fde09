//! Compares verdicts on generated certificates of authorities and servers, with mistakes in them, with `openssl
//! verify`.
//!
//! OpenSSL builds and judges one path; this implementation tries every path. So OpenSSL judges each path separately,
//! and the server must be accepted exactly if one of them is. `Difference` lists the intended differences and their
//! reasons.

use std::fs::write;
use std::path::Path;
use std::process::{Command, Stdio};

use x509_cert::der::Tag;
use x509_cert::der::asn1::Null;
use x509_cert::der::flagset::FlagSet;
use x509_cert::ext::pkix::KeyUsages;

use super::tests::Folder;
use super::*;
use crate::security::key_pair::to_pem;
use crate::security::test_pki::{ANY_USAGE, CLIENT_AUTH, DAY, Design, Hash, NOW, SERVER_AUTH, URI, extension};

/// Where the verdict on a path differs from OpenSSL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Difference {
    /// The operator named exactly this certificate, and controllers sign their own with arbitrary usages: purpose and
    /// critical extensions are not checked. Key and dates are.
    TrustedItself,
    /// OpenSSL accepts any of several usages for TLS. A secure channel of OPC UA signs and encrypts with the key, so
    /// both usages are required.
    UsageOfServer,
    /// OpenSSL accepts an authority as a server. An attacker on such a server could issue certificates for all others.
    AuthorityAsServer,
    /// OpenSSL accepts a certificate without BasicConstraints as an authority's: version 1 if it is self-signed, later
    /// ones if the key usage allows it. RFC 5280 (4.2.1.9) forbids it.
    NoConstraints,
    /// Controllers mark their self-signed certificates as an authority's. Trust in one does not extend to certificates
    /// that its key signs.
    ApplicationAsAuthority,
    /// OpenSSL does not accept `anyExtendedKeyUsage` for `serverAuth`; RFC 5280 (4.2.1.12) includes it.
    AnyPurpose,
    /// OpenSSL rejects everything whose issuer's list is expired or in the future. A plant may be offline for long, and
    /// a stop of all its data is the greater harm: such a list is applied as if it were valid, with a warning.
    ListOutOfDate,
    /// With revocation checking enabled, OpenSSL requires a list of each issuer. Few authorities of a plant have one: a
    /// missing list revokes nothing.
    NoList,
}

/// A certificate and its place in the model.
#[derive(Clone)]
struct Made {
    design: Design,
    /// The owner of the key; `None` for a leaf.
    owner: Option<usize>,
    issuer: Option<usize>,
    der: Vec<u8>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Trusted,
    Issuers,
    Sent,
}

/// The state of an authority's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListState {
    InDate,
    Expired,
    OfTheFuture,
    Missing,
}

/// The revocation list of one authority.
struct MadeList {
    state: ListState,
    /// As stored in the folder.
    der: Option<Vec<u8>>,
    /// As it would be with valid dates; if it is missing, one that revokes nothing.
    in_date: Vec<u8>,
}

struct World {
    leaf: Made,
    authorities: Vec<Made>,
    /// By authority number; either none has a list, or nearly all have.
    lists: Vec<MadeList>,
    revoked: Vec<u32>,
    policy: SecurityPolicy,
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let with_lists = random.percent(25);
        let owners = 1 + random.below(4);
        let mut serial = 1;
        let mut designs: Vec<Vec<(Design, usize)>> = Vec::new();
        let mut signers = Vec::new();
        for owner in 0..owners {
            // An authority that changes its key keeps its name. Lists name no key, so there are no lists in this case.
            let shares_name = owner > 0 && !with_lists && random.percent(10);
            let name = format!("Authority {}", if shares_name { owner - 1 } else { owner });
            let key = if random.percent(8) { 8 + owner % 2 } else { owner };
            let signs_lists = random.percent(90);
            signers.push(signs_lists);
            let variants = 1 + usize::from(random.percent(40)) + usize::from(random.percent(15));
            let of_owner = (0..variants).map(|_| {
                serial += 1;
                let mut design = Design::authority(&name, key);
                design.serial = serial;
                spoil_authority(&mut design, &mut random, signs_lists);
                let above = random.percent(80) && owner + 1 < owners;
                let by = if above { owner + 1 } else { random.below(owners) };
                let root = owner + 1 == owners && random.percent(90);
                (design, if root { owner } else { by })
            });
            designs.push(of_owner.collect());
        }
        let mut authorities = Vec::new();
        for (owner, all) in designs.iter().enumerate() {
            for (design, by) in all {
                authorities.push(Made {
                    der: design.signed_by(&designs[*by][0].0),
                    design: design.clone(),
                    owner: Some(owner),
                    issuer: Some(*by),
                    place: random.one_of(&[Place::Trusted, Place::Issuers, Place::Issuers, Place::Sent]),
                });
            }
        }
        if with_lists {
            // OpenSSL requires a list for each trusted certificate, and finds none if another authority signed it.
            authorities
                .iter_mut()
                .filter(|made| made.owner != made.issuer)
                .for_each(|made| {
                    made.place = if made.place == Place::Trusted {
                        Place::Issuers
                    } else {
                        made.place
                    };
                });
        }
        let by = if random.percent(85) { 0 } else { random.below(owners) };
        let leaf = World::leaf(&mut random, &designs, by, with_lists);
        let revoked: Vec<u32> = (0..=serial).filter(|_| random.percent(12)).collect();
        let mut lists = Vec::new();
        if with_lists {
            let signers = signers.into_iter().zip(&designs);
            lists
                .extend(signers.map(|(signs_lists, all)| MadeList::new(&mut random, &all[0].0, signs_lists, &revoked)));
        }
        World {
            lists,
            revoked: if with_lists { revoked } else { Vec::new() },
            leaf,
            authorities,
            policy: random.one_of(&[
                SecurityPolicy::Basic256Sha256,
                SecurityPolicy::Basic256Sha256,
                SecurityPolicy::Basic256,
            ]),
        }
    }

    fn leaf(random: &mut Random, designs: &[Vec<(Design, usize)>], by: usize, with_lists: bool) -> Made {
        let mut design = Design::server(7);
        design.serial = random.below(3) as u32;
        spoil_server(&mut design, random);
        let is_self_signed = !with_lists && random.percent(8);
        let der = match is_self_signed {
            true => design.self_signed(),
            false => design.signed_by(&written(&designs[by][0].0, random)),
        };
        Made {
            der,
            owner: None,
            issuer: (!is_self_signed).then_some(by),
            place: if !with_lists && random.percent(12) {
                Place::Trusted
            } else {
                Place::Sent
            },
            design,
        }
    }

    /// The actual lists, for OpenSSL.
    fn lists(&self) -> Vec<&[u8]> {
        self.lists.iter().filter_map(|list| list.der.as_deref()).collect()
    }

    /// The same without the date and existence differences.
    fn lists_in_date(&self) -> Vec<&[u8]> {
        self.lists.iter().map(|list| list.in_date.as_slice()).collect()
    }

    /// Every path from the leaf to a trusted certificate, by signer.
    fn paths(&self) -> Vec<Vec<&Made>> {
        let mut complete = Vec::new();
        let mut open = vec![vec![&self.leaf]];
        while let Some(path) = open.pop() {
            let top = path[path.len() - 1];
            if top.place == Place::Trusted {
                complete.push(path);
                continue;
            }
            for next in &self.authorities {
                let is_new = path.iter().all(|made| made.owner != next.owner);
                if is_new && top.issuer == next.owner && path.len() <= path_building::AUTHORITIES_MAX {
                    open.push([path.as_slice(), &[next]].concat());
                }
            }
        }
        complete
    }

    fn all(&self) -> impl Iterator<Item = &Made> {
        std::iter::once(&self.leaf).chain(&self.authorities)
    }
}

impl MadeList {
    fn new(random: &mut Random, signer: &Design, signs_lists: bool, revoked: &[u32]) -> MadeList {
        let (before, since, until) = (NOW - 3 * DAY, NOW - DAY, NOW + DAY);
        let state = match random.below(12) {
            0 | 1 => ListState::Expired,
            2 => ListState::OfTheFuture,
            // From an authority that may sign no lists, even an empty one would be rejected.
            3 | 4 if signs_lists => ListState::Missing,
            _ => ListState::InDate,
        };
        let made = |serials: &[u32], from, to| signer.revokes_within(serials, Vec::new(), from, Some(to));
        MadeList {
            state,
            der: match state {
                ListState::InDate => Some(made(revoked, since, until)),
                ListState::Expired => Some(made(revoked, before, since)),
                ListState::OfTheFuture => Some(made(revoked, until, until + DAY)),
                ListState::Missing => None,
            },
            in_date: match state {
                ListState::Missing => made(&[], since, until),
                _ => made(revoked, since, until),
            },
        }
    }
}

/// The same name in another string type, which compares equal.
fn written(issuer: &Design, random: &mut Random) -> Design {
    let mut issuer = issuer.clone();
    if random.percent(20) {
        issuer.name = issuer.name.to_uppercase().replace(' ', "  ");
        issuer.name_tag = Tag::PrintableString;
    }
    issuer
}

fn spoil_both(design: &mut Design, random: &mut Random) {
    match random.below(24) {
        0 => (design.from, design.to) = (NOW - 30 * DAY, NOW - DAY),
        1 => (design.from, design.to) = (NOW + DAY, NOW + 30 * DAY),
        2 => design.more = vec![extension("1.2.3.4", random.percent(70), &Null)],
        3 => design.hash = Hash::Sha1,
        4 => design.hash = random.one_of(&[Hash::Sha384, Hash::Sha512]),
        _ => {}
    }
}

fn spoil_authority(design: &mut Design, random: &mut Random, signs_lists: bool) {
    spoil_both(design, random);
    let lists: FlagSet<KeyUsages> = if signs_lists {
        KeyUsages::CRLSign.into()
    } else {
        Default::default()
    };
    design.usage = Some(KeyUsages::KeyCertSign | lists);
    match random.below(24) {
        0..=3 => design.constraints = Some((true, Some(random.below(3) as u8))),
        4 => design.constraints = Some((false, None)),
        5 => design.constraints = None,
        6 => design.usage = Some(KeyUsages::DigitalSignature | lists),
        7 if signs_lists => design.usage = None,
        8 => design.extended_usage = Some(vec![SERVER_AUTH]),
        9 => design.extended_usage = Some(vec![CLIENT_AUTH]),
        10 => design.extended_usage = Some(vec![ANY_USAGE]),
        11 => design.uri = Some("urn:controller".to_owned()),
        12 => design.version = x509_cert::Version::V1,
        _ => {}
    }
}

fn spoil_server(design: &mut Design, random: &mut Random) {
    spoil_both(design, random);
    match random.below(20) {
        0 => design.key = 8,
        1 => design.extended_usage = Some(vec![CLIENT_AUTH]),
        2 => design.extended_usage = None,
        3 => design.extended_usage = Some(vec![ANY_USAGE]),
        4 => design.extended_usage = Some(vec![CLIENT_AUTH, SERVER_AUTH]),
        5 => design.usage = None,
        6 => design.usage = Some(KeyUsages::DigitalSignature.into()),
        7 => design.usage = Some(KeyUsages::KeyCertSign.into()),
        8 => design.usage = Some(KeyUsages::KeyAgreement.into()),
        9 => design.constraints = Some((true, None)),
        10 => design.constraints = None,
        _ => {}
    }
}

/// Returns the differences of a path.
fn differences(world: &World, path: &[&Made]) -> Vec<Difference> {
    let (leaf, authorities) = path.split_first().unwrap();
    if authorities.is_empty() {
        return vec![Difference::TrustedItself];
    }
    let design = &leaf.design;
    let usage = design.usage;
    let encrypts =
        usage.is_none_or(|usage| !(usage & (KeyUsages::KeyEncipherment | KeyUsages::DataEncipherment)).is_empty());
    let signs = usage.is_none_or(|usage| usage.contains(KeyUsages::DigitalSignature));
    let is_open = |made: &&Made| made.design.constraints.is_none() || made.design.version == x509_cert::Version::V1;
    let is_any = |made: &&Made| made.design.extended_usage.as_deref() == Some(&[ANY_USAGE]);
    let list_of_issuer = |made: &&Made| Some(world.lists.get(made.issuer?)?.state);
    let has_list = |states: &[ListState]| {
        path.iter()
            .filter_map(list_of_issuer)
            .any(|state| states.contains(&state))
    };
    [
        (Difference::UsageOfServer, !(signs && encrypts)),
        (
            Difference::AuthorityAsServer,
            design.constraints.is_some_and(|(ca, _)| ca),
        ),
        (Difference::NoConstraints, authorities.iter().any(is_open)),
        (
            Difference::ApplicationAsAuthority,
            authorities.iter().any(|made| made.design.uri.is_some()),
        ),
        (Difference::AnyPurpose, path.iter().any(is_any)),
        (
            Difference::ListOutOfDate,
            has_list(&[ListState::Expired, ListState::OfTheFuture]),
        ),
        (Difference::NoList, has_list(&[ListState::Missing])),
    ]
    .into_iter()
    .filter_map(|(difference, is_there)| is_there.then_some(difference))
    .collect()
}

/// Returns the expected verdict on a path: OpenSSL's, corrected by the differences.
fn is_right(world: &World, path: &[&Made], folder: &Path) -> bool {
    let differences = differences(world, path);
    let (anchor, below) = path.split_last().unwrap();
    let between: Vec<&Made> = below.iter().skip(1).copied().collect();
    let mut purpose = &["-purpose", "sslserver"][..];
    for difference in &differences {
        match difference {
            Difference::TrustedItself => purpose = &["-ignore_critical"],
            // The purposes are then checked here.
            Difference::AnyPurpose => purpose = &[],
            // OpenSSL must reject the actual lists; then it is asked with corrected ones.
            Difference::ListOutOfDate | Difference::NoList => {
                let is_taken = openssl(world, &world.lists(), folder, &[anchor], &between, &[]);
                assert!(
                    !is_taken,
                    "OpenSSL makes no {difference:?} any more; {}",
                    describe(world)
                );
            }
            _ => return false,
        }
    }
    if differences.contains(&Difference::AnyPurpose) {
        let purposes = path.iter().filter_map(|made| made.design.extended_usage.as_ref());
        let mut purposes = purposes.map(|all| all.iter().any(|id| *id == SERVER_AUTH || *id == ANY_USAGE));
        if !purposes.all(|is_for_servers| is_for_servers) {
            return false;
        }
    }
    openssl(world, &world.lists_in_date(), folder, &[anchor], &between, purpose)
}

/// Whether `openssl verify` accepts the leaf, with only these lists and certificates.
fn openssl(
    world: &World,
    lists: &[&[u8]],
    folder: &Path,
    trusted: &[&Made],
    others: &[&Made],
    purpose: &[&str],
) -> bool {
    let pem = |all: &[&Made]| -> String { all.iter().map(|made| to_pem("CERTIFICATE", &made.der)).collect() };
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        write(&path, text).unwrap();
        path
    };
    let mut command = Command::new("openssl");
    command.args(["verify", "-partial_chain", "-no-CAfile", "-no-CApath", "-no-CAstore"]);
    command.args(["-attime", &NOW.to_string()]).args(purpose);
    // Level 2 means 112 bits: keys of 2,048 and no SHA-1. The legacy policies are below any level.
    command.args([
        "-auth_level",
        if world.policy == SecurityPolicy::Basic256 {
            "0"
        } else {
            "2"
        },
    ]);
    command.arg("-trusted").arg(file("trusted.pem", pem(trusted)));
    if !others.is_empty() {
        command.arg("-untrusted").arg(file("others.pem", pem(others)));
    }
    if !world.lists.is_empty() {
        command.arg("-crl_check_all");
    }
    if !lists.is_empty() {
        let lists = lists.iter().map(|list| to_pem("X509 CRL", list)).collect();
        command.arg("-CRLfile").arg(file("lists.pem", lists));
    }
    command.arg(file("leaf.pem", pem(&[&world.leaf])));
    let verdict = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    verdict
        .expect("openssl 3 is not installed; on Debian: apt-get install openssl")
        .success()
}

/// Returns the verdict of this implementation; the file names in the folder are random.
fn judged(world: &World, order: &mut Random) -> Result<(), String> {
    let folder = Folder::with(&[]);
    let mut put = |sub: &str, bytes: &[u8]| folder.put(sub, &format!("{:016x}", order.next()), bytes);
    let mut shown = vec![world.leaf.der.clone()];
    for made in world.all() {
        match made.place {
            Place::Trusted => put("trusted", &made.der),
            Place::Issuers => put("issuers", &made.der),
            Place::Sent if made.owner.is_some() => shown.push(made.der.clone()),
            Place::Sent => {}
        }
    }
    world.lists().into_iter().for_each(|list| put("crl", list));
    TrustFolder::new(folder.path()).check(&CertificateCheck {
        certificates: &shown,
        url: "opc.tcp://plc:4840/",
        host: "plc",
        application_uri: URI,
        policy: world.policy,
        now: Duration::from_secs(NOW),
    })
}

fn describe(world: &World) -> String {
    let made = world.all().map(|made| {
        let design = &made.design;
        format!(
            "\n  {:?} {:?} by {:?} ({:?}): key {}, serial {}, {:?}, {}..{} days, {:?}, {:?}, {:?}, uri {:?}, {:?}, {} more",
            made.owner,
            design.name,
            made.issuer,
            made.place,
            design.key,
            design.serial,
            design.hash,
            (design.from as i64 - NOW as i64) / DAY as i64,
            (design.to as i64 - NOW as i64) / DAY as i64,
            design.constraints,
            design.usage,
            design.extended_usage,
            design.uri,
            design.version,
            design.more.len()
        )
    });
    let states: Vec<ListState> = world.lists.iter().map(|list| list.state).collect();
    let lists = format!("\n  lists {states:?}, revoked {:?}", world.revoked);
    format!("{:?}{}{lists}", world.policy, made.collect::<String>())
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn every_path_is_judged_as_openssl_judges_it_and_one_good_one_is_enough() {
    let first = number("THALWEG_SIM_SEED").unwrap_or(1);
    let seeds = number("THALWEG_SIM_SEEDS").unwrap_or(150);
    let scratch = tempfile::tempdir().unwrap();
    let (mut accepted, mut met) = (0, std::collections::HashSet::new());
    for seed in first..first + seeds {
        let world = World::new(seed);
        let paths = world.paths();
        let right = paths.iter().any(|path| is_right(&world, path, scratch.path()));
        met.extend(paths.iter().flat_map(|path| differences(&world, path)));
        let verdict = judged(&world, &mut Random(seed | 1));
        let told = || {
            format!(
                "THALWEG_SIM_SEED={seed} THALWEG_SIM_SEEDS=1 shows it again: {verdict:?}, {} paths, {}",
                paths.len(),
                describe(&world)
            )
        };
        assert_eq!(verdict.is_ok(), right, "{}", told());
        for order in [seed << 20 | 1, seed << 40 | 1] {
            let again = judged(&world, &mut Random(order));
            assert_eq!(
                again.is_ok(),
                right,
                "the order of files decides: {again:?}; {}",
                told()
            );
        }
        // A path that OpenSSL finds by itself is also found here, unless a difference prevents it.
        let place = |trusted: bool| -> Vec<&Made> {
            let all = world.authorities.iter();
            all.filter(|made| (made.place == Place::Trusted) == trusted).collect()
        };
        let is_plain = paths.iter().all(|path| differences(&world, path).is_empty());
        if is_plain
            && openssl(
                &world,
                &world.lists(),
                scratch.path(),
                &place(true),
                &place(false),
                &["-purpose", "sslserver"],
            )
        {
            assert!(verdict.is_ok(), "OpenSSL finds a path; {}", told());
        }
        accepted += u64::from(right);
    }
    if seeds >= 100 {
        assert!(
            accepted * 10 > seeds && accepted * 10 < seeds * 9,
            "{accepted} of {seeds} are accepted: no test of anything"
        );
        assert_eq!(met.len(), 8, "each difference is met: {met:?}");
    }
}
