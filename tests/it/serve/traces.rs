//! Figures 5-1 and 5-2, and an hour of Azure's requests.

use super::served;
use chakram::serve::{Platform, Scenario, ServeReport};
use std::path::{Path, PathBuf};

fn burst(gbps: u32, platform: &str) -> ServeReport {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/lightspeed");
    let scenario = Scenario::load(&folder.join(format!("burst-{gbps}g.toml"))).unwrap();
    served(&scenario, Some(&Platform::load(platform).unwrap())).0
}

/// Assertions of the figures that follow from the printed parameters; docs/how-to/serving.md has the table of those
/// that do not.
#[test]
#[ignore = "half a minute: cargo test --release --test it serve::traces -- --ignored --nocapture"]
fn figures_5_1_and_5_2_as_far_as_they_follow() {
    let platforms = ["a100x", "brainwave", "a100", "p4", "lightning"];
    let reports = platforms.map(|platform| [burst(10, platform), burst(100, platform)]);
    for (platform, [slow, fast]) in platforms.iter().zip(&reports) {
        let means = [slow, fast].map(|report| report.all().unwrap().mean.unwrap().value.seconds());
        println!(
            "{platform}: {means:?} s, busy {:.3} and {:.3}",
            slow.mean_utilisation(),
            fast.mean_utilisation()
        );
        // Every platform is asked for ten times what it can do, so that all arrive nearly at once.
        assert!(slow.offered_load.unwrap() > 10.0);
        assert!(
            (means[0] / means[1] - 1.0).abs() < 0.15,
            "{platform}: {means:?}"
        );
    }
    let busy: Vec<f64> = reports
        .iter()
        .map(|[slow, _]| slow.mean_utilisation())
        .collect();
    // Lightning is fully used; Brainwave least of all, with requests of ChatGPT* in the mix.
    assert!(busy[4] > 0.98, "{busy:?}");
    assert!(
        busy[1] < 0.52 && busy.iter().all(|other| *other >= busy[1]),
        "{busy:?}"
    );
    let mean = |i: usize, model: &str| reports[i][0].model(model).unwrap().mean.unwrap().value;
    let all = |i: usize| reports[i][0].all().unwrap().mean.unwrap().value;
    // Of the digital platforms the A100X is the best, as the thesis says.
    assert!((1..4).all(|i| all(0) < all(i)));
    println!(
        "chatgpt-star: {} on Lightning, {} on A100X",
        mean(4, "chatgpt-star"),
        mean(0, "chatgpt-star")
    );
}

/// Follows from the table without any queue: Lightning has a quarter of the A100X's multiplications per second, so
/// it loses where there are enough products, and wins where they are few and long.
#[test]
fn lightning_wins_where_products_are_few() {
    let peak = |name: &str| {
        let cores = Platform::load(name).unwrap().cores.unwrap();
        f64::from(cores.cores) * cores.clock.hertz()
    };
    assert!((peak("a100x") / peak("lightning") - 3.99).abs() < 0.01);
}

fn corpus(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("CHAKRAM_CORPUS")?;
    let path = Path::new(&folder).join("validation").join(name);
    path.is_file().then_some(path)
}

/// 19,366 requests of an hour, five times one after another, in batches with step times that were measured on eight
/// A100s (Splitwise).
#[test]
#[ignore = "for speed: CHAKRAM_CORPUS=… cargo test --release --test it serve::traces::an_hour -- --ignored --nocapture"]
fn an_hour_of_requests_five_times() {
    let files = (
        corpus("requests_azure2023_conv.csv.gz"),
        corpus("serving_splitwise.part.csv"),
    );
    let (Some(requests), Some(steps)) = files else {
        println!(
            "skipped: CHAKRAM_CORPUS names no folder with validation/requests_azure2023_conv.csv.gz"
        );
        return;
    };
    let text = format!(
        "name = \"azure\"\nprocessors = 16\n[[model]]\nname = \"llama2-70b\"\n\
         steps = {{ file = {steps:?}, tokens = \"prompt_size\", batch = \"batch_size\", prefill = \"prompt_ms\", step = \"token_ms\", \
         where = {{ model = \"llama2-70b\", hardware = \"a100-80gb\", tensor_parallel = \"8\" }} }}\n\
         [stream]\narrivals = \"file\"\nfile = {requests:?}\nrepeat = 5\n\
         [policy]\nkind = \"batching\"\nbatch = 64\nwait = \"500 ms\""
    );
    let scenario = super::scenario(&text);
    let begun = std::time::Instant::now();
    let (report, _) = served(&scenario, None);
    println!("{:?} for {} requests", begun.elapsed(), report.completed);
    println!(
        "{}",
        chakram::serve::text::render(&report, Default::default())
    );
    assert_eq!(report.completed, 5 * 19_366);
    assert!(begun.elapsed().as_secs() < 30);
}
