//! The schemas of the operators, as in PyTorch 2.15.

/// Returns the schema of an operator, escaped for JSON; empty if PyTorch has no schema for it.
pub(super) fn schema_of_operator(name: &str) -> &'static str {
    let found = SCHEMAS.iter().find(|(known, _)| *known == name);
    found.map_or("", |(_, schema)| *schema)
}

const SCHEMAS: &[(&str, &str)] = &[
    (
        "_c10d_functional::all_gather_into_tensor",
        "_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, Any group_name) -> Tensor",
    ),
    (
        "_c10d_functional::all_reduce",
        "_c10d_functional::all_reduce(Tensor input, Any reduce_op, Any group_name) -> Tensor",
    ),
    (
        "_c10d_functional::reduce_scatter_tensor",
        "_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, Any group_name) -> Tensor",
    ),
    (
        "_c10d_functional::wait_tensor",
        "_c10d_functional::wait_tensor(Tensor tensor) -> Tensor",
    ),
    (
        "aten::_local_scalar_dense",
        "aten::_local_scalar_dense(Tensor self) -> Scalar",
    ),
    (
        "aten::_to_copy",
        "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor",
    ),
    (
        "aten::add",
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    ),
    (
        "aten::add_",
        "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
    ),
    (
        "aten::addmm",
        "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    ),
    (
        "aten::as_strided",
        "aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)",
    ),
    (
        "aten::clone",
        "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
    ),
    (
        "aten::copy_",
        "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
    ),
    ("aten::detach", "aten::detach(Tensor(a) self) -> Tensor(a)"),
    (
        "aten::empty",
        "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ),
    (
        "aten::empty_like",
        "aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ),
    (
        "aten::empty_strided",
        "aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ),
    (
        "aten::expand",
        "aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)",
    ),
    (
        "aten::fill_",
        "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)",
    ),
    (
        "aten::gelu",
        "aten::gelu(Tensor self, *, str approximate=\\\"none\\\") -> Tensor",
    ),
    (
        "aten::gelu_backward",
        "aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate=\\\"none\\\") -> Tensor",
    ),
    ("aten::item", "aten::item(Tensor self) -> Scalar"),
    (
        "aten::layer_norm",
        "aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor",
    ),
    (
        "aten::linear",
        "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    ),
    ("aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor"),
    (
        "aten::mul",
        "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
    ),
    (
        "aten::native_layer_norm",
        "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    ),
    (
        "aten::native_layer_norm_backward",
        "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    ),
    (
        "aten::normal_",
        "aten::normal_(Tensor(a!) self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor(a!)",
    ),
    (
        "aten::ones_like",
        "aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ),
    (
        "aten::randn",
        "aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ),
    (
        "aten::resolve_conj",
        "aten::resolve_conj(Tensor(a) self) -> Tensor(a)",
    ),
    (
        "aten::sum",
        "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ),
    ("aten::t", "aten::t(Tensor(a) self) -> Tensor(a)"),
    (
        "aten::to",
        "aten::to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
    ),
    (
        "aten::transpose",
        "aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
    ),
    (
        "aten::view",
        "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
    ),
    (
        "c10d::_allgather_base_",
        "c10d::_allgather_base_(Tensor output_tensor, Tensor input_tensor, __torch__.torch.classes.c10d.ProcessGroup process_group, bool async_op=True, int timeout=-1) -> (Tensor, __torch__.torch.classes.c10d.Work)",
    ),
    (
        "c10d::_reduce_scatter_base_",
        "c10d::_reduce_scatter_base_(Tensor output_tensor, Tensor input_tensor, __torch__.torch.classes.c10d.ProcessGroup process_group, __torch__.torch.classes.c10d.ReduceOp reduce_op, bool async_op=True, int timeout=-1) -> (Tensor, __torch__.torch.classes.c10d.Work)",
    ),
    (
        "c10d::allgather_into_tensor_coalesced_",
        "c10d::allgather_into_tensor_coalesced_(Tensor[] outputs, Tensor[] inputs, __torch__.torch.classes.c10d.ProcessGroup process_group, bool async_op=True) -> __torch__.torch.classes.c10d.Work",
    ),
    (
        "c10d::allreduce_",
        "c10d::allreduce_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, __torch__.torch.classes.c10d.ReduceOp reduce_op, Tensor? sparse_indices, bool async_op=True, int timeout=-1) -> (Tensor[], __torch__.torch.classes.c10d.Work)",
    ),
    (
        "c10d::broadcast_",
        "c10d::broadcast_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, int root_rank, int root_tensor, bool async_op=True, int timeout=-1) -> (Tensor[], __torch__.torch.classes.c10d.Work)",
    ),
    (
        "c10d::recv_",
        "c10d::recv_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, int src, int tag) -> __torch__.torch.classes.c10d.Work",
    ),
    (
        "c10d::reduce_scatter_tensor_coalesced_",
        "c10d::reduce_scatter_tensor_coalesced_(Tensor[] outputs, Tensor[] inputs, __torch__.torch.classes.c10d.ProcessGroup process_group, __torch__.torch.classes.c10d.ReduceOp reduce_op, bool async_op=True, int timeout=-1) -> __torch__.torch.classes.c10d.Work",
    ),
    (
        "c10d::send",
        "c10d::send(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, int dst, int tag) -> __torch__.torch.classes.c10d.Work",
    ),
];
