//! Builds certification paths (RFC 4158) from a server's certificate over its issuers to a trusted one. Every matching
//! issuer is tried, because a certificate and its renewal share name and key, and so do cross-signed ones.
//!
//! A server chooses what it sends, so the work is limited: a number of certificates of its chain, of steps, and of
//! signature checks. The order of the search depends only on the certificates, not on the order of files in a folder.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use super::super::x509::ParsedCertificate;

/// Maximum authorities in a path from a server's certificate.
pub(super) const AUTHORITIES_MAX: usize = 8;
/// Maximum certificates examined after the server's own in its chain.
pub(in crate::security) const SENT_MAX: usize = AUTHORITIES_MAX;
/// One signature check takes up to a fifth of a millisecond.
const SIGNATURES_MAX: usize = 128;
const STEPS_MAX: usize = 1024;

/// Why a path is rejected. Of several paths, the one that failed latest is reported.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Refusal {
    pub stage: PathCheckStage,
    pub why: String,
}

/// In the order in which a path is checked.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathCheckStage {
    Authority,
    PathLength,
    Extensions,
    Usage,
    Strength,
    Dates,
    Revocation,
}

/// The result of the search for a path.
#[derive(Debug)]
pub(super) enum PathSearchResult {
    Good,
    /// Paths lead to a trusted certificate, but all are rejected.
    Refused(Refusal),
    /// No path leads to a trusted certificate.
    Nowhere,
    /// A limit was reached first.
    TooMuchWork,
}

/// The certificates from which paths are built.
pub(super) struct CertificatePool {
    leaf: ParsedCertificate,
    is_leaf_trusted: bool,
    /// In the order in which they are tried.
    issuers: Vec<Issuer>,
    /// Whether the second has signed the first; `None` is the leaf.
    signatures: HashMap<(Option<usize>, usize), bool>,
    steps: usize,
}

struct Issuer {
    parsed: ParsedCertificate,
    is_trusted: bool,
}

/// Ends a search.
struct SearchEnd(PathSearchResult);

impl CertificatePool {
    /// `now` only affects the order of attempts.
    pub fn new(
        leaf: ParsedCertificate,
        trusted: &[ParsedCertificate],
        known: &[ParsedCertificate],
        sent: Vec<ParsedCertificate>,
        now: Duration,
    ) -> CertificatePool {
        let is_leaf_trusted = trusted.contains(&leaf);
        let trusted = trusted.iter().map(|parsed| (parsed.clone(), true));
        let others = known.iter().cloned().chain(sent.into_iter().take(SENT_MAX));
        let mut issuers: Vec<Issuer> = trusted
            .chain(others.map(|parsed| (parsed, false)))
            // Without the extension its signatures do not count.
            .filter(|(parsed, _)| parsed.is_authority())
            .map(|(parsed, is_trusted)| Issuer { parsed, is_trusted })
            .collect();
        issuers.sort_by_cached_key(|issuer| {
            let parsed = &issuer.parsed;
            let is_sound = parsed.is_valid_at(now) && parsed.extensions.unusable.is_none();
            let order = (!issuer.is_trusted, !is_sound, Reverse(parsed.valid_to()));
            (order, parsed.der.clone())
        });
        issuers.dedup_by(|later, earlier| later.parsed == earlier.parsed);
        CertificatePool {
            leaf,
            is_leaf_trusted,
            issuers,
            signatures: HashMap::new(),
            steps: 0,
        }
    }

    /// Judges paths until one is good. A path begins with the server's certificate.
    pub fn search(&mut self, judge: &mut dyn FnMut(&[&ParsedCertificate]) -> Result<(), Refusal>) -> PathSearchResult {
        let mut latest: Option<Refusal> = None;
        match self.follow(&mut Vec::new(), &mut latest, judge) {
            Err(SearchEnd(found)) => found,
            Ok(()) => latest.map_or(PathSearchResult::Nowhere, PathSearchResult::Refused),
        }
    }

    /// Depth first. `path` contains the issuers so far, without the leaf.
    fn follow(
        &mut self,
        path: &mut Vec<usize>,
        latest: &mut Option<Refusal>,
        judge: &mut dyn FnMut(&[&ParsedCertificate]) -> Result<(), Refusal>,
    ) -> Result<(), SearchEnd> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(SearchEnd(PathSearchResult::TooMuchWork));
        }
        let top = path.last().copied();
        if self.is_trusted(top) {
            // Certificates above it cannot repair a failure below.
            let refusal = judge(&self.certificates(path))
                .err()
                .ok_or(SearchEnd(PathSearchResult::Good))?;
            if latest.as_ref().is_none_or(|known| refusal.stage > known.stage) {
                *latest = Some(refusal);
            }
            return Ok(());
        }
        if path.len() == AUTHORITIES_MAX {
            return Ok(());
        }
        for next in self.candidates(top, path) {
            if self.has_signed(next, top)? {
                path.push(next);
                self.follow(path, latest, judge)?;
                path.pop();
            }
        }
        Ok(())
    }

    fn certificate(&self, at: Option<usize>) -> &ParsedCertificate {
        let issuer = at.and_then(|at| self.issuers.get(at));
        issuer.map_or(&self.leaf, |issuer| &issuer.parsed)
    }

    fn is_trusted(&self, at: Option<usize>) -> bool {
        match at {
            None => self.is_leaf_trusted,
            Some(at) => self.issuers.get(at).is_some_and(|issuer| issuer.is_trusted),
        }
    }

    fn certificates(&self, path: &[usize]) -> Vec<&ParsedCertificate> {
        let issuers = path.iter().map(|at| self.certificate(Some(*at)));
        std::iter::once(&self.leaf).chain(issuers).collect()
    }

    /// Returns matching issuers by name, those with a matching key identifier first. The same name and key twice would
    /// be a cycle: whatever is above the second is also above the first.
    fn candidates(&self, top: Option<usize>, path: &[usize]) -> Vec<usize> {
        let subject = self.certificate(top);
        let below = self.certificates(path);
        let is_new = |issuer: &ParsedCertificate| {
            let same =
                |known: &&ParsedCertificate| known.subject_name == issuer.subject_name && known.has_same_key(issuer);
            !below.iter().any(same)
        };
        let fits = |issuer: &Issuer| issuer.parsed.subject_name == subject.issuer_name && is_new(&issuer.parsed);
        let all = self.issuers.iter().enumerate().filter(|(_, issuer)| fits(issuer));
        let (named, others): (Vec<_>, Vec<_>) = all.partition(|(_, issuer)| subject.names_key_of(&issuer.parsed));
        named.into_iter().chain(others).map(|(at, _)| at).collect()
    }

    fn has_signed(&mut self, issuer: usize, subject: Option<usize>) -> Result<bool, SearchEnd> {
        if let Some(known) = self.signatures.get(&(subject, issuer)) {
            return Ok(*known);
        }
        if self.signatures.len() == SIGNATURES_MAX {
            return Err(SearchEnd(PathSearchResult::TooMuchWork));
        }
        let has = self
            .certificate(Some(issuer))
            .has_signed(&self.certificate(subject).signed());
        self.signatures.insert((subject, issuer), has);
        Ok(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::test_pki::{Design, NOW};

    fn parsed(der: Vec<u8>) -> ParsedCertificate {
        ParsedCertificate::from_der(&der).unwrap()
    }

    /// Whatever a server sends, a rejected connection costs no more than the limits.
    #[test]
    fn authorities_that_all_have_signed_each_other_come_to_an_end() {
        // One name, so that each may be the issuer of each; none leads to a trusted certificate.
        let all: Vec<Design> = (0..8).map(|key| Design::authority("same", key)).collect();
        let leaf = Design::server(0).signed_by(&all[1]);
        let sent: Vec<ParsedCertificate> = (0..8)
            .flat_map(|subject| (0..8).map(move |issuer| (subject, issuer)))
            .map(|(subject, issuer)| parsed(all[subject].signed_by(&all[issuer])))
            .collect();
        let trusted = vec![parsed(Design::authority("other", 0).self_signed())];
        // Certificates from the folder are not limited, so the other limits are reached.
        let now = Duration::from_secs(NOW);
        for (known, sent) in [(Vec::new(), sent.clone()), (sent, Vec::new())] {
            let mut pool = CertificatePool::new(parsed(leaf.clone()), &trusted, &known, sent, now);
            let found = pool.search(&mut |_| panic!("nothing leads to what is trusted"));
            assert!(
                matches!(found, PathSearchResult::Nowhere | PathSearchResult::TooMuchWork),
                "{found:?}"
            );
            assert!(pool.signatures.len() <= SIGNATURES_MAX && pool.steps <= STEPS_MAX + 1);
        }
    }

    #[test]
    fn of_what_a_server_sends_only_the_first_certificates_are_looked_at() {
        let root = Design::authority("root", 0);
        let middle = Design::authority("middle", 1);
        let filler = parsed(Design::authority("filler", 3).self_signed());
        let leaf = parsed(Design::server(2).signed_by(&middle));
        let trusted = vec![parsed(root.self_signed())];
        for (before, is_found) in [(SENT_MAX - 1, true), (SENT_MAX, false)] {
            let mut sent = vec![filler.clone(); before];
            sent.push(parsed(middle.signed_by(&root)));
            let mut pool = CertificatePool::new(leaf.clone(), &trusted, &[], sent, Duration::from_secs(NOW));
            let found = pool.search(&mut |_| Ok(()));
            assert_eq!(matches!(found, PathSearchResult::Good), is_found, "{before}: {found:?}");
        }
    }

    #[test]
    fn a_path_has_as_many_authorities_as_it_may_have_and_no_more() {
        let chain = |authorities: usize| {
            let all: Vec<Design> = (0..authorities)
                .map(|at| Design::authority(&format!("authority {at}"), at % 8))
                .collect();
            let certificates = all.iter().zip(all.iter().skip(1));
            let known: Vec<ParsedCertificate> = certificates
                .map(|(below, above)| parsed(below.signed_by(above)))
                .collect();
            let trusted = vec![parsed(all[authorities - 1].self_signed())];
            let leaf = parsed(Design::server(7).signed_by(&all[0]));
            CertificatePool::new(leaf, &trusted, &known, Vec::new(), Duration::from_secs(NOW)).search(&mut |_| Ok(()))
        };
        assert!(matches!(chain(AUTHORITIES_MAX), PathSearchResult::Good));
        assert!(matches!(chain(AUTHORITIES_MAX + 1), PathSearchResult::Nowhere));
    }
}
