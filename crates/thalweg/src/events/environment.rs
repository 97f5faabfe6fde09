//! Environment variables for the flags of `thalweg events`: `THALWEG_EVENTS_<NAME>`, or if that is unset
//! `EVENTODB_<NAME>`, as in the reference system.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::{Arg, Command};

const OWN: &str = "THALWEG_EVENTS_";
const OTHER: &str = "EVENTODB_";

/// Makes each flag read whichever of its two variables is set. The environment itself is not changed.
pub fn of_both_names(command: Command) -> Command {
    within(command, &|name| std::env::var_os(name))
}

fn within(command: Command, environment: &dyn Fn(&str) -> Option<OsString>) -> Command {
    command.mut_subcommand("events", |mut events| {
        let names: Vec<String> = events.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
        for name in names {
            events = events.mut_subcommand(name, |sub| sub.mut_args(|arg| from(arg, environment)));
        }
        events
    })
}

fn from(arg: Arg, environment: &dyn Fn(&str) -> Option<OsString>) -> Arg {
    let says_something = |name: &str| environment(name).is_some_and(|value| !value.is_empty());
    let own = arg.get_env().and_then(|name| name.to_str()).map(str::to_owned);
    let Some(own) = own.filter(|own| !says_something(own)) else {
        return arg;
    };
    let other = own.strip_prefix(OWN).map(|name| format!("{OTHER}{name}"));
    match other.filter(|other| says_something(other)) {
        // The command line is built once, and its names live as long as the program.
        Some(other) => arg.env(&*other.leak()),
        // An empty variable counts as no value.
        None if environment(&own).is_some() => arg.env(Resettable::Reset),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    /// The variable that a flag of `events serve` reads.
    fn variable(flag: &str, set: &[(&str, &str)]) -> String {
        let environment = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(*value))
        };
        let command = within(Cli::command(), &environment);
        let events = command.find_subcommand("events").unwrap();
        let serve = events.find_subcommand("serve").unwrap();
        let arg = serve.get_arguments().find(|arg| arg.get_id() == flag).unwrap();
        let name = arg.get_env().and_then(|name| name.to_str());
        name.unwrap_or_default().to_owned()
    }

    #[test]
    fn the_own_name_goes_before_the_other_and_empty_values_say_nothing() {
        let (own, other) = ("THALWEG_EVENTS_DATA_DIR", "EVENTODB_DATA_DIR");
        for (set, expected) in [
            (vec![], own),
            (vec![(own, "a")], own),
            (vec![(other, "b")], other),
            (vec![(own, "a"), (other, "b")], own),
            (vec![(own, ""), (other, "b")], other),
            (vec![(other, "")], own),
            (vec![(own, ""), (other, "")], ""),
        ] {
            assert_eq!(variable("data_dir", &set), expected, "{set:?}");
        }
    }

    #[test]
    fn every_flag_of_serve_has_a_variable_of_its_name() {
        let command = Cli::command();
        let serve = command
            .find_subcommand("events")
            .unwrap()
            .find_subcommand("serve")
            .unwrap();
        for arg in serve.get_arguments().filter(|arg| arg.get_long() != Some("help")) {
            let name = arg.get_long().unwrap().replace('-', "_").to_uppercase();
            let found = arg.get_env().and_then(|name| name.to_str());
            assert_eq!(found, Some(format!("{OWN}{name}").as_str()));
        }
    }
}
