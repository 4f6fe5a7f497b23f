//! Finds paths in a source file, and names that its modules declare.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

/// A path as written in the source.
#[derive(Debug)]
pub struct ItemPathInSource {
    pub line: usize,
    pub names: Vec<String>,
    /// `true` inside a `use`, where a single name is also a path.
    pub is_import: bool,
    /// `true` inside a unit test.
    pub is_test: bool,
}

/// A module of a file: the file itself, or an inline module of it.
#[derive(Debug, Default)]
pub struct FileOrInlineModule {
    /// Imports, by local name, with the full path.
    pub imports: BTreeMap<String, Vec<String>>,
    /// Paths of glob imports.
    pub globs: Vec<Vec<String>>,
    /// Modules that are declared with a semicolon outside unit tests, and have files of their own.
    pub files: Vec<String>,
    pub paths: Vec<ItemPathInSource>,
}

/// The modules of a file, by path within the file. The file itself has the empty path.
pub type ModulesOfOneFile = BTreeMap<Vec<String>, FileOrInlineModule>;

/// Finds the modules of `source`, and the paths in each module.
pub fn parse_modules_and_paths_used_in_them(source: &str) -> Result<ModulesOfOneFile, syn::Error> {
    let mut finder = ModulesInFileCollector {
        at: Vec::new(),
        is_test: false,
        depth: 0,
        found: ModulesOfOneFile::from([(Vec::new(), FileOrInlineModule::default())]),
    };
    finder.visit_file(&syn::parse_file(source)?);
    Ok(finder.found)
}

struct ModulesInFileCollector {
    at: Vec<String>,
    is_test: bool,
    /// Nesting depth of the current item within its module. Imports inside functions declare no
    /// names in the module.
    depth: usize,
    found: ModulesOfOneFile,
}

impl ModulesInFileCollector {
    fn current_module(&mut self) -> &mut FileOrInlineModule {
        self.found.entry(self.at.clone()).or_default()
    }

    fn record_path(&mut self, names: &[Ident], is_import: bool) {
        let Some(first) = names.first() else { return };
        let found = ItemPathInSource {
            line: first.span().start().line,
            names: names.iter().map(Ident::to_string).collect(),
            is_import,
            is_test: self.is_test,
        };
        self.current_module().paths.push(found);
    }

    fn record_use_tree(&mut self, tree: &UseTree, before: &mut Vec<Ident>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.clone());
                self.record_use_tree(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) => self.record_imported_name(&name.ident, &name.ident, before),
            UseTree::Rename(rename) => {
                self.record_imported_name(&rename.ident, &rename.rename, before)
            }
            UseTree::Glob(_) => {
                self.record_path(before, true);
                if self.depth == 1 && !self.is_test {
                    let path = before.iter().map(Ident::to_string).collect();
                    self.current_module().globs.push(path);
                }
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.record_use_tree(tree, before);
                }
            }
        }
    }

    fn record_imported_name(&mut self, name: &Ident, known_as: &Ident, before: &mut Vec<Ident>) {
        let is_itself = name == "self";
        if !is_itself {
            before.push(name.clone());
        }
        self.record_path(before, true);
        let same = if is_itself && known_as == "self" {
            before.last().map(Ident::to_string)
        } else {
            Some(known_as.to_string())
        };
        if self.depth == 1
            && !self.is_test
            && let Some(known_as) = same
        {
            let path = before.iter().map(Ident::to_string).collect();
            self.current_module().imports.insert(known_as, path);
        }
        if !is_itself {
            before.pop();
        }
    }

    /// Paths in unparsed tokens, such as arguments of macros and attributes.
    fn record_paths_in_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<Ident> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.record_path(&std::mem::take(&mut path), false);
                    }
                    path.push(name);
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.record_path(&std::mem::take(&mut path), false);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.record_paths_in_tokens(group.stream());
                    }
                }
            }
        }
        self.record_path(&path, false);
    }
}

impl<'ast> Visit<'ast> for ModulesInFileCollector {
    fn visit_item(&mut self, item: &'ast Item) {
        let before = self.is_test;
        self.is_test |= item_attributes(item).iter().any(is_cfg_test_attribute);
        self.depth += 1;
        visit::visit_item(self, item);
        self.depth -= 1;
        self.is_test = before;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.record_use_tree(&item.tree, &mut Vec::new());
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let name = item.ident.to_string();
        if item.content.is_none() {
            if !self.is_test {
                self.current_module().files.push(name);
            }
            return;
        }
        let depth = std::mem::take(&mut self.depth);
        self.at.push(name);
        self.current_module();
        visit::visit_item_mod(self, item);
        self.at.pop();
        self.depth = depth;
    }

    /// `pub(in path)` and `pub(super)` restrict visibility, so they do not count as uses.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<Ident> = path.segments.iter().map(|s| s.ident.clone()).collect();
        self.record_path(&names, false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.record_paths_in_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.visit_path(attribute.path());
        if let syn::Meta::List(list) = &attribute.meta {
            self.record_paths_in_tokens(list.tokens.clone());
        }
    }
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_cfg_test_attribute(attribute: &Attribute) -> bool {
    let inner = attribute.parse_args::<Ident>();
    attribute.path().is_ident("cfg") && inner.is_ok_and(|name| name == "test")
}
