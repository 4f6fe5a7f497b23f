//! Tests that the library names no command-line option: its messages contain keys of settings
//! (`chakram_base::setting`), and `src/cli` registers the flags.

use proc_macro2::{TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemFn, ItemMod, LitStr, Macro};

/// ASTRA-sim's own flags occur in its inputs.
const ASTRA_SIM: [&str; 6] = [
    "--comm-scale",
    "--compute-scale",
    "--injection-scale",
    "--logging-configuration",
    "--logging-folder",
    "--num-queues-per-dim",
];

/// Collects string literals outside unit tests that name options.
#[derive(Default)]
struct OptionLiteralCollector(Vec<(usize, String)>);

impl OptionLiteralCollector {
    fn collect_option_literal(&mut self, literal: &LitStr) {
        let text = literal.value();
        let names = text.match_indices("--").any(|(at, _)| {
            let after = text[at + 2..].bytes().next();
            after.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'{')
                && !text[..at].ends_with('-')
        });
        if names && !ASTRA_SIM.contains(&&*text) {
            self.0.push((literal.span().start().line, text));
        }
    }

    /// Checks the arguments of macros, which are not parsed.
    fn collect_options_in_macro_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.collect_options_in_macro_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Ok(literal) = syn::parse2(TokenTree::from(literal).into()) {
                        self.collect_option_literal(&literal);
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.parse_args::<syn::Path>();
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && condition.is_ok_and(|path| path.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for OptionLiteralCollector {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // Documentation may name a setting's flag, but error messages may not.
        if let (false, Ok(list)) = (
            attribute.path().is_ident("doc"),
            attribute.meta.require_list(),
        ) {
            self.collect_options_in_macro_tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.collect_options_in_macro_tokens(call.tokens.clone());
    }

    fn visit_lit_str(&mut self, literal: &'ast LitStr) {
        self.collect_option_literal(literal);
    }
}

/// Returns the literals of `source` that name options, with their lines.
fn option_names(source: &str) -> Vec<(usize, String)> {
    let mut finder = OptionLiteralCollector::default();
    finder.visit_file(&syn::parse_file(source).expect("the source is valid"));
    finder.0
}

/// Collects the source files under `folder`, except unit tests.
fn collect_sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            collect_sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn the_library_names_no_option_of_the_command_line() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect_sources(&root.join("src"), &mut files);
    collect_sources(&root.join("converters"), &mut files);
    files.retain(|path| !path.starts_with(root.join("src/cli")));
    assert!(files.len() > 300, "{} files", files.len());
    files.sort();
    let mut wrong = String::new();
    for path in files {
        for (line, text) in option_names(&std::fs::read_to_string(&path).unwrap()) {
            wrong += &format!("{}:{line}: {text:?}\n", path.display());
        }
    }
    assert!(
        wrong.is_empty(),
        "these literals name options; use chakram_base::setting::SettingKey:\n{wrong}"
    );
}

#[test]
fn options_are_found_in_literals_macros_and_attributes_but_not_in_tests() {
    let source = r#"
        //! `--outer` in documentation.
        const HINT: &str = "pass --groups FILE";
        #[error("try: {0} or --absent mirror")]
        struct Missing(u32);
        fn flag(name: &str) -> String {
            vec![format!("--{name}"), format!("---- a -- b"), "--comm-scale".to_owned()].concat()
        }
        #[cfg(test)]
        mod tests {
            const ARGS: [&str; 1] = ["--quiet"];
        }
    "#;
    let found: Vec<_> = option_names(source)
        .into_iter()
        .map(|(line, _)| line)
        .collect();
    assert_eq!(found, [3, 4, 7]);
}
