//! The machine behaves like the model.

use super::driver::{Driver, Options, for_seeds};

#[test]
fn random_operations_have_the_answers_counts_and_order_of_the_model() {
    for_seeds(|seed| {
        let mut driver = Driver::new(
            seed,
            Options {
                seek_and_purge: true,
                unsent: true,
                policy_changes: true,
            },
        );
        for _ in 0..600 {
            driver.step();
        }
    });
}
