//! Finds the invalid value in a plan file.

use super::ParallelismPlan;
use crate::generate::PatternOptionError;
use chakram_base::config::{ConfigDocument, ConfigError};

impl ParallelismPlan {
    /// Returns an error with key and line if the invalid value is in `text`, the contents of the plan file `file`.
    /// Returns `None` if an option replaced the file's value, because the file is then not the cause.
    pub fn locate_error(text: &str, file: &str, error: &PatternOptionError) -> Option<ConfigError> {
        let PatternOptionError::Refused {
            option,
            found,
            expected,
        } = error
        else {
            return None;
        };
        let document = ConfigDocument::parse(text, file).ok()?;
        let field = document.unchecked_root().get(option)?;
        // Error messages format a list without brackets and quotes, so ignore these.
        let plain = |c: &char| !matches!(c, '"' | '\'' | '[' | ']' | '_') && !c.is_whitespace();
        let bare = |text: &str| text.chars().filter(plain).collect::<String>();
        (bare(field.raw_text()) == bare(found)).then(|| field.invalid_value_error(found, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::refused_option_value_error;

    #[test]
    fn a_value_is_found_where_the_file_has_it() {
        let text = "data = 2\nbatch = 1_537\nplace = [\"tp@0\",\n  \"dp@1\"]\n";
        let at = |option, found| {
            let error = refused_option_value_error(option, found, "another");
            ParallelismPlan::locate_error(text, "p.toml", &error).map(|error| error.to_string())
        };
        let line = "p.toml:2: key `batch`: found 1537, expected another";
        assert_eq!(at("batch", "1537").as_deref(), Some(line));
        let line = "p.toml:3: key `place`: found tp@0,dp@1, expected another";
        assert_eq!(at("place", "tp@0,dp@1").as_deref(), Some(line));
        // The value 2 is from a flag: the file has no key `batch`.
        assert_eq!(at("batch", "2"), None);
        assert_eq!(at("tensor", "1"), None);
    }
}
