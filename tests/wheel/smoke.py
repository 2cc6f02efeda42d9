"""Uses the installed package as a new user does, in an empty folder.

    python tests/wheel/smoke.py

It needs t2t installed, not this checkout, and takes a minute on a CPU.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import t2t

BIN = Path(sys.executable).parent


def run(*words: str, folder: str) -> str:
    """What a command of t2t prints; a failure ends the script."""
    done = subprocess.run(
        [str(BIN / "t2t"), *words], cwd=folder, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"t2t {' '.join(words)} exits with {done.returncode}\n{done.stderr}")
    return done.stdout


def main() -> None:
    package = Path(t2t.__file__).parent
    if (package.parent / "pyproject.toml").exists():
        sys.exit(f"{package} is a checkout; run this where the wheel is installed.")
    version = importlib.metadata.version("t2t-vit")
    assert version == t2t.__version__, version
    assert (package / "py.typed").is_file()
    with tempfile.TemporaryDirectory() as folder:
        assert run("--version", folder=folder) == f"t2t {version}\n"
        assert "train" in run("--help", folder=folder)
        assert "t2t_vit_14" in run("models", folder=folder)
        digits = ("train", "digits", "--epochs", "1", "--device", "cpu")
        assert "epoch 1/1" in run(*digits, folder=folder)
        assert "top-1" in run("eval", "runs/digits.t2t_vit", folder=folder)
        curves = "runs/digits.t2t_vit/curves.png"
        assert "probability" in run("predict", curves, folder=folder)
        assert "complete" in run("completion", "bash", folder=folder)
    model = t2t.load("builtin")
    assert sum(each.numel() for each in model.parameters()) == 3_977_728
    print(f"t2t {version} in {package} works.")


if __name__ == "__main__":
    main()
