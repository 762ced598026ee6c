import pytest

from grace.errors import ConfigurationError
from grace.predict.links import PRESETS, link, seconds_of


@pytest.mark.parametrize(("name", "rate"), list(zip(PRESETS, (100e6, 1e9, 10e9, 25e9), strict=True)))
def test_presets(name, rate):
    preset = link(name)
    assert preset.bits_per_second == rate
    assert preset.shaped
    assert str(preset) == name


def test_any_number_is_a_speed():
    assert link("2.5Gbit").bits_per_second == 2.5e9
    assert link(" 40mbit ").bits_per_second == 40e6


def test_none_is_not_shaped():
    assert not link("none").shaped
    assert link("none").bits_per_second is None


@pytest.mark.parametrize("wrong", ["", "fast", "1 gbit/s", "1gb", "-1gbit", "0mbit", "500gbit", "1e3mbit"])
def test_other_names_are_refused_with_what_is_legal(wrong):
    with pytest.raises(ConfigurationError, match="25gbit"):
        link(wrong)


@pytest.mark.parametrize(("text", "seconds"), [("0.1ms", 1e-4), ("50us", 5e-5), ("1s", 1.0), ("0", 0.0)])
def test_latency(text, seconds):
    assert link("1gbit", text).latency == pytest.approx(seconds)
    assert seconds_of(text) == pytest.approx(seconds)


def test_a_latency_shows_in_the_name():
    assert str(link("1gbit", "0.1ms")) == "1gbit+0.1ms"


@pytest.mark.parametrize(
    ("name", "wrong", "message"), [("1gbit", "5", "us, ms"), ("1gbit", "11s", "10 s"), ("none", "1ms", "--link")]
)
def test_a_latency_that_cannot_be(name, wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        link(name, wrong)
