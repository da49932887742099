"""The table of operators and torch functions with a peculiarity, each in one row.

To add an operator, add its row here: capture, the emulated cluster and the runtime follow. Names are
without namespace and overload; those that share a row share everything that it says. `*` stands for any
text; an operator's own row goes before one with a `*`, of which the longest counts.
"""

from fnmatch import fnmatchcase
from functools import cache

from baechi.torchlib.operators import formulas
from baechi.torchlib.operators.rule import Rule, Workspace

_ATTENTION = Rule(random="if dropout", flops=formulas.attention_flops)
_ATTENTION_BACKWARD = Rule(random="if dropout", flops=formulas.attention_backward_flops)
_FOURIER = Rule(flops=formulas.fourier_flops)

_ROWS = (
    # running statistics: neither schemas nor version counters tell that they are written
    ("batch_norm instance_norm", Rule(writes=("running_mean", "running_var"))),
    (
        "native_batch_norm cudnn_batch_norm miopen_batch_norm",
        Rule(writes=("running_mean", "running_var"), memory_format=0),
    ),
    ("_batch_norm_with_update _native_batch_norm_legit", Rule(memory_format=0)),
    ("batch_norm_update_stats", Rule(writes=("running_mean", "running_var"))),
    # memory: made, handed on, exchanged
    ("empty empty_strided empty_like empty_permuted", Rule(computes=False, unfilled=True)),
    ("new_empty new_empty_strided", Rule(computes=False, unfilled=True)),
    ("empty_quantized", Rule(unfilled=True)),
    ("lift_fresh", Rule(computes=False, fresh=True)),
    ("set_", Rule(computes=False, new_memory=True, moves=True)),
    ("resize_", Rule(computes=False, resizes=True)),
    ("record_stream is_same_size _has_compatible_shallow_copy_type", Rule(computes=False)),
    ("sym_size sym_stride sym_numel sym_storage_offset", Rule(computes=False)),
    ("_unsafe_view _reshape_alias unsafe_split unsafe_split_with_sizes unsafe_chunk", Rule(views=True)),
    ("T mT H mH real imag", Rule(views=True)),  # properties whose value is a tensor
    ("copy_", Rule(copies=1)),
    ("_to_copy", Rule(copies=0)),
    # arithmetic, bytes and random numbers
    ("_foreach_* _fused_* _amp_foreach_*", Rule(lists=True)),
    ("embedding index_select gather", Rule(reads_result_only=True)),
    ("index", Rule(masks=1)),
    ("_scaled_dot_product*_backward _flash_attention*_backward", _ATTENTION_BACKWARD),
    ("_scaled_dot_product* _flash_attention*", _ATTENTION),
    ("scaled_dot_product_attention", Rule(random="if dropout")),  # tagged so even where nothing drops
    (
        "_native_multi_head_attention",
        Rule(flops=formulas.fused_attention_flops, undefined_without={1: (10, True)}),
    ),
    ("_transformer_encoder_layer_fwd", Rule(flops=formulas.fused_encoder_layer_flops)),
    ("_fft_r2c _fft_c2r _fft_c2c", _FOURIER),
    ("_cdist_forward", Rule(flops=formulas.distance_flops)),
    ("mkldnn_rnn_layer", Rule(flops=formulas.recurrent_flops, workspace=Workspace(3, batched=(0, 5, 6)))),
    ("_embedding_bag _embedding_bag_forward_only", Rule(spare=1)),
    ("mse_loss smooth_l1_loss binary_cross_entropy soft_margin_loss", Rule(unreduced=True)),
    ("index_put index_put_ _index_put_impl_", Rule(masks=1)),
    ("native_layer_norm_backward _log_softmax_backward_data glu_backward", Rule(layout=())),
    ("log_sigmoid_forward", Rule(layout=())),
    ("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", Rule(layout=())),
    ("native_batch_norm_backward batch_norm_backward", Rule(memory_format=1, asked_for=9)),
    ("reflection_pad*_backward replication_pad*_backward", Rule(memory_format=1)),
    ("native_group_norm_backward", Rule(memory_format=1)),
    ("roll max_unpool2d channel_shuffle native_group_norm", Rule(memory_format=0)),
    ("normal", Rule(layout=())),
    ("col2im", Rule(room_of=0)),
    ("softplus_backward hardtanh_backward hardsigmoid_backward", Rule(layout=(0, 1))),
    ("hardswish_backward native_dropout_backward", Rule(layout=(0, 1))),
    ("elu_backward", Rule(layout=(0, 5))),
    ("copysign floor_divide xlogy special_xlog1py", Rule(layout=(0, 1))),
    # but for `linalg_vector_norm`, `linalg_vecdot` and `linalg_vander`, which read what they are given once
    ("linalg_[!v]* _linalg_* cholesky* triangular_solve lu_* ormqr geqrf quantized*", Rule(heavy=True)),
    ("_ctc_loss", Rule(heavy=True, sized_by=(2, 3))),
    ("_thnn_fused* _cudnn_rnn* grid_sampler* _trilinear* _ctc_loss_backward", Rule(heavy=True)),
    ("convolution_overrideable", Rule(heavy=True)),
    ("_nested_tensor_from_mask", Rule(nests=True, sized_by=(1,))),
    ("_nested_tensor_from_tensor_list", Rule(nests=True)),
    ("rrelu_with_noise rrelu_with_noise_functional", Rule(layout=())),
    ("rrelu_with_noise_backward", Rule(random="never")),
    # what autograd does with it
    ("detach", Rule(becomes_grad=True)),
    ("add sub rsub mul div remainder hardtanh", Rule(keeps_strides=True)),
    ("eq ne lt le gt ge", Rule(keeps_strides=True)),
    # what the code asks of a tensor
    ("__get__", Rule(query=True)),
    ("dim size stride untyped_storage", Rule(query=True, answers="method")),
    ("numel is_floating_point", Rule(query=True, answers="function")),
    ("is_complex", Rule(answers="function")),
    ("nelement ndimension is_contiguous element_size get_device __len__", Rule(answers="method")),
    ("is_inference is_conj is_neg", Rule(answers="method")),
    ("shape dtype device layout ndim itemsize nbytes requires_grad", Rule(answers="attribute")),
    ("is_cuda is_cpu is_meta is_sparse is_quantized is_nested", Rule(answers="attribute")),
    # what the code does with a tensor
    ("__set__", Rule(query=True, new_memory=True)),
    ("requires_grad_", Rule(keeps_arguments=True)),
    ("backward", Rule(keeps_arguments=True, needs_values=True)),
    ("grad register_hook retain_grad", Rule(keeps_arguments=True)),
    ("_pack_padded_sequence", Rule(keeps_arguments=True, sized_by=(1,))),  # takes lengths on the host
    ("_pad_packed_sequence", Rule(keeps_arguments=True)),
    ("numpy tolist", Rule(leaves=True)),
    ("cpu cuda", Rule(leaves=True, moves=True)),
    ("to", Rule(moves=True, takes_device=True)),
    ("expand_as view_as reshape_as", Rule(shaped_like=True)),
    ("__bool__ __int__ __float__ __index__ __contains__", Rule(needs_values=True)),
    ("__repr__ __deepcopy__ __reduce_ex__", Rule(needs_values=True)),
    ("__setitem__ __iadd__ __isub__ __imul__ __imatmul__ __itruediv__", Rule(writes_first=True)),
    ("__idiv__ __ifloordiv__ __imod__ __ipow__", Rule(writes_first=True)),
    ("__iand__ __ior__ __ixor__ __ilshift__ __irshift__", Rule(writes_first=True)),
)

HOST_ARGUMENTS = frozenset({"indices", "lengths", "batch_sizes", "index_put_indices"})
"""Arguments of any operator that may lie on the host though the others do not."""

WRITES_IF = {"inplace": 0, "max_norm": 1}
"""Arguments that make a function write in place, and the position of what it writes then."""

GRADIENTS = ("grad_outputs", "grad_tensors", "gradient")
"""Arguments of autograd's functions that hold gradients of the first argument."""

RULES = {name: rule for names, rule in _ROWS for name in names.split() if "*" not in name}
"""By name, what is peculiar about an operator or a function."""

FAMILIES = {name: rule for names, rule in _ROWS for name in names.split() if "*" in name}
"""By pattern, what is peculiar about all operators that match; the longest pattern counts."""

_PLAIN = Rule()


@cache
def rule_of(name: str) -> Rule:
    """What is peculiar about an operator or a torch function."""
    if name in RULES:
        return RULES[name]
    matching = [pattern for pattern in FAMILIES if fnmatchcase(name, pattern)]
    return FAMILIES[max(matching, key=len)] if matching else _PLAIN
