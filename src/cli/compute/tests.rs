//! Tests the options of the compute model, and their descriptions in reports.

use super::*;
use chakram_hardware::compute::RooflinePeakFraction;
use clap::Parser;

#[derive(Parser)]
struct ComputeCommandLine {
    #[command(flatten)]
    args: ComputeArgs,
}

fn parse_compute_args(args: &[&str]) -> Result<ComputeArgs, String> {
    let line = ComputeCommandLine::try_parse_from([&["x"], args].concat());
    line.map(|line| line.args).map_err(|e| e.to_string())
}

fn build_kernel_counts(
    priced: u64,
    estimated: u64,
    kept_recorded: u64,
    unknown: u64,
) -> KernelCountsByDurationMethod {
    KernelCountsByDurationMethod {
        priced,
        by_curves: 0,
        estimated,
        kept_recorded,
        unknown,
    }
}

#[test]
fn an_efficiency_sets_the_compute_model_and_its_description() {
    let args = parse_compute_args(&["--compute", "roofline", "--efficiency", "0.68"]).unwrap();
    let wanted = KernelDurationSource::Roofline(RooflinePeakFraction::new(0.68).unwrap());
    assert_eq!(args.replay_options().unwrap().compute, wanted);
    let all = build_kernel_counts(9, 0, 0, 0);
    assert_eq!(
        args.describe_durations(&all),
        "kernels by roofline at 0.68 of the peak"
    );
    let mut options = Map::new();
    args.add_duration_sources_to_json(&mut options);
    let text = Value::Object(options).to_string();
    assert_eq!(text, r#"{"compute":"roofline","efficiency":0.68}"#);
    // Without the option, the efficiency is 1, and only the JSON output contains it.
    let args = parse_compute_args(&["--compute", "roofline"]).unwrap();
    assert_eq!(
        args.replay_options().unwrap().compute,
        KernelDurationSource::Roofline(RooflinePeakFraction::default())
    );
    assert_eq!(args.describe_durations(&all), "kernels by roofline");
    let mut options = Map::new();
    args.add_duration_sources_to_json(&mut options);
    assert_eq!(options["efficiency"], 1.0);
    // The efficiency applies even if no kernel has a recorded duration.
    let args = parse_compute_args(&["--efficiency", "0.68"]).unwrap();
    let wanted = KernelDurationSource::Recorded(RooflinePeakFraction::new(0.68).unwrap());
    assert_eq!(args.replay_options().unwrap().compute, wanted);
}

#[test]
fn compute_option_refusals_name_command_line_flags() {
    chakram_base::setting::register_setting_names_for_messages(
        crate::flags::write_flag_name_of_setting,
    );
    for (model, duration, hint) in [
        (
            "curves",
            "measured, or by roofline at the peak rates if no curve applies to them",
            ", or --compute roofline",
        ),
        ("loopnest:gemmini-16", "from loop nests", ""),
    ] {
        let args = parse_compute_args(&["--compute", model, "--efficiency", "0.5"]).unwrap();
        assert_eq!(
            args.replay_options().unwrap_err().to_string(),
            format!(
                "--efficiency is for kernels timed by roofline, but with --compute {model} their times are {duration}\n  \
                 try: without --efficiency{hint}"
            )
        );
    }
}

#[test]
fn kernels_recorded_elsewhere_say_where() {
    let args = parse_compute_args(&["--recorded-on", "dgx-h100"]).unwrap();
    assert!(matches!(
        args.compute_model(),
        KernelDurationSource::RecordedOn(_)
    ));
    assert_eq!(
        args.describe_durations(&build_kernel_counts(7, 2, 1, 0)),
        "1 kernels as recorded, 7 by the ratio of rooflines, 2 by roofline"
    );
    let mut options = Map::new();
    args.add_duration_sources_to_json(&mut options);
    let text = Value::Object(options).to_string();
    assert_eq!(text, r#"{"compute":"recorded-on:dgx-h100"}"#);
    for (args, said) in [
        (["--compute", "roofline"], "cannot be used with"),
        (["--efficiency", "0.5"], "cannot be used with"),
    ] {
        let args = [&["--recorded-on", "dgx-h100"][..], &args].concat();
        let error = parse_compute_args(&args).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    let error = parse_compute_args(&["--recorded-on", "dgx-h10"]).unwrap_err();
    assert!(error.contains("dgx-h100"), "{error}");
}

#[test]
fn the_text_counts_kernels_by_their_basis() {
    let text = |args: &[&str], basis| parse_compute_args(args).unwrap().describe_durations(&basis);
    assert_eq!(
        text(&[], build_kernel_counts(9, 0, 0, 0)),
        "kernels as recorded"
    );
    assert_eq!(
        text(&[], build_kernel_counts(0, 9, 0, 0)),
        "kernels by roofline"
    );
    assert_eq!(text(&[], build_kernel_counts(0, 0, 0, 0)), "no kernels");
    assert_eq!(
        text(&[], build_kernel_counts(1200, 48, 0, 3)),
        "1,200 kernels as recorded, 48 by roofline, 3 without a price"
    );
    assert_eq!(
        text(
            &["--compute", "roofline"],
            build_kernel_counts(48, 0, 1200, 0)
        ),
        "1,200 kernels as recorded, 48 by roofline"
    );
    assert_eq!(
        text(
            &["--compute", "scaled:0.5"],
            build_kernel_counts(7, 2, 0, 0)
        ),
        "7 kernels as recorded, times 0.5, 2 by roofline, times 0.5"
    );
    assert_eq!(
        text(&["--host", "scaled:0.1"], build_kernel_counts(9, 0, 0, 0)),
        "kernels as recorded, host time times 0.1"
    );
}

#[test]
fn invalid_efficiency_and_host_values_are_refused() {
    for none in ["0", "-0.5", "1.5", "68%", "NaN", ""] {
        let given = format!("--efficiency={none}");
        let error = parse_compute_args(&["--compute", "roofline", &given]).map(|_| ());
        let error = error.unwrap_err();
        assert!(error.contains("above 0 and at most 1"), "{none}: {error}");
    }
    for none in ["-1", "NaN", "inf", ""] {
        let given = format!("--host=scaled:{none}");
        let error = parse_compute_args(&[&given]).map(|_| ()).unwrap_err();
        assert!(error.contains("is not a factor"), "{none}: {error}");
    }
    let error = parse_compute_args(&["--host", "roofline"])
        .map(|_| ())
        .unwrap_err();
    assert!(error.contains("expected recorded or scaled:F"), "{error}");
}
