//! Tests which JSON texts the parser accepts and which it rejects.

use super::*;

fn create_json_cursor(text: &str) -> JsonCursor<'_> {
    JsonCursor::new(text.as_bytes(), (1, 1))
}

#[test]
fn json_strings_with_any_characters_are_read_back() {
    for text in [
        "",
        "é\u{1f600}",
        "\"\\/\n\r\t\u{8}\u{c}\u{0}\u{1f}\u{7f}",
        "\u{2028}",
    ] {
        let mut out = Vec::new();
        put_string(&mut out, text);
        assert_eq!(JsonCursor::new(&out, (1, 1)).parse_string().unwrap(), text);
        // `serde_json` reads the same text.
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
    }
    assert_eq!(
        create_json_cursor(r#""\ud83d\ude00\u00e9""#)
            .parse_string()
            .unwrap(),
        "\u{1f600}é"
    );
    for bad in [
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\u12g4""#,
        r#""\x""#,
        "\"\n\"",
        "\"abc",
    ] {
        assert!(create_json_cursor(bad).parse_string().is_err(), "{bad}");
    }
}

#[test]
fn numbers_are_kept_as_they_are_written() {
    for text in ["0", "-0", "18446744073709551616", "1.50", "1e-7", "-2E+30"] {
        assert_eq!(
            create_json_cursor(text).parse_scalar().unwrap(),
            JsonScalarOrContainerStart::Number(text)
        );
    }
    for bad in ["01", "-", "1.", ".5", "1e", "+1", "--1", "Infinity"] {
        let read = create_json_cursor(bad).parse_scalar();
        assert!(read.is_err(), "{bad}: {read:?}");
    }
}

#[test]
fn errors_know_their_line_and_column() {
    // Columns count characters, so `é` takes one column. The value of `b` is invalid.
    let mut json = create_json_cursor("{\n  \"é\": 1, \"b\": x }");
    let error = json.skip_value().unwrap_err().to_string();
    assert!(
        error.contains("line 2, column 16: found `x`, expected a value"),
        "{error}"
    );
}

#[test]
fn nesting_beyond_200_is_refused_without_stack_overflow() {
    let deep = "[".repeat(1_000_000);
    let error = create_json_cursor(&deep)
        .skip_value()
        .unwrap_err()
        .to_string();
    assert!(error.contains("nested more than 200"), "{error}");
    create_json_cursor(&format!("{}{}", "[".repeat(200), "]".repeat(200)))
        .skip_value()
        .unwrap();
    create_json_cursor(r#"{"a": [{}, [], {"b": [1, 2]}], "c": {}}"#)
        .skip_value()
        .unwrap();
    for bad in ["{\"a\" 1}", "[1,]", "{\"a\":1,}", "[1 2]", "{,}", "[}"] {
        assert!(create_json_cursor(bad).skip_value().is_err(), "{bad}");
    }
}
