//! Uses random bytes as the traces of one rank, or of two equal or different ranks. The traces are either sound or
//! rejected with their defects, and a second check gives the same result. A trace that cannot be read as a graph is
//! unsound. No input causes a panic.

use chakram::validate::{
    DefectKind, DefectLog, TraceDefectsAndDigest, ValidateOptions, ValidatedTraceFile,
    ValidationReport, ValidationTextStyles, to_json, to_text,
};
use chakram::workload::{DeclaredGroups, EnforcedDependencyKinds, Graph};

/// Number of defects kept per kind.
const SHOW: usize = 3;

/// Runs the target on `data`.
pub fn check_validation_of_bytes(data: &[u8]) {
    for dependencies in [
        EnforcedDependencyKinds::Auto,
        EnforcedDependencyKinds::Both,
        EnforcedDependencyKinds::Data,
    ] {
        let trace = TraceDefectsAndDigest::check_trace(data, dependencies, SHOW);
        let half = TraceDefectsAndDigest::check_trace(&data[..data.len() / 2], dependencies, SHOW);
        for (mirror, ranks, dimensions) in [
            (false, None, None),
            (true, None, Some(vec![2, 2])),
            (true, Some(2), None),
        ] {
            let options = ValidateOptions::default_options_changed_by(|o| {
                o.dependencies = dependencies;
                o.mirror = mirror;
                o.ranks = ranks;
                o.dimensions = dimensions;
                o.declared = DeclaredGroups::from([("1".to_owned(), vec![0, 1])]);
                o.show = SHOW;
            });
            assert_report_ignores_trace_order(&[&trace], &options);
            assert_report_ignores_trace_order(&[&trace, &trace], &options);
            assert_report_ignores_trace_order(&[&trace, &half], &options);
        }
        let errors = trace.defect_log().count_by_severity().errors;
        match Graph::read_graph(data, 0, dependencies) {
            Ok((graph, _)) => {
                assert_eq!(errors, 0, "{:?}", trace.defect_log());
                assert_eq!(graph.len() as u64, trace.node_count());
                check_graph_repairs_found_as_defects(&graph, trace.defect_log());
            }
            // The rank of a trace is known only when ranks are compared.
            Err(error) => {
                let text = error.to_string();
                let own = text.contains("own end is rank") || text.contains("sends to itself");
                assert!(errors > 0 || own, "{text}");
            }
        }
    }
}

/// Checks that every repair in the construction of the graph was also found as a defect.
fn check_graph_repairs_found_as_defects(graph: &Graph, findings: &DefectLog) {
    let repairs = graph.repair_counts();
    let found = [
        (repairs.dangling_control, DefectKind::DanglingControl),
        (repairs.self_control, DefectKind::SelfControl),
        (repairs.host_communication, DefectKind::HostCommunication),
        (
            u64::from(repairs.cyclic_control > 0),
            DefectKind::ControlCycle,
        ),
    ];
    for (count, kind) in found {
        assert_eq!(findings.count_of_kind(kind), count, "{kind}");
    }
}

/// Compares traces of ranks 0, 1, … with one another.
fn assert_report_ignores_trace_order(traces: &[&TraceDefectsAndDigest], options: &ValidateOptions) {
    let sources = |turn: usize| {
        let mut sources: Vec<_> = (0..).zip(traces).collect();
        sources.rotate_left(turn);
        let sources = sources.into_iter().map(|(rank, trace)| ValidatedTraceFile {
            rank,
            file: format!("job.{rank}.et"),
            trace,
        });
        sources.collect::<Vec<_>>()
    };
    let reports =
        [0, traces.len() - 1].map(|turn| ValidationReport::new(sources(turn), options, false));
    let texts = reports.each_ref().map(|report| {
        let document = to_json(report, ().into(), ().into());
        to_text(report, ValidationTextStyles::default()) + &document.to_string()
    });
    assert_eq!(texts[0], texts[1]);
    let [report, _] = reports;
    assert_eq!(
        report.has_no_errors_or_strict_warnings(),
        report.findings.count_by_severity().errors == 0
    );
    for kind in DefectKind::iter_all() {
        let kept = report.findings.first_defects_of_kind(kind).len();
        assert!(kept <= SHOW && kept as u64 <= report.findings.count_of_kind(kind));
    }
}
