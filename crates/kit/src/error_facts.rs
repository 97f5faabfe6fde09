//! What a caller needs to know about an error: its code, its HTTP status, whether and when to retry, and a sentence for
//! people. Each crate with an interface declares the kinds of its errors in one table, [`error_kinds!`]; answers, the
//! OpenAPI document and the page of error codes are made from it, so they cannot disagree.
//!
//! A name that needs no status (the code that begins a text, the reason in a metric) is a row of [`meaning_table!`].
//!
//! The tables are macros because the list of all kinds comes from the same rows as the match over them: no row can be
//! forgotten in one of the two.
//!
//! [`error_kinds!`]: crate::error_kinds
//! [`meaning_table!`]: crate::meaning_table

use std::time::Duration;

/// The facts about one kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorFacts {
    /// The name for programs, which never changes. Kinds with different statuses may share a code.
    pub code: &'static str,
    /// The status of the HTTP answer.
    pub status: u16,
    pub retry: RetryAdvice,
    /// What it means and what helps, in one sentence.
    pub meaning: &'static str,
}

/// Whether and when the same request may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Not before the request or the system has been changed.
    Never,
    /// It may succeed later; the answer does not say when.
    Later,
    /// After this number of seconds, which the answer contains.
    After(u64),
    /// After a time that is computed for each answer and is in it.
    Computed,
}

impl RetryAdvice {
    /// The time that is the same for all errors of the kind, if there is one.
    pub const fn after(self) -> Option<Duration> {
        match self {
            RetryAdvice::After(seconds) => Some(Duration::from_secs(seconds)),
            RetryAdvice::Never | RetryAdvice::Later | RetryAdvice::Computed => None,
        }
    }

    /// Whether the answer says when.
    pub const fn is_timed(self) -> bool {
        matches!(self, RetryAdvice::After(_) | RetryAdvice::Computed)
    }
}

/// Declares the kinds of errors of a crate, each with its code, status, [`RetryAdvice`] and meaning:
///
/// ```
/// thalweg_kit::error_kinds! {
///     /// The kinds of errors of a shop.
///     pub enum ShopErrorKind {
///         SoldOut = "sold_out", 409, Later, "The shelf is empty; come again tomorrow.";
///         Closed = "closed", 503, After(60), "The shop is closed; come again in a minute.";
///     }
/// }
/// assert_eq!(ShopErrorKind::Closed.facts().status, 503);
/// assert_eq!(ShopErrorKind::ALL.len(), 2);
/// ```
#[macro_export]
macro_rules! error_kinds {
    (
        $(#[$about:meta])*
        $visibility:vis enum $name:ident {
            $($kind:ident = $code:expr, $status:literal, $retry:expr, $meaning:literal;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $($kind),+
        }

        impl $name {
            /// All kinds, in the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$kind),+];

            pub const fn facts(self) -> $crate::error_facts::ErrorFacts {
                #[allow(unused_imports, reason = "few tables use every kind of advice")]
                use $crate::error_facts::RetryAdvice::{After, Computed, Later, Never};
                match self {
                    $($name::$kind => $crate::error_facts::ErrorFacts {
                        code: $code,
                        status: $status,
                        retry: $retry,
                        meaning: $meaning,
                    },)+
                }
            }
        }
    };
}

/// Declares names that programs compare and people read, each with what it means in one sentence:
///
/// ```
/// thalweg_kit::meaning_table! {
///     /// The codes that begin texts about a shop.
///     pub enum ShopCode {
///         Flooded = "shop.flooded", "Water stands in the cellar; pump it out.";
///         Robbed = "shop.robbed", "The till is empty; call the police.";
///     }
/// }
/// assert_eq!(format!("{}: 2 m", ShopCode::Flooded), "shop.flooded: 2 m");
/// assert_eq!(ShopCode::ALL, [ShopCode::Flooded, ShopCode::Robbed]);
/// assert_eq!(ShopCode::Robbed.meaning(), "The till is empty; call the police.");
/// ```
#[macro_export]
macro_rules! meaning_table {
    (
        $(#[$about:meta])*
        $visibility:vis enum $name:ident {
            $($variant:ident = $text:literal, $meaning:literal;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $($variant),+
        }

        impl $name {
            /// All names, in the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The name as it appears in texts, metrics and metadata.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            /// What happened, and what helps if something does, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $($name::$variant => $meaning),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    error_kinds! {
        enum ToyErrorKind {
            Wrong = "wrong", 400, Never, "The request is wrong; change it.";
            Busy = "busy", 429, After(2), "Too many requests are waiting; try again.";
            Slow = "busy", 503, Computed, "The answer takes too long; try again.";
        }
    }

    #[test]
    fn the_list_of_all_kinds_has_every_row_once_and_in_order() {
        let rows: Vec<(&str, u16)> = ToyErrorKind::ALL
            .iter()
            .map(|kind| (kind.facts().code, kind.facts().status))
            .collect();
        assert_eq!(rows, [("wrong", 400), ("busy", 429), ("busy", 503)]);
        assert_eq!(
            ToyErrorKind::ALL,
            [ToyErrorKind::Wrong, ToyErrorKind::Busy, ToyErrorKind::Slow]
        );
    }

    #[test]
    fn only_a_fixed_time_is_known_before_there_is_an_answer() {
        let after = |kind: ToyErrorKind| kind.facts().retry.after();
        assert_eq!(after(ToyErrorKind::Busy), Some(Duration::from_secs(2)));
        assert_eq!(after(ToyErrorKind::Wrong), None);
        assert_eq!(after(ToyErrorKind::Slow), None);
        assert_eq!(RetryAdvice::Later.after(), None);
    }
}
