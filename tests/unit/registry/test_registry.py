"""Names and strings: both ways, strictly, and from installed packages."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import grace
from grace import registry
from grace.collectives import Exchange, Traffic
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError, GraceError, UnknownNameError
from grace.random import Stream
from tests.laws.cases import CASES


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what a test registers, after it."""
    for table in (registry.METHODS, registry.MEMORIES, registry.COMMUNICATORS):
        for part in ("_entries", "_classes", "_aliases"):
            monkeypatch.setattr(table, part, dict(getattr(table, part)))


@dataclass(frozen=True)
class Zero(Compressor):
    """Sends nothing."""

    level: int = 3

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        return rows.new_empty(rows.shape[0], 0, dtype=torch.uint8)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        pass

    def facts(self, n: int) -> Facts:
        return Facts(payload=0)


@dataclass(frozen=True)
class Lonely(Method[None]):
    """Exchanges nothing."""

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        return Exchanged(x, None, None)
        yield

    def facts(self, like: Tensor) -> Facts:
        return Facts()

    def traffic(self, like: Tensor, peer: Peer) -> Traffic:
        return Traffic()


# ---- strings --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topk", ("topk", {})),
        ("topk:ratio=0.01", ("topk", {"ratio": 0.01})),
        (" topk : ratio = 1e-3 , memory = none ", ("topk", {"ratio": 1e-3, "memory": None})),
        ("a:b=true,c=FALSE,d=word,e=-2", ("a", {"b": True, "c": False, "d": "word", "e": -2})),
        ("a:b=f(1,2),c=3", ("a", {"b": "f(1,2)", "c": 3})),
    ],
)
def test_parse(text: str, expected: tuple[str, dict[str, object]]):
    name, knobs = registry.parse(text)
    assert (name.strip(), knobs) == expected


@pytest.mark.parametrize(
    "text",
    [
        "16",
        "-3",
        "+5",
        "0x10",
        "1_000",
        "0.5",
        ".5",
        "5.",
        "1e-3",
        "1E5",
        "-2.5e+3",
        "007",
        "nan",
        "inf",
        "1e",
        "e5",
        "1.2.3",
        "a",
    ],
)
def test_numbers_are_those_of_python(text: str):
    try:
        expected = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        expected = text
    value = registry.parse(f"topk:ratio={text}")[1]["ratio"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("text", ["topk:ratio", "topk:ratio=", "topk:=3", "topk:ratio=1,,", "topk:0.01"])
def test_strings_that_do_not_parse(text: str):
    with pytest.raises(ConfigurationError, match="expected knob=value"):
        grace.method(text)


def test_a_knob_given_twice():
    with pytest.raises(ConfigurationError, match="'ratio' is given twice"):
        grace.method("topk:ratio=0.1,ratio=0.2")
    with pytest.raises(ConfigurationError, match="given twice: ratio"):
        grace.method("topk:ratio=0.1", ratio=0.2)


def test_split_methods():
    text = "none,topk:ratio=0.01,memory=none,qsgd"
    assert registry.split_methods(text) == ["none", "topk:ratio=0.01,memory=none", "qsgd"]


# ---- building -------------------------------------------------------------------------------------------------------
def test_recipes_of_the_survey():
    assert grace.method("topk") == grace.ErrorFeedback(grace.Allgather(grace.TopK()))
    assert grace.method("qsgd", bits=8) == grace.Allgather(grace.QSGD(bits=8))
    assert grace.method("none") == grace.Allreduce(grace.Identity())
    assert grace.method("powersgd:rank=2") == grace.ErrorFeedback(grace.PowerSGD(rank=2))
    assert grace.method("signsgd:memory=momentum,beta=0.5") == grace.Momentum(
        grace.Allgather(grace.SignSGD()), beta=0.5
    )
    assert grace.method("topk:communicator=parameterserver,server=1,beta=0.9") == grace.ErrorFeedback(
        grace.ParameterServer(grace.TopK(), server=1), beta=0.9
    )


def test_a_method_is_returned_as_it_is():
    made = grace.method("topk")
    assert grace.method(made) is made
    with pytest.raises(ConfigurationError, match="is complete as it is"):
        grace.method(made, ratio=0.1)


@pytest.mark.parametrize(
    ("wrong", "hint"), [(grace.TopK(0.02), "its recipe is 'topk:ratio=0.02'"), (3, "a method is a name")]
)
def test_what_is_not_a_method(wrong: object, hint: str):
    with pytest.raises(ConfigurationError, match=hint):
        grace.method(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", grace.methods())
def test_every_alias_makes_the_same(name: str):
    entry = registry.recipe(name)
    for alias in (entry.factory.__name__, name.upper(), f"{name}Compressor", *entry.aliases):
        assert grace.method(alias) == grace.method(name)
        assert alias == name or alias not in grace.methods()


@pytest.mark.parametrize("alias", ["TopK", "top-k", "Top_K", "topkcompressor", "TopKCompressor"])
def test_names_are_read_without_regard_to_case_and_hyphens(alias: str):
    assert grace.spell(grace.method(f"{alias}:ratio=0.02")) == "topk:ratio=0.02"


def test_names_of_memories_and_communicators():
    assert grace.method("topk:memory=ErrorFeedback,communicator=all-gather") == grace.method("topk")
    assert grace.method("topk:memory=DGCMemory") == grace.method("topk:memory=dgc")


def test_an_unknown_method_is_told_shortly() -> None:
    with pytest.raises(UnknownNameError) as raised:
        grace.method("zzz")
    assert len(str(raised.value)) < 200


def test_a_percentage_is_told_as_a_share() -> None:
    with pytest.raises(ConfigurationError, match=r"legal: 0 < ratio <= 1; write 0\.01 for 1%"):
        grace.method("topk:ratio=1%")


@pytest.mark.parametrize(
    ("compressor", "recipe"),
    [
        (grace.TopK(0.01), "'topk:ratio=0.01', that is ErrorFeedback(Allgather(TopK()))"),
        (grace.SignSGD(), "'signsgd', that is Allgather(SignSGD())"),
        (grace.Lossless(grace.QSGD(bits=4)), "'qsgd:bits=4,lossless=zlib'"),
    ],
)
def test_a_bare_compressor_is_told_its_recipe(compressor: grace.Compressor, recipe: str) -> None:
    for take in (grace.method, lambda spec: grace.Policy([("*", spec)])):
        with pytest.raises(ConfigurationError) as raised:
            take(compressor)
        assert recipe in str(raised.value)


def test_a_compressor_that_is_not_registered_has_no_recipe() -> None:
    @dataclass(frozen=True)
    class Mine(grace.TopK):
        pass

    with pytest.raises(ConfigurationError, match=r"needs a communicator around it: Allgather"):
        grace.method(Mine())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topkk", "unknown method 'topkk'; did you mean 'topk'"),
        ("TOPKK", "unknown method 'TOPKK'; did you mean 'topk'"),
        ("signs", "did you mean 'signsgd', 'signum' or 'efsignsgd'?"),
        ("zzz", "unknown method 'zzz'. grace list prints all methods. If it is your own, import the module"),
        (
            "diloco:every=32",
            "'diloco' is an outer loop, not a method, which compresses the gradients of every step; use it as "
            'grace.outer(model, optimizer, "diloco:every=32"), or read on: grace explain diloco',
        ),
        ("OneBitAdam", "'OneBitAdam' is an optimizer, not a method"),
        ("choco", "'choco' is a kind of gossip, not a method"),
        ("topk:memory=zzz", "unknown memory 'zzz'. Legal: dgc, "),
        ("topk:ration=0.1", "unknown knob of topk 'ration'; did you mean 'ratio'"),
        ("topk:communicator=allgahter", "unknown communicator 'allgahter'; did you mean 'allgather'"),
        ("topk:memory=residula", "unknown memory 'residula'; did you mean 'residual'"),
        ("qsgd:beta=0.9", "unknown knob of qsgd 'beta'"),
        ("topk:server=1", "unknown knob of topk 'server'"),
        ("topk:compressor=qsgd", "unknown knob of topk 'compressor'"),
    ],
)
def test_unknown_names_say_the_nearest(text: str, message: str):
    with pytest.raises(UnknownNameError) as raised:
        grace.method(text)
    assert message in str(raised.value)
    assert isinstance(raised.value, GraceError | ValueError)


@pytest.mark.parametrize(
    "text", ["topk:communicator=allreduce", "powersgd:communicator=allgather", "signsgd:memory=residual"]
)
def test_pieces_that_do_not_fit(text: str):
    with pytest.raises(CompositionError):
        grace.method(text)


@pytest.mark.parametrize(
    "text",
    [
        "topk:ratio=0",
        "topk:ratio=1.5",
        "topk:ratio=many",
        "topk:ratio=none",
        "threshold:v=nan",
        "threshold:v=inf",
        "qsgd:bits=4.0",
        "qsgd:bits=17",
        "qsgd:norm=l1",
        "powersgd:rank=2.5",
        "powersgd:warm_start=no",
        "randomk:scale=maybe",
        "threshold:relative=1",
        "qsgd:shrink=yes",
        "topk:beta=2",
    ],
)
def test_values_are_checked_at_construction(text: str):
    with pytest.raises(ConfigurationError) as raised:
        grace.method(text)
    assert text.partition("=")[2] in str(raised.value) or text.endswith("none"), "the message names the value"


@pytest.mark.parametrize("spec", [s for s in CASES if ":" in s or s in grace.methods()])
def test_spell_is_the_inverse(spec: str):
    made = CASES[spec]
    text = grace.spell(made)
    if text.startswith("ParameterServer("):
        return
    assert grace.method(text) == made
    assert grace.spell(grace.method(text)) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("topk:memory.beta=0.9", "topk:beta=0.9"),
        ("topk:communicator=parameterserver,communicator.server=1", "topk:communicator=parameterserver,server=1"),
        ("qsgd:memory=residual,memory.beta=0.5,lossless=zlib", "qsgd:lossless=zlib,memory=residual,beta=0.5"),
        ("topk:memory.beta=linear(0.5->1.0, 10 steps)", None),
    ],
)
def test_a_knob_may_name_its_layer(text: str, plain: str | None):
    made = grace.method(text)
    assert plain is None or made == grace.method(plain)
    assert grace.method(grace.spell(made)) == made


@pytest.mark.usefixtures("clean")
def test_a_knob_that_layers_share():
    @grace.register("shared", communicator="parameterserver", memory="residual")
    @dataclass(frozen=True)
    class Shared(Zero):
        beta: float = 2.0
        server: int = 7

    made = grace.method("shared:beta=3.0,memory.beta=0.5,communicator.server=1")
    assert made == grace.ErrorFeedback(grace.ParameterServer(Shared(beta=3.0), server=1), beta=0.5)
    assert grace.spell(made) == "shared:beta=3.0,communicator.server=1,memory.beta=0.5"
    assert grace.method(grace.spell(made)) == made
    assert grace.method("shared", **{"memory.beta": 0.5}) == grace.ErrorFeedback(
        grace.ParameterServer(Shared()), beta=0.5
    )


def test_the_level_of_a_wrapper_can_be_spelled():
    made = grace.method("qsgd:lossless=zlib,lossless.level=6")
    assert made == grace.Allgather(grace.Lossless(grace.QSGD(), "zlib", 6))
    assert grace.spell(made) == "qsgd:bits=4,lossless=zlib,lossless.level=6"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:memory.bet=0.9", "unknown knob of topk 'memory.bet'; did you mean 'memory.beta'"),
        ("topk:memory=none,memory.beta=0.9", "unknown knob of topk 'memory.beta'"),
        ("topk:optimizer.beta=0.9", "unknown knob of topk 'optimizer.beta'"),
        ("topk:beta=0.9,memory.beta=0.8", "knobs given twice: beta and memory.beta"),
        ("powersgd:communicator.server=1", "unknown knob of powersgd 'communicator.server'"),
    ],
)
def test_layers_that_cannot_be_read(text: str, message: str):
    with pytest.raises(ConfigurationError) as raised:
        grace.method(text)
    assert message in str(raised.value)


def test_layers_of_a_method():
    method = grace.method("qsgd:memory=residual,lossless=zlib,start=3")
    assert [type(layer).__name__ for layer in grace.layers(method)] == [
        "Delayed", "ErrorFeedback", "Allgather", "Lossless", "QSGD",
    ]  # fmt: skip


def test_spell_of_what_has_no_string_is_its_repr():
    nested = grace.Momentum(grace.method("topk"))
    assert grace.spell(nested) == "Momentum(ErrorFeedback(Allgather(TopK())))"


@pytest.mark.parametrize("name", grace.methods())
def test_documentation(name: str):
    text = registry.documentation(name)
    for section in ("Wire:", "Bias:", "Differs from the paper:", "Example:", "Reference:"):
        assert section in text


# ---- registering ----------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("clean")
def test_register():
    grace.register("zero", communicator="allgather", memory="residual", aliases=("nil",))(Zero)
    assert "zero" in grace.methods()
    assert grace.method("nil:level=4") == grace.ErrorFeedback(grace.Allgather(Zero(4)))
    assert grace.spell(grace.method("zero:level=5")) == "zero:level=5"
    grace.register("zero", communicator="broadcast")(Zero)  # the same class again: a module that is reloaded
    assert isinstance(grace.method("zero"), grace.Broadcasts)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", ["topk", "topkcompressor"])
def test_a_name_is_taken_once(name: str):
    with pytest.raises(ConfigurationError, match=r"is taken by grace\.methods\.topk\.TopK"):
        grace.register(name, communicator="allgather")(Zero)
    with pytest.raises(ConfigurationError, match="is taken by"):
        grace.register("zero", communicator="allgather", aliases=(name,))(Zero)
    assert "zero" not in grace.methods()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", ["TopK", "", "top-k", "_x", "top k"])
def test_names_are_lower_case_words(name: str):
    with pytest.raises(ConfigurationError, match="legal are lower-case letters"):
        grace.register(name, communicator="allgather")(Zero)


@pytest.mark.usefixtures("clean")
def test_a_recipe_fits_its_class():
    with pytest.raises(ConfigurationError, match="a Compressor's recipe names a communicator"):
        grace.register("zero")(Zero)
    with pytest.raises(ConfigurationError, match="a Compressor's recipe names a communicator, a Method's does not"):
        grace.register("lonely", communicator="allgather")(Lonely)
    with pytest.raises(UnknownNameError, match="unknown memory"):
        grace.register("zero", communicator="allgather", memory="lots")(Zero)  # type: ignore[arg-type]
    grace.register("lonely")(Lonely)
    assert grace.method("lonely") == Lonely()


# ---- packages of others ---------------------------------------------------------------------------------------------
MODULE = '''
from dataclasses import dataclass
import grace
from tests.unit.registry.test_registry import Zero

@grace.register_memory("theirmemory")
@dataclass(frozen=True)
class TheirMemory(grace.Momentum):
    """Somebody else's memory."""

@grace.register_communicator("theirgather")
@dataclass(frozen=True)
class TheirGather(grace.Allgather):
    """Somebody else's communicator."""

@grace.register("thirdparty", communicator="allgather")
@dataclass(frozen=True)
class Theirs(Zero):
    """Somebody else's."""
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> Iterator[None]:
    """A package with entry points, as pip leaves it: modules and a dist-info on the path."""
    (tmp_path / "grace_thirdparty.py").write_text(MODULE)
    (tmp_path / "grace_broken.py").write_text("raise RuntimeError('no such device')\n")
    (tmp_path / "grace_silent.py").write_text("class Nothing: pass\n")
    info = tmp_path / "grace_thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grace-thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[grace.methods]\nthirdparty = grace_thirdparty:Theirs\nbroken = grace_broken:Method\n"
        "silent = grace_silent:Nothing\n"
        "[grace.memories]\ntheirmemory = grace_thirdparty:TheirMemory\n"
        "[grace.communicators]\ntheirgather = grace_thirdparty:TheirGather\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("grace_thirdparty", "grace_broken", "grace_silent"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_methods_of_installed_packages():
    assert {"thirdparty", "broken", "silent"} <= set(grace.methods())
    assert "grace_thirdparty" not in sys.modules, "listing loads nothing"
    made = grace.method("thirdparty:level=7")
    assert type(made.compressor).__module__ == "grace_thirdparty"  # type: ignore[attr-defined]
    assert grace.spell(made) == "thirdparty:level=7"


def test_installed_packages_are_read_again_only_where_one_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reads, read = list[object](), importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **by: reads.append(by) or read(**by))
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(3):
        assert "late" not in grace.methods()
    assert len(reads) == 1, "it takes tens of milliseconds"
    info = tmp_path / "grace_late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grace-late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[grace.methods]\nlate = grace_late:Late\n")
    stamp = tmp_path.stat().st_mtime_ns + 10**9  # clocks of file systems are coarse
    os.utime(tmp_path, ns=(stamp, stamp))
    assert "late" in grace.methods(), "somebody has installed it meanwhile"


def test_names_are_known_where_the_current_folder_is_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Names of a job whose folder was removed, with "" on its path, as under ``python -c``."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.syspath_prepend("")
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "topk" in grace.methods()


@pytest.mark.usefixtures("installed")
def test_memories_and_communicators_of_installed_packages():
    made = grace.method("topk:memory=theirmemory,memory.beta=0.5,communicator=theirgather")
    assert [type(layer).__module__ for layer in grace.layers(made)][:2] == ["grace_thirdparty", "grace_thirdparty"]
    assert grace.spell(made) == "topk:communicator=theirgather,beta=0.5,memory=theirmemory"


@pytest.mark.usefixtures("installed")
def test_packages_that_are_broken_harm_nobody_else():
    assert grace.method("topk") == grace.ErrorFeedback(grace.Allgather(grace.TopK()))
    with pytest.raises(
        ConfigurationError, match="'broken' of entry point 'grace_broken:Method' does not load: no such"
    ):
        grace.method("broken")
    with pytest.raises(ConfigurationError, match="loads, but does not register a method named 'silent'"):
        grace.method("silent")


@pytest.mark.parametrize(
    "specs",
    [
        ("qsgd", "qsgd:bits=4", "qsgd:levels=7", "QSGD:bucket=256"),
        ("qsgd:bits=2", "qsgd:levels=1"),
        ("qsgd:memory=residual", "qsgd:bits=4,memory=residual"),
        ("atomo", "atomo:ratio=0.01"),
        ("gspar", "gspar:ratio=0.01"),
        ("topk", "topk:ratio=0.01", "topk:communicator=allgather,memory=residual"),
    ],
)
def test_what_sends_the_same_bytes_is_one_method_with_one_spelling(specs: tuple[str, ...]) -> None:
    assert len({grace.method(spec) for spec in specs}) == 1
    assert len({grace.spell(grace.method(spec)) for spec in specs}) == 1


@pytest.mark.parametrize("name", grace.methods())
def test_a_default_that_is_written_makes_the_same_method(name: str) -> None:
    made = grace.method(name)
    core = grace.layers(made)[-1]
    for field in dataclasses.fields(type(core)):
        value = field.default
        if value is None or value is dataclasses.MISSING or not isinstance(value, (bool, int, float, str)):
            continue
        with contextlib.suppress(ConfigurationError):  # legal beside another knob only
            assert grace.method(name, **{field.name: value}) == made, field.name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grace.Policy("topk"), r"rules='topk' is no list of rules.*Policy\.of"),
        (lambda: grace.Policy({"*": "topk"}), r"no list of rules.*Policy\.of.*\[\('\*', 'topk'\)\]"),
        (lambda: grace.Policy(grace.TopK), r"rules=the class TopK is no list of rules.*Policy\.of"),
        (lambda: grace.Policy(None), r"rules=None is no list of rules.*Policy\.of"),
        (lambda: grace.method("topk:k=10"), r"unknown knob of topk 'k'.*ratio=0\.01, the share that is kept"),
        (lambda: grace.method("topk:start=-1"), r"^a method: start=-1 is out of range"),
        (lambda: grace.method("topk:machine=0"), r"^a method: machine=0 is out of range"),
        (lambda: grace.method(grace.TopK), r"got the class TopK\n"),
    ],
)
def test_an_error_speaks_of_what_was_written(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_other_names_of_one_bit():
    assert grace.method("1bit") == grace.method("1BitSGD") == grace.method("onebit")
