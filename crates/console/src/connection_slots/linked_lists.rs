//! Doubly linked lists of numbers, each of which is in at most one list. Appending, removing from anywhere and reading
//! the first are O(1).

/// No number.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub struct LinkedLists<const N: usize> {
    links: Vec<Link>,
    /// First and last of each list.
    ends: [(u32, u32); N],
}

/// The neighbours of one number.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    /// `None`: it is in no list.
    list: Option<u8>,
}

impl<const N: usize> Default for LinkedLists<N> {
    fn default() -> Self {
        LinkedLists {
            links: Vec::new(),
            ends: [(NONE, NONE); N],
        }
    }
}

impl<const N: usize> LinkedLists<N> {
    pub fn first(&self, list: usize) -> Option<u32> {
        self.ends
            .get(list)
            .map(|(first, _)| *first)
            .filter(|first| *first != NONE)
    }

    /// Appends to the list. The number must be in no list.
    pub fn push(&mut self, list: usize, number: u32) {
        let Some(ends) = self.ends.get_mut(list) else { return };
        let last = ends.1;
        ends.1 = number;
        if last == NONE {
            ends.0 = number;
        }
        if let Some(link) = self.links.get_mut(last as usize) {
            link.after = number;
        }
        let at = number as usize;
        if self.links.len() <= at {
            let empty = Link {
                before: NONE,
                after: NONE,
                list: None,
            };
            self.links.resize(at + 1, empty);
        }
        if let Some(link) = self.links.get_mut(at) {
            debug_assert!(link.list.is_none(), "{number} is in a list");
            *link = Link {
                before: last,
                after: NONE,
                list: Some(list as u8),
            };
        }
    }

    /// Removes the number from its list, if it is in one.
    pub fn remove(&mut self, number: u32) {
        let Some(link) = self.links.get_mut(number as usize) else {
            return;
        };
        let Some(list) = link.list.take() else { return };
        let Link { before, after, .. } = *link;
        let Some(ends) = self.ends.get_mut(usize::from(list)) else {
            return;
        };
        if ends.0 == number {
            ends.0 = after;
        }
        if ends.1 == number {
            ends.1 = before;
        }
        if let Some(link) = self.links.get_mut(before as usize) {
            link.after = after;
        }
        if let Some(link) = self.links.get_mut(after as usize) {
            link.before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn all(lists: &LinkedLists<3>, list: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let mut at = lists.first(list);
        while let Some(number) = at {
            found.push(number);
            let after = lists.links[number as usize].after;
            at = Some(after).filter(|after| *after != NONE);
        }
        found
    }

    #[test]
    fn they_are_as_queues_from_which_any_can_be_taken() {
        let (mut lists, mut expected) = (LinkedLists::<3>::default(), vec![VecDeque::new(); 3]);
        let mut seed = 3_u64;
        for _ in 0..20_000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (number, list) = (((seed >> 33) % 20) as u32, (seed >> 50) as usize % 4);
            lists.remove(number);
            expected.iter_mut().for_each(|of| of.retain(|known| *known != number));
            if let Some(of) = expected.get_mut(list) {
                lists.push(list, number);
                of.push_back(number);
            }
            for (list, of) in expected.iter().enumerate() {
                assert_eq!(all(&lists, list), of.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
