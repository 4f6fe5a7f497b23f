//! Tests figures 5-1 and 5-2 of the thesis, and an hour of Azure's requests.

use super::serve_and_list_requests_by_id;
use chakram::report::text::TextStyleWidthAndDetail;
use chakram::serve::{Platform, Scenario, ServeReport, compare};
use std::path::{Path, PathBuf};

fn serve_lightspeed_burst_on_platform(gbps: u32, platform: &str) -> ServeReport {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/lightspeed");
    let scenario = Scenario::load_file(&folder.join(format!("burst-{gbps}g.toml"))).unwrap();
    serve_and_list_requests_by_id(&scenario, Some(&Platform::load_by_name(platform).unwrap())).0
}

const PLATFORMS: [&str; 5] = ["a100x", "brainwave", "a100", "p4", "lightning"];

/// Computes the figures as tables, and asserts the claims that follow from the printed parameters;
/// docs/how-to/serving.md lists the others.
#[test]
#[ignore = "seconds: cargo test --release --test it serve::traces::figures -- --ignored --nocapture; BLESS=1 writes the tables"]
fn serving_figures_5_1_and_5_2_match_stored_tables() {
    let rates = [10, 100]
        .map(|gbps| PLATFORMS.map(|platform| serve_lightspeed_burst_on_platform(gbps, platform)));
    let style = TextStyleWidthAndDetail::default();
    let tables = rates
        .each_ref()
        .map(|of| compare::render_platforms_side_by_side(of, style));
    let found = tables.join("\n");
    println!("{found}");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/lightspeed/figures.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).expect("BLESS=1 writes it");
    let all = |report: &ServeReport| {
        report
            .row_of_all_models()
            .unwrap()
            .mean
            .unwrap()
            .value
            .as_seconds()
    };
    for (name, (slow, fast)) in PLATFORMS.iter().zip(rates[0].iter().zip(&rates[1])) {
        // Every platform gets ten times the load that it can serve, so all requests arrive nearly at once, and ten
        // times this rate would hardly change anything.
        assert!(slow.offered_load.unwrap() > 10.0, "{name}");
        let ratio = all(slow) / all(fast);
        assert!((ratio - 1.0).abs() < 0.1, "{name}: {ratio}");
    }
    for reports in &rates {
        let busy = reports.each_ref().map(ServeReport::mean_utilisation);
        // With requests of ChatGPT* in the mix, Lightning is fully utilized, and Brainwave is
        // utilized the least.
        assert!(busy[4] > 0.99, "{busy:?}");
        assert!(
            busy.iter().all(|other| busy[1] <= *other) && busy[1] < 0.52,
            "{busy:?}"
        );
        // The A100X is the best digital platform, as in the thesis, and better than Lightning, unlike in the thesis.
        assert!((1..5).all(|i| all(&reports[0]) < all(&reports[i])));
        // Without load, Lightning is slower for models with many inner products, and faster for models with few long
        // ones.
        let alone = |i: usize, model: &str| reports[i].row_of_model(model).unwrap().alone.unwrap();
        for model in ["vgg-16", "vgg-19"] {
            assert!(alone(4, model) > alone(0, model).times(3), "{model}");
        }
        for model in ["gpt2-xl", "chatgpt-star"] {
            assert!(alone(4, model).times(4) < alone(0, model), "{model}");
        }
    }
    assert_eq!(found, expected);
}

/// This follows from the table without any queue. Lightning has a quarter of the A100X's multiplications per second, so
/// it is slower if there are enough inner products for all cores, and faster if they are few and long.
#[test]
fn the_lightning_platform_has_a_quarter_of_the_multiplications_of_an_a100x() {
    let peak = |name: &str| {
        let cores = Platform::load_by_name(name).unwrap().cores.unwrap();
        f64::from(cores.cores) * cores.clock.as_hertz()
    };
    assert!((peak("a100x") / peak("lightning") - 3.99).abs() < 0.01);
}

fn find_validation_file(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("CHAKRAM_CORPUS")?;
    let path = Path::new(&folder).join("validation").join(name);
    path.is_file().then_some(path)
}

/// An hour with 19,366 requests is repeated five times, in batches whose step times were measured on eight A100s
/// (Splitwise).
#[test]
#[ignore = "for speed: CHAKRAM_CORPUS=… cargo test --release --test it serve::traces::an_hour -- --ignored --nocapture"]
fn an_hour_of_requests_is_served_five_times() {
    let files = (
        find_validation_file("requests_azure2023_conv.csv.gz"),
        find_validation_file("serving_splitwise.part.csv"),
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
    let scenario = super::parse_scenario_text(&text);
    let begun = std::time::Instant::now();
    let (report, _) = serve_and_list_requests_by_id(&scenario, None);
    println!("{:?} for {} requests", begun.elapsed(), report.completed);
    println!(
        "{}",
        chakram::serve::text::render_text(&report, Default::default())
    );
    assert_eq!(report.completed, 5 * 19_366);
    assert!(begun.elapsed().as_secs() < 30);
}
