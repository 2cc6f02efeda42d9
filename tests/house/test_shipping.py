"""The files by which the package is shipped: Dockerfile, workflows, CITATION.cff."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions, each with the rest of the line."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    kept = [line.strip() for line in lines if line.strip() and line[0] != "#"]
    return [(word, " ".join(rest.split())) for word, _, rest in map(split, kept)]


def split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def arguments(instruction: str) -> Iterator[str]:
    return (rest for word, rest in dockerfile() if word == instruction)


def is_sent(path: str) -> bool:
    """Whether .dockerignore sends a path to the build: by the last rule that fits."""
    sent = True
    for rule in (ROOT / ".dockerignore").read_text().split():
        pattern = rule.removeprefix("!")
        parents = [path, *map(str, Path(path).parents)]
        anywhere = pattern.removeprefix("**/")
        if any(fnmatch(each, pattern) or fnmatch(each, anywhere) for each in parents):
            sent = rule.startswith("!")
    return sent


def test_the_image_gets_what_the_wheel_is_built_from() -> None:
    copied = {}
    for words in map(shlex.split, arguments("COPY")):
        *sources, target = words
        for source in sources:
            assert (ROOT / source).exists(), source
            assert is_sent(source), f".dockerignore leaves out {source}"
            copied[source] = target
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    packages = wheel["build"]["targets"]["wheel"]["packages"]
    needed = {
        *("pyproject.toml", PROJECT["readme"]),
        *(*PROJECT["license-files"], *packages),
    }
    assert set(copied) == needed
    # A folder is copied as its contents, so its target repeats the name.
    assert all(copied[name] == f"/src/{name}" for name in packages)
    assert is_sent("t2t/builtin/cifar10.t2t_vit_7.safetensors")
    assert not is_sent("tests")
    assert not is_sent(".git")
    assert not is_sent("t2t/__pycache__")


def test_the_image_installs_extras_that_exist() -> None:
    (install,) = re.findall(
        r'pip install \S+ "/src\[(.+?)\]"', " ".join(arguments("RUN"))
    )
    assert {*install.split(",")} <= {*PROJECT["optional-dependencies"]}


def test_the_image_runs_the_command_as_any_user_on_an_allowed_python() -> None:
    (entrypoint,) = map(json.loads, arguments("ENTRYPOINT"))
    assert entrypoint == [*PROJECT["scripts"]]
    (command,) = map(json.loads, arguments("CMD"))
    assert command == ["--help"]
    (base,) = arguments("FROM")
    version = base.partition(":")[2].partition("-")[0]
    needed = Requirement(f"python{PROJECT['requires-python']}").specifier
    assert version in needed
    settings = dict(
        each.split("=", 1) for line in arguments("ENV") for each in shlex.split(line)
    )
    # --user may name somebody who has no home in the image.
    assert all(path == "/tmp" or path.startswith("/tmp/") for path in settings.values())
    assert {"HOME", "T2T_CACHE", "MPLCONFIGDIR"} <= {*settings}


def test_the_image_has_a_compiler_of_cpp() -> None:
    """For `--compile on`; g++ brings gcc, which Triton needs, and the C headers."""
    assert re.search(r"apt-get install [^&]*\bg\+\+ ", " ".join(arguments("RUN")))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_existing_targets_and_pythons(path: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text())
    assert {"name", "permissions", "jobs"} <= {*workflow}
    assert True in workflow, "`on` is read as true by YAML 1.1"
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name, job in workflow["jobs"].items():
        if "uses" in job:  # all of another workflow
            assert (
                "workflow_call"
                in yaml.safe_load((ROOT / job["uses"]).read_text())[True]
            )
            continue
        assert job["runs-on"] == "ubuntu-latest"
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= {*workflow["jobs"]}
        assert all(("uses" in step) != ("run" in step) for step in job["steps"]), name
        for step in job["steps"]:
            assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@\S+", step.get("uses", "a/b@c"))
            for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
                assert target in targets
            for script in re.findall(r"\$GITHUB_WORKSPACE/(\S+?\.py)", str(step)):
                assert (ROOT / script).is_file()


def test_there_are_workflows_to_test_release_and_publish() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "test"]


def test_a_release_needs_all_tests() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    called = [name for name, job in jobs.items() if "test.yml" in job.get("uses", "")]
    assert [jobs["publish"]["needs"]] == ["build"]
    assert [jobs["build"]["needs"]] == called


def test_the_release_checks_that_the_tag_is_the_version() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    versions = re.findall(r'^version = "(.*)"$', text, re.MULTILINE)
    assert versions == [PROJECT["version"]]


def test_the_citation_agrees_with_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    required = {"cff-version", "message", "title", "authors"}
    assert required <= {*citation}
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["type"] == "software"
    for entry in (citation, *citation["references"]):
        assert all(
            {"name"} == {*each} or "family-names" in each for each in entry["authors"]
        )
    (paper,) = citation["references"]
    assert (paper["year"], len(paper["authors"])) == (2021, 9)
    assert paper["url"].endswith("2101.11986")
