"""The wheel and the source distribution, as they would be published."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import t2t

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


def build(folder: Path, *options: str) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "build", "--no-isolation"),
            *("--outdir", folder, *options, ROOT),
        ],
        check=True,
        capture_output=True,
        env=without_checkout(),
    )


def without_checkout() -> dict[str, str]:
    """The environment, without the path by which this checkout may be imported."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_package(dist: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "t2t"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    found = contents(wheel_in(dist))
    assert {*tracked} - {*found} == set()
    others = [name for name in found if not name.startswith(("t2t/", "t2t_vit-"))]
    assert others == []
    assert "t2t/py.typed" in found
    assert "t2t/builtin/cifar10.t2t_vit_7.safetensors" in found
    for page in (ROOT / "t2t/serving").glob("page/*"):
        assert f"t2t/serving/page/{page.name}" in found


def test_the_source_distribution_builds_the_same_wheel(
    dist: Path, tmp_path: Path
) -> None:
    build(tmp_path, "--wheel")
    assert contents(wheel_in(tmp_path)) == contents(wheel_in(dist))


def test_the_source_distribution_has_what_it_should(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        paths = [Path(name).parts[1:] for name in archive.getnames()]
    assert {path[0] for path in paths if path} == {
        *("t2t", "tests", "docs", "pyproject.toml", "PKG-INFO", ".gitignore"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff"),
    }


def test_the_installed_wheel_works_in_a_new_environment(
    dist: Path, tmp_path: Path
) -> None:
    """With the libraries of this environment; `make wheel-test` installs them too."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--no-deps", "--no-index", wheel_in(dist)],
        check=True,
        capture_output=True,
    )
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    libraries = Path(torch.__file__).parents[1]
    (site / "libraries.pth").write_text(f"{libraries}\n")
    done = subprocess.run(
        [python, SMOKE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=without_checkout(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"t2t {t2t.__version__} in {site / 't2t'} works." in done.stdout


def test_the_requirements_are_in_the_wheel(dist: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = contents(wheel_in(dist))
    (metadata,) = (each for name, each in found.items() if name.endswith("/METADATA"))
    for requirement in project["dependencies"]:
        assert f"Requires-Dist: {requirement}\n" in metadata.decode()
