//! Aggregates of many groups. A [`GroupReduction`] says what is kept of a group and how values change it; [`Grouped`] is the rest
//! of the library's interface, once for all functions.

use std::fmt::Debug;
use std::mem::size_of;

use datafusion::arrow::array::{Array as _, ArrayRef, BooleanArray};
use datafusion::common::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

/// How a function reduces the values of each group.
pub trait GroupReduction: Debug + Send + 'static {
    /// What is kept of one group.
    type Group: Default + Debug + Send;

    /// Adds values to their groups.
    fn add(&self, groups: &mut Groups<Self::Group>, values: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()>;

    /// Adds partial results to their groups.
    fn merge(&self, groups: &mut Groups<Self::Group>, states: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        self.add(groups, states, rows)
    }

    fn result(&self, groups: Vec<Self::Group>) -> Result<ArrayRef>;

    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.result(groups)?])
    }

    /// Bytes that a group has allocated.
    fn allocated_bytes(_group: &Self::Group) -> usize {
        0
    }
}

/// What is kept of all groups.
#[derive(Debug)]
pub struct Groups<G> {
    pub all: Vec<G>,
    /// Bytes that all groups have allocated.
    pub bytes: usize,
}

impl<G> Default for Groups<G> {
    fn default() -> Groups<G> {
        Groups {
            all: Vec::new(),
            bytes: 0,
        }
    }
}

/// To which groups the rows of a batch belong.
#[derive(Clone, Copy)]
pub struct GroupedRows<'a> {
    groups: &'a [usize],
    filter: Option<&'a BooleanArray>,
}

impl GroupedRows<'_> {
    /// The group of a row, unless the filter leaves the row out.
    pub fn group(&self, row: usize) -> Option<usize> {
        let is_wanted = |filter: &BooleanArray| filter.is_valid(row) && filter.value(row);
        self.groups
            .get(row)
            .copied()
            .filter(|_| self.filter.is_none_or(is_wanted))
    }
}

/// The groups of a function while rows are read.
#[derive(Debug)]
pub struct Grouped<R: GroupReduction> {
    function: R,
    groups: Groups<R::Group>,
}

impl<R: GroupReduction> Grouped<R> {
    pub fn boxed(function: R) -> Box<dyn GroupsAccumulator> {
        Box::new(Grouped {
            function,
            groups: Groups::default(),
        })
    }

    fn taken(&mut self, emit_to: EmitTo) -> Vec<R::Group> {
        let taken = emit_to.take_needed(&mut self.groups.all);
        let bytes: usize = taken.iter().map(R::allocated_bytes).sum();
        self.groups.bytes = self.groups.bytes.saturating_sub(bytes);
        taken
    }
}

impl<R: GroupReduction> GroupsAccumulator for Grouped<R> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.groups.all.resize_with(count, R::Group::default);
        self.function
            .add(&mut self.groups, values, GroupedRows { groups, filter })
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.groups.all.resize_with(count, R::Group::default);
        let rows = GroupedRows { groups, filter: None };
        self.function.merge(&mut self.groups, states, rows)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = self.taken(emit_to);
        self.function.result(groups)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let groups = self.taken(emit_to);
        self.function.state(groups)
    }

    /// Each row is a group.
    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let groups: Vec<usize> = (0..values.first().map_or(0, |values| values.len())).collect();
        let mut each = Groups::default();
        each.all.resize_with(groups.len(), R::Group::default);
        let rows = GroupedRows {
            groups: &groups,
            filter,
        };
        self.function.add(&mut each, values, rows)?;
        self.function.state(each.all)
    }

    fn size(&self) -> usize {
        self.groups.bytes + self.groups.all.capacity() * size_of::<R::Group>()
    }
}
