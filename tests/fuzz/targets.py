"""Targets of fuzzing, by name, so that a process of its own can find it again."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import torch

from grace.compute import backends
from tests.fuzz.decoders import ROWS, Decoder, compressors
from tests.fuzz.exchanges import Conversation
from tests.laws.cases import CASES

_CHUNK = 2000  # payloads between two looks at the clock


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one target: payloads damaged, payloads refused, processor seconds. ``failure`` is empty where all went
    well.
    """

    target: str
    backend: str
    payloads: int
    refused: int
    seconds: float
    failure: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def names() -> list[tuple[str, str]]:
    """Every (target, backend): decoders under the reference and, where it was built, native code; then exchanges."""
    both = ["reference", *(["native"] if len(backends.available()) > 1 else [])]
    decoders = [(f"decoder {spec}", backend) for spec in compressors() for backend in both]
    return decoders + [(f"exchange {spec}", both[-1]) for spec in CASES]


def fuzz(target: str, backend: str, payloads: int, seconds: float, seed: int, rows: int = ROWS) -> Outcome:
    """Runs one target until so many payloads were damaged, or so much processor time is used up."""
    torch.set_num_threads(1)
    kind, _, spec = target.partition(" ")
    fuzzer = Decoder(compressors()[spec], backend, seed, rows) if kind == "decoder" else Conversation(CASES[spec], seed)
    start, failure = time.process_time(), ""
    try:
        while fuzzer.tally.payloads < payloads and time.process_time() - start < seconds:
            fuzzer.run(min(payloads, fuzzer.tally.payloads + _CHUNK))
    except Exception as error:  # any: what is not a refusal is a finding
        failure = f"{type(error).__name__}: {error} (seed {seed}, after {fuzzer.tally.payloads} payloads)"
    tally = fuzzer.tally
    return Outcome(target, backend, tally.payloads, tally.refused, time.process_time() - start, failure)
