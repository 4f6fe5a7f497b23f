//! Tests that sibling modules do not import one another in a cycle, in any crate and at any depth.
//!
//! A module includes all modules below it. A child may name its parent, and a parent may name its
//! child. A name that the parent re-exports from another child counts as a name of that child.

use super::paths::{self, FileOrInlineModule, ModulesOfOneFile};
use super::{MEMBERS, SOURCES};
use std::collections::{BTreeMap, BTreeSet};

/// The modules of a crate, by path from the crate's root, each with its file.
#[derive(Default)]
struct CrateModules<'a> {
    modules: BTreeMap<Vec<String>, (&'a str, &'a FileOrInlineModule)>,
}

/// Imports between siblings, by parent module, then by importing child, and then by imported child. For each import,
/// one place in the code is kept as an example.
type SiblingImportsByParent = BTreeMap<Vec<String>, ImportsBetweenSiblings>;
type ImportsBetweenSiblings = BTreeMap<String, BTreeMap<String, String>>;

/// Returns all children that `from` imports, directly or indirectly.
fn find_transitively_imported_siblings<'a>(
    siblings: &'a ImportsBetweenSiblings,
    from: &'a String,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(child) = pending.pop() {
        let named = siblings.get(child).into_iter().flat_map(BTreeMap::keys);
        pending.extend(named.filter(|named| reached.insert(*named)));
    }
    reached
}

impl<'a> CrateModules<'a> {
    /// Adds the module `at` and all modules below it, for the crate whose `lib.rs` is in `folder`.
    fn add_module_and_submodules(
        &mut self,
        sources: &'a BTreeMap<String, ModulesOfOneFile>,
        folder: &str,
        at: &[String],
    ) {
        let stem = if at.is_empty() {
            "lib".to_owned()
        } else {
            at.join("/")
        };
        let name = format!("{folder}{stem}.rs");
        let (file, modules) = sources.get_key_value(&name).expect(&name);
        for (inside, module) in modules {
            let own = [at, inside].concat();
            self.modules.insert(own.clone(), (file, module));
            for below in &module.files {
                self.add_module_and_submodules(
                    sources,
                    folder,
                    &[&own[..], std::slice::from_ref(below)].concat(),
                );
            }
        }
    }

    /// Resolves a path from module `at`, and adds each module along the path to `through`. Returns
    /// the module at the end of the path, if the path names a module.
    fn resolve_module_path(
        &self,
        at: &[String],
        names: &[String],
        through: &mut BTreeSet<Vec<String>>,
        depth: usize,
    ) -> Option<Vec<String>> {
        // Stops at a path such as `use toml;`, which names itself.
        if depth > 20 {
            return None;
        }
        let mut here = at.to_vec();
        let mut is_first = true;
        for name in names {
            match name.as_str() {
                "crate" if is_first => here.clear(),
                "self" if is_first => {}
                "super" => {
                    here.pop();
                }
                _ => {
                    here = self.resolve_name_in_module(&here, name, through, depth)?;
                    through.insert(here.clone());
                }
            }
            is_first = false;
        }
        Some(here)
    }

    /// Resolves `name` in module `here` to a module.
    fn resolve_name_in_module(
        &self,
        here: &[String],
        name: &String,
        through: &mut BTreeSet<Vec<String>>,
        depth: usize,
    ) -> Option<Vec<String>> {
        let child = [here, std::slice::from_ref(name)].concat();
        if self.modules.contains_key(&child) {
            return Some(child);
        }
        let (_, module) = self.modules.get(here)?;
        if let Some(path) = module.imports.get(name) {
            return self.resolve_module_path(here, path, through, depth + 1);
        }
        for glob in &module.globs {
            let mut beyond = BTreeSet::new();
            if let Some(whole) = self.resolve_module_path(here, glob, &mut beyond, depth + 1)
                && self.is_module_or_import(&whole, name)
            {
                through.extend(beyond);
                return self.resolve_name_in_module(&whole, name, through, depth + 1);
            }
        }
        None
    }

    /// Returns `true` if `name` in module `here` is a module or an import. Other items of a module
    /// do not lead to another module.
    fn is_module_or_import(&self, here: &[String], name: &String) -> bool {
        let child = [here, std::slice::from_ref(name)].concat();
        let imports = self
            .modules
            .get(here)
            .is_some_and(|(_, module)| module.imports.contains_key(name));
        imports || self.modules.contains_key(&child)
    }

    fn list_sibling_imports_by_parent(&self) -> SiblingImportsByParent {
        let mut arrows = SiblingImportsByParent::new();
        for (at, (file, module)) in &self.modules {
            for path in module.paths.iter().filter(|path| !path.is_test) {
                let mut through = BTreeSet::new();
                // A variable may have the same name as a module.
                let name = &path.names[0];
                let is_child = self
                    .modules
                    .contains_key(&[&at[..], std::slice::from_ref(name)].concat());
                if path.names.len() == 1 && !path.is_import && is_child {
                    continue;
                }
                self.resolve_module_path(at, &path.names, &mut through, 0);
                for to in through {
                    let common = at.iter().zip(&to).take_while(|(a, b)| a == b).count();
                    if common < at.len() && common < to.len() {
                        arrows
                            .entry(at[..common].to_vec())
                            .or_default()
                            .entry(at[common].clone())
                            .or_default()
                            .entry(to[common].clone())
                            .or_insert_with(|| {
                                format!("{file}:{}: {}", path.line, path.names.join("::"))
                            });
                    }
                }
            }
        }
        arrows
    }

    /// Finds the cycles among the children of each module, with a place for each import in a cycle.
    fn find_sibling_import_cycles(&self) -> Vec<SiblingModuleCycle> {
        let mut circles = Vec::new();
        for (parent, children) in self.list_sibling_imports_by_parent() {
            let mut seen = BTreeSet::new();
            for child in children.keys() {
                let from = find_transitively_imported_siblings(&children, child);
                if !from.contains(child) || !seen.insert(child) {
                    continue;
                }
                let mutual = |other: &&&String| {
                    find_transitively_imported_siblings(&children, other).contains(child)
                };
                let members: BTreeSet<&String> = from.iter().filter(mutual).copied().collect();
                seen.extend(&members);
                let mut places = Vec::new();
                for member in &members {
                    for (to, place) in &children[*member] {
                        if members.contains(to) {
                            places.push(format!("{member} -> {to}: {place}"));
                        }
                    }
                }
                let modules = members.into_iter().cloned().collect();
                circles.push(SiblingModuleCycle {
                    parent: parent.clone(),
                    modules,
                    places,
                });
            }
        }
        circles
    }
}

/// A cycle of sibling modules.
struct SiblingModuleCycle {
    parent: Vec<String>,
    modules: Vec<String>,
    places: Vec<String>,
}

/// Modules whose children may form cycles, each with the crate's folder and the module's path in
/// the crate.
const EXCEPTIONS: &[(&str, &str)] = &[
    // One table defines how each attribute is read into an op or a view, and how it is written, so readers and writers
    // share it.
    ("src/trace", "format"),
    // Components pass on `Effects`, which lists notifications for every component and for the observer. A plan is
    // checked by files that read it.
    ("src/engine", ""),
    // A run owns the rehearsal, which replays it in isolation.
    ("src/engine", "collectives"),
];

#[test]
fn no_modules_import_one_another_in_a_circle() {
    let mut faults = Vec::new();
    let mut excused = BTreeSet::new();
    let mut modules = 0;
    for member in MEMBERS {
        let mut tree = CrateModules::default();
        tree.add_module_and_submodules(&SOURCES, &format!("{}/", member.folder), &[]);
        modules += tree.modules.len();
        for circle in tree.find_sibling_import_cycles() {
            let parent = circle.parent.join("/");
            if EXCEPTIONS.contains(&(member.folder, &parent)) {
                excused.insert((member.folder, parent));
                continue;
            }
            let (names, places) = (circle.modules.join(" "), circle.places.join("\n    "));
            faults.push(format!("{} {parent}: {names}\n    {places}", member.folder));
        }
    }
    assert!(modules > 500, "{modules} modules");
    assert_eq!(excused.len(), EXCEPTIONS.len(), "{excused:?} are needed");
    assert!(
        faults.is_empty(),
        "{} circles\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Returns the cycles in a crate that consists of these files.
fn find_import_cycles_of_sources(files: &[(&str, &str)]) -> Vec<String> {
    let parsed = files.iter().map(|(name, source)| {
        let modules = paths::parse_modules_and_paths_used_in_them(source).expect("it is Rust");
        ((*name).to_owned(), modules)
    });
    let parsed = parsed.collect();
    let mut tree = CrateModules::default();
    tree.add_module_and_submodules(&parsed, "", &[]);
    let circles = tree.find_sibling_import_cycles();
    circles.iter().map(|c| c.modules.join(" ")).collect()
}

#[test]
fn import_cycles_are_found_for_every_form_of_import() {
    let none: [&str; 0] = [];
    let b = ("b.rs", "use super::a::A; pub struct B;");
    let two = |a| find_import_cycles_of_sources(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), b]);
    assert_eq!(two("pub struct A;"), none);
    for a in [
        "use super::b::B;",
        "use {crate::{b::{self as other}}};",
        "fn f() { super::b::g() }",
        "fn f() { println!(\"{}\", crate::b::N) }",
        "mod inside { use super::super::b::B; }",
        "use crate::*; fn f() { b::g() }",
        "impl crate::b::T for A {}",
    ] {
        assert_eq!(two(a), ["a b"], "{a}");
    }
    assert_eq!(two("#[cfg(test)] mod tests { use crate::b::B; }"), none);
    assert_eq!(two("pub(in crate::b) struct A;"), none);
    // A name that the parent re-exports counts as a name of the child that declares it.
    let again = |root, a| find_import_cycles_of_sources(&[("lib.rs", root), ("a.rs", a), b]);
    let root = "mod a; mod b; pub use b::B; use b as other;";
    for a in [
        "use super::B;",
        "use crate::other::B;",
        "use super::*; fn f(b: B) {}",
    ] {
        assert_eq!(again(root, a), ["a b"], "{a}");
    }
    // A parent and its child may name each other.
    let child = ("a/c.rs", "use super::A; use super::super::R;");
    let parent = ("a.rs", "mod c; pub use c::C; pub struct A;");
    let root = ("lib.rs", "mod a; pub use a::C; pub struct R;");
    assert_eq!(find_import_cycles_of_sources(&[root, parent, child]), none);
    // A module includes all modules below it, and cycles are found at every depth.
    let deep = [
        (
            "lib.rs",
            "mod a; mod b; mod c { mod d { use super::e::E; } mod e { use super::d::D; } }",
        ),
        ("a.rs", "mod inner;"),
        ("a/inner.rs", "use crate::b::B;"),
        ("b.rs", "mod inner;"),
        ("b/inner.rs", "use crate::a::A;"),
    ];
    assert_eq!(find_import_cycles_of_sources(&deep), ["a b", "d e"]);
}
