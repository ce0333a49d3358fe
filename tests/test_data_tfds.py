"""`RankingData.from_tfds` on small archives that the builders of TensorFlow Datasets prepare."""

import importlib
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfrankloss.data import RankingData

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("importlib_resources")  # which tensorflow_datasets uses but does not require

# By data set: the number of features, the archive, and the files of train, vali and test in it.
LAYOUTS = {
    "mslr_web/30k_fold2": (136, "content.zip", ["Fold2/train", "Fold2/vali", "Fold2/test"]),
    "istella/main": (220, "istella-letor.tar.gz", ["full/train", "", "full/test"]),
    "istella/s": (220, "istella-s-letor.tar.gz", ["sample/train", "sample/vali", "sample/test"]),
    "istella/x": (220, "istella-X.tar.gz", ["train", "vali", "test"]),
    "yahoo_ltrc/set1": (699, "ltrc_yahoo.tar.bz2", ["set1.train", "set1.valid", "set1.test"]),
}


@pytest.fixture(autouse=True, scope="module")
def offline() -> Iterator[None]:
    """Old versions look for prepared data in a bucket first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorflow_datasets.core.utils.gcs_utils._is_gcs_disabled", True)
        yield


def make_split(width: int, seed: int) -> RankingData:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, 12)
    documents = lengths.sum()
    scale = 10.0 ** generator.integers(-6, 7, width)
    features = generator.normal(scale=scale, size=(documents, width))
    features[generator.random(features.shape) < 0.5] = 0  # which sparse files leave out
    queries = generator.permutation(1000)[:12]
    labels = generator.integers(0, 5, documents)
    return RankingData.from_arrays(features, labels, np.repeat(queries, lengths))


def write_archive(name: str, folder: Path) -> tuple[Path, dict[str, RankingData]]:
    """The archive of a data set as its owners give it out, and what is in its splits."""
    width, archive, members = LAYOUTS[name]
    folder.mkdir(parents=True)
    splits, files = {}, {}
    for seed, (split, member) in enumerate(zip(("train", "vali", "test"), members)):
        if member:
            splits[split] = make_split(width, seed)
            files[f"{member}.txt"] = folder.parent / f"{split}.txt"
            splits[split].to_letor(files[f"{member}.txt"], sparse=not name.startswith("mslr_web"))
    path = folder / archive
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for member, file in files.items():
                zipped.write(file, member)
    else:
        with tarfile.open(path, "w:bz2" if path.suffix == ".bz2" else "w:gz") as packed:
            for member, file in files.items():
                packed.add(file, member)
    return path, splits


def offer(archive: Path, patch: pytest.MonkeyPatch) -> None:
    """Lets TensorFlow Datasets take this archive in place of the one that it would download."""

    def download_and_extract(manager: Any, url: str) -> Any:
        return manager.extract(archive)

    patch.setattr(tfds.download.DownloadManager, "download_and_extract", download_and_extract)


@pytest.mark.parametrize("name", LAYOUTS)
def test_gives_what_is_in_the_archive(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual = name.startswith("yahoo_ltrc")
    archive, splits = write_archive(name, tmp_path / ("downloads/manual" if manual else "archive"))
    if not manual:
        offer(archive, monkeypatch)
    for split, expected in splits.items():
        data = RankingData.from_tfds(name, split, tmp_path)
        assert data.features.dtype == data.labels.dtype == np.float32
        assert data.features.tobytes() == expected.features.tobytes()
        np.testing.assert_array_equal(data.labels, expected.labels)
        np.testing.assert_array_equal(data.row_splits, expected.row_splits)
        np.testing.assert_array_equal(data.query_ids, expected.query_ids)
        assert data.query_ids.dtype == np.int64
        assert data.document_ids is not None
        lines = [str(line + 1) for line in range(data.num_documents)]
        assert data.document_ids.tolist() == lines


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of TensorFlow Datasets with `istella/main`."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        offer(write_archive("istella/main", folder / "archive")[0], patch)
        RankingData.from_tfds("istella/main", "train", folder)
    return folder


def test_prepared_data_are_not_prepared_again(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tfds.download.DownloadManager, "download_and_extract")
    assert len(RankingData.from_tfds("istella", "test", prepared)) == 12


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("letor4", "train", "one of mslr_web, istella, yahoo_ltrc. Received: name='letor4'"),
        ("istella/y", "train", "variants main, s, x. Received: name='istella/y'"),
        ("istella/main:0.1.0", "train", "only: .* Received: name='istella/main:0.1.0'"),
        ("istella/main", "valid", "one of train, vali, test. Received: split='valid'"),
        ("istella/main", "vali", "istella/main has the splits .*test.* Received: split='vali'"),
    ],
)
def test_says_which_names_there_are(name: str, split: str, message: str, prepared: Path) -> None:
    with pytest.raises(ValueError, match=message):
        RankingData.from_tfds(name, split, prepared)


@pytest.mark.parametrize("damage", ["no description", "no file", "half a file", "a wrong byte"])
def test_says_what_to_do_with_damaged_files(damage: str, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared / "istella", tmp_path / "istella")
    (folder,) = (tmp_path / "istella" / "main").iterdir()
    (file,) = folder.glob("*train.tfrecord*")
    content = bytearray(file.read_bytes())
    if damage == "no description":
        (folder / "dataset_info.json").unlink()
    elif damage == "no file":
        file.unlink()
    elif damage == "half a file":
        file.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(RuntimeError, match=f"{folder} cannot be read. Delete this folder"):
        RankingData.from_tfds("istella/main", "train", tmp_path)


def test_says_that_a_prepared_version_is_too_old(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared / "istella", tmp_path / "istella")
    (folder,) = (tmp_path / "istella" / "main").iterdir()
    folder = folder.rename(folder.parent / "1.1.0")
    description = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps({**description, "version": "1.1.0"}))
    features = json.loads((folder / "features.json").read_text())
    for name in ("query_id", "doc_id"):
        del features["featuresDict"]["features"][name]
    (folder / "features.json").write_text(json.dumps(features))
    with pytest.raises(ValueError, match=r"1\.1\.0 of istella is too old.*'doc_id', 'query_id'"):
        RankingData.from_tfds("istella/main:1.1.0", "train", tmp_path)


def test_says_what_to_do_if_the_download_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "missing.zip", monkeypatch)
    with pytest.raises(RuntimeError, match="could not prepare mslr_web. load_letor reads"):
        RankingData.from_tfds("mslr_web", "train", tmp_path)


@pytest.mark.parametrize("other_file", [False, True])
def test_says_where_a_manual_download_goes(other_file: bool, tmp_path: Path) -> None:
    folder = tmp_path / "downloads" / "manual"
    if other_file:
        folder.mkdir(parents=True)
        (folder / "dataset.tgz").touch()
    with pytest.raises(RuntimeError, match=f"ltrc_yahoo.tar.bz2.*manual_dir is {folder}"):
        RankingData.from_tfds("yahoo_ltrc", "train", tmp_path)


@pytest.mark.parametrize("missing", ["tensorflow_datasets", "importlib_resources"])
def test_is_imported_without_tensorflow_datasets(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    importlib.reload(importlib.import_module("tfrankloss.data.tfds"))
    with pytest.raises(ImportError, match=rf'{missing} is needed.*"tfrankloss\[tfds\]"'):
        RankingData.from_tfds("mslr_web", "train")
