"""The names that `t2t` exports, and what importing it costs."""

import subprocess
import sys

import t2t


def test_importing_t2t_does_not_import_torch() -> None:
    program = "import sys, t2t; print({'torch', 'timm', 'numpy'} & {*sys.modules})"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "set()\n"


def test_every_public_name_exists() -> None:
    assert set(t2t.__all__) == {*t2t.LAZY, "UserError", "list_models"}
    for name in t2t.__all__:
        assert getattr(t2t, name) is getattr(t2t, name)
        assert name in dir(t2t)
