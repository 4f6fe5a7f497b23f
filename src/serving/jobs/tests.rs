//! Compares the jobs of presets with published counts.

use super::*;

fn lower_model(
    model: &str,
    tokens: Option<u64>,
    lowering: OperatorToJobLoweringRules,
) -> GraphOfVectorProductJobs {
    let model = match tokens {
        Some(tokens) => Model::load_with_token_count(model, tokens).unwrap(),
        None => Model::load_named(model).unwrap(),
    };
    GraphOfVectorProductJobs::of_model(&model, lowering)
}

#[test]
fn multiplication_and_task_counts_match_the_thesis() {
    // Each entry contains the model, its tokens, the number of multiplications, and the number of tasks if the source
    // counts them. The counts follow from the layers' shapes.
    let counts = [
        ("vgg-16", None, 15_470_264_320, Some(13_556_712)),
        ("vgg-19", None, 19_632_062_464, Some(14_861_288)),
        ("vgg-11", None, 7_609_090_048, None),
        ("vgg-13", None, 11_308_466_176, None),
        ("alexnet", None, 714_188_480, None),
        ("resnet-18", None, 1_814_073_344, None),
        // With one token, each of 48 blocks has 12 h^2 + 2 h multiplications, and the logits have V
        // h: 48 (12 x 1600^2 + 3200) + 50257 x 1600.
        (
            "gpt2-xl",
            Some(1),
            1_555_124_800,
            Some(48 * 16_025 + 50_257),
        ),
        // This model has 5750 blocks and otherwise equals the previous one.
        (
            "chatgpt-star",
            Some(1),
            5750 * (12 * 2_560_000 + 3200) + 80_411_200,
            Some(5750 * 16_025 + 50_257),
        ),
    ];
    for (model, tokens, multiplications, tasks) in counts {
        let both = [
            ConvolutionDivisionIntoVectorProducts::Outputs,
            ConvolutionDivisionIntoVectorProducts::Kernels,
        ];
        for convolution in both {
            let jobs = lower_model(
                model,
                tokens,
                OperatorToJobLoweringRules {
                    convolution,
                    ..OperatorToJobLoweringRules::default()
                },
            );
            assert_eq!(jobs.multiplication_count(), multiplications, "{model}");
            if let (Some(tasks), ConvolutionDivisionIntoVectorProducts::Outputs) =
                (tasks, convolution)
            {
                assert_eq!(jobs.tasks_per_request(), tasks, "{model}");
            }
        }
    }
    // Each block has 6 jobs, and the logits are one more job.
    assert_eq!(
        lower_model(
            "chatgpt-star",
            Some(1),
            OperatorToJobLoweringRules::default()
        )
        .jobs()
        .len(),
        34_501
    );
    // The published count includes the tables (39,143,231 rows of 64 elements) and the MLPs, but
    // not the products of the 351 pairs of vectors of length 64. Without tables, the count consists
    // of the MLPs and the pairs: 13 x 512 + 512 x 256 + 256 x 64, 415 x 512 + 512 x 512 + 512 x 256
    // + 256.
    let tables = OperatorToJobLoweringRules {
        tables: true,
        ..OperatorToJobLoweringRules::default()
    };
    assert_eq!(
        lower_model("dlrm", None, tables).multiplication_count(),
        2_505_926_848
    );
    assert_eq!(
        lower_model("dlrm", None, OperatorToJobLoweringRules::default()).multiplication_count(),
        154_112 + 605_952 + 351 * 64
    );
    // The published count, 1,753,433,832,000, includes the logits, token embeddings and position
    // embeddings.
    assert_eq!(
        lower_model("gpt2-xl", Some(1024), tables).multiplication_count(),
        1_753_433_832_000
    );
}

#[test]
fn both_conventions_of_a_convolution_multiply_alike() {
    // conv1_1 of VGG-16 has 224 x 224 x 64 outputs, each computed with a kernel of 3 x 3 x 3.
    let outputs = lower_model("vgg-16", None, OperatorToJobLoweringRules::default());
    assert_eq!(
        outputs.jobs()[0],
        EqualVectorProductTasks {
            tasks: 224 * 224 * 64,
            length: 27
        }
    );
    let kernels = OperatorToJobLoweringRules {
        convolution: ConvolutionDivisionIntoVectorProducts::Kernels,
        ..OperatorToJobLoweringRules::default()
    };
    let first = lower_model("vgg-16", None, kernels).jobs()[0];
    assert_eq!((first.tasks, first.length), (224 * 224 * 64 * 3, 9));
    // Vectors are merged to a length of 2048: 224 x 224 x 64 x 27 / 2048 = 42,336 exactly.
    let merged = OperatorToJobLoweringRules {
        merge: 2048,
        ..kernels
    };
    let first = lower_model("vgg-16", None, merged).jobs()[0];
    assert_eq!((first.tasks, first.length), (42_336, 2048));
}

#[test]
fn heads_are_jobs_of_their_own() {
    let heads = OperatorToJobLoweringRules {
        heads: true,
        ..OperatorToJobLoweringRules::default()
    };
    let jobs = lower_model("gpt2-xl", Some(1), heads);
    // Each of 48 blocks has 25 heads with 5 jobs each, and three more jobs: `output`, `up` and
    // `down`. The logits are one more job.
    assert_eq!(jobs.jobs().len(), 48 * (25 * 5 + 3) + 1);
    let chain = lower_model("gpt2-xl", Some(1), OperatorToJobLoweringRules::default());
    assert_eq!(jobs.multiplication_count(), chain.multiplication_count());
    // In the first head, queries, keys and values depend on nothing, and each of their products depends
    // on two jobs.
    assert_eq!(jobs.dependencies_of(0), [0_u32; 0]);
    assert_eq!(
        (jobs.dependencies_of(3), jobs.dependencies_of(4)),
        (&[0, 1][..], &[3, 2][..])
    );
    // The output projection depends on all 25 heads.
    assert_eq!(jobs.dependencies_of(125).len(), 25);
}

/// Returns how many jobs there are, and the length of the longest chain of dependent jobs.
fn count_jobs_and_depth(graph: &GraphOfVectorProductJobs) -> (usize, u32) {
    let mut depths: Vec<u32> = Vec::new();
    for job in 0..graph.jobs().len() as u32 {
        let before = graph
            .dependencies_of(job)
            .iter()
            .map(|&one| depths[one as usize]);
        depths.push(before.max().unwrap_or(0) + 1);
    }
    (depths.len(), depths.into_iter().max().unwrap_or(0))
}

#[test]
fn embedding_table_jobs_run_in_parallel() {
    let shape = |model, tokens, branches| {
        let lowering = OperatorToJobLoweringRules {
            tables: true,
            branches,
            ..OperatorToJobLoweringRules::default()
        };
        count_jobs_and_depth(&lower_model(model, tokens, lowering))
    };
    let all = [
        ConcurrentOperatorsRule::Tables,
        ConcurrentOperatorsRule::Parallel,
        ConcurrentOperatorsRule::InOrder,
    ];
    // There are 26 tables, 3 jobs of the lower MLP (which do not delay the tables), and 4 jobs after them.
    let shapes = all.map(|branches| shape("dlrm", None, branches));
    assert_eq!(shapes, [(33, 7), (33, 7), (33, 33)]);
    // Tokens and positions are two tables, each with one job. The 48 blocks have 6 jobs each, and
    // the logits are one more job.
    let shapes = all.map(|branches| shape("gpt2-xl", Some(1), branches));
    assert_eq!(shapes, [(291, 290), (291, 290), (291, 291)]);
    // 17 convolutions of ResNet-18 form a chain. Three other convolutions, on skip paths, can run
    // in parallel with the two convolutions of their block. The classifier is the last job.
    let shapes = all.map(|branches| shape("resnet-18", None, branches));
    assert_eq!(shapes, [(21, 21), (21, 18), (21, 21)]);
}
