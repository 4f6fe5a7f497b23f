//! Tests step times.

use super::*;
use chakram_hardware::machine::read_preset_text;
use chakram_workloads::model::PresetOrModelFileText;

fn build_step_calculator(
    model: &str,
    machine: &str,
    npus: u32,
    left_out: &[StepTimePart],
) -> StepTimeCalculator {
    let machine = Machine::load_by_name(machine).unwrap();
    build_step_calculator_on(model, &machine, npus, left_out)
}

fn build_step_calculator_on(
    model: &str,
    machine: &Machine,
    npus: u32,
    left_out: &[StepTimePart],
) -> StepTimeCalculator {
    let definition = PresetOrModelFileText::find_source(model)
        .unwrap()
        .parse_definition(None)
        .unwrap();
    let sizes = LlmModelSizes::from_definition(&definition).unwrap();
    let [weights, experts, kv] = [Dtype::Bf16; 3];
    let formats = ServedModelNumberFormats {
        weights,
        experts,
        kv,
        has_block_scales: false,
    };
    let shape = EngineParallelismAndKernels {
        npus,
        ranks: 1,
        has_whole_experts: false,
        all_reduce: AllReduceKernelLibrary::Vllm,
        expert_kernels: ExpertKernelLibrary::Triton,
        quantization: InputQuantizingKernels::Fused,
        dependent_launch: false,
        graphs: GraphCaptureRule::Pieces,
        graph_tokens: 512,
    };
    StepTimeCalculator::new(sizes, machine, shape, formats, left_out).unwrap()
}

fn build_decode_inputs(requests: u64, context: u64) -> StepTimeInputs {
    StepTimeInputs {
        tokens: requests,
        requests,
        sampled: requests,
        decodes: requests,
        decode_context: requests * context,
        longest_context: context,
        chunks: Vec::new(),
        context: requests * context,
        wave_tokens: requests,
        all_tokens: requests,
    }
}

fn sum_step_seconds(cost: &StepTimeCalculator, load: &StepTimeInputs) -> f64 {
    let parts = cost.step_time_by_part(load, &mut StepPartTimeCache::default());
    parts.iter().map(|span| span.as_seconds()).sum()
}

/// With 256 experts and 8 per token, the formula E (1 - (1 - k / E)^B) yields 57 active experts for
/// 8 tokens, 163 for 32 tokens, and 222 for 64 tokens.
#[test]
fn active_expert_counts_match_uniform_random_choice() {
    let touched = [8, 32, 64].map(|tokens| expected_active_experts(256, 8, tokens));
    assert_eq!(touched, [57, 163, 222]);
    assert_eq!(expected_active_experts(8, 2, 0), 1);
    assert_eq!(expected_active_experts(8, 2, 1), 2);
}

#[test]
fn decode_steps_are_above_the_roofline_and_not_far() {
    // The model's weights, without the embedding table, take 15.0 GB. The keys and values of 32
    // requests of 1,024 tokens, with 131,072 bytes per token, take 4.3 GB. Reading both at 3.35
    // TB/s takes 5.77 ms.
    let step = sum_step_seconds(
        &build_step_calculator("llama3-8b", "dgx-h100", 1, &[]),
        &build_decode_inputs(32, 1024),
    );
    let bound = (15.01e9 + 4.29e9) / 3.35e12;
    assert!(step > bound && step < 1.8 * bound, "{step} and {bound}");
}

/// Qwen3-Next has 36 blocks with linear attention, which read and write states of 32 x 128 x
/// 128 x 4 bytes, and 12 blocks with keys and values.
#[test]
fn linear_attention_state_time_ignores_context_length() {
    let cost = build_step_calculator("qwen3-next-80b-a3b", "dgx-h100", 4, &[]);
    let delta = *cost.sizes.kinds[0].linear_attention_sizes().unwrap();
    let counts: Vec<u64> = cost.sizes.kinds.iter().map(|kind| kind.count).collect();
    assert_eq!(counts, [36, 12]);
    let bytes = 128.0 * 2.0 * (32 * 128 * 128 * 4 / 4) as f64;
    let seconds = cost.delta_attention_decode_seconds(&delta, 128);
    let bound = bytes / 3.35e12;
    assert!(
        seconds > bound && seconds < 2.0 * bound,
        "{seconds} and {bound}"
    );
    let part = |context| {
        let parts = cost.step_time_by_part(
            &build_decode_inputs(128, context),
            &mut StepPartTimeCache::default(),
        );
        parts[StepTimePart::Decode as usize].as_seconds()
    };
    let full = *cost.sizes.kinds[1].attention_sizes().unwrap();
    let [short, long] =
        [1000, 8000].map(|keys| cost.attention_seconds_of_one_block(&full, 128, 1, keys));
    let grown = part(8000) - part(1000);
    assert!((grown - 12.0 * (long - short)).abs() < 1e-9);
    // Each of a step's 8,192 tokens requires 2 x 8 x (64 x 5 x 128 + 3 x 128 x 128) FLOPs. The NPU computes at most 989
    // TFLOP/s.
    let flops = 8192.0 * 2.0 * 8.0 * (64.0 * 5.0 * 128.0 + 3.0 * 128.0 * 128.0);
    assert!(cost.delta_attention_prefill_seconds(&delta, &[(8192, 0)]) >= flops / 989.5e12);
    let alone = cost.delta_attention_prefill_seconds(&delta, &[(100, 900)]);
    assert_eq!(
        alone,
        cost.delta_attention_prefill_seconds(&delta, &[(100, 0)])
    );
}

#[test]
fn step_time_parts_excluded_on_request_take_no_time() {
    let load = StepTimeInputs {
        chunks: vec![(512, 0), (100, 2000)],
        tokens: 612 + 8,
        wave_tokens: 612 + 8,
        all_tokens: 612 + 8,
        requests: 10,
        ..build_decode_inputs(8, 700)
    };
    let all = build_step_calculator("llama3-70b", "dgx-h100", 4, &[])
        .step_time_by_part(&load, &mut StepPartTimeCache::default());
    for (part, name) in StepTimePart::NAMES {
        // The kernels for 620 tokens on four NPUs take longer than their launches.
        let is_zero = matches!(part, StepTimePart::Padding | StepTimePart::Launches);
        assert_eq!(all[*part as usize] == Span::ZERO, is_zero, "{name}");
        let without = build_step_calculator("llama3-70b", "dgx-h100", 4, &[*part]);
        let parts = without.step_time_by_part(&load, &mut StepPartTimeCache::default());
        assert_eq!(parts[*part as usize], Span::ZERO, "{name}");
        for (other, _) in StepTimePart::NAMES
            .iter()
            .filter(|(other, _)| other != part)
        {
            assert_eq!(parts[*other as usize], all[*other as usize], "{name}");
        }
    }
    let padded = [1, 2, 3, 5, 9, 511, 513].map(|tokens| {
        build_step_calculator("llama3-8b", "dgx-h100", 1, &[]).padded_token_count(tokens)
    });
    assert_eq!(padded, [1, 2, 4, 8, 16, 512, 513]);
}

/// B200's FP4 curve, which includes the quantization of activations, starts at 7.1 us; its FP8 curve starts at 1.9 us.
#[test]
fn four_bit_weights_speed_up_products_with_few_rows() {
    let blackwell = build_step_calculator("llama3-70b", "dgx-b200", 1, &[]);
    let seconds = |format, rows| blackwell.weight_product_seconds([1, rows, 8192, 8192], format);
    let gain = seconds(Dtype::Fp8, 16) / seconds(Dtype::Fp4, 16);
    assert!((1.4..1.78).contains(&gain), "{gain}");
    let start = seconds(Dtype::Fp4, 1) - 8192.0 * 8192.0 * 9.0 / 16.0 / 8e12;
    assert!(start < 7.1e-6, "{start}");
    // H100 has no four-bit arithmetic, so it reads four-bit weights but computes products in BF16.
    let hopper = build_step_calculator("llama3-70b", "dgx-h100", 1, &[]);
    let hopper = |format, rows| hopper.weight_product_seconds([1, rows, 8192, 8192], format);
    assert!(hopper(Dtype::Fp4, 16) < hopper(Dtype::Fp8, 16));
    assert!(hopper(Dtype::Fp4, 8192) > hopper(Dtype::Bf16, 8192));
}

/// With whole experts, each of eight NPUs has an eighth of the experts, with all their columns. If experts are divided,
/// it has an eighth of the columns of every expert.
#[test]
fn whole_experts_give_fewer_but_wider_products_per_npu() {
    let mut cost = build_step_calculator("qwen3-235b-a22b", "dgx-h100", 8, &[]);
    let kind = cost.sizes.kinds[0].clone();
    let up = *kind
        .products
        .iter()
        .find(|product| product.experts.is_some())
        .unwrap();
    let sizes =
        |cost: &StepTimeCalculator| cost.expert_product_sizes(&kind, &up, [128, 8], [4096, 4096]);
    assert_eq!(sizes(&cost), [128, 256, 2 * 1536 / 8, 4096]);
    cost.has_whole_experts = true;
    assert_eq!(sizes(&cost), [16, 256, 2 * 1536, 4096]);
}

/// On four H100 NPUs, TensorRT-LLM's kernels take 4.3 us for 128 KiB, including the norms.
#[test]
fn norms_are_part_of_fused_all_reduces() {
    let definition = PresetOrModelFileText::find_source("llama3-70b")
        .unwrap()
        .parse_definition(None)
        .unwrap();
    let machine = Machine::load_by_name("dgx-h100").unwrap();
    let [weights, experts, kv] = [Dtype::Bf16; 3];
    let cost = |npus, all_reduce| {
        let formats = ServedModelNumberFormats {
            weights,
            experts,
            kv,
            has_block_scales: false,
        };
        let shape = EngineParallelismAndKernels {
            npus,
            ranks: 1,
            has_whole_experts: false,
            all_reduce,
            expert_kernels: ExpertKernelLibrary::Triton,
            quantization: InputQuantizingKernels::Fused,
            dependent_launch: false,
            graphs: GraphCaptureRule::Pieces,
            graph_tokens: 512,
        };
        let sizes = LlmModelSizes::from_definition(&definition).unwrap();
        StepTimeCalculator::new(sizes, &machine, shape, formats, &[]).unwrap()
    };
    let [own, fused] = [
        AllReduceKernelLibrary::Vllm,
        AllReduceKernelLibrary::TensorrtLlm,
    ]
    .map(|kernels| cost(4, kernels));
    assert!((fused.all_reduce.all_reduce_seconds(131_072) - 4.3e-6).abs() < 1e-9);
    let kernels = |cost: &StepTimeCalculator| {
        cost.memory_bound_kernels_of_block(&cost.sizes.kinds[0])
            .len()
    };
    assert_eq!(kernels(&own) - kernels(&fused), 2);
    // A single NPU needs no all-reduce, so its norms are separate kernels.
    let alone = cost(1, AllReduceKernelLibrary::TensorrtLlm);
    assert_eq!(kernels(&alone), kernels(&own));
}

#[test]
fn engine_all_reduce_times_are_used_where_measured() {
    let prices = build_step_calculator("llama3-70b", "dgx-h100", 8, &[]).all_reduce;
    // The table has 7.9 us for 128 KiB, and 15.0 us for 1 MiB.
    assert!((prices.all_reduce_seconds(131_072) - 7.9e-6).abs() < 1e-9);
    assert!((prices.all_reduce_seconds(1 << 20) - 15.0e-6).abs() < 1e-9);
    // The table ends below 32 MiB, so the machine's NCCL curve is used: 199.8 us at 33,554,432
    // bytes.
    assert!((prices.all_reduce_seconds(33_554_432) - 199.8e-6).abs() < 1e-9);
}

/// Each of the 48 blocks has 4 products, the router, attention, 2 all-reduces, and 10 kernels that move bytes. These
/// are the activation, 2 norms, the rotation, the writes, the norm of heads, and for experts the choice, 2 for sorting,
/// and the sum.
#[test]
fn launches_outside_graphs_bound_a_step() {
    let of_rule = |graphs, graph_tokens| {
        let mut cost = build_step_calculator("qwen3-30b-a3b", "dgx-h100", 4, &[]);
        (cost.graphs, cost.graph_tokens) = (graphs, graph_tokens);
        cost
    };
    let prompt = |tokens: u32| StepTimeInputs {
        chunks: vec![(tokens, 0)],
        tokens: tokens.into(),
        wave_tokens: tokens.into(),
        all_tokens: tokens.into(),
        requests: 1,
        sampled: 1,
        ..StepTimeInputs::default()
    };
    let launches = |cost: &StepTimeCalculator, load: &StepTimeInputs| {
        let parts = cost.step_time_by_part(load, &mut StepPartTimeCache::default());
        let on_device: Span = parts[..StepTimePart::Launches as usize]
            .iter()
            .copied()
            .sum();
        (parts[StepTimePart::Launches as usize], on_device)
    };
    let pieces = of_rule(GraphCaptureRule::Pieces, 512);
    let kernels = 4 + 1 + 1 + 2 + 10;
    let (more, on_device) = launches(&pieces, &prompt(600));
    assert_eq!(more + on_device, Span::from_us(20).times(48 * kernels));
    assert!(on_device > Span::ZERO && more > Span::ZERO);
    // In steps of up to 512 tokens, each block launches a graph and two kernels of attention.
    assert_eq!(pieces.launch_count_of_step(&prompt(512)), 48 * 3);
    assert_eq!(
        pieces.launch_count_of_step(&build_decode_inputs(512, 1000)),
        0
    );
    assert_eq!(
        pieces.launch_count_of_step(&build_decode_inputs(513, 1000)),
        48 * kernels
    );
    let decodes = of_rule(GraphCaptureRule::Decodes, 512);
    assert_eq!(decodes.launch_count_of_step(&prompt(16)), 48 * kernels);
    assert_eq!(
        decodes.launch_count_of_step(&build_decode_inputs(512, 1000)),
        0
    );
    let never = of_rule(GraphCaptureRule::Never, 512);
    assert_eq!(
        never.launch_count_of_step(&build_decode_inputs(1, 1000)),
        48 * kernels
    );
    let all = of_rule(GraphCaptureRule::All, 1);
    assert_eq!(launches(&all, &prompt(600)).0, Span::ZERO);
}

/// vLLM's launches take 20 us on hosts of H100, and 44 us on hosts of A100, whose launch time is 117 us. Other hosts
/// take as many times longer as the machine says. Without a host, launches take no time.
#[test]
fn launches_take_the_host_time_of_the_machine() {
    let of = |machine: &Machine| build_step_calculator_on("qwen3-30b-a3b", machine, 4, &[]).launch;
    let preset = |name| Machine::load_by_name(name).unwrap();
    assert_eq!(of(&preset("dgx-h100")), Some(Span::from_us(20)));
    assert_eq!(of(&preset("dgx-a100")), Some(Span::from_us(44)));
    let slow = edit_dgx_h100("\nlaunch = \"20 us\"", "\nlaunch = \"400 us\"");
    assert_eq!(of(&slow), Some(Span::from_us(400)));
    let without = build_step_calculator_on("qwen3-30b-a3b", &preset("tpu-v5p"), 4, &[]);
    assert_eq!(without.launch, None);
    let load = StepTimeInputs {
        chunks: vec![(600, 0)],
        tokens: 600,
        wave_tokens: 600,
        all_tokens: 600,
        requests: 1,
        sampled: 1,
        ..StepTimeInputs::default()
    };
    assert!(without.launch_count_of_step(&load) > 0);
    let parts = without.step_time_by_part(&load, &mut StepPartTimeCache::default());
    assert_eq!(parts[StepTimePart::Launches as usize], Span::ZERO);
    let basis = without.describe_basis().join("\n");
    assert!(basis.contains("launch times are unknown"), "{basis}");
}

/// A kernel quantizes before each of the 4 products of a block with experts. It takes the time of 11 bytes for each of
/// 2,048 columns, of 4,096 / 2 on each of two NPUs, of 2,048, and of 8 times 768 / 2.
#[test]
fn scales_per_block_add_a_quantizing_kernel_before_each_product() {
    let mut cost = build_step_calculator("qwen3-30b-a3b", "dgx-h100", 2, &[]);
    let kernels = |cost: &StepTimeCalculator| -> Vec<u64> {
        let work = cost.memory_bound_kernels_of_block(&cost.sizes.kinds[0]);
        work.iter().map(|work| work.elements).collect()
    };
    let before = kernels(&cost);
    cost.formats.has_block_scales = true;
    assert_eq!(kernels(&cost), before);
    (cost.formats.weights, cost.formats.experts) = (Dtype::Fp8, Dtype::Fp8);
    let after = kernels(&cost);
    assert_eq!(after[..before.len()], before[..]);
    let columns = [2048, 4096 / 2, 2048, 8 * 768 / 2];
    assert_eq!(
        after[before.len()..],
        columns.map(|columns| 11 * columns / 2)
    );
}

/// vLLM's fused layers on one H100, with balanced routing (ai-dynamo/aiconfigurator, Apache-2.0): tokens, and
/// microseconds of the layer with its kernels that sort, quantize, multiply, activate and sum.
#[test]
fn experts_take_the_measured_times() {
    let measured = [
        (
            ("qwen3-235b-a22b", 4, Dtype::Bf16),
            [(1, 48.0), (128, 444.5), (1024, 529.9), (8192, 1562.9)],
        ),
        (
            ("qwen3-235b-a22b", 4, Dtype::Fp8),
            [(1, 46.5), (128, 281.8), (1024, 359.7), (8192, 1813.0)],
        ),
        (
            ("gpt-oss-120b", 2, Dtype::Fp4),
            [(1, 48.3), (128, 394.2), (1024, 487.1), (8192, 1676.8)],
        ),
    ];
    for ((model, npus, format), points) in measured {
        let mut cost = build_step_calculator(model, "dgx-h100", npus, &[]);
        cost.formats.experts = format;
        cost.formats.has_block_scales = format == Dtype::Fp8;
        cost.expert_kernels =
            ExpertKernelTimingConstants::load(ExpertKernelLibrary::Triton, "h100", format).unwrap();
        let kind = &cost.sizes.kinds[0];
        let [experts, chosen] = kind.experts.unwrap();
        let work = cost.memory_bound_kernels_of_block(kind);
        // The first kernel is the activation. The last ones sort and sum, and quantize the inputs of both products.
        let quantizing = if format == Dtype::Fp8 { 2 } else { 0 };
        let [first, last] = [&work[..1], &work[work.len() - 3 - quantizing..]];
        for (tokens, micros) in points {
            // Balanced routing gives no expert a second token before all experts have one.
            let touched = experts.min(tokens * chosen);
            let rows = (tokens * chosen).div_ceil(touched);
            let products = kind.products.iter().filter(|of| of.experts.is_some());
            let products = products.map(|product| {
                let [k, n] = kind.product_inputs_and_outputs_per_npu(product, npus);
                cost.expert_product_seconds([touched, rows, n, k])
            });
            let moving = first.iter().chain(last).map(|work| {
                cost.memory_bound_seconds(work.kernel, 2 * work.elements * tokens) + 1e-6
            });
            let seconds = products.sum::<f64>() + moving.sum::<f64>();
            let off = seconds * 1e6 / micros - 1.0;
            assert!(off.abs() < 0.25, "{model} {format:?} {tokens}: {off:+.3}");
        }
    }
    // A100 was not measured with balanced routing, so its experts are computed like other products.
    let other = ExpertKernelTimingConstants::load(ExpertKernelLibrary::Triton, "a100", Dtype::Bf16)
        .unwrap();
    assert_eq!(other, None);
}

/// Returns the preset dgx-h100 after `from` has been replaced by `to`.
fn edit_dgx_h100(from: &str, to: &str) -> Machine {
    let text = read_preset_text("dgx-h100").unwrap();
    assert!(text.contains(from));
    Machine::parse(&text.replace(from, to), "edited.toml").unwrap()
}

/// On eight H100s, the time of 4 MiB is 30.8 us. Bytes take at least (30.8 - 19.4) us / 2 MiB, so 22.8 us of this time
/// are the transfer. On links with half the bandwidth, the transfer takes 22.8 us longer. The smallest sizes take 5.1
/// us, of which 8,192 bytes take 0.04 us.
#[test]
fn engine_all_reduces_depend_on_the_links_of_the_machine() {
    let micros = |machine: &Machine, bytes| {
        let cost = build_step_calculator_on("llama3-70b", machine, 8, &[]);
        let seconds = cost.all_reduce.all_reduce_seconds(bytes);
        (seconds * 1e6, cost.describe_basis().join("\n"))
    };
    let same = edit_dgx_h100("name = \"dgx-h100\"", "name = \"mine\"");
    assert!((micros(&same, 4 << 20).0 - 30.8).abs() < 1e-9);
    assert!(!micros(&same, 4 << 20).1.contains("converted"));
    let half = edit_dgx_h100("bandwidth = \"450 GB/s\"", "bandwidth = \"225 GB/s\"");
    let [largest, smallest] = [4 << 20, 8192].map(|bytes| micros(&half, bytes).0);
    assert!((largest - (30.8 + 22.8)).abs() < 0.01, "{largest}");
    assert!((smallest - 5.144).abs() < 0.01, "{smallest}");
    let basis = micros(&half, 8192).1;
    let converted = "on links of 450 GB/s and 400.000 ns and converted to 225 GB/s and 400.000 ns";
    assert!(basis.contains(converted), "{basis}");
    // On much slower links, the machine's own collectives are faster.
    let tenth = edit_dgx_h100("bandwidth = \"450 GB/s\"", "bandwidth = \"45 GB/s\"");
    let collective = tenth.measured_collective(CollectiveKind::AllReduce, 4 << 20, 8);
    let [slow, collective] = [
        micros(&tenth, 4 << 20).0,
        collective.unwrap().as_seconds() * 1e6,
    ];
    assert!((slow - collective).abs() < 1e-6, "{slow} {collective}");
    // The kernels were measured through a switch.
    let ring = edit_dgx_h100("shape = \"switch\"\nsize = 8", "shape = \"ring\"\nsize = 8");
    let basis = micros(&ring, 8192).1;
    assert!(
        basis.contains("all-reduces among 8: the machine's collectives"),
        "{basis}"
    );
}
