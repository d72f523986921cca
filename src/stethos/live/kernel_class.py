"""What a GPU kernel or an operator does, by its name: a list of patterns, the first that fits counts."""

from __future__ import annotations

import functools
import re
from typing import Literal, get_args

KernelClass = Literal[
    "communication", "attention", "optimizer", "normalisation", "matmul", "memory copies", "elementwise", "other"
]  # fmt: skip
CLASSES: tuple[KernelClass, ...] = get_args(KernelClass)

# In lower case. Names come from cuBLAS, cuDNN, CUTLASS, FlashAttention, NCCL, ATen, Inductor's Triton code, apex,
# bitsandbytes and torch's own operators.
PATTERNS: tuple[tuple[KernelClass, str], ...] = (
    ("communication", r"nccl|rccl|msccl|nvshmem|multimem_|symm_mem|c10d::|gloo:|mpi:|all_?reduce|all_?gather|"
                      r"reduce_?scatter|all_?to_?all|sendrecv|broadcast_kernel|record_param_comms"),
    ("attention", r"flash|fmha|sdpa|scaled_dot_product|efficient_attention|_attn_|attention"),
    ("optimizer", r"multi_tensor_apply|_foreach_|_fused_(adam|adamw|sgd|adagrad)|fused_?(adam|lamb|sgd)|adam|lamb|"
                  r"optimizer|triton_for_fused"),
    ("normalisation", r"layer_?norm|batch_?norm|group_?norm|instance_?norm|rms_?norm|bn_(fw|bw)|welford|softmax|"
                      r"gamma_?beta|_norm_kernel"),
    ("matmul", r"gemm|gemv|cutlass|cublas|nvjet|xmma|wgmma|wmma|tensorop|cudnn|convolution|conv\dd|conv_|winograd|"
               r"fprop|dgrad|wgrad|splitk|dot_kernel|magma|triton_tem|_mm_|matmul|linear"),
    ("matmul", r"^aten::(mm|bmm|addmm|addbmm|baddbmm|addmv|mv|dot|einsum|mkldnn_.*)$"),
    ("memory copies", r"memcpy|memset|direct_copy|catarraybatchedcopy|copy_kernel|"
                      r"^aten::(copy_|cat|clone)$"),
    ("elementwise", r"elementwise|vectorized|reduce_kernel|triton_(poi|red|per)|index|gather|scatter|dropout|embedding|"
                    r"loss|distribution|fill|cumsum|sort|topk|where|random|pool|upsample|^aten::"),
)  # fmt: skip
_COMPILED = tuple((found, re.compile(pattern)) for found, pattern in PATTERNS)


@functools.lru_cache(maxsize=4096)
def class_of(name: str) -> KernelClass:
    """The class of a kernel or operator; `other` where no pattern fits."""
    lower = name.lower()
    return next((found for found, pattern in _COMPILED if pattern.search(lower)), "other")
