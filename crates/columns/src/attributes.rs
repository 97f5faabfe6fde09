//! Attribute promotion: which attributes have their own column, and its name.
//!
//! Maps attribute names as sent to a column of the table or to the overflow map. A binding is stored in the table's
//! schema, so it is permanent, and two names never share a column.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use globset::{Glob, GlobSet, GlobSetBuilder};
use thalweg_record::Text;
use xxhash_rust::xxh3::xxh3_64;

use crate::attribute_types::AttributeType;
use crate::rows::attribute_columns::AttributeSource;
use thalweg_delta::schema::{ColumnType, TableColumn, TableSchema};

/// The default limit of attribute columns.
pub const MAX_PROMOTED: usize = 256;

/// The configuration of a table's attribute columns (`lake.<table>.…`).
#[derive(Clone, Debug)]
pub struct AttributePromotion {
    pub max_promoted: usize,
    /// Names that always get a column, from any source, or from one as in `resource.host`.
    pub promote: Vec<String>,
    never_promote: GlobSet,
    /// The types of columns that do not exist yet, by their names. Each has a column reserved, like a name in `promote`.
    types: BTreeMap<String, ColumnType>,
    /// The same by attribute, for a table whose column names nobody declares.
    types_of_attributes: HashMap<(AttributeSource, Text), AttributeType>,
}

/// A column whose type in a table is not the declared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeConflict {
    pub column: String,
    pub declared: String,
    pub found: String,
}

impl Default for AttributePromotion {
    fn default() -> AttributePromotion {
        AttributePromotion {
            max_promoted: MAX_PROMOTED,
            promote: Vec::new(),
            never_promote: GlobSet::empty(),
            types: BTreeMap::new(),
            types_of_attributes: HashMap::new(),
        }
    }
}

impl AttributePromotion {
    /// `never_promote` has globs on such names. The error names the glob that is invalid.
    pub fn new(
        max_promoted: usize,
        promote: Vec<String>,
        never_promote: &[String],
    ) -> Result<AttributePromotion, String> {
        let mut globs = GlobSetBuilder::new();
        for pattern in never_promote {
            globs.add(Glob::new(pattern).map_err(|e| format!("{pattern:?} is not a pattern: {e}"))?);
        }
        let never_promote = globs
            .build()
            .map_err(|e| format!("the combined patterns are too large: {e}"))?;
        Ok(AttributePromotion {
            max_promoted,
            promote,
            never_promote,
            ..AttributePromotion::default()
        })
    }

    /// With the types of columns, by their names.
    #[must_use]
    pub fn with_types(mut self, types: BTreeMap<String, ColumnType>) -> AttributePromotion {
        self.types = types;
        self
    }

    /// Sets the type of the column that an attribute gets, if it has none yet.
    pub fn declare(&mut self, source: AttributeSource, name: &str, kind: AttributeType) {
        self.types_of_attributes.insert((source, name.into()), kind);
    }

    /// The first column whose type in a table is not the declared one. A column of a table keeps its type.
    pub fn conflict(&self, table: &TableSchema) -> Option<TypeConflict> {
        self.types.iter().find_map(|(name, declared)| {
            let found = &table.column(name)?.kind;
            (found != declared).then(|| TypeConflict {
                column: name.clone(),
                declared: declared.name(),
                found: found.name(),
            })
        })
    }

    fn type_of(&self, source: AttributeSource, name: &str, column: &str) -> ColumnType {
        if let Some(declared) = self.types.get(column) {
            return declared.clone();
        }
        // Only tables that are made of others have any of these.
        let declared = match self.types_of_attributes.is_empty() {
            true => None,
            false => self.types_of_attributes.get(&(source, Text::from(name))),
        };
        declared.map_or(ColumnType::String, |kind| kind.column_type())
    }

    /// Whether a name in `promote` gets this column, if it is free.
    fn promotes_column(&self, column: &str) -> bool {
        let is_it = |wanted: &String| {
            AttributeSource::ALL.into_iter().any(|source| {
                let name = source.as_str();
                let own = wanted.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
                column_name(name, own.unwrap_or(wanted)) == column
            })
        };
        self.promote.iter().any(is_it)
    }

    fn wants(&self, source: AttributeSource, name: &str) -> bool {
        self.promote.iter().any(|wanted| is_named(wanted, source, name))
    }

    fn refuses(&self, source: AttributeSource, name: &str) -> bool {
        let never = &self.never_promote;
        !never.is_empty() && (never.is_match(name) || never.is_match(format!("{}.{name}", source.as_str())))
    }
}

/// Whether a configured name, which may have its source as a prefix, matches an attribute.
fn is_named(written: &str, source: AttributeSource, name: &str) -> bool {
    let qualified = written
        .strip_prefix(source.as_str())
        .and_then(|rest| rest.strip_prefix('.'));
    written == name || qualified == Some(name)
}

impl AttributeSource {
    pub const ALL: [AttributeSource; 3] = [AttributeSource::Attr, AttributeSource::Resource, AttributeSource::Scope];

    /// The prefix of its column names.
    pub fn as_str(self) -> &'static str {
        match self {
            AttributeSource::Attr => "attr",
            AttributeSource::Resource => "resource",
            AttributeSource::Scope => "scope",
        }
    }

    pub fn of_name(name: &str) -> Option<AttributeSource> {
        AttributeSource::ALL.into_iter().find(|source| source.as_str() == name)
    }
}

/// Where the values of an attribute are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeTarget {
    /// The index among the promoted columns, in table order.
    Column(u16),
    Overflow,
}

/// Which values of an attribute are in the overflow map of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowValues {
    None,
    /// Those that do not fit the type of the attribute's column, which has this index.
    Misfits(u16, AttributeType),
    All,
}

/// The attribute columns of a table.
#[derive(Clone, Debug)]
pub struct AttributeBindings {
    promotion: AttributePromotion,
    /// Indexed by [`AttributeSource`].
    places: [HashMap<Text, AttributeTarget>; 3],
    /// The names of the promoted columns, by index.
    columns: Vec<String>,
    /// The types of those that have no texts.
    types: HashMap<u16, AttributeType>,
    taken: HashSet<String>,
    overflowing: usize,
    /// Changes with every new column. Earlier lookups stay valid, but may lack columns.
    epoch: u32,
}

/// Up to this many names without a column are remembered. Further ones are matched against the patterns each time.
const OVERFLOW_NAMES_MAX: usize = 65_536;

impl AttributeBindings {
    /// The bindings stored in a table's schema.
    pub fn of(schema: &TableSchema, promotion: AttributePromotion) -> AttributeBindings {
        let taken = schema.columns.iter().map(|column| column.name.to_ascii_lowercase());
        let mut bindings = AttributeBindings {
            promotion,
            places: Default::default(),
            columns: Vec::new(),
            types: HashMap::new(),
            taken: taken.collect(),
            overflowing: 0,
            epoch: 0,
        };
        for column in &schema.columns {
            let bound = column.binding();
            let bound = bound.and_then(|(source, original)| Some((AttributeSource::of_name(source)?, original)));
            if let Some((source, original)) = bound {
                bindings.bind(source, original.into(), column);
            }
        }
        bindings
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The names of the promoted columns, by index.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The target of a name; `None` if the name is new.
    pub fn place(&self, source: AttributeSource, name: &str) -> Option<AttributeTarget> {
        self.places[source as usize].get(name).copied()
    }

    /// The values of an attribute that are in the overflow map.
    pub fn overflow(&self, source: AttributeSource, name: &str) -> OverflowValues {
        match self.place(source, name) {
            Some(AttributeTarget::Column(_)) if self.types.is_empty() => OverflowValues::None,
            Some(AttributeTarget::Column(at)) => {
                let kind = self.types.get(&at);
                kind.map_or(OverflowValues::None, |kind| OverflowValues::Misfits(at, *kind))
            }
            Some(AttributeTarget::Overflow) | None => OverflowValues::All,
        }
    }

    /// Sets the type of the column that an attribute gets, if it has none yet.
    pub fn declare(&mut self, source: AttributeSource, name: &str, kind: AttributeType) {
        self.promotion.declare(source, name, kind);
    }

    /// Whether a new name is to get a column.
    pub fn would_bind(&self, source: AttributeSource, name: &str) -> bool {
        self.place(source, name).is_none() && self.column_for(source, name).is_some()
    }

    /// Binds every name and returns the new columns, which must be added to the table's schema in this order.
    /// Names are bound in byte order, so the columns do not depend on the order of arrival.
    pub fn admit<'a>(&mut self, names: impl IntoIterator<Item = (AttributeSource, &'a str)>) -> Vec<TableColumn> {
        let new = names
            .into_iter()
            .filter(|(source, name)| self.place(*source, name).is_none());
        let new: BTreeSet<(AttributeSource, &str)> = new.collect();
        let mut columns = Vec::new();
        for (source, name) in new {
            match self.column_for(source, name) {
                Some(column) => {
                    let kind = self.promotion.type_of(source, name, &column);
                    self.taken.insert(column.clone());
                    let column = TableColumn {
                        kind,
                        ..TableColumn::attribute(column, source.as_str(), name)
                    };
                    self.bind(source, name.into(), &column);
                    columns.push(column);
                }
                None if self.overflowing < OVERFLOW_NAMES_MAX => {
                    self.overflowing += 1;
                    self.places[source as usize].insert(name.into(), AttributeTarget::Overflow);
                }
                None => {}
            }
        }
        columns
    }

    fn bind(&mut self, source: AttributeSource, original: Text, column: &TableColumn) {
        let index = u16::try_from(self.columns.len()).unwrap_or(u16::MAX);
        self.columns.push(column.name.clone());
        if let Some(kind) = AttributeType::of_column(column) {
            self.types.insert(index, kind);
        }
        self.places[source as usize].insert(original, AttributeTarget::Column(index));
        self.epoch += 1;
    }

    fn column_for(&self, source: AttributeSource, name: &str) -> Option<String> {
        let promotion = &self.promotion;
        let has_no_place = !promotion.wants(source, name) && (self.free() == 0 || promotion.refuses(source, name));
        if (has_no_place && promotion.types.is_empty()) || self.columns.len() >= usize::from(u16::MAX) {
            return None;
        }
        let column = column_name(source.as_str(), name);
        let column = match self.taken.contains(&column) {
            true => with_suffix(&column, name),
            false => column,
        };
        if has_no_place && !promotion.types.contains_key(&column) {
            return None;
        }
        // The suffix is a hash. If two names collide in it, too, the second one gets no column.
        (!self.taken.contains(&column)).then_some(column)
    }

    /// How many names may still get a column, without those reserved by `promote` and `types`.
    fn free(&self) -> usize {
        let is_bound = |wanted: &String| {
            let of = |source: AttributeSource| {
                let own = wanted
                    .strip_prefix(source.as_str())
                    .and_then(|rest| rest.strip_prefix('.'));
                let names = [Some(wanted.as_str()), own];
                names
                    .into_iter()
                    .flatten()
                    .any(|name| self.place(source, name).is_some())
            };
            AttributeSource::ALL.into_iter().any(of)
        };
        let promotion = &self.promotion;
        let reserved = promotion.promote.iter().filter(|wanted| !is_bound(wanted)).count();
        let is_reserved = |column: &&String| !self.taken.contains(*column) && !promotion.promotes_column(column);
        let reserved = reserved + promotion.types.keys().filter(is_reserved).count();
        promotion.max_promoted.saturating_sub(self.columns.len() + reserved)
    }
}

/// The source, `_`, and the name in ASCII lower case with every byte outside `[a-z0-9]` replaced by `_`.
pub fn column_name(source: &str, original: &str) -> String {
    let mut name = String::with_capacity(source.len() + 1 + original.len());
    name.push_str(source);
    name.push('_');
    name.extend(original.bytes().map(|byte| match byte.to_ascii_lowercase() {
        kept @ (b'a'..=b'z' | b'0'..=b'9') => char::from(kept),
        _ => '_',
    }));
    name
}

fn with_suffix(column: &str, original: &str) -> String {
    let hash = format!("{:016x}", xxh3_64(original.as_bytes()));
    format!("{column}__{}", hash.get(..8).unwrap_or(&hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_delta::schema::ColumnType;

    fn bindings(promotion: AttributePromotion) -> AttributeBindings {
        AttributeBindings::of(&TableSchema::default(), promotion)
    }

    fn attrs<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = (AttributeSource, &'a str)> {
        names.into_iter().map(|name| (AttributeSource::Attr, name))
    }

    #[test]
    fn a_name_of_each_source_has_its_own_column_and_all_share_the_places() {
        let promotion =
            AttributePromotion::new(3, vec!["resource.z".into()], &["scope.*".into(), "secret".into()]).unwrap();
        let mut bindings = bindings(promotion);
        let all = AttributeSource::ALL.map(|source| (source, "x"));
        let names = |columns: Vec<TableColumn>| columns.into_iter().map(|column| column.name).collect::<Vec<_>>();
        assert_eq!(names(bindings.admit(all)), ["attr_x", "resource_x"]);
        assert_eq!(
            bindings.place(AttributeSource::Scope, "x"),
            Some(AttributeTarget::Overflow)
        );
        let more = [
            (AttributeSource::Attr, "z"),
            (AttributeSource::Resource, "z"),
            (AttributeSource::Resource, "secret"),
        ];
        assert_eq!(names(bindings.admit(more)), ["resource_z"], "its place was reserved");
    }

    #[test]
    fn names_become_columns_by_the_documented_form() {
        for (name, column) in [
            ("opcua_tag_name", "attr_opcua_tag_name"),
            ("HTTP.Status", "attr_http_status"),
            ("_x", "attr__x"),
            ("é", "attr___"),
            ("", "attr_"),
        ] {
            assert_eq!(column_name("attr", name), column);
        }
    }

    #[test]
    fn the_second_name_of_a_column_gets_the_hash_of_its_original() {
        let mut bindings = bindings(AttributePromotion::default());
        let columns = bindings.admit(attrs(["a.b", "a_b", "A.b"]));
        let names: Vec<_> = columns.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names[0], "attr_a_b",
            "the first in byte order, A.b, has the plain column"
        );
        assert_eq!(columns[0].binding(), Some(("attr", "A.b")));
        assert_eq!(
            names[1],
            format!("attr_a_b__{}", &format!("{:016x}", xxh3_64(b"a.b"))[..8])
        );
        assert!(names[2].starts_with("attr_a_b__") && names[2] != names[1]);
        assert!(bindings.admit(attrs(["a.b"])).is_empty(), "a bound name stays");
    }

    fn types(declared: &[(&str, &str)]) -> BTreeMap<String, ColumnType> {
        let declared = declared.iter();
        declared
            .map(|(column, kind)| ((*column).to_owned(), AttributeType::declared(kind).unwrap()))
            .collect()
    }

    #[test]
    fn a_declared_column_has_its_type_whichever_name_it_belongs_to() {
        let suffixed = with_suffix("attr_a_b", "a_b");
        let declared = types(&[
            ("attr_a_b", "long"),
            (&suffixed, "double"),
            ("resource_up", "boolean"),
            ("attr_t", "string"),
        ]);
        let mut bindings = bindings(AttributePromotion::default().with_types(declared));
        let all = [
            (AttributeSource::Attr, "a.b"),
            (AttributeSource::Attr, "a_b"),
            (AttributeSource::Attr, "up"),
            (AttributeSource::Attr, "t"),
            (AttributeSource::Resource, "up"),
        ];
        let schema = TableSchema {
            columns: bindings.admit(all),
        };
        let kinds = |name: &str| schema.column(name).unwrap().kind.clone();
        assert_eq!(
            (kinds("attr_a_b"), kinds(&suffixed)),
            (ColumnType::Long, ColumnType::Double)
        );
        assert_eq!(
            (kinds("attr_up"), kinds("resource_up")),
            (ColumnType::String, ColumnType::Boolean)
        );
        assert_eq!(kinds("attr_t"), ColumnType::String);
        // A table keeps its types, whatever is declared later.
        for promotion in [
            AttributePromotion::default(),
            AttributePromotion::default().with_types(types(&[("attr_a_b", "string"), ("attr_up", "long")])),
        ] {
            let reopened = AttributeBindings::of(&schema, promotion);
            let of = |source, name| reopened.overflow(source, name);
            assert_eq!(
                of(AttributeSource::Attr, "a.b"),
                OverflowValues::Misfits(0, AttributeType::Long)
            );
            assert!(matches!(
                of(AttributeSource::Resource, "up"),
                OverflowValues::Misfits(_, AttributeType::Boolean)
            ));
            assert_eq!(of(AttributeSource::Attr, "up"), OverflowValues::None);
            assert_eq!(of(AttributeSource::Attr, "other"), OverflowValues::All);
        }
    }

    #[test]
    fn a_type_that_is_not_that_of_the_table_is_a_conflict() {
        let schema = TableSchema {
            columns: vec![
                TableColumn::attribute("attr_n".into(), "attr", "n"),
                TableColumn {
                    kind: ColumnType::Long,
                    ..TableColumn::attribute("attr_m".into(), "attr", "m")
                },
            ],
        };
        let conflict = |declared: &[(&str, &str)]| {
            let promotion = AttributePromotion::default().with_types(types(declared));
            let found = promotion.conflict(&schema)?;
            Some((found.column, found.declared, found.found))
        };
        let found = |column: &str, declared: &str, found: &str| Some((column.into(), declared.into(), found.into()));
        assert_eq!(conflict(&[("attr_n", "long")]), found("attr_n", "long", "string"));
        assert_eq!(conflict(&[("attr_m", "double")]), found("attr_m", "double", "long"));
        assert_eq!(conflict(&[("attr_m", "string")]), found("attr_m", "string", "long"));
        assert_eq!(
            conflict(&[("attr_m", "long"), ("attr_n", "string"), ("attr_x", "double")]),
            None
        );
        assert_eq!(conflict(&[]), None);
    }

    #[test]
    fn a_declared_column_is_reserved_and_no_pattern_keeps_it_out() {
        let declared = types(&[("attr_z", "long"), ("attr_tmp_z", "double")]);
        let never = ["tmp_*".to_owned()];
        let promotion = AttributePromotion::new(3, vec!["attr.z".into()], &never).unwrap();
        let mut bindings = bindings(promotion.with_types(declared));
        let names = |columns: Vec<TableColumn>| columns.into_iter().map(|column| column.name).collect::<Vec<_>>();
        // `attr.z` is reserved once.
        assert_eq!(names(bindings.admit(attrs(["a", "b"]))), ["attr_a"]);
        assert_eq!(
            names(bindings.admit(attrs(["tmp_z", "tmp_y", "z"]))),
            ["attr_tmp_z", "attr_z"]
        );
    }

    #[test]
    fn an_attribute_has_the_type_of_its_source_table() {
        let mut bindings = bindings(AttributePromotion::default());
        bindings.declare(AttributeSource::Attr, "n", AttributeType::Long);
        let columns = bindings.admit([(AttributeSource::Attr, "n"), (AttributeSource::Scope, "n")]);
        let kinds: Vec<_> = columns.iter().map(|column| column.kind.clone()).collect();
        assert_eq!(kinds, [ColumnType::Long, ColumnType::String]);
    }

    #[test]
    fn a_fixed_column_is_never_taken() {
        let schema = TableSchema {
            columns: vec![TableColumn::new("attr_time", ColumnType::String)],
        };
        let mut bindings = AttributeBindings::of(&schema, AttributePromotion::default());
        assert!(bindings.admit(attrs(["time"]))[0].name.starts_with("attr_time__"));
    }

    #[test]
    fn the_cap_leaves_room_for_promoted_names_and_patterns_keep_names_out() {
        let promotion = AttributePromotion::new(2, vec!["z".into(), "tmp_z".into()], &["tmp_*".into()]).unwrap();
        let mut bindings = bindings(promotion);
        assert_eq!(bindings.admit(attrs(["a", "b"])).len(), 0, "both places are reserved");
        assert_eq!(
            bindings.place(AttributeSource::Attr, "a"),
            Some(AttributeTarget::Overflow)
        );
        assert_eq!(bindings.admit(attrs(["z", "tmp_z", "tmp_y"])).len(), 2);
        assert_eq!(
            bindings.place(AttributeSource::Attr, "tmp_y"),
            Some(AttributeTarget::Overflow)
        );
        assert!(
            AttributePromotion::new(1, vec![], &["[".into()])
                .unwrap_err()
                .starts_with("\"[\" is not a pattern")
        );
    }

    proptest! {
        /// Whatever the order of names, each column has one name, and reading the schema back gives the same bindings.
        #[test]
        fn columns_are_never_shared(flushes in prop::collection::vec(prop::collection::vec("[aAbB._é]{0,3}", 0..8), 0..8), cap in 0usize..20) {
            let promotion = AttributePromotion { max_promoted: cap, ..AttributePromotion::default() };
            let mut bindings = bindings(promotion.clone());
            let mut schema = TableSchema::default();
            for names in &flushes {
                schema.columns.extend(bindings.admit(attrs(names.iter().map(String::as_str))));
            }
            let distinct: HashSet<_> = schema.columns.iter().map(|c| &c.name).collect();
            prop_assert_eq!(distinct.len(), schema.columns.len());
            prop_assert!(schema.columns.len() <= cap);
            let reopened = AttributeBindings::of(&schema, promotion);
            for name in flushes.iter().flatten() {
                let place = bindings.place(AttributeSource::Attr, name).unwrap();
                if let AttributeTarget::Column(_) = place {
                    prop_assert_eq!(reopened.place(AttributeSource::Attr, name), Some(place));
                }
            }
        }
    }
}
