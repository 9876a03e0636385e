//! What BSON values mean to a query: order, equality, paths, types and numbers.
//!
//! This module owns the comparison order, the canonical key used for grouping, dotted paths, type
//! names and number arithmetic. It leaves operators to `matcher`, `update` and `expression`.

pub(crate) mod compact;
pub(crate) mod compare;
pub(crate) mod decimal;
mod decimal_wide;
pub(crate) mod field_keys;
pub(crate) mod key;
pub(crate) mod number;
pub(crate) mod path;
pub(crate) mod raw_scan;
pub(crate) mod size;
pub(crate) mod types;
pub(crate) mod view;

pub use compare::{compare, compare_documents, equal};
pub use decimal::{Decimal, Rounding};
pub use field_keys::FieldKeys;
pub use key::GroupKey;
pub(crate) use key::PARTS;
pub use number::{Number, is_truthy};
pub(crate) use path::parse_index;
pub use path::{LeafArrays, Path, PathComponent, PathValue};
pub use raw_scan::{RawScan, has_numbered_arrays};
pub use size::{Measure, identical, measure};
pub use types::{TypeBracket, TypeSet, type_name, type_name_of};
pub use view::{ArrayRef, DocumentRef, ValueRef};

/// The deepest nesting that a stored document may have.
pub const MAX_NESTING: usize = 200;

/// The largest document, in bytes, that an operation may produce.
pub(crate) const MAX_DOCUMENT_SIZE: usize = 16 * 1024 * 1024;
