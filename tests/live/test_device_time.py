"""Kernels by class, by names that libraries give them, and the time of a GPU in traces whose truth is known."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stethos.cli.main import main
from stethos.cli.task.trace_steps import trace_lines
from stethos.errors import UsageError
from stethos.live.device_time import device_times
from stethos.live.kernel_class import class_of
from stethos.live.profiler_trace import saved_trace, tables_of

NAMES = {
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 4>", "c10d::allreduce_", "gloo:all_reduce",
        "nccl:all_gather_into_tensor",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, cutlass::bfloat16_t>",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloop>>>",
        "triton_tem_fused_flex_attention_3", "_attn_fwd", "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW, false>",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor>",
        "void kOptimizerStatic8bit2StateBlockwise<float, 0, 256, 1>", "triton_for_fused_0", "aten::_fused_adamw_",
        "aten::_foreach_add_",
    ],
    "normalisation": [
        "void (anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, float, int>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>",
        "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, float, 10, true, false>",
        "triton_red_fused__to_copy_native_layer_norm_backward_12", "triton_per_fused_rms_norm_2",
        "aten::native_layer_norm", "aten::_log_softmax",
    ],
    "matmul": [
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "void gemv2T_kernel_val<int, float>",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "triton_tem_fused_mm_12",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>", "aten::addmm",
        "aten::mm", "aten::convolution_backward", "aten::mkldnn_convolution",
    ],
    "memory copies": [
        "Memcpy HtoD (Pinned -> Device)", "Memset (Device)", "aten::copy_",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor>>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>",
        "triton_poi_fused_add_gelu_4", "triton_red_fused_sum_9", "triton_per_fused__to_copy_mean_1",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>",
        "aten::relu_", "aten::mul",
    ],
    "other": ["my_own_thing", ""],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_kernel_has_the_class_of_what_it_does(kind: str, name: str) -> None:
    assert class_of(name) == kind


# A trace in microseconds, 0 to 10,000, whose truth stands beside it --------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    args = {name: more.pop(name) for name in ("device", "stream", "correlation") if name in more}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": 1, **more, "args": args}


def gpu(name: str, ts: float, dur: float, correlation: int = 0, device: int = 0, cat: str = "kernel") -> dict[str, Any]:
    return event(cat, name, ts, dur, device=device, stream=7, correlation=correlation)


GEMM, ADD = "ampere_sgemm_128x64_tn", "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TRACE = [
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 2000),
    gpu("Memcpy HtoD (Pageable -> Device)", 2000, 500, cat="gpu_memcpy"),
    gpu(GEMM, 2500, 2000),
    gpu(ADD, 4000, 1000),  # 500 of it beside the gemm, on another stream
    gpu(NCCL, 4500, 1500),  # 500 of it behind the addition
    event("cpu_op", "c10d::allreduce_", 6000, 700),  # the GPU is idle for as long
    event("user_annotation", "Optimizer.step#SGD.step", 6900, 600),
    event("cuda_runtime", "cudaLaunchKernel", 7000, 10, correlation=42),
    gpu(ADD, 7200, 300, correlation=42),
    event("cuda_runtime", "cudaLaunchKernel", 7600, 10, correlation=43),
    gpu(ADD, 7700, 100, correlation=43),
    event("cpu_op", "aten::mul", 9000, 1000),
]  # fmt: skip


def test_every_moment_of_a_gpu_counts_once() -> None:
    (found,) = device_times(TRACE)
    assert found.whole_ms == 10.0 and found.kernels == 6
    assert found.class_ms == pytest.approx(
        {"matmul": 2.0, "elementwise": 0.5 + 0.1, "optimizer": 0.3, "memory copies": 0.5, "communication": 1.0}
    )
    assert found.idle_ms == pytest.approx({"data": 2.0, "communication": 0.7, "host": 0.5 + 0.2 + 2.2})
    assert found.hidden_communication_ms == pytest.approx(0.5)
    assert sum(found.class_ms.values()) + sum(found.idle_ms.values()) == pytest.approx(found.whole_ms)
    assert found.slowest["matmul"] == GEMM


def test_each_gpu_has_its_own_time_and_a_cpu_none() -> None:
    both = device_times([*TRACE, gpu(GEMM, 1000, 100, device=1)])
    assert [(one.device, one.class_ms.get("matmul")) for one in both] == [(0, 2.0), (1, 0.1)]
    assert device_times([one for one in TRACE if one["cat"] == "cpu_op"]) == []
    odd: list[dict[str, Any]] = [{}, {"ph": "X"}, {"ph": "X", "cat": "kernel", "ts": "a", "dur": -1}]
    assert device_times(odd) == []


def test_the_command_reads_a_saved_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": TRACE, "stethosEventsLeftOut": 3}).encode()))
    assert main(["profile", "--from-trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "GPU 0: 10.00 ms, 6 kernels and copies" in out and "3 short events were cut off" in out
    for words in ("matmul", "20.0%", "idle: waits for a batch", "idle: waits for the program", "29.0%", GEMM[:20]):
        assert words in out, words
    assert main(["profile", "--from-trace", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["idle_ms"]["data"] == pytest.approx(2.0)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"traceEvents": [1]}', b"\x1f\x8bxx", b"{" * 9999])
def test_what_is_not_a_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    from stethos.cli.task.saved_trace import read_trace

    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_trace(path)
    with pytest.raises(UsageError):
        read_trace(tmp_path / "none")


def test_operators_of_a_cpu_are_shown_by_class(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    model, x = torch.nn.Linear(256, 256), torch.randn(256, 256)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(2):
            torch.nn.functional.layer_norm(model(x).relu(), (256,)).pow(2).mean().backward()
            optimizer.step()
    tables = tables_of(profiler)
    assert tables["is_gpu"] is False
    assert {"matmul", "normalisation", "optimizer", "elementwise"} <= set(tables["class_ms"])
    total = sum(one.self_cpu_time_total for one in profiler.key_averages()) * 1e-3
    assert sum(tables["class_ms"].values()) == pytest.approx(total)
    reply = {**tables, "steps": 2, "first_step": 0, "duration_ms": 1.0}
    assert any("operators by class" in line for line in trace_lines(1, reply))
    path = tmp_path / "t.json.gz"
    saved = saved_trace(profiler, path, 1 << 22)
    assert saved["events_left_out"] == 0
    arguments = argparse.Namespace(from_trace=path, json=False)
    from stethos.cli.task.saved_trace import device_lines, read_trace

    assert device_lines(read_trace(arguments.from_trace)) == ["no GPU worked in this trace"]


def test_a_trace_that_unfolds_beyond_all_measure_is_none(tmp_path: Path) -> None:
    from stethos.cli.task.saved_trace import read_trace

    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 1_000_000 + b"]}"))
    with pytest.raises(UsageError, match="not a trace"):
        read_trace(path)
