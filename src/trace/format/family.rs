//! Removes step, layer and micro-batch numbers from operator names.

use std::borrow::Cow;

/// Appends `name` to `family`, but with `*` in place of the numbers in its parts: `step3/layer2/norm` becomes
/// `step*/layer*/norm`. A part ends with `/` or `.`. Only parts that consist of a word and a number change.
pub fn append_name_family(name: &str, family: &mut String) {
    let bytes = name.as_bytes();
    let mut from = 0;
    for end in (0..bytes.len()).filter(|&i| matches!(bytes[i], b'/' | b'.')) {
        let word = &bytes[from..end];
        let digits = word.iter().rev().take_while(|b| b.is_ascii_digit()).count();
        let (stem, _) = word.split_at(word.len() - digits);
        let plain = stem.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_');
        if digits > 0 && plain {
            family.push_str(&name[from..from + stem.len()]);
            family.push('*');
            from = end;
        }
        family.push_str(&name[from..=end]);
        from = end + 1;
    }
    // The last part is the operator itself and keeps its number.
    family.push_str(&name[from..]);
}

/// Returns an operator's name with `*` in place of the micro-batch's number: `mb17/layer2/norm` becomes
/// `mb*/layer2/norm`.
pub fn replace_micro_batch_number_by_star(name: &str) -> Cow<'_, str> {
    let rest = name.strip_prefix("mb").map(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest.split_at(digits)
    });
    match rest {
        Some((digits, rest)) if !digits.is_empty() && rest.starts_with('/') => {
            Cow::Owned(format!("mb*{rest}"))
        }
        _ => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn families_leave_out_numbers_of_steps_and_layers_only() {
        let family = |name| {
            let mut family = String::new();
            super::append_name_family(name, &mut family);
            family
        };
        assert_eq!(family("step0/layer31/bwd/qkv"), "step*/layer*/bwd/qkv");
        assert_eq!(family("layer31/mlp2"), "layer*/mlp2");
        assert_eq!(family("f12.3.qkv"), "f*.*.qkv");
        assert_eq!(
            family("cudnn_scudnn_128x64_relu"),
            "cudnn_scudnn_128x64_relu"
        );
        assert_eq!(family("aten::mm"), "aten::mm");
    }

    #[test]
    fn leading_micro_batch_numbers_become_stars() {
        let any = super::replace_micro_batch_number_by_star;
        assert_eq!(any("mb12/layer3/qkv"), "mb*/layer3/qkv");
        for other in ["mb/a", "mbx1/a", "mb1", "layer1/mb2/a", ""] {
            assert_eq!(any(other), other);
        }
        // Replacing the micro-batch's number first does not change the family.
        let family = |name: &str| {
            let mut family = String::new();
            super::append_name_family(name, &mut family);
            family
        };
        assert_eq!(family("mb12/layer3/qkv"), family(&any("mb12/layer3/qkv")));
    }
}
