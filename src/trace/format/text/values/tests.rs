//! Round trips of values of every type.

use super::*;

#[test]
fn value_kinds_map_to_field_numbers_and_json_keys() {
    for (i, (kind, name)) in ALL.iter().enumerate() {
        assert_eq!(*kind as usize, i);
        assert_eq!(
            AttributeValueType::kind_and_list_flag_of_field(kind.scalar_field_number()),
            Some((*kind, false))
        );
        assert_eq!(
            AttributeValueType::kind_and_list_flag_of_field(kind.scalar_field_number() + 1),
            Some((*kind, true))
        );
        for (end, list) in [
            ("_val", false),
            ("Val", false),
            ("_list", true),
            ("List", true),
        ] {
            assert_eq!(
                AttributeValueType::kind_and_list_flag_of_key(&format!("{name}{end}")),
                Some((*kind, list))
            );
        }
    }
    // Values have the field numbers 3 to 32; 32 is the last list.
    assert_eq!(AttributeValueType::kind_and_list_flag_of_field(2), None);
    assert_eq!(AttributeValueType::kind_and_list_flag_of_field(33), None);
    assert_eq!(
        AttributeValueType::kind_and_list_flag_of_key("values"),
        None
    );
    assert_eq!(AttributeValueType::kind_and_list_flag_of_key("Val"), None);
}

#[test]
fn reals_keep_every_bit() {
    for bits in [
        0,
        1 << 63,
        1,
        0x7fef_ffff_ffff_ffff,
        0x3fb9_9999_9999_999a,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        NAN,
        NAN | 1 << 63,
        0x7ff0_0000_0000_0001,
    ] {
        let mut out = Vec::new();
        assert!(AttributeValueType::Double.put_json(&mut out, WireValue::Fixed64(bits)));
        let mut back = Vec::new();
        AttributeValueType::Double
            .parse_and_append_value(&mut JsonCursor::new(&out, (1, 1)), &mut back)
            .unwrap();
        assert_eq!(
            back,
            bits.to_le_bytes(),
            "{}",
            String::from_utf8_lossy(&out)
        );
    }
    for bits in [
        0,
        1 << 31,
        1,
        0x7f7f_ffff,
        0x3dcc_cccd,
        0x7f80_0000,
        NAN_32,
        0x7f80_0001,
    ] {
        let mut out = Vec::new();
        assert!(AttributeValueType::Float.put_json(&mut out, WireValue::Fixed32(bits)));
        let mut back = Vec::new();
        AttributeValueType::Float
            .parse_and_append_value(&mut JsonCursor::new(&out, (1, 1)), &mut back)
            .unwrap();
        assert_eq!(
            back,
            bits.to_le_bytes(),
            "{}",
            String::from_utf8_lossy(&out)
        );
    }
}

#[test]
fn what_a_type_cannot_hold_is_refused() {
    for (kind, bad) in [
        (AttributeValueType::Int32, "2147483648"),
        (AttributeValueType::Uint32, "-1"),
        (AttributeValueType::Uint64, "18446744073709551616"),
        (AttributeValueType::Int64, "1.5"),
        (AttributeValueType::Int64, "\"\""),
        (AttributeValueType::Double, "1e999"),
        (AttributeValueType::Double, "\"inf\""),
        (AttributeValueType::Double, "\"NaN(0x0)\""),
        (AttributeValueType::Float, "1e39"),
        (AttributeValueType::Bool, "1"),
        (AttributeValueType::String, "1"),
        (AttributeValueType::Bytes, "\"*\""),
        (AttributeValueType::Int64, "[]"),
    ] {
        let read = kind.parse_and_append_value(
            &mut JsonCursor::new(bad.as_bytes(), (1, 1)),
            &mut Vec::new(),
        );
        let error = read.unwrap_err().to_string();
        assert!(error.contains(kind.name()), "{bad}: {error}");
    }
    // A whole number may be written as a real if the real equals it exactly.
    let mut out = Vec::new();
    AttributeValueType::Int64
        .parse_and_append_value(&mut JsonCursor::new(b"1e3", (1, 1)), &mut out)
        .unwrap();
    assert_eq!(out, [0xe8, 7]);
}
