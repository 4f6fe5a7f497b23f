//! Pictures of a machine of tiles against the report.

use super::{args, json, makespan};
use crate::files::{Folder, text};
use serde_json::Value;

/// Every link and port of the report is in the picture with its time, and every core with its rank, stage and tensor group.
#[test]
fn the_map_shows_what_the_report_says() {
    let folder = Folder::new();
    let more = [
        "--place",
        "s_shape",
        "--residency",
        "corrected",
        "--tile-map",
        "map.svg",
    ];
    let report = json(&folder, &args("wafer-5x4", &more));
    let map = String::from_utf8(folder.read("map.svg")).unwrap();
    assert!(map.starts_with("<svg xmlns="));
    let of = |key: &str| report["tiles"][key].as_array().unwrap().clone();
    let (links, ports) = (of("links"), of("ports"));
    assert!(
        links.len() > 20 && ports.len() == 8,
        "{} {}",
        links.len(),
        ports.len()
    );
    let number = |value: &Value| value.as_u64().unwrap();
    let place = |value: &Value| format!("({}, {})", value[0], value[1]);
    let mark = |title: &str| {
        let at = map
            .find(&format!("<title>{title}"))
            .unwrap_or_else(|| panic!("{title}"));
        map[..at].rsplit('<').next().unwrap().to_owned()
    };
    for link in &links {
        let title = format!("link {} to {}: ", place(&link["from"]), place(&link["to"]));
        let busy = format!("data-busy=\"{}\"", number(&link["busy_ps"]));
        assert!(mark(&title).contains(&busy), "{title}");
    }
    for port in &ports {
        let title = format!("memory port at {}: ", place(&port["core"]));
        let busy = format!("data-busy=\"{}\"", number(&port["busy_ps"]));
        assert!(mark(&title).contains(&busy), "{title}");
    }
    assert_eq!(map.matches("data-busy").count(), links.len() + ports.len());
    // Rank r is of stage r / 8 and of tensor group r / 4 % 2; NPUs count the 20 columns of the wafer first.
    for row in report["npus"].as_array().unwrap() {
        let (rank, npu) = (number(&row["rank"]), number(&row["npu"]));
        let title = format!("core ({}, {}): ", npu % 20, npu / 20);
        let (stage, group) = (rank / 8, rank / 4 % 2);
        let data = format!("data-rank=\"{rank}\" data-stage=\"{stage}\" data-group=\"{group}\"");
        assert!(mark(&title).contains(&data), "{title}");
    }
    // Nothing is busy longer than the replay, and all of a mesh of 20 x 16 is 2 (19 x 16 + 15 x 20) links.
    let most = links
        .iter()
        .chain(&ports)
        .map(|one| number(&one["busy_ps"]))
        .max()
        .unwrap();
    assert!(most <= makespan(&report));
    assert_eq!(number(&report["tiles"]["links_of_machine"]), 1208);
    assert_eq!(number(&report["tiles"]["ports_of_machine"]), 80);
    let output = folder.run(&args("dgx-a100x4", &["--tile-map", "no.svg"]));
    assert!(
        text(&output.stderr).contains("has no tiles"),
        "{}",
        text(&output.stderr)
    );
    assert!(!folder.at("no.svg").exists());
}

/// The picture of the case in the book; `BLESS=1` draws it anew.
#[test]
fn the_book_shows_the_map_of_the_case() {
    let folder = Folder::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let case = root.join("traces/wafer-8");
    folder.ok(&["replay", case.to_str().unwrap(), "--tile-map", "map.svg"]);
    let (found, picture) = (folder.read("map.svg"), root.join("docs/images/wafer-8.svg"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&picture, &found).unwrap();
    }
    let expected = std::fs::read(&picture).expect("BLESS=1 draws it");
    assert!(
        found == expected,
        "docs/images/wafer-8.svg is of another replay"
    );
}
