//! Arrays that are objects in JSON: time by part, bytes by class of tensors.

/// A module for `#[serde(with)]`: an array as a struct whose fields are the names of its places; those with a default
/// may be left out, as reports of older versions do.
macro_rules! keyed {
    ($module:ident, $object:ident, $count:literal, $($(#[$attribute:meta])* $name:ident)+) => {
        #[doc = concat!("Arrays as [`", stringify!($object), "`](", stringify!($module), "::", stringify!($object), ").")]
        pub mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            /// The array's places by name.
            #[derive(Debug, Serialize, Deserialize)]
            #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
            pub struct $object<T: Default> {
                $(#[allow(missing_docs, reason = "its name says it")] $(#[$attribute])* pub $name: T),+
            }

            /// Writes an array as an object.
            pub fn serialize<T: Serialize + Default + Copy, S: Serializer>(array: &[T; $count], to: S) -> Result<S::Ok, S::Error> {
                let [$($name),+] = *array;
                $object { $($name),+ }.serialize(to)
            }

            /// Reads an object as an array.
            pub fn deserialize<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(from: D) -> Result<[T; $count], D::Error> {
                let $object { $($name),+ } = $object::deserialize(from)?;
                Ok([$($name),+])
            }
        }
    };
}

keyed!(by_part, Parts, 6, compute communication #[serde(default)] bubble memory host idle);
keyed!(by_class, Classes, 5, weights gradients optimizer activations temporary);
