"""The LETOR reader against a slow reference, damaged files, and its cache."""

import bz2
import gzip
import lzma
import multiprocessing
import os
import random
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import letor_reference
from tfrankloss.data import LetorFormatError, RankingData, load_letor, parsing, reader, sources
from tfrankloss.data.letor import to_float32

SHARED = Path(__file__).parents[2] / "shared" / "data"
SMALL = "2 qid:7 1:0.5 3:1e-3 # docid = a\n0 qid:7 2:4 # docid = b\n1 qid:9 1:1 2:2 3:3 #docid=c\n"


@pytest.fixture(params=["plain", "compiled"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both readers of a line."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(parsing, "COMPILED_FROM", 0 if request.param == "compiled" else 1 << 60)
    return request.param


def same(data: RankingData, expected: dict[str, Any]) -> bool:
    """Whether the arrays are the same bits."""
    ids = [str(query) for query in data.query_ids.tolist()]
    documents = None if data.document_ids is None else data.document_ids.tolist()
    return (
        data.features.shape == expected["features"].shape
        and np.array_equal(data.features.view(np.int32), expected["features"].view(np.int32))
        and np.array_equal(data.labels.view(np.int32), expected["labels"].view(np.int32))
        and data.row_splits.tolist() == expected["row_splits"].tolist()
        and ids == expected["query_ids"]
        and documents == expected["document_ids"]
    )


def check_against_reference(path: Path, text: bytes, **options: Any) -> bool:
    """The same arrays, or an error at the same line; returns whether the file was good."""
    path.write_bytes(text)
    expected: dict[str, Any] | int
    try:
        expected = letor_reference.read(
            text, options.get("num_features"), options.get("allow_nonfinite", False)
        )
    except letor_reference.LineError as bad:
        expected = bad.line
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = load_letor(path, cache=False, **options)
    except LetorFormatError as error:
        assert error.line == expected, (text, error, expected)
        return False
    assert isinstance(expected, dict) and same(data, expected), (text, expected, data.features)
    return True


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_files(count: int, kernel: str, tmp_path: Path) -> None:
    """Twenty thousand in all: never a crash, never another array than the reference reads."""
    generator = random.Random(count + (kernel == "plain"))
    memory = Path("/dev/shm")
    path = Path(memory if memory.is_dir() else tmp_path, f"mutated-{os.getpid()}.txt")
    good = 0
    for number in range(count):
        text = letor_reference.mutate(letor_reference.valid_file(generator), generator)
        options: dict[str, Any] = {"allow_nonfinite": True} if number % 3 == 0 else {}
        if number % 5 == 0:
            options["num_features"] = generator.randint(1, 8)
        good += check_against_reference(path, text, **options)
    path.unlink()
    assert 0.1 * count < good < 0.9 * count


def test_valid_files_in_small_blocks(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks and chunks may end anywhere; columns are found out on the way."""
    generator = random.Random(2)
    monkeypatch.setattr(parsing, "CHUNK", 20)
    for _ in range(300):
        monkeypatch.setattr(parsing, "BLOCK", generator.randint(1, 200))
        text = letor_reference.valid_file(generator)
        assert check_against_reference(tmp_path / "file.txt", text)
        expected = letor_reference.read(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(load_letor(tmp_path / "file.txt"), expected)
            assert same(load_letor(tmp_path / "file.txt"), expected)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.floats(-1e30, 1e30))
)
def test_numbers_are_rounded_once(number: float) -> None:
    middle = (
        np.float32(number).astype(float) + np.nextafter(np.float32(number), np.float32(9e9))
    ) / 2
    for text in (repr(number), f"{number:.25e}", f"{middle:.60f}", f"{middle:.60f}1"):
        assert to_float32(text.encode()) == letor_reference.nearest_float32(text)


def test_numbers_of_all_kinds(kernel: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 8_000, np.uint32).view(np.float32)
    numbers = bits[np.isfinite(bits)]
    texts = [repr(x) for x in numbers.tolist()] + [f"{x:.9g}" for x in numbers.tolist()]
    texts += [f"{x:.6f}" for x in generator.normal(size=8_000).tolist()]
    texts += [repr(x) for x in generator.normal(size=8_000).tolist()]
    texts += [str(x) for x in generator.integers(0, 1 << 40, 5_000).tolist()]
    lines = [f"0 qid:1 1:{text}\n" for text in texts]
    (tmp_path / "numbers.txt").write_text("".join(lines))
    data = load_letor(tmp_path / "numbers.txt", cache=False)
    expected = np.array([letor_reference.nearest_float32(x) for x in texts], np.float32)
    np.testing.assert_array_equal(data.features[:, 0].view(np.int32), expected.view(np.int32))


def random_data(generator: np.random.Generator, sparse: bool = False) -> RankingData:
    lengths = generator.integers(1, 9, 40)
    count = lengths.sum()
    features = generator.integers(0, 2**32, (count, 7), np.uint32).view(np.float32)
    features = np.where(np.isfinite(features), features, 0).astype(np.float32)
    if sparse:
        features[generator.random(features.shape) < 0.7] = 0.0
    return RankingData.from_arrays(
        features,
        generator.choice([0, 1, 2, 0.25], count),
        np.repeat([f"q{number}" for number in range(40)], lengths),
        [f"doc-{number}" for number in range(count)],
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_round_trip(kernel: str, tmp_path: Path, sparse: bool, suffix: str) -> None:
    data = random_data(np.random.default_rng(5), sparse)
    path = tmp_path / f"data.txt{suffix}"
    data.to_letor(path, sparse=sparse)
    for cache in (False, True, True):
        again = load_letor(path, cache=cache)
        np.testing.assert_array_equal(again.features.view(np.int32), data.features.view(np.int32))
        for name in ("labels", "row_splits", "query_ids", "document_ids"):
            np.testing.assert_array_equal(getattr(again, name), getattr(data, name))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the data are not here")
@pytest.mark.parametrize("name", ["MQ2008/S1.txt", "MSLR_WEB10K_5k/msn1.fold1.test.5k.txt"])
def test_equals_scikit_learn(kernel: str, name: str) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    features, labels, queries = datasets.load_svmlight_file(str(SHARED / name), query_id=True)
    data = load_letor(SHARED / name, cache=False)
    np.testing.assert_array_equal(data.features, features.toarray().astype(np.float32))
    np.testing.assert_array_equal(data.labels, labels)
    np.testing.assert_array_equal(data.query_of_documents, queries)


def test_formats(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text(SMALL)
    expected = load_letor(path, cache=False)
    assert expected.features.tolist() == [
        [0.5, 0.0, np.float32(1e-3)],
        [0.0, 4.0, 0.0],
        [1.0, 2.0, 3.0],
    ]
    assert expected.query_ids.tolist() == [7, 9]
    assert expected.document_ids is not None
    assert expected.document_ids.tolist() == ["a", "b", "c"]
    text = SMALL.encode()
    variants = {
        "crlf.txt": text.replace(b"\n", b"\r\n"),
        "spaces.txt": b"\n  \n# head\n" + text.replace(b"\n", b" \t\n"),
        "end.txt": text[:-1],
        "mark.txt": b"\xef\xbb\xbf" + text,
        "a.gz": gzip.compress(text),
        "a.bz2": bz2.compress(text),
        "a.xz": lzma.compress(text),
    }
    for name, content in variants.items():
        (tmp_path / name).write_bytes(content)
        data = load_letor(tmp_path / name)
        np.testing.assert_array_equal(data.features, expected.features)
        np.testing.assert_array_equal(data.row_splits, expected.row_splits)
    both = load_letor([path, tmp_path / "a.gz"], cache=False)
    assert both.num_documents == 6
    assert len(both) == 2  # the same queries in two files


def test_missing_value_and_number_of_features(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("1 qid:1 1:5\n0 qid:1 2:6\n")
    data = load_letor(path, num_features=3, missing_value=-1.0)
    assert data.features.tolist() == [[5, -1, -1], [-1, 6, -1]]
    path.write_text("1 qid:1 1:5\n0 qid:1 0:6\n")
    assert load_letor(path, missing_value=-1).features.tolist() == [[-1, 5], [6, -1]]
    assert load_letor(path, num_features=2).features.tolist() == [[0, 5], [6, 0]]


def test_lists_without_query_ids(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "rank.train"
    path.write_text("1 1:5\n0 1:6\n\n2 1:7\n")
    with pytest.raises(LetorFormatError, match="rank.train.query"):
        load_letor(path)
    (tmp_path / "rank.train.query").write_text("1\n2\n")
    assert load_letor(path).row_splits.tolist() == [0, 1, 3]
    (tmp_path / "rank.train.query").write_text("2\n1\n")  # the cache must see that
    assert load_letor(path).row_splits.tolist() == [0, 2, 3]
    (tmp_path / "rank.train.query").write_text("2\n2\n")
    with pytest.raises(LetorFormatError, match="add up to 4 documents.*3 documents"):
        load_letor(path)
    (tmp_path / "rank.train.query").write_text("2\nx\n")
    with pytest.raises(LetorFormatError, match=r"rank.train.query, line 2.*'x'"):
        load_letor(path)
    path.write_text("1 1:5\n0 1:x\n2 1:7\n3 1:8\n")
    (tmp_path / "rank.train.query").write_text("1\n1\n2\n")
    with pytest.warns(UserWarning, match="1 lines"):
        data = load_letor(path, on_error="skip")
    assert data.row_splits.tolist() == [0, 1, 3]
    assert data.labels.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "column", "token", "expected"),
    [
        ("x qid:1 1:2", 1, "x", "label"),
        ("-1 qid:1 1:2", 1, "-1", "at least 0"),
        ("nan qid:1 1:2", 1, "nan", "finite"),
        ("1 qid: 1:2", 3, "qid:", "query id"),
        ("1 1:2 qid:1", 7, "qid:1", "behind the label"),
        ("1 qid:1 1:2 1:3", 13, "1:3", "twice"),
        ("1 qid:1 1:2,5", 11, "1:2,5", "number"),
        ("1 qid:1 1:inf", 11, "1:inf", "allow_nonfinite"),
        ("1 qid:1 1:1e60", 11, "1:1e60", "float32"),
        ("1 qid:1 a:1", 9, "a:1", "feature"),
        ("1 qid:1 1", 9, "1", "feature"),
        ("1 qid:1 4:1", 9, "4:1", "num_features=3"),
    ],
)
def test_bad_lines(
    kernel: str, tmp_path: Path, line: str, column: int, token: str, expected: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(f"{SMALL}\n{line}\n{SMALL}")
    with pytest.raises(LetorFormatError) as raised:
        load_letor(path, num_features=3)
    error = raised.value
    assert (error.line, error.column, error.token) == (5, column, token)
    assert str(path) in str(error)
    assert expected in str(error)
    with pytest.warns(UserWarning, match="1 lines of .* were skipped.*line 5"):
        data = load_letor(path, num_features=3, on_error="skip")
    assert data.num_documents == 6
    with pytest.warns(UserWarning, match="skipped"):  # the cache remembers
        load_letor(path, num_features=3, on_error="skip")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zip"])
def test_damaged_archives(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.txt{suffix}"
    text = SMALL.encode() * 1000
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data.txt", text)
    else:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
        path.write_bytes(compress(text))  # type: ignore[operator]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load_letor(path, cache=False).num_documents == 3000
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LetorFormatError, match="truncated or damaged"):
        load_letor(path)
    path.write_bytes(b"no archive at all")
    with pytest.raises(LetorFormatError, match="truncated or damaged"):
        load_letor(path)


def test_other_errors(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("\n# nothing\n")
    with pytest.raises(LetorFormatError, match="no documents"):
        load_letor(path)
    path.write_text("1 qid:1 1:1\n1 1:2\n")
    with pytest.raises(LetorFormatError, match="line 2.*either all lines have qid: or none"):
        load_letor(path)
    path.write_text("1 qid:1 0:1 3:2\n")
    with pytest.raises(LetorFormatError, match="0 to 2 or 1 to 3"):
        load_letor(path, num_features=3)
    path.write_text("1 qid:1 123456789:1\n")
    with pytest.raises(LetorFormatError, match="above 100000 needs num_features"):
        load_letor(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        load_letor(tmp_path / "absent.txt")
    with pytest.raises(FileNotFoundError, match="train.txt, vali.txt or test.txt"):
        load_letor(tmp_path)
    with pytest.raises(ValueError, match="on_error"):
        load_letor(path, on_error="ignore")
    with pytest.raises(ValueError, match="num_features"):
        load_letor(path, num_features=0)
    with pytest.raises(ValueError, match="missing_value"):
        load_letor(path, missing_value="0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cache"):
        load_letor(path, cache=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="first_index"):
        load_letor(path, first_index=2)


def test_scattered_queries_are_regrouped(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("1 qid:b 1:1\n2 qid:a 1:2\n3 qid:b 1:3\n")
    for cache in (False, True, True):
        with pytest.warns(UserWarning, match="regrouped"):
            data = load_letor(path, cache=cache)
        assert data.query_ids.tolist() == ["b", "a"]
        assert data.labels.tolist() == [1, 3, 2]
        assert data.features[:, 0].tolist() == [1, 3, 2]


def test_folders_and_archives(tmp_path: Path) -> None:
    folder = tmp_path / "Fold1"
    folder.mkdir()
    contents = {"train": "1 qid:1 1:1 2:2\n", "vali": "0 qid:2 1:1\n", "test": "2 qid:3 3:1\n"}
    for name, text in contents.items():
        (folder / f"{name}.txt").write_text(text)
    parts = load_letor(folder)
    assert list(parts) == ["train", "vali", "test"]
    assert {part.num_features for part in parts.values()} == {3}
    with zipfile.ZipFile(tmp_path / "web.zip", "w") as archive:
        for fold in ("Fold1", "Fold2"):
            for name, text in contents.items():
                archive.writestr(f"{fold}/{name}.txt", text)
    zipped = load_letor(tmp_path / "web.zip" / "Fold2")
    np.testing.assert_array_equal(zipped["test"].features, parts["test"].features)
    one = load_letor(tmp_path / "web.zip" / "Fold1" / "vali.txt")
    assert one.num_features == 1
    with pytest.raises(FileNotFoundError, match="Fold1"):
        load_letor(tmp_path / "web.zip")
    (folder / "set2.train.txt").write_text(contents["train"])
    with pytest.raises(ValueError, match="two files for 'train'"):
        load_letor(folder)


def caches(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.cache"))


def test_cache_follows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.txt"
    path.write_text("1 qid:1 1:1\n")
    old = time.time() - 3600
    os.utime(path, (old, old))
    assert load_letor(path).features.tolist() == [[1.0]]
    with monkeypatch.context() as patched:  # nothing is parsed a second time
        patched.setattr(reader, "parse_source", None)
        assert load_letor(path).features.tolist() == [[1.0]]
        os.utime(path)  # another time, the same text
        assert load_letor(path).features.tolist() == [[1.0]]
    path.write_text("1 qid:1 1:2\n")  # the same size
    assert load_letor(path).features.tolist() == [[2.0]]
    path.write_text("1 qid:1 1:3\n")  # within the same moment
    assert load_letor(path).features.tolist() == [[3.0]]
    assert len(caches(tmp_path)) == 1
    load_letor(path, missing_value=2.0)
    assert len(caches(tmp_path)) == 2
    folder = tmp_path / "elsewhere"
    load_letor(path, cache=folder)
    assert len(caches(folder)) == 1


def test_damaged_cache_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    random_data(np.random.default_rng(0)).to_letor(path)
    expected = load_letor(path, cache=False)
    load_letor(path)
    (cache,) = caches(tmp_path)
    whole = cache.read_bytes()
    generator = random.Random(0)
    for number in range(60):
        damaged = bytearray(whole)
        if number % 3 == 0:
            damaged = damaged[: generator.randrange(len(whole))]
        else:
            place = generator.randrange(len(whole))
            damaged[place] ^= 1 << generator.randrange(8)
        cache.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = load_letor(path)
        np.testing.assert_array_equal(
            data.features.view(np.int32), expected.features.view(np.int32)
        )
        np.testing.assert_array_equal(data.query_ids, expected.query_ids)


def test_no_place_for_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text(SMALL)
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="No cache is written"):
        assert load_letor(path, cache=tmp_path / "file").num_documents == 3


def _load_and_compare(path: str, started: Any, slow: bool) -> None:
    if slow:  # so that a kill falls into the writing
        append = reader.storage.Writer.append

        def slowly(writer: Any, features: np.ndarray) -> None:
            time.sleep(0.002)
            append(writer, features)

        reader.storage.Writer.append = slowly  # type: ignore[method-assign]
        parsing.BLOCK = 2000
    started.set()
    data = load_letor(path, progress=False)
    assert data.labels.sum() == 3000 * 2


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tfrankloss.data", "tests.test_letor"])
    yield context


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_while_the_cache_is_written(count: int, tmp_path: Path, processes: Any) -> None:
    """Fifty kills at random moments, two processes at once; the next load is right every time."""
    path = tmp_path / "data.txt"
    rows = [f"2 qid:{number // 10} 1:{number} 2:{number / 7:.6f}\n" for number in range(3000)]
    path.write_text("".join(rows))
    expected = load_letor(path, cache=False)
    generator = random.Random(0)
    written = 0
    for _ in range(count):
        events = [processes.Event() for _ in range(2)]
        workers = [
            processes.Process(target=_load_and_compare, args=(str(path), event, True))
            for event in events
        ]
        for worker in workers:
            worker.start()
        for event in events:
            assert event.wait(60)
        time.sleep(generator.uniform(0.0, 0.15))
        for worker in workers:
            worker.kill()  # unless it has ended
            worker.join()
        written += bool(caches(tmp_path))
        data = load_letor(path)
        for name in ("features", "labels", "row_splits", "query_ids"):
            np.testing.assert_array_equal(getattr(data, name), getattr(expected, name))
        for cache in caches(tmp_path):
            cache.unlink()
    assert written < count  # some were killed before the cache was complete
    leftovers = [x for x in tmp_path.iterdir() if x.name.endswith(".partial")]
    assert not leftovers


def test_a_cache_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose time is another is read through once more, and never again."""
    path = tmp_path / "data.txt"
    path.write_text(SMALL)
    load_letor(path)
    monkeypatch.setattr(sources, "TICK", -(10**18))  # as if it were long ago
    load_letor(path)
    os.utime(path)
    load_letor(path)  # reads the text, because the time is another
    monkeypatch.setattr(sources.Source, "blocks", None)
    assert load_letor(path).num_documents == 3


def test_a_cache_is_used_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.txt"
    path.write_text(SMALL)
    load_letor(path)

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(reader.storage, "locked", refuse)
    monkeypatch.setattr(reader, "writing", refuse)
    monkeypatch.setattr(reader, "parse_source", None)
    assert load_letor(path).num_documents == 3


def test_several_files_without_query_ids(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("1 1:1\n0 1:2\n")
        (tmp_path / f"{name}.query").write_text("2\n")
    data = load_letor([tmp_path / "a", tmp_path / "b"])
    assert data.row_splits.tolist() == [0, 2, 4]
    assert data.query_ids.tolist() == [0, 1]


def test_first_index(kernel: str, tmp_path: Path) -> None:
    """A file that counts from 0 may lack the feature 0."""
    (tmp_path / "train.txt").write_text("1 qid:1 0:1 2:3\n")
    (tmp_path / "test.txt").write_text("1 qid:1 1:5 2:3\n")
    for options in ({}, {"num_features": 3}):
        both = load_letor(tmp_path, **options)
        assert both["train"].features.tolist() == [[1, 0, 3]]
        assert both["test"].features.tolist() == [[0, 5, 3]]
        alone = load_letor(tmp_path / "test.txt", first_index=0, **options)
        assert alone.features.tolist() == [[0, 5, 3]]
    assert load_letor(tmp_path / "test.txt").features.tolist() == [[5, 3]]
    with pytest.raises(LetorFormatError, match="first_index=1.*'0:1'"):
        load_letor(tmp_path / "train.txt", first_index=1)
    with pytest.raises(LetorFormatError, match="beyond num_features=2"):
        load_letor(tmp_path / "train.txt", first_index=0, num_features=2)
    (tmp_path / "test.txt").write_text("1 qid:1 3:5\n")
    with pytest.raises(ValueError, match="index 3, which is beyond num_features=3"):
        load_letor(tmp_path, num_features=3)


def test_skipping_lines_without_query(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("1 qid:1 1:2\n0\n1 qid:1 1:3\n")
    with pytest.warns(UserWarning, match="1 lines.*line 2.*either all lines"):
        assert load_letor(path, on_error="skip").num_documents == 2


def test_writing(tmp_path: Path) -> None:
    data = RankingData.from_arrays([[1], [2]], [0, 1], [-1, 5], ["x", ""])
    data.to_letor(tmp_path / "data.txt.GZ")
    again = load_letor(tmp_path / "data.txt.GZ")
    assert again.query_ids.tolist() == [-1, 5]
    assert again.document_ids is not None and again.document_ids.tolist() == ["x", ""]
    with pytest.raises(ValueError, match=r"data.zip"):
        data.to_letor(tmp_path / "data.zip")
    with pytest.raises(ValueError, match="2 lists of 1 queries"):
        RankingData.concat([data[:1], data[:1]]).to_letor(tmp_path / "two.txt")
    spaced = RankingData.from_arrays([[1]], [0], ["a b"])
    with pytest.raises(ValueError, match="'a b'"):
        spaced.to_letor(tmp_path / "spaced.txt")
    assert not [x for x in tmp_path.iterdir() if "partial" in x.name]


def test_long_ids_are_refused(kernel: str, tmp_path: Path) -> None:
    """They would make all ids as long."""
    path = tmp_path / "data.txt"
    path.write_text(f"{SMALL}1 qid:{'x' * 300} 1:1\n")
    with pytest.raises(LetorFormatError, match="line 4.*at most 256 bytes"):
        load_letor(path)
    path.write_text(f"{SMALL}1 qid:9 1:1 # docid = {'x' * 300}\n")
    with pytest.raises(LetorFormatError, match="line 4, column 23.*at most 256 bytes"):
        load_letor(path)


def test_a_large_file_without_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.txt"
    path.write_text(SMALL)
    monkeypatch.setattr(parsing, "SLOW_FROM", 10)
    with pytest.warns(UserWarning, match=r"tfrankloss\[fast\]"):
        load_letor(path)


def test_two_processes_at_once(tmp_path: Path, processes: Any) -> None:
    path = tmp_path / "data.txt"
    path.write_text("".join(f"2 qid:{number // 10} 1:{number}\n" for number in range(3000)))
    event = processes.Event()
    workers = [
        processes.Process(target=_load_and_compare, args=(str(path), event, True)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert len(caches(tmp_path)) == 1
