"""The programs: where they are published, what they need, how they are called. None of them is in this repository."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stranger:
    """A script inside a source archive; `needs` are further packages of the registry, installed without theirs.

    With `chosen` it is a file of tests that train: those whose name fits are run by pytest, all of them for `""`.
    """

    name: str
    archive: str  # package==version
    script: str
    needs: tuple[str, ...] = ()
    chosen: str | None = None

    @property
    def arguments(self) -> list[str]:
        """What Python is given."""
        if self.chosen is None:
            return [self.script]
        return ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts=",
                self.script, "-k", self.chosen]  # fmt: skip


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

_GAMES = "stable_baselines3==2.9.2"
_GAMES_NEEDS = (_GAMES, "gymnasium==1.2.0", "farama-notifications")
_EQUATIONS = "neurodiffeq==0.7.0"
_EQUATIONS_NEEDS = (_EQUATIONS, "seaborn", "torchdiffeq", "ordered-set", "dill")
_SCIKIT = "skorch==1.4.0"
_OPTIMIZERS = "torch-optimizer==0.3.0"
_OPTIMIZERS_NEEDS = (_OPTIMIZERS, "pytorch_ranger")
_PRIVACY = "opacus==1.6.0"

STRANGERS = (
    *(
        Stranger(f"gpytorch {name}", _GAUSSIAN, f"test/examples/test_{name}.py", _GAUSSIAN_NEEDS)
        for name in _GAUSSIAN_EXAMPLES
    ),
    *(
        Stranger(f"stable-baselines3 {file} {chosen}".strip(), _GAMES, f"tests/test_{file}.py", _GAMES_NEEDS, chosen)
        for file, chosen in (
            ("run", "a2c"), ("run", "ppo"), ("run", "dqn"), ("run", "sac"), ("run", "td3"), ("sde", "state_dependent"),
            ("cnn", "features_extractor"), ("her", "test_her"), ("identity", "discrete"), ("identity", "continuous"),
            ("dict_env", "consistency"), ("train_eval_mode", ""), ("custom_policy", ""),
        )
    ),
    *(
        Stranger(f"neurodiffeq {file} {chosen}".strip(), _EQUATIONS, f"tests/test_{file}.py", _EQUATIONS_NEEDS, chosen)
        for file, chosen in (
            ("ode", "test_train_generator or test_ode"), ("ode", "system"), ("pde", "laplace"), ("temporal", ""),
            ("solvers", "fit"), ("callbacks", "train"), ("hypersolver", ""),
        )
    ),
    *(
        Stranger(f"skorch {file} {chosen}".strip(), _SCIKIT, f"skorch/tests/{file}.py", (_SCIKIT, "tabulate"), chosen)
        for file, chosen in (
            ("test_classifier", "NeuralNet and not Binary"), ("test_classifier", "Binary"), ("test_regressor", ""),
            ("callbacks/test_lr_scheduler", ""), ("callbacks/test_regularization", ""),
            ("callbacks/test_training", "EarlyStopping"), ("callbacks/test_training", "Checkpoint"),
            ("test_net", "net_learns or fit_lbfgs or predict or grid_search"), ("test_helper", "Predefined"),
        )
    ),
    *(
        Stranger(f"torch-optimizer {chosen}", _OPTIMIZERS, "tests/test_optimizer_with_nn.py", _OPTIMIZERS_NEEDS, chosen)
        for chosen in (
            "optimizer_config0 or optimizer_config1", "optimizer_config2", "optimizer_config3",
            "AdaBound or AdaMod or Yogi", "Lamb or RAdam or Shampoo",
        )
    ),
    *(
        Stranger(f"opacus {file}", _PRIVACY, f"opacus/tests/{file}.py", (_PRIVACY, "opt_einsum"), "")
        for file in ("accounting_noise_multiplier_test", "batch_memory_manager_test")
    ),
)  # fmt: skip
