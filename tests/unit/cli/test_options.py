import pytest

from grace.cli.options import parse_methods, parse_names, parse_numbers
from grace.errors import ConfigurationError


@pytest.mark.parametrize("wrong", [lambda: parse_methods(" , "), lambda: parse_names(",", "--tasks")])
def test_a_list_of_nothing_is_an_error(wrong):
    with pytest.raises(ConfigurationError, match=r"names none; legal: .* with commas between"):
        wrong()


def test_numbers():
    assert parse_numbers("2, 4,2", "--workers") == [2, 4]
    with pytest.raises(ConfigurationError, match="--workers '2,x': expected whole numbers"):
        parse_numbers("2,x", "--workers")
