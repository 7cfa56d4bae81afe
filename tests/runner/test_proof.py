"""Proofs and sealing, against values that were computed by hand from the documented formulas.

Runner and server share the code, so they could be wrong together.
"""

import base64
import hashlib
import hmac
import os
import random

import pytest

from retarget.core.tokens import is_token_for, runner_key, script_token
from retarget.runner import proof, sealing

KEY = "7a" * 32
# computed with `printf 'request\n…' | openssl dgst -sha256 -hmac KEY`
REQUEST = "e1a6ea2e1a6aef056a513322cce062c759f31eea519d9d75c3656cd74134affb"
ANSWER = "0c4962c7bcbe75cf8e347be6c37958415ff6caa45b6eae07e5935099410255cf"
TRAILER = "c7083ad5cd46d44dc945e27c9edc773036fb56bdd335f03b38c754f1ab1acc44"
NONCE = "000102030405060708090a0b0c0d0e0f"


def by_hand(text: str, key: str = KEY) -> bytes:
    """Return an HMAC-SHA256 (RFC 2104), without the module that the code uses."""
    block = key.encode().ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + text.encode()).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


def test_fixed_vectors() -> None:
    body = b'{"events": []}'
    digest = "9bd2c1d3f22fe4ccbd4dd8ee65bfc5b3b4a7ba1bd2e8f2d2b5fd8a95b3bd4f00"
    assert proof.digest_of(b"") == hashlib.sha256().hexdigest()
    request = proof.prove_request(KEY, NONCE, "POST", "/api/attempts/a/events?b=1", digest)
    text = f"request\n{NONCE}\nPOST\n/api/attempts/a/events?b=1\n{digest}"
    assert request == by_hand(text).hex() == REQUEST
    answer = proof.prove_answer(KEY, NONCE, 200, digest)
    assert answer == by_hand(f"answer\n{NONCE}\n200\n{digest}").hex() == ANSWER
    trailer = proof.Trailer(KEY, "request", NONCE)
    trailer.add(body[:5])
    trailer.add(body[5:])
    expected = by_hand(f"request trailer\n{NONCE}\n{hashlib.sha256(body).hexdigest()}")
    assert trailer.value() == expected == bytes.fromhex(TRAILER)


def test_the_credentials_of_an_attempt_are_derived_apart() -> None:
    secret = b"of the server"
    expected = hmac.new(secret, b"runner:k1", "sha256").hexdigest()
    assert runner_key(secret, "k1") == expected
    expected = hmac.new(secret, b"script:k1", "sha256").hexdigest()
    assert script_token(secret, "k1") == f"rtj.k1.{expected}"
    assert is_token_for(secret, f"rtj.k1.{expected}", "k1")
    assert not is_token_for(secret, f"rtj.k1.{runner_key(secret, 'k1')}", "k1")
    assert not is_token_for(secret, f"rtj.k1.{expected}", "k2")


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1000, 100_000])
def test_a_trailed_body_is_the_same_in_whatever_chunks_it_comes(size: int) -> None:
    content, generator = os.urandom(size), random.Random(size)
    trailer = proof.Trailer(KEY, "answer", NONCE)
    whole = trailer.add(content) + trailer.value()
    for _ in range(20):
        body, received, rest = proof.TrailedBody(proof.Trailer(KEY, "answer", NONCE)), b"", whole
        while rest:
            count = generator.randint(0, max(1, len(whole) // 3))
            received += body.add(rest[:count])
            rest = rest[count:]
        assert (received, body.is_proven()) == (content, True)


@pytest.mark.parametrize("cut", [1, 16, 32, 40])
def test_a_trailed_body_that_is_cut_short_or_altered_is_not_proven(cut: int) -> None:
    trailer = proof.Trailer(KEY, "answer", NONCE)
    whole = trailer.add(b"a content of some bytes") + trailer.value()
    altered = [whole[:-cut], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:], b""]
    others = [proof.Trailer(KEY, "request", NONCE), proof.Trailer("b" * 64, "answer", NONCE)]
    for content in altered:
        body = proof.TrailedBody(proof.Trailer(KEY, "answer", NONCE))
        body.add(content)
        assert not body.is_proven()
    for other in others:
        body = proof.TrailedBody(other)
        body.add(whole)
        assert not body.is_proven()


def test_what_is_sealed_is_the_documented_ciphertext() -> None:
    content = b"0123456789" * 10
    sealed = base64.b64decode(sealing.seal(KEY, content))
    nonce, ciphertext, mac = sealed[:16], sealed[16:-32], sealed[-32:]
    encryption = hmac.new(KEY.encode(), b"seal: encryption", "sha256").digest()
    authentication = hmac.new(KEY.encode(), b"seal: authentication", "sha256").digest()
    blocks = [
        hmac.new(encryption, nonce + counter.to_bytes(8, "big"), "sha256").digest()
        for counter in range(4)
    ]
    stream = b"".join(blocks)
    assert ciphertext == bytes(a ^ b for a, b in zip(content, stream, strict=False))
    assert mac == hmac.new(authentication, nonce + ciphertext, "sha256").digest()


@pytest.mark.parametrize("size", [0, 1, 32, 33, 5000])
def test_only_the_same_key_unseals_and_only_what_is_unaltered(size: int) -> None:
    content = os.urandom(size)
    sealed = sealing.seal(KEY, content)
    assert sealing.unseal(KEY, sealed) == content
    assert sealing.seal(KEY, content) != sealed, "each has its own nonce"
    raw = base64.b64decode(sealed)
    for position in (0, 15, len(raw) // 2, len(raw) - 1):
        altered = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        with pytest.raises(ValueError, match="does not match"):
            sealing.unseal(KEY, base64.b64encode(altered).decode())
    for wrong_key, text in (("b" * 64, sealed), (KEY, ""), (KEY, "AAAA"), (KEY, "é"), (KEY, "*")):
        with pytest.raises(ValueError):  # noqa: PT011
            sealing.unseal(wrong_key, text)
