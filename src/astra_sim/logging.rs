//! The logging configuration: its format is checked, but it has no effect.
//!
//! If a run writes a log, it does so as ASTRA-sim does without a logging configuration.

use super::error::{InputError, MisleadingValidInputNote, shorten_to_one_line};

/// Checks a logging file, which is TOML. `file` is the file's name in errors. Returns a note that the
/// file has no effect.
///
/// # Errors
///
/// Fails if `text` is not TOML.
pub fn check_logging_file_and_note_no_effect(
    text: &str,
    file: &str,
) -> Result<MisleadingValidInputNote, InputError> {
    match toml::de::DeTable::parse(text) {
        Ok(_) => Ok(MisleadingValidInputNote::about_flag(
            "--logging-configuration",
            "has no effect: either no log is written, or the log is written without this file",
        )),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
            Err(InputError::Syntax {
                file: file.to_owned(),
                line: 1 + before.iter().filter(|&&byte| byte == b'\n').count(),
                format: "TOML",
                why: shorten_to_one_line(error.message()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toml_logging_file_is_noted_and_any_other_refused() {
        let text = "[[sink]]\nname = \"file\"\ntype = \"rotating_file_sink_mt\"\n";
        let note = check_logging_file_and_note_no_effect(text, "l")
            .unwrap()
            .to_string();
        assert_eq!(
            note,
            "command line: `--logging-configuration`: has no effect: either no log is written, or \
             the log is written without this file"
        );
        let error = check_logging_file_and_note_no_effect("a = 1\n{", "l")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("l:2: not TOML: "), "{error}");
    }
}
