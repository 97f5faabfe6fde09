//! Rows of one table in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::attribute_columns::{AttributeColumns, AttributeSource};
use super::column_data::ColumnData;
use super::column_view::ColumnView;
use super::extra_attributes::{ExtraAttribute, ExtraAttributes};
use super::memory_usage::MemoryUsage;
use super::nested::{ListColumn, StructColumn, TextMapColumn};
use super::numbers::NumberColumn;
use super::text::TextColumn;
use crate::tables::TableSpec;
use thalweg_delta::schema::TableSchema;

/// The time of a row. A second column has it in whole microseconds.
const TIME_NANOS: &str = "time_unix_nano";
const TIME: &str = "time";
const ARRIVAL: &str = "arrival_unix_nano";

/// A chunk is full at this many rows or bytes that belong to its rows alone, if these are a multiple of what the rows
/// share. A chunk has the metadata of each tag once: with one or two rows per tag, it would be most of the memory and
/// of the work.
const ROWS: usize = 65_536;
const OWN_BYTES: usize = 16 << 20;
const OWN_FOR_SHARED: usize = 2;
/// The size at which a chunk is full in any case.
const BYTES_MAX: usize = 128 << 20;

/// A growing block of rows. Callers set the columns that a row has; all others are null.
pub struct MemtableChunk {
    spec: &'static TableSpec,
    /// Chunks with the same line inherited texts and names from each other, later ones from earlier ones.
    line: u64,
    schema: TableSchema,
    rows: usize,
    /// Indexed by table column.
    data: Vec<ColumnData>,
    time: usize,
    pub slots: AttributeColumns,
    extras: ExtraAttributes,
    weight: usize,
}

impl MemtableChunk {
    pub fn new(spec: &'static TableSpec) -> MemtableChunk {
        let schema = (spec.columns)();
        let data = schema.columns.iter().map(|column| match column.binding() {
            Some(_) => ColumnData::Derived,
            None => ColumnData::new(&column.kind, spec.plain.contains(&column.name.as_str())),
        });
        MemtableChunk {
            spec,
            line: next_line(),
            rows: 0,
            data: data.collect(),
            time: schema
                .columns
                .iter()
                .position(|column| column.name == TIME_NANOS)
                .unwrap_or_default(),
            schema,
            slots: AttributeColumns::default(),
            extras: ExtraAttributes::default(),
            weight: 0,
        }
    }

    pub fn spec(&self) -> &'static TableSpec {
        self.spec
    }

    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A caller that caches keys of texts compares lines: they are equal for the same chunk and for chunks that
    /// inherited its texts.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Begins a row and returns its number.
    #[inline]
    pub fn begin_row(&mut self) -> usize {
        self.rows += 1;
        self.rows - 1
    }

    /// The time of every row, in nanoseconds.
    pub fn times(&self) -> Option<&NumberColumn<i64>> {
        match self.data.get(self.time) {
            Some(ColumnData::Longs(times)) => Some(times),
            _ => None,
        }
    }

    /// The arrival time of every row, in nanoseconds.
    pub fn arrivals(&self) -> Option<&NumberColumn<i64>> {
        match self.data.get(self.place(ARRIVAL)?) {
            Some(ColumnData::Longs(times)) => Some(times),
            _ => None,
        }
    }

    /// Whether a fixed column has a NaN.
    pub fn has_nan(&self, name: &str) -> bool {
        match self.place(name).and_then(|at| self.data.get(at)) {
            Some(ColumnData::Doubles(column)) => column.values().iter().any(|value| value.is_nan()),
            _ => false,
        }
    }

    /// The column at an index, of any type.
    #[inline]
    pub fn data(&mut self, column: usize) -> Option<&mut ColumnData> {
        self.data.get_mut(column)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.schema.columns.iter().position(|column| column.name == name)
    }

    /// A fixed column; `None` for the derived ones, the date and the overflow map.
    pub fn fixed(&self, name: &str) -> Option<ColumnView<'_>> {
        if name == TIME {
            return self.times().map(ColumnView::Nanos);
        }
        if name == OVERFLOW {
            return None;
        }
        self.data.get(self.place(name)?)?.values(self.rows)
    }

    /// The attributes that have a column here.
    pub fn slots(&self) -> &AttributeColumns {
        &self.slots
    }

    /// The attributes without a column here, in row order.
    pub fn extras(&self) -> &[ExtraAttribute] {
        self.extras.all()
    }

    /// The values of an attribute, with or without a column here.
    pub fn attribute(&self, source: AttributeSource, name: &str) -> Option<&TextColumn> {
        let slot = self.slots.get(source, name).map(|slot| &slot.column);
        slot.or_else(|| self.extras.column(source, name))
    }

    #[inline]
    pub fn push_extra(&mut self, row: usize, source: AttributeSource, name: &str, text: &str) {
        self.extras.push(row, source, name, text);
    }

    /// Counts bytes of texts that are stored once, but will be in a map of each row.
    pub fn add_weight(&mut self, bytes: usize) {
        self.weight += bytes;
    }

    /// Restores row order: the extras of a run were added after those of its rows.
    pub fn sort_extras(&mut self) {
        self.extras.sort();
    }

    pub fn space(&self) -> MemoryUsage {
        let rows = self.data.iter().map(ColumnData::space).sum::<MemoryUsage>();
        let weight = MemoryUsage {
            used: self.weight,
            ..MemoryUsage::default()
        };
        rows + self.slots.space() + self.extras.space() + weight
    }

    /// Whether the next rows must go into another chunk.
    pub fn is_full(&self) -> bool {
        let space = self.space();
        let is_large = self.rows >= ROWS || space.own() >= OWN_BYTES;
        (is_large && space.own() >= OWN_FOR_SHARED * space.shared) || space.used >= BYTES_MAX
    }

    /// An empty chunk with the same texts, if that is useful: keys of the texts are cached, and the rows use most of
    /// them.
    pub fn heir(&self) -> Option<MemtableChunk> {
        let are_stale = |data: &ColumnData| matches!(data, ColumnData::Texts(column) if column.is_stale());
        if self.space().shared == 0 || self.slots.are_stale() || self.data.iter().any(are_stale) {
            return None;
        }
        let mut heir = MemtableChunk::new(self.spec);
        heir.line = self.line;
        for (data, ended) in heir.data.iter_mut().zip(&self.data) {
            if let (ColumnData::Texts(column), ColumnData::Texts(ended)) = (data, ended)
                && let Some(texts) = ended.heir()
            {
                *column = texts;
            }
        }
        heir.slots = self.slots.heirs();
        Some(heir)
    }

    /// Begins with the texts of an heir, in its own buffers. The chunk must be empty.
    pub fn take_over(&mut self, heir: MemtableChunk) {
        self.line = heir.line;
        for (data, heir) in self.data.iter_mut().zip(heir.data) {
            if let (ColumnData::Texts(column), ColumnData::Texts(heir)) = (data, heir) {
                column.take_over(heir);
            }
        }
        self.slots.take_over(heir.slots);
    }

    /// Removes all rows and keeps the buffers for similar rows.
    pub fn clear(&mut self) {
        self.line = next_line();
        self.rows = 0;
        self.data.iter_mut().for_each(ColumnData::clear);
        self.slots.clear();
        (self.extras, self.weight) = (ExtraAttributes::default(), 0);
    }
}

fn next_line() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

const OVERFLOW: &str = "overflow";

/// Accessors by column index, a constant of the table's module.
macro_rules! columns {
    ($($name:ident: $variant:ident -> $type:ty,)*) => {
        impl MemtableChunk {
            $(#[inline(always)]
            pub fn $name(&mut self, column: usize) -> &mut $type {
                match self.data.get_mut(column) {
                    Some(ColumnData::$variant(data)) => data,
                    other => wrong(column, other.is_some()),
                }
            })*
        }
    };
}

columns! {
    longs: Longs -> NumberColumn<i64>,
    integers: Integers -> NumberColumn<i32>,
    doubles: Doubles -> NumberColumn<f64>,
    booleans: Booleans -> NumberColumn<bool>,
    texts: Texts -> TextColumn,
    lists: Lists -> ListColumn,
}

/// The constants of a table do not match its columns; its tests check that.
#[cold]
fn wrong(column: usize, is_there: bool) -> ! {
    panic!("column {column} has another type (there: {is_there})")
}

impl ColumnData {
    #[inline]
    pub fn push_integer(&mut self, row: usize, value: i32) {
        if let ColumnData::Integers(column) = self {
            column.push(row, value);
        }
    }

    #[inline]
    pub fn push_boolean(&mut self, row: usize, value: bool) {
        if let ColumnData::Booleans(column) = self {
            column.push(row, value);
        }
    }

    #[inline]
    pub fn push_long(&mut self, row: usize, value: i64) {
        if let ColumnData::Longs(column) = self {
            column.push(row, value);
        }
    }

    #[inline]
    pub fn push_double(&mut self, row: usize, value: f64) {
        if let ColumnData::Doubles(column) = self {
            column.push(row, value);
        }
    }

    #[inline]
    pub fn push_text(&mut self, row: usize, text: &str) {
        if let ColumnData::Texts(column) = self {
            column.push(row, text.as_bytes());
        }
    }

    pub fn map(&mut self) -> Option<&mut TextMapColumn> {
        match self {
            ColumnData::Maps(maps) => Some(maps),
            _ => None,
        }
    }

    pub fn members(&mut self) -> Option<&mut StructColumn> {
        match self {
            ColumnData::Structs(structs) => Some(structs),
            _ => None,
        }
    }
}
