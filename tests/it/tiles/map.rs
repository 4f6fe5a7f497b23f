//! Compares maps of tiled machines with the report.

use super::{
    build_arguments_with_sram_loads, build_plan_arguments, read_makespan_ps, run_for_json,
};
use crate::files::{Folder, text_from_bytes};
use serde_json::Value;

/// Compares a map with its report. The map has every link and port with its busy time and its share of the replay, and
/// every core with its rank, stage and tensor group; `stage_and_group` gives these two for a rank. The map has no other
/// elements.
fn compare_map_with_report(
    map: &str,
    report: &Value,
    width: u64,
    stage_and_group: impl Fn(u64) -> (u64, u64),
) {
    assert!(map.starts_with("<svg xmlns="));
    let of = |key: &str| report["tiles"][key].as_array().unwrap().clone();
    let (links, ports) = (of("links"), of("ports"));
    let number = |value: &Value| value.as_u64().unwrap();
    let place = |value: &Value| format!("({}, {})", value[0], value[1]);
    let mark = |title: &str| {
        let at = map
            .find(&format!("<title>{title}"))
            .unwrap_or_else(|| panic!("{title}"));
        let said = map[at + 7 + title.len()..].split('<').next().unwrap();
        (
            map[..at].rsplit('<').next().unwrap().to_owned(),
            said.to_owned(),
        )
    };
    let shows = |title: String, busy: u64| {
        let (attributes, said) = mark(&title);
        assert!(
            attributes.contains(&format!("data-busy=\"{busy}\"")),
            "{title}"
        );
        let share = 100.0 * busy as f64 / read_makespan_ps(report) as f64;
        assert!(
            said.contains(&format!("{share:.1} %")),
            "{title}{said}: {share}"
        );
        // No link is busy longer than the replay.
        assert!(share <= 100.0, "{title}");
    };
    for link in &links {
        let title = format!("link {} to {}: ", place(&link["from"]), place(&link["to"]));
        shows(title, number(&link["busy_ps"]));
    }
    for port in &ports {
        let title = format!("memory port at {}: ", place(&port["core"]));
        shows(title, number(&port["busy_ps"]));
    }
    assert_eq!(map.matches("data-busy").count(), links.len() + ports.len());
    let rows = report["npus"].as_array().unwrap();
    for row in rows {
        let (rank, npu) = (number(&row["rank"]), number(&row["npu"]));
        let title = format!("core ({}, {}): ", npu % width, npu / width);
        let (stage, group) = stage_and_group(rank);
        let data = format!("data-rank=\"{rank}\" data-stage=\"{stage}\" data-group=\"{group}\"");
        assert!(mark(&title).0.contains(&data), "{title}");
    }
    assert_eq!(map.matches("data-rank").count(), rows.len());
}

/// Rank r of this plan is in stage r / 8 and tensor group r / 4 % 2. NPUs are numbered along the
/// wafer's 20 columns first.
#[test]
fn the_map_shows_what_the_report_says() {
    let folder = Folder::new();
    let report = run_for_json(
        &folder,
        &build_arguments_with_sram_loads(&["--tile-map", "map.svg"]),
    );
    let map = String::from_utf8(folder.read("map.svg")).unwrap();
    compare_map_with_report(&map, &report, 20, |rank| (rank / 8, rank / 4 % 2));
    let count = |key: &str| report["tiles"][key].as_array().unwrap().len();
    assert!(
        count("links") > 20 && count("ports") == 8,
        "{}",
        report["tiles"]
    );
    // A mesh of 20 x 16 has 2 (19 x 16 + 15 x 20) links.
    assert_eq!(report["tiles"]["links_of_machine"], 1208);
    assert_eq!(report["tiles"]["ports_of_machine"], 80);
    let output = folder.run(&build_plan_arguments(
        "dgx-a100x4",
        &["--tile-map", "no.svg"],
    ));
    assert!(
        text_from_bytes(&output.stderr).contains("has no tiles"),
        "{}",
        text_from_bytes(&output.stderr)
    );
    assert!(!folder.path_of_file("no.svg").exists());
}

/// Compares the map in the book's example with its report: two stages of two replicas of two ranks on the 4 columns of
/// its wafer. `BLESS=1` redraws it.
#[test]
fn the_tile_map_in_the_docs_matches_its_replay() {
    let folder = Folder::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let case = root.join("traces/wafer-8");
    let replay = ["replay", case.to_str().unwrap(), "--tile-map", "map.svg"];
    let report = run_for_json(&folder, &replay);
    let (found, picture) = (folder.read("map.svg"), root.join("docs/images/wafer-8.svg"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&picture, &found).unwrap();
    }
    let expected = std::fs::read(&picture).expect("BLESS=1 draws it");
    assert!(
        found == expected,
        "docs/images/wafer-8.svg is of another replay"
    );
    let map = String::from_utf8(expected).unwrap();
    compare_map_with_report(&map, &report, 4, |rank| (rank / 4, rank / 2 % 2));
}
