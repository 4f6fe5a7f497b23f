//! Tests that the fields of the engine's components are private, that components use only the
//! components in this table, and that no component uses the loop.

use super::{collect_rust_files, repository_root};
use syn::{Fields, Item, ItemStruct, Visibility};

/// Each component, with its type, its module, and the other modules whose types its methods may take.
const COMPONENTS: &[(&str, &str, &[&str])] = &[
    ("Dataflow", "dataflow", &[]),
    ("Processors", "processors", &["dataflow", "lanes"]),
    ("LanesOfAllNpus", "lanes", &["dataflow"]),
    ("AllProgramLaunches", "frames", &["dataflow", "lanes"]),
    ("RunningFeeds", "feeding", &[]),
    (
        "InstanceGroupsSimulatedAsOne",
        "tile_groups",
        &["dataflow", "lanes"],
    ),
    // A packed word that includes the node identifies an access.
    ("Fabric", "fabric", &["dataflow"]),
    ("Messages", "messages", &["dataflow", "fabric"]),
    ("Collectives", "collectives", &["dataflow", "fabric"]),
];

/// Returns the engine's module to which a file belongs.
fn engine_module_of_file(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Returns the violations in a component's struct. If the struct is not a component, the list is empty.
fn find_component_struct_violations(of: &ItemStruct, module: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = of.ident.to_string();
    let (Fields::Named(fields), Some(component)) =
        (&of.fields, COMPONENTS.iter().find(|(own, ..)| *own == name))
    else {
        return faults;
    };
    if component.1 != module {
        faults.push(format!("{name} is in {module}, not in {}", component.1));
    }
    for field in &fields.named {
        if !matches!(field.vis, Visibility::Inherited) {
            let field = field.ident.as_ref().map(ToString::to_string);
            faults.push(format!(
                "{name}: {} is not private",
                field.unwrap_or_default()
            ));
        }
    }
    faults
}

/// Returns the violations in a file of the engine. The file is given by its path under
/// `src/engine/`.
fn find_component_violations(file: &str, source: &str) -> Vec<String> {
    let module = engine_module_of_file(file);
    let parsed = syn::parse_file(source).expect("it compiles");
    let mut faults = Vec::new();
    for item in &parsed.items {
        if let Item::Struct(of) = item {
            faults.extend(find_component_struct_violations(of, module));
        }
    }
    if let Some((name, _, known)) = COMPONENTS.iter().find(|(_, own, _)| *own == module) {
        let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or(source);
        if !file.contains("tests") && source.contains("Engine<") {
            faults.push(format!("{name} knows the loop"));
        }
        for (_, other, _) in COMPONENTS {
            let is_named = ["super::", "crate::"].iter().any(|from| {
                let path = format!("{from}{other}::");
                source.contains(&path)
            });
            if is_named && other != &module && !known.contains(other) {
                faults.push(format!("{name} names what is of `{other}`"));
            }
        }
    }
    let of_file = |fault: String| format!("src/engine/{file}: {fault}");
    faults.into_iter().map(of_file).collect()
}

#[test]
fn components_own_their_state_and_know_what_the_table_says() {
    let root = repository_root().join("src/engine");
    let mut files = Vec::new();
    collect_rust_files(&root, &mut files);
    files.sort();
    let mut faults = Vec::new();
    let mut found = 0;
    for path in files {
        let name = path.strip_prefix(&root).expect("it was found there");
        let name = name.to_str().expect("names are text").replace('\\', "/");
        let source = std::fs::read_to_string(&path).expect("a source can be read");
        found += COMPONENTS
            .iter()
            .filter(|(own, ..)| source.contains(&format!("struct {own}")))
            .count();
        faults.extend(find_component_violations(&name, &source));
    }
    assert!(found >= COMPONENTS.len(), "{found} components");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn components_with_public_fields_or_forbidden_names_are_reported() {
    let faults = |file, source| find_component_violations(file, source).join("; ");
    assert_eq!(faults("messages.rs", "struct Messages { pairs: u8 }"), "");
    let open = faults("messages.rs", "struct Messages { pub(super) pairs: u8 }");
    assert!(open.contains("pairs is not private"), "{open}");
    let named = faults("dataflow.rs", "use super::collectives::Collectives;");
    assert!(named.contains("names what is of `collectives`"), "{named}");
    let knows = faults("fabric/x.rs", "fn f(engine: &Engine<u8>) {}");
    assert!(knows.contains("Fabric knows the loop"), "{knows}");
}
