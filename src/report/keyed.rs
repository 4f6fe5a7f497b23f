//! Serializes arrays as JSON objects, for example time by category or bytes by tensor class.

/// Defines a module for `#[serde(with)]` that serializes an array as an object. It has one named field per element. A
/// field with a default may be missing when a report is read, because older versions do not write it.
macro_rules! keyed {
    ($module:ident, $object:ident, $count:literal, $($(#[$attribute:meta])* $name:ident)+) => {
        #[doc = concat!("Arrays as [`", stringify!($object), "`](", stringify!($module), "::", stringify!($object), ").")]
        pub mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            /// The elements of the array, by name.
            #[derive(Debug, Serialize, Deserialize)]
            #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
            pub struct $object<T: Default> {
                $(#[allow(missing_docs, reason = "its name says it")] $(#[$attribute])* pub $name: T),+
            }

            /// Serializes an array as an object.
            pub fn serialize<T: Serialize + Default + Copy, S: Serializer>(array: &[T; $count], to: S) -> Result<S::Ok, S::Error> {
                let [$($name),+] = *array;
                $object { $($name),+ }.serialize(to)
            }

            /// Deserializes an object to an array.
            pub fn deserialize<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(from: D) -> Result<[T; $count], D::Error> {
                let $object { $($name),+ } = $object::deserialize(from)?;
                Ok([$($name),+])
            }
        }
    };
}

keyed!(by_part, Parts, 6, compute communication #[serde(default)] bubble memory host idle);
keyed!(by_class, Classes, 5, weights gradients optimizer activations temporary);
