//! Checks that the function list is complete and that its bounds hold.

use datafusion::execution::SessionStateDefaults as Defaults;

mod sizes;
mod texts;

use super::function_list;

/// A new version of the library may bring functions; somebody has to state the size of their results.
#[test]
fn every_function_of_the_library_is_on_the_list() {
    let scalar = Defaults::default_scalar_functions();
    let higher = Defaults::default_higher_order_functions();
    let names = scalar.iter().map(|function| function.name());
    let missing: Vec<&str> = names
        .chain(higher.iter().map(|function| function.name()))
        .filter(|name| function_list::scalar(name).is_none())
        .collect();
    assert!(missing.is_empty(), "bounded/function_list.rs lacks {missing:?}");
    let others = [
        (
            function_list::AGGREGATE,
            names_of(&Defaults::default_aggregate_functions(), |function| function.name()),
        ),
        (
            function_list::WINDOW,
            names_of(&Defaults::default_window_functions(), |function| function.name()),
        ),
        (
            function_list::TABLE,
            names_of(&Defaults::default_table_functions(), |function| function.name()),
        ),
    ];
    for (known, names) in others {
        let missing: Vec<&String> = names.iter().filter(|name| !known.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "bounded/function_list.rs lacks {missing:?}");
    }
}

fn names_of<T>(all: &[T], name: fn(&T) -> &str) -> Vec<String> {
    all.iter().map(|function| name(function).to_owned()).collect()
}
