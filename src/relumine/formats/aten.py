"""The torch operations that a model file may use.

A file that names others is refused: torch has operations that read and write files (``aten::save``,
``aten::from_file``), and its own loaders resolve any name at all.
"""

_ELEMENTWISE = """
abs add add_ alias celu clamp clamp_max clamp_min clone contiguous div div_ elu elu_ erf exp expm1 gelu hardsigmoid
hardswish hardtanh hardtanh_ leaky_relu leaky_relu_ log log1p log_sigmoid maximum minimum mish mul mul_ neg pow prelu
_prelu_kernel reciprocal relu relu_ relu6 relu6_ rsqrt rsub selu sigmoid sigmoid_ silu silu_ softplus sqrt square sub
sub_ tanh tanh_ where
"""
_LINEAR = """
addmm addmv baddbmm bmm conv1d conv2d conv3d _convolution _convolution_mode convolution linear matmul mm mv
"""
_POOLS_AND_NORMS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d
avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool2d_with_indices batch_norm instance_norm
_native_batch_norm_legit_no_training native_batch_norm layer_norm native_layer_norm group_norm native_group_norm
dropout dropout_ feature_dropout alpha_dropout log_softmax _log_softmax softmax _softmax logsumexp
"""
_SHAPES = """
cat chunk concat constant_pad_nd dim expand expand_as flatten index_select movedim narrow pad permute reshape select
size slice split split_with_sizes squeeze stack sym_size sym_numel sym_stride swapaxes t transpose unflatten unsqueeze
_unsafe_view view view_as
"""
_SUMS = "amax amin max mean min sum var norm"
_CONVERSIONS = "detach lift_fresh_copy ones_like to _to_copy type_as zeros_like"

TENSOR_OPERATIONS = frozenset(" ".join((_ELEMENTWISE, _LINEAR, _POOLS_AND_NORMS, _SHAPES, _SUMS, _CONVERSIONS)).split())

# What TorchScript does besides with sizes, lists and conditions.
_SCRIPT = """
__and__ __contains__ __getitem__ __is__ __isnot__ __not__ __or__ __range_length Bool Float Int eq floordiv format ge
gt is_floating_point le len lt ne numel list remainder ScalarImplicit warn
"""
SCRIPT_OPERATIONS = TENSOR_OPERATIONS | frozenset(_SCRIPT.split())
