//! Arrays that are objects in JSON: time by part, bytes by class of tensors.

/// A module for `#[serde(with)]`: an array of five as a struct whose fields are the names of its places.
macro_rules! keyed {
    ($module:ident, $object:ident, $($name:ident)+) => {
        #[doc = concat!("Arrays as [`", stringify!($object), "`](", stringify!($module), "::", stringify!($object), ").")]
        pub mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            /// The array's places by name.
            #[derive(Debug, Serialize, Deserialize)]
            #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
            pub struct $object<T> {
                $(#[allow(missing_docs, reason = "its name says it")] pub $name: T),+
            }

            /// Writes an array as an object.
            pub fn serialize<T: Serialize, S: Serializer>(array: &[T; 5], to: S) -> Result<S::Ok, S::Error> {
                let [$($name),+] = array;
                $object { $($name),+ }.serialize(to)
            }

            /// Reads an object as an array.
            pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<[T; 5], D::Error> {
                let $object { $($name),+ } = $object::deserialize(from)?;
                Ok([$($name),+])
            }
        }
    };
}

keyed!(by_part, Parts, compute communication memory host idle);
keyed!(by_class, Classes, weights gradients optimizer activations temporary);

/// Rows of memory as an object that says first whether all fit.
pub mod fitting {
    use crate::memory::MemoryRow;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::borrow::Cow;

    /// The memory of all NPUs.
    #[derive(Debug, Serialize, Deserialize)]
    #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
    pub struct MemoryRows<'r> {
        /// Whether the memory of every NPU holds what its rank allocates.
        pub fits: bool,
        /// One row for each rank whose trace says what it allocates or frees, in order.
        pub npus: Cow<'r, [MemoryRow]>,
    }

    /// Writes rows as an object.
    pub fn serialize<S: Serializer>(rows: &[MemoryRow], to: S) -> Result<S::Ok, S::Error> {
        let fits = rows.iter().all(|row| row.fits);
        let npus = Cow::Borrowed(rows);
        MemoryRows { fits, npus }.serialize(to)
    }

    /// Reads the rows of an object.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<MemoryRow>, D::Error> {
        MemoryRows::deserialize(from).map(|memories| memories.npus.into_owned())
    }
}
