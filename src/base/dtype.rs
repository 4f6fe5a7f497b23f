//! Number formats of kernels. Machines state a peak rate for each format.

use std::fmt;

/// A number format in which NPUs compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE double precision.
    Fp64,
    /// IEEE single precision.
    Fp32,
    /// 19-bit format of tensor cores, which is stored as single precision.
    Tf32,
    /// IEEE half precision.
    Fp16,
    /// Brain float, with an exponent of 8 bits and a mantissa of 7 bits.
    Bf16,
    /// Eight-bit floats, E4M3 or E5M2.
    Fp8,
    /// Four-bit floats with block scales.
    Fp4,
    /// Eight-bit integers.
    Int8,
}

impl Dtype {
    /// Number of formats.
    pub const COUNT: usize = 8;

    /// All number formats with their names in files.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Fp64, "fp64"),
        (Self::Fp32, "fp32"),
        (Self::Tf32, "tf32"),
        (Self::Fp16, "fp16"),
        (Self::Bf16, "bf16"),
        (Self::Fp8, "fp8"),
        (Self::Fp4, "fp4"),
        (Self::Int8, "int8"),
    ];

    /// Returns the number of bytes per element, including the element's share of the scale of its block.
    pub fn element_bytes(self) -> f64 {
        match self {
            Self::Fp64 => 8.0,
            Self::Fp32 | Self::Tf32 => 4.0,
            Self::Fp16 | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
            // The format has a one-byte scale for each block of 16 numbers: 0.5 + 1/16.
            Self::Fp4 => 0.5625,
        }
    }

    /// Parses the name of a format as chakram or PyTorch spells it. Returns `None` for any other string.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some((dtype, _)) = Self::ALL.iter().find(|(_, known)| *known == name) {
            return Some(*dtype);
        }
        let name = name.strip_prefix("c10::").unwrap_or(name);
        Some(match name.to_ascii_lowercase().as_str() {
            "double" | "float64" => Self::Fp64,
            "float" | "float32" => Self::Fp32,
            "half" | "float16" => Self::Fp16,
            "bfloat16" => Self::Bf16,
            "float8_e4m3fn" | "float8_e5m2" | "float8_e4m3fnuz" | "float8_e5m2fnuz" => Self::Fp8,
            "float4_e2m1fn_x2" => Self::Fp4,
            "char" | "signed char" => Self::Int8,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_dtypes_list_is_in_enum_order() {
        for (i, (dtype, _)) in Dtype::ALL.iter().enumerate() {
            assert_eq!(*dtype as usize, i);
        }
    }

    #[test]
    fn pytorch_format_names_are_parsed() {
        assert_eq!(Dtype::from_name("c10::BFloat16"), Some(Dtype::Bf16));
        assert_eq!(Dtype::from_name("Half"), Some(Dtype::Fp16));
        assert_eq!(Dtype::from_name("quint8"), None);
    }
}
