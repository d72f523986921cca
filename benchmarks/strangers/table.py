"""The programs: where they are published, what they need, how they are called. None of them is in this repository."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stranger:
    """A script inside a source archive; `needs` are further packages of the registry, installed without theirs."""

    name: str
    archive: str  # package==version
    script: str
    needs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


_GAUSSIAN = "gpytorch==1.15.2"
_GAUSSIAN_NEEDS = (_GAUSSIAN, "linear_operator==0.6.1", "jaxtyping", "wadler_lindig")
_GAUSSIAN_EXAMPLES = (
    "batch_decoupled_ppgpr_regression", "batch_gp_regression", "batch_multitask_gp_regression",
    "batch_svgp_gp_regression", "decoupled_svgp_regression", "dspp_regression", "fixed_noise_fanatasy_updates",
    "grid_gp_regression", "hadamard_multitask_gp_regression", "independent_multitask_gp_regression",
    "kissgp_additive_classification", "kissgp_additive_regression", "kissgp_dkl_regression",
    "kissgp_gp_classification", "kissgp_gp_regression", "kissgp_kronecker_product_classification",
    "kissgp_kronecker_product_regression", "kissgp_multiplicative_regression", "kissgp_variational_regression",
    "kissgp_white_noise_regression", "kronecker_multitask_gp_regression", "kronecker_multitask_sgpr_regression",
    "kronecker_multitask_ski_gp_regression", "lcm_kernel_regression", "lmc_svgp_regression",
    "lowrank_gp_regression", "missing_data", "model_list_gp_regression", "sgpr_regression",
    "simple_gp_classification", "simple_gp_regression", "spectral_mixture_gp_regression", "svgp_gp_classification",
    "svgp_gp_regression", "unwhitened_svgp_regression", "white_noise_regression",
)  # fmt: skip

STRANGERS = tuple(
    Stranger(f"gpytorch {name}", _GAUSSIAN, f"test/examples/test_{name}.py", _GAUSSIAN_NEEDS)
    for name in _GAUSSIAN_EXAMPLES
)
