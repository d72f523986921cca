"""The programs: where they are published, what they need, how they are called. None of them is in this repository."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stranger:
    """A script inside a source archive; `needs` are further packages of the registry, installed without theirs.

    With `chosen` it is a file of tests that train: those whose name fits are run by pytest, all of them for `""`.
    An archive `owner/name` is a clone that the user has made as the directory `owner+name`. A script in a directory
    of its own runs there. `options` are the program's own, to end it sooner.
    """

    name: str
    archive: str  # package==version, or owner/name
    script: str
    needs: tuple[str, ...] = ()
    chosen: str | None = None
    options: tuple[str, ...] = ()

    @property
    def is_clone(self) -> bool:
        return "/" in self.archive

    @property
    def arguments(self) -> list[str]:
        """What Python is given."""
        if self.chosen is None:
            return [self.script.rpartition("/")[2] if self.is_clone else self.script, *self.options]
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

# By clone: what its programs need, and each with its own options.
_CLONES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "jcjohnson/pytorch-examples": ((), (
        "autograd/two_layer_net_autograd.py", "autograd/two_layer_net_custom_function.py", "nn/two_layer_net_nn.py",
        "nn/two_layer_net_optim.py", "nn/two_layer_net_module.py", "nn/dynamic_net.py",
    )),
    "graykode/nlp-tutorial": ((), (
        "1-1.NNLM/NNLM.py", "1-2.Word2Vec/Word2Vec-Skipgram(Softmax).py", "2-1.TextCNN/TextCNN.py",
        "3-1.TextRNN/TextRNN.py", "3-2.TextLSTM/TextLSTM.py", "3-3.Bi-LSTM/Bi-LSTM.py", "4-1.Seq2Seq/Seq2Seq.py",
        "4-2.Seq2Seq(Attention)/Seq2Seq(Attention).py", "4-3.Bi-LSTM(Attention)/Bi-LSTM(Attention).py",
        "5-1.Transformer/Transformer.py", "5-2.BERT/BERT.py",
    )),
    "rtqichen/torchdiffeq": (("torchdiffeq==0.2.5",), (
        "examples/ode_demo.py --niters 300", "examples/latent_ode.py --niters 60", "examples/cnf.py --niters 40",
        "examples/learn_physics.py --num_iterations 60",
    )),
    "patrick-kidger/torchcde": (("torchcde==0.2.5", "torchdiffeq==0.2.5", "torchsde==0.2.6", "trampoline"), (
        "example/time_series_classification.py", "example/irregular_data.py",
    )),
    "pyro-ppl/pyro": (("pyro-ppl==1.9.2", "pyro-api", "opt_einsum"), (
        "examples/svi_torch.py --num-epochs 3", "examples/minipyro.py", "examples/eight_schools/svi.py",
        "examples/toy_mixture_model_discrete_enumeration.py -n 300", "examples/lda.py -n 100",
        "examples/contrib/autoname/mixture.py", "examples/svi_lightning.py --max_epochs 3",
    )),
    "MorvanZhou/PyTorch-Tutorial": ((), tuple(f"tutorial-contents/{name}.py" for name in (
        "301_regression", "302_classification", "303_build_nn_quickly", "304_save_reload", "305_batch_train",
        "306_optimizer", "403_RNN_regressor", "406_GAN", "406_conditional_GAN", "501_why_torch_dynamic_graph",
        "503_dropout", "504_batch_normalization",
    ))),
    "L1aoXingyu/pytorch-beginner": ((), (
        "01-Linear Regression/Linear_Regression.py", "06-Natural Language Process/N-Gram.py",
        "06-Natural Language Process/seq-lstm.py", "06-Natural Language Process/bag-of-word.py",
    )),
    "karpathy/makemore": ((), (
        "makemore.py --max-steps 400 --n-layer 2 --n-embd 32 --num-workers 0",
        "makemore.py --max-steps 400 --type mlp --num-workers 0", "makemore.py --max-steps 300 --type rnn",
        "makemore.py --max-steps 400 --type bigram --num-workers 0",
    )),
    "pytorch/examples": ((), (
        "word_language_model/main.py --epochs 1 --emsize 16 --nhid 16 --batch_size 500 --log-interval 20",
        "regression/main.py",
    )),
}  # fmt: skip


def _clones() -> Iterator[Stranger]:
    for clone, (needs, calls) in _CLONES.items():
        for call in calls:
            script, ending, rest = call.partition(".py")
            script, options = script + ending, rest.split()
            short = " ".join([script.rpartition("/")[2].removesuffix(".py"), *options])
            yield Stranger(f"{clone} {short}", clone, script, needs, options=tuple(options))


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
    *_clones(),
)  # fmt: skip
