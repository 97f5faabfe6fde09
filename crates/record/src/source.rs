//! The name of the input that a message came from, for flows with several inputs.

use std::sync::Arc;

use parking_lot::Mutex;

/// The label of an input, or its path; empty if the flow has only one input. Copying it copies a pointer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceName(Option<&'static Arc<str>>);

/// All names. They stay for the life of the process: there are as many as inputs in its configuration, and reference
/// counting would cost an atomic operation for every copy on every thread.
static NAMES: Mutex<Vec<&'static Arc<str>>> = Mutex::new(Vec::new());

impl SourceName {
    pub fn new(name: &str) -> SourceName {
        let mut names = NAMES.lock();
        if let Some(known) = names.iter().find(|known| ****known == *name) {
            return SourceName(Some(known));
        }
        let name: &'static Arc<str> = Box::leak(Box::new(name.into()));
        names.push(name);
        SourceName(Some(name))
    }

    pub fn get(&self) -> Option<&'static Arc<str>> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let (a, again) = (SourceName::new("press"), SourceName::new("press"));
        assert!(Arc::ptr_eq(a.get().unwrap(), again.get().unwrap()));
        assert_eq!(SourceName::new("oven").get().map(|name| &**name), Some("oven"));
        assert!(SourceName::default().get().is_none());
    }
}
