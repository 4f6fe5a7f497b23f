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
