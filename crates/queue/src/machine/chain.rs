//! Doubly linked lists over slabs: a node is a number, and its links are stored with it. Appending, inserting and
//! removing are O(1) and never allocate.

pub const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    pub prev: u32,
    pub next: u32,
}

impl Links {
    pub const NONE: Links = Links { prev: NIL, next: NIL };
}

/// Gives access to the links of a node.
pub trait Nodes {
    fn links(&mut self, node: u32) -> &mut Links;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    pub head: u32,
    pub tail: u32,
}

impl Chain {
    pub const EMPTY: Chain = Chain { head: NIL, tail: NIL };

    pub fn push_back(&mut self, nodes: &mut impl Nodes, node: u32) {
        self.insert_before(nodes, node, NIL);
    }

    /// Inserts before `next`, or at the end if that is `NIL`.
    pub fn insert_before(&mut self, nodes: &mut impl Nodes, node: u32, next: u32) {
        let prev = match next {
            NIL => std::mem::replace(&mut self.tail, node),
            _ => std::mem::replace(&mut nodes.links(next).prev, node),
        };
        match prev {
            NIL => self.head = node,
            _ => nodes.links(prev).next = node,
        }
        *nodes.links(node) = Links { prev, next };
    }

    pub fn remove(&mut self, nodes: &mut impl Nodes, node: u32) {
        let Links { prev, next } = std::mem::replace(nodes.links(node), Links::NONE);
        match prev {
            NIL => self.head = next,
            _ => nodes.links(prev).next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => nodes.links(next).prev = prev,
        }
    }
}
