"""What looks like a secret is masked, wherever it stands; what only sounds like one is kept."""

from __future__ import annotations

import json
import time
from collections import namedtuple

import pytest
from canaries import canaries

from stethos.record.provenance import plain_facts
from stethos.redact import redact, redact_command


@pytest.mark.parametrize(
    "text",
    [
        "password=SECRET", "passwd: 'SECRET and more'", 'DB_PASSWORD="SECRET"', "pwd=SECRET, user=me",
        '{"api_key": "SECRET"}', "api-key=SECRET&page=2", "AWS_SECRET_ACCESS_KEY=SECRET", "token=SECRET",
        "token = 123456", "Authorization: Bearer SECRETSECRET", "auth=SECRET", "sent with bearer SECRET12345",
        "postgres://me:SECRET@host/db", "https://user:SECRET@host", "private_key: SECRET", "tokens=SECRET",
    ],
)  # fmt: skip
def test_what_is_assigned_to_a_telling_name_is_masked(text: str) -> None:
    masked = redact(text)
    assert "SECRET" not in masked.replace("AWS_SECRET_ACCESS_KEY", "") and "123456" not in masked
    assert "[redacted]" in masked


@pytest.mark.parametrize(
    "known",
    [
        "AKIAIOSFODNN7EXAMPLE", "ghp_" + "a1" * 18, "hf_" + "a1" * 17, "sk-" + "a1" * 12, "xoxb-1234567890-abc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
)  # fmt: skip
def test_keys_of_known_kinds_are_masked_without_a_name(known: str) -> None:
    assert redact(f"failed for {known} at 10:00") == "failed for [redacted] at 10:00"


@pytest.mark.parametrize(
    "text",
    [
        "step 10 loss: 0.5", "max_tokens=4096", "tokens: 524,288", "num_tokens = 1.5M", "author: Ada",
        "authors=Ada,Bob", "keyboard=qwerty", "see https://host/path:80", "a token was missing",
        "the authority decides: no",
    ],
)  # fmt: skip
def test_what_only_sounds_like_a_secret_is_kept(text: str) -> None:
    assert redact(text) == text


def test_the_rest_of_a_line_stays() -> None:
    assert redact("user=me password=x host=here") == "user=me password=[redacted] host=here"


def test_in_a_command_the_word_after_a_telling_flag_is_masked() -> None:
    line = "train.py --api-key SECRET --lr 0.1 --password=SECRET --max-tokens 512 --token -v"
    wanted = "train.py --api-key [redacted] --lr 0.1 --password=[redacted] --max-tokens 512 --token -v"
    assert redact_command(line.split()) == wanted.split()


@pytest.mark.parametrize(
    "words",
    [
        "--model.hub.token SECRET", "--wandb.key SECRETSECRET1234", "--pass SECRET", "--db-pass SECRET", "--pw SECRET",
        "--token -SECRETSECRET1234", "--secret: SECRET", "env DB_PASS=SECRET", "-H X-Api-Key:SECRET",
    ],
)  # fmt: skip
def test_names_in_a_command_may_be_long_or_short(words: str) -> None:
    assert "SECRET" not in " ".join(redact_command(words.split()))


def test_numbers_and_switches_of_a_command_stay() -> None:
    line = "train.py --first-pass 3 -p 8080 --tokenizer gpt2 --max-tokens 4096 --sort-key step"
    assert redact_command(line.split()) == line.split()


CANARIES = canaries()
Login = namedtuple("Login", "user password")


@pytest.mark.parametrize("name", CANARIES)
def test_every_known_form_is_masked_and_nothing_else_of_the_line(name: str) -> None:
    text, secret = CANARIES[name]
    start = "" if name == "line of a key" else "before "
    masked = redact(f"{start}{text} \nafter")
    assert secret not in masked and "[redacted]" in masked and masked.startswith(start)
    assert name == "pem cut off" or masked.endswith("after")


def test_there_are_many_forms() -> None:
    assert len(CANARIES) > 320


@pytest.mark.parametrize(
    "text",
    [
        "missing_keys=['encoder.layer.0.weight']", "image_key=pixel_values", "sort_key: step", "Basic training begins",
        "ssh://git@host/repo", "tokenizer=gpt2", "token_type_ids: [0, 1]", "model.layers.0.self_attn.q_proj.weight",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "key-value store", "pass 3 of 7",
        "0123456789abcdef0123456789abcdef", "checkpoint-1000/optimizer.pt", "https://host/path?page=2",
        "1 < unk_token > 2", "<pad_token>the cat<eos>", "PW of conv_pw: Conv2d(32, 64)", "pw=12", "pass: 3",
        "first_pass: 3", "{'pass': 10, 'fail': 2}", "echo 12 | wc", "client says hello", "openssl 3.0.2", "az -p 3",
        "session 12 of 30",
        "https://host/t/page", "https://host/hooks/readme", "https://host/x?rev=0a1B2c3D4e5F6a7B8c9D0e1F2a3B",
        "login(x)",
        "https://host/resolve/main/model.safetensors?download=true", "a ticket=3", "the password is required", "5Head",
        "SECRET sauce", "PASSWORD reset", "name: token\n  count: 3", "digest of sha256", "key pass 3",
        "pass = optimizer.step()",
        "twitter_dataset=sentiment140-cleaned-2013", "linear: 0123456789abcdef0123", "facebook: opt-125m",
        "forward_pass=12.3", "backward_pass: 3 ms", "login page", "password is wrong", "model.layers.11.self_attn",
        "s.layer_norm.weight",
        "1 < 2 > 0", "live_loss=0.5", "AAAA", "pass: forward", "attention heads > 8", "a basic token classifier",
        "tokens: [101, 2054, 102]", "if token == eos_token:", "PASS: 3 of 4", "pass=2nd", "loss.py:5432: x",
        "('input_ids', 'attention_mask')", "argument --lr: invalid float value: 'x'", "http://host:8080/@me",
        "| token accuracy | 0.93 |", "7z archives", "step\\npi-radians-sampled-uniformly",
        "sk_learn_pipeline_step_number_12", "re_lu_activation_of_block_12", "backward pass = 12.3 ms for layer4.conv2",
        "pa-rallel", "fc-0123", "open at 10:2024:a:b: c3", "hcl_block_0123456789abcdef", "00:12:45.123", "st.0.1",
        "0.12345678", "cosine $2 and $6", "cfg_large_patch14_224_clip_laion2b", "11th hour", "ver:2", "sk_test_scores",
        "vit_large_patch14_clip_224.openai_ft_in12k_in1k", "nfnet_f0", "depot_of_models", "AzureFunctions", "re_2_3",
        "00000000000000000000000000000000000000000012", "110123456789abcdef0123456789abcdef01234567",
        "mask_generation_model.vision_encoder.layers.11.mlp.lin1.weight/grad_norm", "1/1000: 12",
        "conv+relu+pool", "a/b/c/APIMaker", "train/AzCaption_loss_value", "epoch=3-step=1200-AzSeg.ckpt",
    ],
)  # fmt: skip
def test_what_trainings_say_is_kept(text: str) -> None:
    assert redact(text) == text


def test_configurations_are_masked_by_name_by_form_and_in_lists() -> None:
    word = "Xy12" * 6
    given = {
        "wandb_key": word, "lr": 0.1, "tokens": 4096, "password": 1234, "run": {"hf_token": word},
        "args": ["--token", word, "--lr", "0.1"], "urls": [f"https://{word}@host"], "vocabulary_size": 32_000,
        "secrets": {"db": word}, "api_keys": [{"for": "x", "value": word}], f"https://{word}@host": 1,
        "PASSWORD ": word, b"password": word, "login": Login("me", word), "db_pw": word,
        "env": [{"name": "DB_PASSWORD", "value": word}], "headers": [["Authorization", word]], "pass": word,
        "line": f"--password {word} --lr 1", "layers": [{"name": "a", "value": "b"}],
    }  # fmt: skip
    plain = plain_facts(given)
    assert word not in str(plain) and "1234" not in str(plain["password"])
    assert (plain["lr"], plain["tokens"], plain["vocabulary_size"]) == (0.1, 4096, 32_000)
    assert plain["line"] == "--password [redacted] --lr 1" and plain["layers"] == [{"name": "a", "value": "b"}]
    assert plain["args"] == ["--token", "[redacted]", "--lr", "0.1"]


def test_an_assigned_secret_in_a_command_goes_whatever_its_letters() -> None:
    line = ["train.py", "--password=a b,c'd;e", "db.api_key=x y", "--lr=0.1", "--max-tokens=12", "--note=a b"]
    assert redact_command(line) == [
        "train.py", "--password=[redacted]", "db.api_key=[redacted]", "--lr=0.1", "--max-tokens=12", "--note=a b",
    ]  # fmt: skip


LATER = ["?sig=", "--token ", "password is ", "login a ", "mysql ", "cookie: ", '"d":']
LATER += ["tokens: ['", "token=(", "token={", "tokens:\n - ", "('token', '", "argument token: ", "token\ninput_value="]
LATER += [
    "token |",
    "PASS=",
    "a://b:",
    "docker login ",
    "zip -P",
    "\x1b[0m",
    "token\x1b[0m",
    "a:5432:",
    "api key ",
    "mnemonic a ",
]
LATER += ["7z", "Fernet('", "%3D", "\\n", "jdbc:oracle:a:", "htpasswd -b a ", "BasicAuth('"]
LATER += ['name","value', 'token\\"', "sumo_.-", "%22"]
LATER += ["://h/t/", "://a?b=", "&sid=", "echo a|", "openssl ", "smbclient ", "<password a", "<key>token", "ENV token"]
LATER += [
    "name: token\n",
    "\"value\":'a',",
    "pw='",
    "&quot;",
    "login('a',",
    "A1b" * 30 + "\n",
    "token='a' ",
    "token=a,",
]


def test_long_texts_take_time_in_proportion() -> None:
    """No pattern is tried again and again over the same letters."""
    pieces = ["a", "key", "eyJ", "_eyJ", "://", "token=", "token", "-", "a.", "-----BEGIN PRIVATE KEY-----", '"', "\\"]
    for piece in [*pieces, "A" * 40 + ".", "0123456789", "-----BEGIN ", "bearer ", "-SG.", *LATER]:
        started = time.process_time()
        redact(piece * (100_000 // len(piece)))
        assert time.process_time() - started < 5.0


def test_what_json_cannot_hold_is_left_out() -> None:
    facts: dict[str, object] = {"n": 10**5_000, "half": "a\ud800"}
    facts["self"] = [facts]
    plain = plain_facts(facts)
    assert plain["n"] == "..." and json.dumps(plain).count('"half"') == 16


def test_a_value_that_is_neither_true_nor_false_is_told_like_any_other() -> None:
    class Several:
        def __bool__(self) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

        def __str__(self) -> str:
            return "[1 2]"

    assert plain_facts({"value": Several(), "lr": 0.1}) == {"value": "[1 2]", "lr": 0.1}
