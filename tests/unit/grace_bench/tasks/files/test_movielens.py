import numpy as np
import pytest

from grace.errors import DataError
from grace_bench.tasks.files.movielens import read_movielens

HEAD = "userId,movieId,rating,timestamp"


def write(path, rows, end="\n", head=HEAD):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(end.join([head, *(",".join(map(str, row)) for row in rows), ""]).encode())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("below", ["", "ml-20m"])
def test_implicit_feedback(tmp_path, end, below):
    random = np.random.RandomState(1)
    rows, latest, first = [], {}, {}
    for user, count in ((7, 25), (3, 20), (12, 30), (9, 19)):  # user 9 has too few
        items, times = random.permutation(60)[:count] + 100, random.permutation(10**6)[:count] + 10**9
        rows += [(user, item, 3.5, time) for item, time in zip(items, times, strict=True)]
        latest[user] = items[times.argmax()]
        if user != 9:
            for item in items:
                first.setdefault(item, len(first))
    write(tmp_path / below / "ratings.csv", rows, end)
    arrays = read_movielens(tmp_path)
    assert arrays["held"].tolist() == [first[latest[user]] for user in (7, 3, 12)]
    assert np.bincount(arrays["pairs"][:, 0]).tolist() == [24, 19, 29]
    pairs = {(user, first[item]) for user, item, _, _ in rows if user != 9 for user in [[7, 3, 12].index(user)]}
    held = set(enumerate(arrays["held"].tolist()))
    assert {tuple(pair) for pair in arrays["pairs"].tolist()} == pairs - held


def test_at_the_same_time_the_last_in_the_file_is_the_latest(tmp_path):
    write(tmp_path / "ratings.csv", [(1, 100 + k, 4.0, 5) for k in range(20)])
    assert read_movielens(tmp_path)["held"].tolist() == [19]


def test_a_pair_counts_once(tmp_path):
    write(tmp_path / "ratings.csv", [(1, 100 + k % 20, 4.0, k) for k in range(25)])
    arrays = read_movielens(tmp_path)
    assert len(arrays["pairs"]) == 19
    assert arrays["held"].tolist() == [19]


def test_a_changed_file_is_read_again(tmp_path):
    write(tmp_path / "ratings.csv", [(1, 100 + k, 4.0, k) for k in range(20)])
    assert len(read_movielens(tmp_path)["pairs"]) == 19
    write(tmp_path / "ratings.csv", [(1, 100 + k, 4.0, k) for k in range(30)])
    assert len(read_movielens(tmp_path)["pairs"]) == 29


def test_not_there(tmp_path):
    with pytest.raises(DataError, match=r"ratings\.csv is not there. .*grouplens.org"):
        read_movielens(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\n1,2\n", "its first line is 'user,item'"),
        (f"{HEAD}\n", "no ratings"),
        (f"{HEAD}\n1,2,3.5,x\n", "x"),
        (f"{HEAD}\n1,2,3.5\n", "column"),
        (f"{HEAD}\n1,-2,3.5,4\n", "negative"),
        (f"{HEAD}\n1,2,3.5,4\n", "no user has 20 ratings"),
        ("\u00fc\n", "ascii"),
    ],
)
def test_malformed(tmp_path, text, message):
    (tmp_path / "ratings.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"ratings\.csv is not as expected: .*{message}"):
        read_movielens(tmp_path)
