//! Tests the audit on traces that leak every kind of private information in every field, and on strings without leaks.

use super::*;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{AttributeProto, GlobalMetadata, IoInfo, Node, StringList};
use prost::Message;

fn list_distinct_leaks(text: &str) -> Vec<(LeakKind, String)> {
    let mut found: Vec<_> = find_leaks(text)
        .iter()
        .map(|leak| (leak.kind, leak.text.to_owned()))
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn each_kind_is_found_and_cut_out() {
    for (text, expected) in [
        (
            "mail bob@example.com.",
            vec![
                (LeakKind::Host, "example.com"),
                (LeakKind::Email, "bob@example.com"),
            ],
        ),
        ("from 10.0.3.17:29500", vec![(LeakKind::Ip, "10.0.3.17")]),
        ("addr:fe80::1c2:3ff", vec![(LeakKind::Ip, "fe80::1c2:3ff")]),
        (
            "2001:db8::8a2e:370:7334",
            vec![(LeakKind::Ip, "2001:db8::8a2e:370:7334")],
        ),
        (
            "eth 0c:42:a1:7f:00:9e up",
            vec![(LeakKind::Mac, "0c:42:a1:7f:00:9e")],
        ),
        (
            "0C-42-A1-7F-00-9E",
            vec![(LeakKind::Mac, "0C-42-A1-7F-00-9E")],
        ),
        ("on gpu-node-07", vec![(LeakKind::Host, "gpu-node-07")]),
        (
            "ip-10-1-2-3.ec2.internal",
            vec![(LeakKind::Host, "ip-10-1-2-3.ec2.internal")],
        ),
        ("s3://bucket/x", vec![(LeakKind::Host, "s3://bucket/x")]),
        ("HOSTNAME=atlas", vec![(LeakKind::Host, "atlas")]),
        (
            "'/home/bob/train'",
            vec![(LeakKind::Path, "/home/bob/train"), (LeakKind::User, "bob")],
        ),
        ("/tmp", vec![(LeakKind::Path, "/tmp")]),
        (
            "~bob/x",
            vec![(LeakKind::Path, "~bob/x"), (LeakKind::User, "bob")],
        ),
        (
            "C:\\Users\\bob\\x",
            vec![
                (LeakKind::Path, "C:\\Users\\bob\\x"),
                (LeakKind::User, "bob"),
            ],
        ),
        ("config/my.yaml", vec![(LeakKind::Path, "config/my.yaml")]),
        ("user=bob", vec![(LeakKind::User, "bob")]),
        (
            "train.py(12): step",
            vec![
                (LeakKind::Path, "train.py"),
                (LeakKind::Stack, "train.py(12"),
            ],
        ),
        (
            "Traceback (most recent call last)",
            vec![(LeakKind::Stack, "Traceback (most recent call last)")],
        ),
        (
            "AKIAIOSFODNN7EXAMPLE",
            vec![(LeakKind::Secret, "AKIAIOSFODNN7EXAMPLE")],
        ),
        ("password=hunter", vec![(LeakKind::Secret, "hunter")]),
        (
            "9f86d081884c7d659a2feaa0c55ad015",
            vec![(LeakKind::Secret, "9f86d081884c7d659a2feaa0c55ad015")],
        ),
        (
            "wJalrXUtnFEMIbK7MDENGbPxRfiCYEXAzQLEKEY4",
            vec![(LeakKind::Secret, "wJalrXUtnFEMIbK7MDENGbPxRfiCYEXAzQLEKEY4")],
        ),
    ] {
        let expected: Vec<_> = expected
            .iter()
            .map(|(k, t)| (*k, (*t).to_owned()))
            .collect();
        assert_eq!(list_distinct_leaks(text), expected, "{text}");
    }
}

#[test]
fn operator_and_kernel_names_are_no_leaks() {
    for text in [
        "aten::addmm",
        "c10d::allreduce_",
        "c10d::add fade::add feed::dead",
        "autograd::engine::evaluate_function: ConvolutionBackward0",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
        "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_13BinaryFunctorIfffNS0_10MulFunctorIfEEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "Cijk_Alik_Bljk_HHS_BH_MT128x256x32_MI32x32x8x1_SE_K1",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_ReduceScatter_LD_sum_float",
        "MultiTensorApplyKernelFusedAdamMathFunctorFloatFourListsOfTensors",
        "Torch-Compiled Region: 0/0",
        "Memcpy HtoD (Pinned -> Device)",
        "Optimizer.step#AdamW.step",
        "DistributedDataParallel.forward",
        "FSDP::all_gather (model.layers.31.self_attn.q_proj)",
        "triton_poi_fused__native_batch_norm_legit_functional_add_relu_17",
        "layers/0/attention a / b 3/4",
        "cpu:gloo,cuda:nccl",
        "1.1.1-chakra.0.0.4",
        "2024-05-01 12:30:45",
        "[[5, 6, 0, 1024, 4, 'cuda:0'], 1, 0.000010, True, '<None>']",
        "['Tensor(float)', 'GenericList[Tensor(c10::BFloat16),Int]']",
        "[[64, 3, 224, 224], []]",
        "aten::convolution(Tensor input, Tensor weight, Tensor? bias=None, SymInt[] stride=1) -> Tensor",
        "127.0.0.1 0.0.0.0 300.1.2.3 1.2.3",
        "thread 140234866816832 (python3)",
        "pt_autograd_0 gpu-0 worker-1",
        "## process_group:init ##",
        r#"[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "group_size": 2}]"#,
        "n-0123456789abcdef",
    ] {
        assert_eq!(list_distinct_leaks(text), [], "{text}");
    }
}

/// Generator of pseudorandom numbers with a fixed sequence, so that every run tests the same cases.
struct PseudorandomGenerator(u64);

impl PseudorandomGenerator {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn pick_text<'s>(&mut self, list: &[&'s str]) -> &'s str {
        list[self.below(list.len() as u64) as usize]
    }

    fn random_text_of_chars(&mut self, from: &str, length: u64) -> String {
        let from: Vec<char> = from.chars().collect();
        let draw = |_| from[self.below(from.len() as u64) as usize];
        (0..length).map(draw).collect()
    }

    /// Returns a random leak and its kind.
    fn random_leak_and_kind(&mut self) -> (LeakKind, String) {
        const NAMES: [&str; 6] = ["alice", "bob", "j.doe", "zhang-wei", "m_schmidt", "root"];
        const HEX: &str = "0123456789abcdef";
        const ALNUM: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let name = self.pick_text(&NAMES);
        let number = self.below(90) + 10;
        let octets = [0; 3].map(|_| self.below(256));
        let [a, b, c] = octets;
        let kind = LeakKind::ALL[self.below(8) as usize].0;
        let way = self.below(4);
        let hex = |this: &mut Self, n| this.random_text_of_chars(HEX, n);
        let text = match (kind, way) {
            (LeakKind::Host, 0) => format!("gpu-node-{number}"),
            (LeakKind::Host, 1) => format!("dgx{number}.lab.example.com"),
            (LeakKind::Host, 2) => format!("ip-10-{a}-{b}-{c}"),
            (LeakKind::Host, _) => format!("https://{name}.example.org/run/{number}"),
            (LeakKind::Ip, 0) => format!("10.{a}.{b}.{c}"),
            (LeakKind::Ip, 1) => format!("192.168.{a}.{b}:{number}"),
            (LeakKind::Ip, 2) => format!("fe80::{:x}:{:x}:{:x}", a + 256, b + 1, c + 1),
            (LeakKind::Ip, _) => format!("2001:db8:{:x}::{:x}", a + 1, b + 1),
            (LeakKind::Mac, _) => {
                let pairs: Vec<String> = (0..6).map(|_| hex(self, 2)).collect();
                pairs.join(if way < 2 { ":" } else { "-" })
            }
            (LeakKind::Path, 0) => format!("/data/{name}/run{number}"),
            (LeakKind::Path, 1) => format!("../{name}/run{number}"),
            (LeakKind::Path, 2) => format!("D:\\runs\\{number}"),
            (LeakKind::Path, _) => format!("model_{number}.py"),
            (LeakKind::User, 0) => format!("/home/{name}/x"),
            (LeakKind::User, 1) => format!("/Users/{name}/x"),
            (LeakKind::User, 2) => format!("C:\\Users\\{name}\\x"),
            (LeakKind::User, _) => format!("user={name}"),
            (LeakKind::Email, _) => format!("{name}{number}@mail.example.org"),
            (LeakKind::Stack, 0) => format!("model.py({number}): forward"),
            (LeakKind::Stack, 1) => format!("model.py:{number}"),
            (LeakKind::Stack, 2) => format!("File \"m\", line {number}, in f"),
            (LeakKind::Stack, _) => "Traceback (most recent call last):".to_owned(),
            (LeakKind::Secret, 0) => format!("ghp_{}", self.random_text_of_chars(ALNUM, 36)),
            (LeakKind::Secret, 1) => hex(self, 40),
            (LeakKind::Secret, 2) => self.random_text_of_chars(&format!("{ALNUM}+/"), 44),
            (LeakKind::Secret, _) => format!("password={name}{number}"),
        };
        (kind, text)
    }
}

/// Returns a trace that is valid except that one field contains `leak`, and that field's name; `way` selects the field.
fn build_trace_with_leak_in_one_field(leak: &str, way: u64) -> (Vec<u8>, &'static str) {
    let text = |name: &str, value: &str| AttributeProto {
        name: name.to_owned(),
        doc_string: String::new(),
        value: Some(Value::StringVal(value.to_owned())),
    };
    let mut metadata = GlobalMetadata::default();
    let mut node = Node {
        id: 5,
        name: "aten::mm".into(),
        r#type: 4,
        attr: vec![text("op_type", "GEMM")],
        ..Node::default()
    };
    let io = |values: &str, types: &str| {
        Some(IoInfo {
            values: values.into(),
            shapes: "[[2, 2]]".into(),
            types: types.into(),
        })
    };
    let mut tail = Vec::new();
    let field = match way {
        0 => {
            node.name = format!("step of {leak}");
            "name"
        }
        1 => {
            node.inputs = io(&format!("[1, '{leak}']"), "");
            "inputs.values"
        }
        2 => {
            node.outputs = io("", leak);
            "outputs.types"
        }
        3 => {
            node.attr.push(text("note", leak));
            "attribute `note`"
        }
        4 => {
            node.attr[0].doc_string = leak.to_owned();
            "the doc_string of attribute `op_type`"
        }
        5 => {
            let values = vec!["a".to_owned(), leak.to_owned()];
            node.attr[0].value = Some(Value::StringList(StringList { values }));
            "attribute `op_type`"
        }
        6 => {
            metadata.attr.push(text("input_file", leak));
            "attribute `input_file`"
        }
        7 => {
            // Field 40 is a message whose field 3 is the leak.
            let mut inner = vec![0x1a, leak.len() as u8];
            inner.extend(leak.bytes());
            tail.extend([0xc2, 0x02, inner.len() as u8]);
            tail.extend(inner);
            "field 40"
        }
        _ => {
            node.attr[0].name = leak.to_owned();
            "the name of an attribute"
        }
    };
    let mut file = metadata.encode_length_delimited_to_vec();
    let mut record = node.encode_to_vec();
    record.extend(tail);
    prost::encoding::encode_varint(record.len() as u64, &mut file);
    file.extend(record);
    (file, field)
}

#[test]
fn a_thousand_planted_leaks_are_found_where_they_are() {
    let mut chance = PseudorandomGenerator(7);
    for round in 0..1000 {
        let (kind, leak) = chance.random_leak_and_kind();
        let (file, field) = build_trace_with_leak_in_one_field(&leak, round % 9);
        let found = TracePrivateStringFindings::search_trace(&file)
            .unwrap()
            .into_findings();
        let here = found
            .iter()
            .find(|f| f.kind == kind && f.place.field == field)
            .unwrap_or_else(|| panic!("{round}: {kind} {leak} in {field}: {found:?}"));
        let node = (field != "attribute `input_file`").then_some(5);
        assert_eq!(here.place.node, node, "{leak}");
    }
}

#[test]
fn equal_leaks_are_counted_and_broken_files_refused() {
    let node = |id| Node {
        id,
        name: "/home/bob/x".into(),
        ..Node::default()
    };
    let mut file = GlobalMetadata::default().encode_length_delimited_to_vec();
    for id in 0..3 {
        file.extend(node(id).encode_length_delimited_to_vec());
    }
    let found = TracePrivateStringFindings::search_trace(&file)
        .unwrap()
        .into_findings();
    let counts: Vec<_> = found
        .iter()
        .map(|f| (f.kind, f.count, f.place.node))
        .collect();
    assert_eq!(
        counts,
        [(LeakKind::Path, 3, Some(0)), (LeakKind::User, 3, Some(0))]
    );
    assert!(TracePrivateStringFindings::search_trace(&file[..file.len() - 1]).is_err());
}
