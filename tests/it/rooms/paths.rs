//! Finds the paths in a source file and where they lead.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ItemMod, ItemUse, Macro, UseTree};

/// A path that leads out of its module.
#[derive(Debug)]
pub struct Reference {
    pub line: usize,
    /// The room it leads to, if it leads into the crate.
    pub room: Option<String>,
    /// The package it names, if it names one.
    pub package: Option<String>,
    /// Whether it stands in a unit test.
    pub test: bool,
}

/// Every path in `file`, given as its path under `src/`, that leads to a room or to one of
/// `packages`, in the order of the source.
pub fn references(file: &str, source: &str, packages: &[&str]) -> Vec<Reference> {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    let mut module: Vec<String> = stem.split('/').map(str::to_owned).collect();
    if file == "lib.rs" || file == "main.rs" {
        module.clear();
    }
    let test = module.last().is_some_and(|name| name == "tests");
    let mut finder = Finder {
        module,
        test,
        packages,
        found: Vec::new(),
    };
    let parsed = syn::parse_file(source).unwrap_or_else(|e| panic!("{file}: {e}"));
    finder.visit_file(&parsed);
    finder.found
}

struct Finder<'a> {
    /// Where the code stands: names from the crate's root.
    module: Vec<String>,
    test: bool,
    packages: &'a [&'a str],
    found: Vec<Reference>,
}

impl Finder<'_> {
    /// A path that begins with these names; `import` when it is one of a `use`, which may be a name
    /// alone.
    fn path(&mut self, names: &[Ident], import: bool) {
        let Some(first) = names.first() else { return };
        let (line, text) = (first.span().start().line, first.to_string());
        let mut at = self.module.clone();
        let mut rest = names;
        match text.as_str() {
            "crate" | "chakram" => {
                at.clear();
                rest = &names[1..];
            }
            "self" | "super" => {
                while let Some((name, more)) = rest.split_first() {
                    if name == "super" {
                        at.pop();
                    } else if name != "self" {
                        break;
                    }
                    rest = more;
                }
            }
            name => {
                if self.packages.contains(&name) && (import || names.len() > 1) {
                    self.push(line, None, Some(text));
                }
                return;
            }
        }
        let room = at
            .into_iter()
            .chain(rest.iter().map(Ident::to_string))
            .next();
        self.push(line, room, None);
    }

    fn push(&mut self, line: usize, room: Option<String>, package: Option<String>) {
        // A glob over the root's own names leads nowhere in particular.
        if room.is_some() || package.is_some() {
            let test = self.test;
            self.found.push(Reference {
                line,
                room,
                package,
                test,
            });
        }
    }

    fn import(&mut self, tree: &UseTree, before: &mut Vec<Ident>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.clone());
                self.import(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) => self.leaf(&name.ident, before),
            UseTree::Rename(rename) => self.leaf(&rename.ident, before),
            UseTree::Glob(_) => self.path(before, true),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before);
                }
            }
        }
    }

    fn leaf(&mut self, name: &Ident, before: &mut Vec<Ident>) {
        before.push(name.clone());
        self.path(before, true);
        before.pop();
    }

    /// Paths among tokens that are not parsed: arguments of macros and attributes.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<Ident> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.path(&std::mem::take(&mut path), false);
                    }
                    path.push(name);
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.path(&std::mem::take(&mut path), false);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.path(&path, false);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let before = self.test;
        self.test |= item.attrs.iter().any(is_test);
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
        self.test = before;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<Ident> = path.segments.iter().map(|s| s.ident.clone()).collect();
        self.path(&names, false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.visit_path(attribute.path());
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }
}

fn is_test(attribute: &Attribute) -> bool {
    let inner = attribute.parse_args::<Ident>();
    attribute.path().is_ident("cfg") && inner.is_ok_and(|name| name == "test")
}
