"""What looks like a secret is masked, wherever it stands; what only sounds like one is kept."""

from __future__ import annotations

import pytest

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
