"""ChaCha20's bits are ChaCha20's, uniform, and the same whichever way they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from noiseproof.guarantees.chacha import Bits

KEY = bytes(range(32))


def test_the_stream_is_that_of_rfc_8439():
    # Appendix A.1, test vector 1: key, nonce and counter are all 0.
    assert Bits(bytes(32)).words(4).tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    )
    # Section 2.3.2 has nonce 000000090000004a00000000 and counter 1: the second block of 64 bytes.
    nonce = int.from_bytes(bytes.fromhex("000000090000004a00000000"), "little")
    assert Bits(KEY, nonce).words(16).tobytes()[64:80].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"


def test_asking_in_pieces_gives_the_same_stream():
    whole = Bits(KEY).words(300_000)  # more than is encrypted at a time
    pieces = Bits(KEY)
    assert np.array_equal(np.concatenate([pieces.words(n) for n in (1, 131_071, 168_928)]), whole)
    assert Bits(KEY).integer(128) == int(whole[0]) | int(whole[1]) << 64


def test_streams_of_other_keys_and_nonces_are_others():
    streams = [Bits(KEY), Bits(KEY, 1), Bits(KEY, 1 << 32), Bits(bytes(32))]
    first = [bytes(stream.words(4).tobytes()) for stream in streams]
    assert len(set(first)) == len(first)


def test_bits_are_uniform():
    counts = np.bincount(Bits(KEY).words(250_000).view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_uniforms_are_uniform_multiples_of_the_smallest_step():
    uniform = Bits(KEY).uniform((100, 1000))
    assert uniform.shape == (100, 1000)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert np.array_equal(np.rint(uniform * 2.0**53), uniform * 2.0**53)
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-6
    assert Bits(KEY).uniform(()).shape == ()


def test_only_contiguous_arrays_can_be_filled():
    with pytest.raises(ValueError, match="contiguous"):
        Bits(KEY).fill(np.zeros(10, dtype=np.uint64)[::2])
